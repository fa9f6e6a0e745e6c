"""Facts over all runs, and one fact with its story, in words. Grouped by what they are: one source, one name, many runs."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from console.display.evidence import find_next_move
from console.display.figures import percent, plural, write_ago, write_duration, write_limit, write_limit_field
from console.display.marks import FACT, FACT_GAUGE, Mark
from console.display.outside import Shown, show, show_value, write_brief
from runs.queries.factlists import COUNTED, FactList, FactOver, FactsOver, HeldUp
from runs.queries.factstory import FactStory
from runs.states import FACT_USABLE, CheckOutcome, FactState

_WORST = [
    FactState.CONTRADICTED,
    FactState.CHECK_FAILED,
    FactState.STALE,
    FactState.UNKNOWN,
    FactState.AGEING,
    FactState.FRESH,
]
_WORDS: dict[FactList, tuple[str, str]] = {
    FactList.STALE: ("Stale", "person"),
    FactList.CHECK_FAILED: ("Check failed", "person"),
    FactList.CONTRADICTED: ("Contradicted", "danger"),
    FactList.UNKNOWN: ("Unknown", "unknown"),
    FactList.AGEING: ("Ageing", ""),
    FactList.ALL: ("All", ""),
}
_EMPTY: dict[FactList, str] = {
    FactList.STALE: "No fact is past its limit.",
    FactList.CHECK_FAILED: "Every source that was asked again could say.",
    FactList.CONTRADICTED: "Nothing contradicts what is known.",
    FactList.UNKNOWN: "Every fact has its date.",
    FactList.AGEING: "No fact is past 80 % of its limit.",
    FactList.ALL: "No run that is open has recorded a fact.",
}


@dataclass(frozen=True, kw_only=True)
class TabLine:
    name: str
    word: str
    count: str
    css: str
    current: bool


@dataclass(frozen=True, kw_only=True)
class Blocked:
    words: str
    href: str


@dataclass(frozen=True, kw_only=True)
class FactOverLine:
    """A fact of one run."""

    id: int
    run: int
    mark: Mark
    name: str
    source: str
    brief: str
    age: str
    limit: str
    share: float
    gauge: str
    blocks: list[Blocked]
    more_blocked: int
    note: str
    checking: bool
    may_recheck: bool

    @property
    def age_label(self) -> str:
        return f"Age {self.age} {self.limit}"


@dataclass(frozen=True, kw_only=True)
class FactGroup:
    """The same fact of the same source in several runs, the worst first; `values`: how many different ones it has."""

    worst: FactOverLine
    others: list[FactOverLine]
    href: str
    runs: str
    values: str


def show_tabs(page: FactsOver, current: FactList | None) -> list[TabLine]:
    return [
        TabLine(
            name=which,
            word=word,
            count=f"{COUNTED - 1}+" if page.counts[which] >= COUNTED else str(page.counts[which]),
            css=css if page.counts[which] else "",
            current=which == current,
        )
        for which, (word, css) in _WORDS.items()
    ]


def say_empty(which: FactList) -> str:
    return _EMPTY[which]


def show_groups(page: FactsOver, may_recheck: Mapping[int, bool]) -> list[FactGroup]:
    """Worst first, and of one state what holds up most."""
    grouped: dict[tuple[str, str, str], list[FactOver]] = defaultdict(list)
    for fact in page.facts:
        grouped[fact.agent, fact.source_tool, fact.name].append(fact)
    groups = []
    for facts in grouped.values():
        facts.sort(key=lambda fact: _urgency(fact, page.holds_up))
        values = len(Counter(fact.value_text for fact in facts))
        lines = [_show(fact, page, may_recheck.get(fact.id, False)) for fact in facts]
        first = facts[0]
        groups.append(
            (
                _urgency(first, page.holds_up),
                FactGroup(
                    worst=lines[0],
                    others=lines[1:],
                    href="/facts?" + urlencode({"source": first.source_tool, "name": first.name}),
                    runs=f"run {first.run}" if len(facts) == 1 else plural(len(facts), "run"),
                    values=f"{values} different values" if values > 1 else "",
                ),
            )
        )
    return [group for _, group in sorted(groups, key=lambda pair: pair[0])]


def _urgency(fact: FactOver, holds_up: Mapping[int, list[HeldUp]]) -> tuple[int, int, float, int]:
    past = (fact.age_s or 0.0) / fact.max_age_s
    return _WORST.index(FactState(fact.state)), -len(holds_up.get(fact.id, ())), -past, fact.id


def _show(fact: FactOver, page: FactsOver, may_recheck: bool) -> FactOverLine:
    held = page.holds_up.get(fact.id, [])
    return FactOverLine(
        id=fact.id,
        run=fact.run,
        mark=FACT[fact.state],
        name=show(fact.name),
        source=show(fact.source_tool)
        if fact.source_tool
        else "said by a person"
        if fact.person
        else "the agent itself",
        brief=write_brief(fact.value) if fact.value_text is not None else "a large value",
        age="unknown" if fact.age_s is None else write_duration(fact.age_s),
        limit=f"of {write_limit(fact.max_age_s)}" + (", extended" if fact.extended else ""),
        share=100.0 if fact.age_s is None else percent(fact.age_s, fact.max_age_s),
        gauge=FACT_GAUGE.get(fact.state, "high"),
        blocks=[show_blocked(step) for step in held[:3]],
        more_blocked=max(len(held) - 3, 0),
        note=_say_failed(fact.check_failed_at, fact.check_tries, page.now)
        if fact.state == FactState.CHECK_FAILED
        else "",
        checking=fact.checking,
        may_recheck=may_recheck and fact.state != FactState.FRESH and not fact.checking,
    )


def show_blocked(step: HeldUp) -> Blocked:
    if step.approval is not None:
        return Blocked(words=f"approval {step.approval}", href=f"/approvals/{step.approval}")
    return Blocked(words=f"step {step.step} of run {step.run}", href=f"/runs/{step.run}?tab=step&step={step.step}")


def _say_failed(at: datetime | None, tries: int, now: datetime) -> str:
    if at is None:
        return ""
    return f"Its source could not say {write_ago(at, now)} ago ({plural(tries, 'try', 'tries')})."


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of the value line, in units of the drawing."""

    x: float
    x_end: float
    y: float
    label: str
    rises_from: float | None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The values over time: numbers by their size, everything else one step up per version. Crosses: failed checks."""

    segments: list[Segment]
    unsure_from: float | None
    same: list[float]
    failed: list[float]
    begins: str
    label: str


@dataclass(frozen=True, kw_only=True)
class ValueLine:
    version: int
    brief: str
    where: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class CheckLine:
    mark: Mark
    detail: str
    step: int | None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class UseLine:
    words: str
    href: str
    age: str
    version: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class StoryView:
    id: int
    run: int
    agent: str
    name: str
    mark: Mark
    value: Shown
    version: int
    source: str
    age: str
    limit: str
    share: float
    gauge: str
    says: str
    blocks: list[Blocked]
    chart: Chart | None
    values: list[ValueLine]
    checks: list[CheckLine]
    uses: list[UseLine]
    follows_from: list[str]
    may_recheck: bool
    may_correct: bool
    may_extend: bool
    extend_most: str
    extend_typed: str
    moves_in_s: float | None

    @property
    def age_label(self) -> str:
        return f"Age {self.age} {self.limit}"


_CHECK: dict[str, Mark] = {
    CheckOutcome.SAME: Mark(word="The same", icon="fresh", css="fresh"),
    CheckOutcome.CHANGED: Mark(word="Changed", icon="conflict", css="conflict"),
    CheckOutcome.UNREACHABLE: Mark(word="No answer", icon="failed", css="stale"),
    CheckOutcome.MALFORMED: Mark(word="Not readable", icon="failed", css="stale"),
}
_WIDTH = 720.0


def show_story(story: FactStory, *, checkable: bool, may_recheck: bool, may_decide: bool) -> StoryView:
    live = not story.run_ended
    return StoryView(
        id=story.id,
        run=story.run,
        agent=show(story.agent),
        name=show(story.name),
        mark=FACT[story.state],
        value=show_value(story.value),
        version=story.version,
        source=_say_source(story),
        age="unknown" if story.age_s is None else write_duration(story.age_s),
        limit=f"of {write_limit(story.max_age_s)}",
        share=100.0 if story.age_s is None else percent(story.age_s, story.max_age_s),
        gauge=FACT_GAUGE.get(story.state, "high"),
        says=_say_state(story, checkable),
        blocks=[show_blocked(step) for step in story.holds_up],
        chart=_draw(story),
        values=[
            ValueLine(
                version=value.version,
                brief="a large value" if value.large else write_brief(value.value),
                where=f"said by {show(value.person)}"
                if value.person
                else f"read by step {value.step}"
                if value.step
                else "",
                at=value.observed_at or value.recorded_at,
            )
            for value in story.versions
        ],
        checks=_show_checks(story),
        uses=[
            UseLine(
                words=f"approval {use.approval}, when it was asked"
                if use.approval is not None
                else f"step {use.step}, {show(use.tool)}",
                href=f"/approvals/{use.approval}"
                if use.approval is not None
                else f"/runs/{story.run}?tab=step&step={use.step}",
                age=write_duration(use.age_s),
                version=use.version,
                at=use.at,
            )
            for use in story.uses
        ],
        follows_from=[show(name) for name in story.derived_from],
        may_recheck=live and may_recheck and checkable,
        may_correct=live and may_decide,
        may_extend=live
        and may_decide
        and story.extended_from_s is None
        and not story.derived_from
        and story.state in _EXTENDABLE,
        extend_most=write_limit(story.max_age_s),
        extend_typed=write_limit_field(story.max_age_s),
        moves_in_s=find_next_move(story.state, story.age_s, story.max_age_s) if live else None,
    )


def _show_checks(story: FactStory) -> list[CheckLine]:
    """Checks, newest first; above them what has made the fact fresh since without being one."""
    lines = [
        CheckLine(mark=_CHECK[check.outcome], detail=show(check.detail), step=check.step, at=check.at)
        for check in story.checks
    ]
    seen_at = [at for at in (story.observed_at, *(check.at for check in story.checks[:1])) if at is not None]
    if not seen_at or story.verified_at is None or story.verified_at <= max(seen_at):
        return lines
    step, detail = None, "confirmed by a person"
    recorded_by = next((value.step for value in story.versions if not value.person), None)
    confirmed = story.confirmed_at is not None and (
        story.source_began_at is None or story.confirmed_at > story.source_began_at
    )
    if story.source_step != recorded_by and not confirmed:
        step, detail = story.source_step, "recorded again"
    elif story.derived_from and not story.source_tool and not confirmed:
        detail = "verified with what it follows from"
    return [CheckLine(mark=_CHECK[CheckOutcome.SAME], detail=detail, step=step, at=story.verified_at), *lines]


_EXTENDABLE = (*FACT_USABLE, FactState.STALE, FactState.CHECK_FAILED)


def _say_source(story: FactStory) -> str:
    source = story.source if isinstance(story.source, dict) else {}
    if tool := source.get("tool"):
        arguments = source.get("arguments")
        return f"{show(str(tool))}, with {write_brief(arguments)}" if arguments else show(str(tool))
    if person := source.get("person"):
        return f"said by {show(str(person))}"
    return "the agent itself"


def _say_state(story: FactStory, checkable: bool) -> str:
    if story.run_ended:
        return "Its run has ended: nothing rests on it any more."
    if story.extended_from_s is not None:
        return f"A person extended it, from {write_limit(story.extended_from_s)}; the next reading ends that."
    match story.state:
        case FactState.CHECK_FAILED:
            said = _say_failed(story.check_failed_at, story.check_tries, story.now)
            return f"{said} The value and its dates are as they were. Nothing acts on it."
        case FactState.CONTRADICTED:
            return "What it follows from has another value now. Nothing acts on it until it is derived or read again."
        case FactState.UNKNOWN:
            return "Nobody knows from when it is. Nothing acts on it."
        case FactState.STALE if checkable:
            return "It is read again by itself before anything acts on it."
        case FactState.STALE:
            return "Nothing can read it again: before something acts on it, a person is asked."
    return ""


def _draw(story: FactStory) -> Chart | None:
    """Draw the values from the oldest that is shown until now."""
    values = list(reversed(story.versions))
    if not values:
        return None
    starts = [value.observed_at or value.recorded_at for value in values]
    begin, span = starts[0], max((story.now - starts[0]).total_seconds(), 1.0)

    def place(at: datetime) -> float:
        return round(min(max((at - begin).total_seconds() / span, 0.0), 1.0) * _WIDTH, 1)

    heights = _heights([value.value for value in values])
    ends = [*starts[1:], story.now]
    segments = [
        Segment(
            x=place(start),
            x_end=place(end),
            y=height,
            label="a large value" if value.large else write_brief(value.value, 24),
            rises_from=heights[at - 1] if at else None,
        )
        for at, (value, start, end, height) in enumerate(zip(values, starts, ends, heights, strict=True))
    ]
    failed = [c.at for c in story.checks if c.outcome in (CheckOutcome.UNREACHABLE, CheckOutcome.MALFORMED)]
    usable = story.state in FACT_USABLE
    return Chart(
        segments=segments,
        unsure_from=None if usable or story.verified_at is None else place(story.verified_at),
        same=[place(check.at) for check in story.checks if check.outcome == CheckOutcome.SAME],
        failed=[place(at) for at in failed],
        begins=f"{begin:%Y-%m-%d %H:%M}",
        label=f"{plural(len(values), 'value')} since {begin:%Y-%m-%d %H:%M} UTC, "
        f"{plural(len(story.checks), 'check')}, {len(failed)} of them without an answer",
    )


def _heights(values: Sequence[object]) -> list[float]:
    """y of each value, between 16 (the largest) and 52."""
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) == len(values) and max(known) > min(known):
        low, high = min(known), max(known)
        return [round(52 - 36 * (number - low) / (high - low), 1) for number in known]
    return [round(52 - 36 * (at / max(len(values) - 1, 1)), 1) for at in range(len(values))]


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
        return number if math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None
