"""The spend page in words: what was used when and by whom, and what an outcome costs."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from urllib.parse import quote

from console.display.bars import Amount, Bars, draw
from console.display.figures import percent, plural, write_count, write_usd
from console.display.limits import LimitLine, show_limits
from console.display.marks import RUN, Mark
from console.display.outside import show
from runs.queries.spend import AllowanceNow, Consumer, Outcome, Span, Spend, Used
from runs.states import RunState, Verified

ROWS = 200
_NOTHING = Decimal(0)
_SPANS = {Span.DAY: "24 h", Span.WEEK: "7 d", Span.MONTH: "30 d"}


@dataclass(frozen=True, kw_only=True)
class SpanLink:
    word: str
    query: str
    current: bool


@dataclass(frozen=True, kw_only=True)
class UsedLine:
    """What one agent used of one model. `spark`: a path over the span."""

    agent: str
    href: str
    model: str
    usd: str
    estimated: str
    tokens: str
    calls: str
    share: float
    spark: str


@dataclass(frozen=True, kw_only=True)
class UsedRow:
    """One line of the chart's table; the first of an hour or day says which."""

    when: str
    agent: str
    model: str
    usd: str
    estimated: str
    tokens: str
    calls: str


@dataclass(frozen=True, kw_only=True)
class ConsumerLine:
    run: int
    agent: str
    title: str
    mark: Mark
    usd: str
    share: float
    note: str


@dataclass(frozen=True, kw_only=True)
class OutcomeCell:
    runs: str
    each: str


@dataclass(frozen=True, kw_only=True)
class OutcomeLine:
    """`one`: everything that these runs cost, over those that succeeded."""

    agent: str
    href: str
    ended: str
    cells: list[OutcomeCell]
    one: str
    usd: str


@dataclass(frozen=True, kw_only=True)
class SpendView:
    now: datetime
    span: str
    agent: str
    spans: list[SpanLink]
    total: str
    estimated: str
    says: str
    limits: list[LimitLine]
    wide: Bars
    narrow: Bars
    label: str
    used: list[UsedLine]
    rows: list[UsedRow]
    more_rows: int
    consumers: list[ConsumerLine]
    outcomes: list[OutcomeLine]
    outcome_words: list[Mark]


def show_spend(spend: Spend, span: Span, *, agent: str, may_edit: bool) -> SpendView:
    """may_edit: allowances lead to where they are changed."""
    total, estimated = _sum(spend.used, "usd"), _sum(spend.used, "estimated")
    amounts = _by_time(spend, span)
    limit = _limit_of_a_day(spend.allowances, agent) if span is not Span.DAY else None
    ordered = sorted(spend.used, key=lambda used: (used.since, -used.usd, used.agent, used.model))
    return SpendView(
        now=spend.now,
        span=span.value,
        agent=agent,
        spans=[
            SpanLink(
                word=word, query=f"?span={each}" + (f"&agent={quote(agent)}" if agent else ""), current=each == span
            )
            for each, word in _SPANS.items()
        ],
        total=write_usd(total),
        estimated=write_usd(estimated) if estimated else "",
        says=_say_pace(amounts, span, total),
        limits=show_limits(spend, may_edit=may_edit),
        wide=draw(_spread_words(amounts, 8), width=960, height=232, limit=limit),
        narrow=draw(_spread_words(amounts, 3), width=326, height=140, limit=limit),
        label=f"{write_usd(total)} in {_SPANS[span]}: "
        + ", ".join(f"{amount.word} {write_usd(amount.usd)}" for amount in amounts if amount.usd),
        used=_show_used(spend, total),
        rows=_show_rows(ordered[-ROWS:], span),
        more_rows=max(len(ordered) - ROWS, 0),
        consumers=[_show_consumer(each, spend.consumers[0].usd) for each in spend.consumers],
        outcomes=_show_outcomes(spend.outcomes),
        outcome_words=[mark for mark, _ in _OUTCOMES],
    )


def _sum(used: Sequence[Used], name: str) -> Decimal:
    return sum((getattr(each, name) for each in used), _NOTHING)


def _by_time(spend: Spend, span: Span) -> list[Amount]:
    usd: dict[datetime, Decimal] = defaultdict(Decimal)
    estimated: dict[datetime, Decimal] = defaultdict(Decimal)
    for used in spend.used:
        usd[used.since] += used.usd
        estimated[used.since] += used.estimated
    return [
        # A correction of an earlier day may leave less than nothing of a day: there is no bar for that.
        Amount(
            word=_name(start, span),
            usd=max(usd[start], _NOTHING),
            estimated=min(max(estimated[start], _NOTHING), max(usd[start], _NOTHING)),
        )
        for start in spend.starts
    ]


def _name(start: datetime, span: Span) -> str:
    return f"{start:%H:%M}" if span is Span.DAY else f"{start:%a} {start.day} {start:%b}"


def _spread_words(amounts: list[Amount], most: int) -> list[Amount]:
    """Words under so many bars at most, the last one among them."""
    every = -(-len(amounts) // most)
    return [
        amount if (len(amounts) - 1 - at) % every == 0 else Amount(word="", usd=amount.usd, estimated=amount.estimated)
        for at, amount in enumerate(amounts)
    ]


def _say_pace(amounts: list[Amount], span: Span, total: Decimal) -> str:
    if not total:
        return "Nothing was spent."
    most = max(amounts, key=lambda amount: amount.usd)
    unit = "an hour" if span is Span.DAY else "a day"
    return f"{write_usd(total / len(amounts))} {unit} on average; most {_at(most.word, span)}, {write_usd(most.usd)}."


def _at(word: str, span: Span) -> str:
    return f"from {word} on" if span is Span.DAY else f"on {word}"


def _limit_of_a_day(allowances: Sequence[AllowanceNow], agent: str) -> Decimal | None:
    scope = f"agent:{agent}" if agent else "all"
    days = (each.hard for each in allowances if (each.scope, each.dimension, each.period) == (scope, "usd", "day"))
    return next(days, None)


def _show_used(spend: Spend, total: Decimal) -> list[UsedLine]:
    """By agent and model, what cost most on top."""
    grouped: dict[tuple[str, str], list[Used]] = defaultdict(list)
    for used in spend.used:
        grouped[used.agent, used.model].append(used)
    lines = sorted(grouped.items(), key=lambda pair: (-_sum(pair[1], "usd"), pair[0]))
    return [
        UsedLine(
            agent=show(agent),
            href=f"?agent={quote(agent)}",
            model=show(model) or "–",
            usd=write_usd(usd := _sum(parts, "usd")),
            estimated=write_usd(estimated) if (estimated := _sum(parts, "estimated")) else "",
            tokens=write_count(sum(part.tokens for part in parts)),
            calls=write_count(sum(part.calls for part in parts)),
            share=percent(usd, total),
            spark=_draw_spark({part.since: part.usd for part in parts}, spend.starts),
        )
        for (agent, model), parts in lines
    ]


def _draw_spark(usd: dict[datetime, Decimal], starts: Sequence[datetime]) -> str:
    """A path of 72 by 20: nothing at the bottom, the most at the top."""
    values = [float(max(usd.get(start, _NOTHING), _NOTHING)) for start in starts]
    top, step = max(values) or 1.0, 72 / max(len(values) - 1, 1)
    return "M" + "L".join(f"{at * step:.1f} {19 - 18 * value / top:.1f}" for at, value in enumerate(values))


def _show_rows(ordered: Sequence[Used], span: Span) -> list[UsedRow]:
    """The newest hour or day first."""
    rows, before = [], None
    for used in sorted(ordered, key=lambda used: (-used.since.timestamp(), -used.usd)):
        rows.append(
            UsedRow(
                when="" if used.since == before else _name(used.since, span),
                agent=show(used.agent),
                model=show(used.model) or "–",
                usd=write_usd(used.usd),
                estimated=write_usd(used.estimated) if used.estimated else "",
                tokens=write_count(used.tokens),
                calls=write_count(used.calls),
            )
        )
        before = used.since
    return rows


def _show_consumer(each: Consumer, most: Decimal) -> ConsumerLine:
    # The bar compares runs; "of $2.00" below a full one would say that nothing is left.
    limit = f"limit {write_usd(each.usd_limit)}" if each.usd_limit is not None else ""
    below = f"{write_usd(each.usd_with_below)} with what it started" if each.usd_with_below != each.usd else ""
    note = ", ".join(part for part in (below, limit) if part)
    return ConsumerLine(
        run=each.run,
        agent=each.agent,
        title=show(each.goal),
        mark=RUN[each.state],
        usd=write_usd(each.usd),
        share=percent(each.usd, most),
        note=note,
    )


# How a run can have ended, and with what its claim is worth.
_OUTCOMES: list[tuple[Mark, Callable[[Outcome], bool]]] = [
    (
        Mark(word="Verified", icon="succeeded", css="succeeded"),
        lambda o: o.state == RunState.SUCCEEDED and o.verified == Verified.VERIFIED,
    ),
    (
        Mark(word="Not verified", icon="doubt", css="claimed"),
        lambda o: o.state == RunState.SUCCEEDED and o.verified != Verified.VERIFIED,
    ),
    (RUN[RunState.FAILED], lambda o: o.state == RunState.FAILED),
    (RUN[RunState.STOPPED], lambda o: o.state == RunState.STOPPED),
    (RUN[RunState.EXPIRED], lambda o: o.state == RunState.EXPIRED),
]


def _show_outcomes(outcomes: Sequence[Outcome]) -> list[OutcomeLine]:
    """By agent, what cost most on top."""
    grouped: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        grouped[outcome.agent].append(outcome)
    lines = sorted(grouped.items(), key=lambda pair: (-sum(each.usd for each in pair[1]), pair[0]))
    return [_show_agent_s_outcomes(agent, parts) for agent, parts in lines]


def _show_agent_s_outcomes(agent: str, parts: Sequence[Outcome]) -> OutcomeLine:
    cells = []
    for _, fits in _OUTCOMES:
        those = [part for part in parts if fits(part)]
        runs, usd = sum(part.runs for part in those), sum((part.usd for part in those), _NOTHING)
        cells.append(
            OutcomeCell(runs=write_count(runs) if runs else "–", each=f"{write_usd(usd / runs)} each" if runs else "")
        )
    whole = sum((part.usd for part in parts), _NOTHING)
    succeeded = sum(part.runs for part in parts if part.state == RunState.SUCCEEDED)
    return OutcomeLine(
        agent=show(agent),
        href=f"/runs?agent={quote(agent)}&state=succeeded,failed,stopped,expired",
        ended=plural(sum(part.runs for part in parts), "run"),
        cells=cells,
        one=write_usd(whole / succeeded) if succeeded else "none succeeded",
        usd=write_usd(whole),
    )
