"""The rows of a run's tabs, in words: facts, work, keys, failures, ledger, journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from console.display.cards import say_outcome
from console.display.evidence import BRIEF
from console.display.figures import percent, plural, write_ago, write_booked, write_count, write_duration, write_limit
from console.display.journal import find_icon, write_actor, write_kind, write_side
from console.display.marks import ENTRY, FACT, FACT_GAUGE, KEY, STEP, WORK, Mark
from console.display.outside import SENTENCE, Shown, Text, shorten, show, show_value, write_brief
from runs.queries import FactRow, JournalRow, KeyRow, LedgerRow, WorkRow
from runs.queries.factuse import NOT_USED, FactUses
from runs.queries.failures import FailureRow
from runs.states import FACT_USABLE, FactState, WorkState

_URGENCY = [FactState.CONTRADICTED, FactState.CHECK_FAILED, FactState.STALE, FactState.UNKNOWN, FactState.AGEING]


@dataclass(frozen=True, kw_only=True)
class FactLine:
    id: int
    name: str
    mark: Mark
    value: Shown
    brief: str
    source: str
    age: str
    since: datetime | None
    limit: str
    share: float
    gauge: str
    used: str
    note: str
    version: int
    may_recheck: bool

    @property
    def age_label(self) -> str:
        return f"Age {self.age} {self.limit}"


def show_facts(
    rows: list[FactRow], uses: Mapping[int, FactUses], now: datetime, *, may_recheck: bool, checkable: frozenset[int]
) -> list[FactLine]:
    """Worst first."""
    order = {state.value: place for place, state in enumerate(_URGENCY)}
    ordered = sorted(rows, key=lambda row: (order.get(row.state, len(order)), row.id))
    return [_show_fact(row, uses.get(row.id, NOT_USED), now, may_recheck and row.id in checkable) for row in ordered]


def _show_fact(row: FactRow, uses: FactUses, now: datetime, may_recheck: bool) -> FactLine:
    return FactLine(
        id=row.id,
        name=show(row.name),
        mark=FACT[row.state],
        value=show_value(row.value),
        brief=write_brief(row.value, BRIEF),
        source=_say_source(row),
        age="unknown" if row.age_s is None else write_duration(row.age_s),
        since=None if row.age_s is None else now - timedelta(seconds=row.age_s),
        limit=f"of {write_limit(row.max_age_s)}",
        share=100.0 if row.age_s is None else percent(row.age_s, row.max_age_s),
        gauge=FACT_GAUGE.get(row.state, "high"),
        used=_say_uses(uses),
        note=_note_fact(row, uses, now),
        version=row.version,
        may_recheck=may_recheck,
    )


def _say_source(row: FactRow) -> str:
    source = row.source if isinstance(row.source, dict) else {}
    if tool := source.get("tool"):
        step = f", step {source['step']}" if isinstance(source.get("step"), int) else ""
        return f"{show(str(tool))}{step}"
    if person := source.get("person"):
        return f"said by {show(str(person))}"
    return "the agent itself"


def _say_uses(uses: FactUses) -> str:
    parts = [f"step {number}, open" for number in uses.open_steps[:3]]
    if len(uses.open_steps) > 3:
        parts.append(f"{len(uses.open_steps) - 3} more open")
    if uses.acts and uses.last_step is not None and uses.last_age_s is not None:
        parts.append(f"{write_duration(uses.last_age_s)} old when step {uses.last_step} used it")
    return " · ".join(parts) or "–"


def _note_fact(row: FactRow, uses: FactUses, now: datetime) -> str:
    if row.state == FactState.CHECK_FAILED and row.check_failed_at is not None:
        return (
            f"It was checked {write_ago(row.check_failed_at, now)} ago and its source could not say "
            f"({plural(row.check_tries, 'try', 'tries')}). The value and its dates are as they were."
        )
    if row.state == FactState.CONTRADICTED:
        return "Its source says something else, and nobody has settled it. Nothing acts on it."
    if row.state not in FACT_USABLE and uses.open_steps:
        steps = ", ".join(str(number) for number in uses.open_steps[:3])
        return (
            f"Step {steps} can’t act on this. It is checked again right before the call; if the value has changed, "
            "what rests on it is void and the agent plans again."
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class WorkLine:
    item: str
    title: str
    mark: Mark
    outcome: str
    steps: str
    at: datetime


def show_work(rows: list[WorkRow]) -> list[WorkLine]:
    """Open items first."""
    return [
        WorkLine(
            item=row.item,
            title=show(row.title),
            mark=WORK[row.state],
            outcome=show(row.outcome),
            steps=f"opened by step {row.opened_by}" + (f", closed by step {row.closed_by}" if row.closed_by else ""),
            at=row.closed_at or row.created_at,
        )
        for row in sorted(rows, key=lambda row: (row.state != WorkState.OPEN, row.id))
    ]


@dataclass(frozen=True, kw_only=True)
class KeyLine:
    key: str
    step: int
    tool: str
    identity: str
    mark: Mark
    tags: list[Mark]
    how: str
    tries: int
    approval: int | None
    result: Shown | None
    brief: str
    taken_at: datetime
    closed_at: datetime | None


_CLOSED_HOW = {
    "settled": "answered",
    "reconciled": "looked up at the receiver",
    "verdict": "said by a person",
    "late": "a late answer",
}


def show_keys(rows: list[KeyRow]) -> list[KeyLine]:
    lines = []
    for row in rows:
        tags = []
        if row.replays:
            tags.append(Mark(word=f"asked again {row.replays}×, not done again", css="line"))
        if row.generation > 1:
            tags.append(Mark(word=f"generation {row.generation}", css="line"))
        if row.occurrence > 1:
            tags.append(Mark(word=f"deliberate time {row.occurrence}", css="line"))
        lines.append(
            KeyLine(
                key=row.key,
                step=row.step,
                tool=show(row.tool),
                identity=write_brief(row.identity),
                mark=KEY[row.state],
                tags=tags,
                how=_CLOSED_HOW.get(row.closed_how, row.closed_how),
                tries=row.attempts,
                approval=row.approval,
                result=None if row.result is None else show_value(row.result),
                brief="" if row.result is None else write_brief(row.result),
                taken_at=row.taken_at,
                closed_at=row.closed_at,
            )
        )
    return lines


@dataclass(frozen=True, kw_only=True)
class FailureLine:
    step: int
    what: str
    attempt: int
    words: str
    error: Text
    after: Mark
    late: bool
    at: datetime


def show_failures(rows: list[FailureRow]) -> list[FailureLine]:
    lines = []
    for row in rows:
        ended = f", killed by signal {row.exit_signal}" if row.exit_signal else ""
        ended = ended or (f", exit status {row.exit_status}" if row.exit_status else "")
        lines.append(
            FailureLine(
                step=row.step,
                what=show(row.tool) or row.kind,
                attempt=row.attempt,
                words=f"{say_outcome(row.outcome)}{ended}",
                error=shorten(show(row.error), SENTENCE),
                after=STEP[row.step_state],
                late=row.late,
                at=row.ended_at or row.taken_at,
            )
        )
    return lines


@dataclass(frozen=True, kw_only=True)
class LedgerLine:
    at: datetime
    mark: Mark
    what: str
    usd: str
    tokens: str
    steps: str
    model: str
    note: str
    estimated: bool


def show_ledger(rows: list[LedgerRow], run: int) -> list[LedgerLine]:
    return [
        LedgerLine(
            at=row.at,
            mark=ENTRY[row.kind],
            what=_say_entry(row, run),
            usd=write_booked(row.usd),
            tokens=write_count(row.tokens),
            steps=write_count(row.steps),
            model=show(row.model),
            note=show(row.note),
            estimated=row.estimated,
        )
        for row in rows
    ]


def _say_entry(row: LedgerRow, run: int) -> str:
    where = f"step {row.step}" if row.step else "the limits"
    attempt = f", attempt {row.attempt}" if row.attempt and row.attempt > 1 else ""
    return f"{where}{attempt}" + (f" of run {row.run}" if row.run != run else "")


@dataclass(frozen=True, kw_only=True)
class JournalLine:
    seq: int
    at: datetime
    icon: str
    who: str
    what: str
    before: str
    after: str
    why: Text


def show_journal(rows: list[JournalRow]) -> list[JournalLine]:
    return [
        JournalLine(
            seq=row.seq,
            at=row.at,
            icon=find_icon(row.actor),
            who=write_actor(row.actor),
            what=write_kind(row.kind) + (f", step {row.step}" if row.step else ""),
            before=write_side(row.before),
            after=write_side(row.after, 300),
            why=shorten(show(row.why), SENTENCE),
        )
        for row in rows
    ]
