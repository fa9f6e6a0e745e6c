"""A fact behind a card: the value that was shown, its age now against its limit, and what has become of it since."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from console.display.figures import percent, write_duration, write_limit
from console.display.marks import FACT, FACT_GAUGE, Mark
from console.display.outside import Shown, show, show_value, write_brief
from runs.queries.inbox import FactNow
from runs.queries.shapes import FactShown
from runs.states import AGEING, FACT_USABLE, FactState

BRIEF = 90


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A fact behind a card: the value that was shown when it was asked, and how the fact stands now.

    `since`: from when its age counts, where it goes on.
    """

    id: int | None
    name: str
    mark: Mark
    value: Shown
    brief: str
    now_value: Shown | None
    source: str
    age: str
    since: datetime | None
    moves_s: float | None
    limit: str
    share: float
    gauge: str
    hot: bool
    aged: bool
    may_recheck: bool

    @property
    def age_label(self) -> str:
        return f"Age {self.age} {self.limit}"


def show_evidence(shown: FactShown, now: FactNow | None, may_recheck: bool, *, read_at: datetime | None) -> Evidence:
    """read_at: None for a card that is closed, whose facts stay as they stood then."""
    if read_at is None or now is None:
        state, changed, age_s, max_age_s = shown.state, shown.changed, shown.age_s, shown.max_age_s
    else:
        state, changed, age_s, max_age_s = now.state, now.version != shown.version, now.age_s, now.max_age_s
    mark = FACT[state]
    if changed:
        mark = Mark(word="Changed" if now else "Gone", icon="conflict", css="conflict loud danger")
    return Evidence(
        id=now.id if now else None,
        name=show(shown.name),
        mark=mark,
        value=show_value(shown.value),
        brief=write_brief(shown.value, BRIEF),
        now_value=show_value(now.value) if now and changed else None,
        source=show(now.source_tool) if now and now.source_tool else "no source that can be read again",
        age="unknown" if age_s is None else write_duration(age_s),
        since=None if age_s is None or read_at is None else read_at - timedelta(seconds=age_s),
        moves_s=None if changed else find_next_move(state, age_s, max_age_s),
        limit="" if max_age_s is None else f"of {write_limit(max_age_s)}",
        share=100.0 if age_s is None or not max_age_s else percent(age_s, max_age_s),
        gauge=FACT_GAUGE.get(state, "high"),
        hot=changed or state not in FACT_USABLE,
        aged=now is not None and state != FactState.FRESH,
        may_recheck=may_recheck and now is not None and state not in FACT_USABLE and bool(now.source_tool),
    )


def find_next_move(state: str, age_s: float | None, max_age_s: float | None) -> float | None:
    """In how many seconds a fact is called otherwise, by its age alone; None when it will not be."""
    if age_s is None or max_age_s is None or state not in FACT_USABLE:
        return None
    return max((AGEING if state == FactState.FRESH else 1.0) * max_age_s - age_s, 0.0)


def show_subject(fact: FactNow, may_recheck: bool, *, read_at: datetime | None) -> Evidence:
    as_shown = FactShown(
        name=fact.name,
        value=fact.value,
        version=fact.version,
        age_s=fact.age_s,
        max_age_s=fact.max_age_s,
        state=fact.state,
        changed=False,
    )
    return show_evidence(as_shown, fact, may_recheck, read_at=read_at)
