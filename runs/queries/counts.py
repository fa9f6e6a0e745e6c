"""How many runs are in each state: those that are open, and those that ended within a day. Two queries."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from runs import sql
from runs.queries.paging import EVERY_AGENT
from runs.states import RUN_OPEN, WAITS_ON_PEOPLE, RunState, Verified, WaitingFor

# Of the newest so many runs those are counted that ended within a day: an installation may hold millions.
NEWEST = 10_000
ENDED_WITHIN_S = 86_400


@dataclass(frozen=True, kw_only=True)
class RunCounts:
    """`waiting`: by what they wait for. `held`: open runs under a pause or a switch, also counted in their state."""

    open: int
    by_state: dict[str, int]
    waiting: dict[str, int]
    held: int
    ended: dict[str, int]
    ended_unverified: int

    @property
    def on_people(self) -> int:
        return sum(number for name, number in self.waiting.items() if name in WAITS_ON_PEOPLE)

    @property
    def on_the_world(self) -> int:
        return sum(self.waiting.values()) - self.on_people

    @property
    def in_doubt(self) -> int:
        return self.waiting.get(WaitingFor.VERDICT, 0)

    @property
    def ended_in_all(self) -> int:
        return sum(self.ended.values())


def count_runs(*, agents: Collection[str]) -> RunCounts:
    """What a reader sees of the whole installation."""
    everything = EVERY_AGENT in agents
    given = {"all": everything, "agents": list(agents), "open": sorted(RUN_OPEN), "newest": NEWEST}
    by_state: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    held = 0
    for state, waiting_for, is_held, number in sql.fetch_all(_OPEN, given):
        by_state[state] += number
        held += number if is_held else 0
        if state == RunState.WAITING:
            waiting[waiting_for] += number
    ended: Counter[str] = Counter()
    unverified = 0
    for state, verified, number in sql.fetch_all(_ENDED, given | {"within": ENDED_WITHIN_S}):
        ended[state] += number
        if state == RunState.SUCCEEDED and verified != Verified.VERIFIED:
            unverified += number
    return RunCounts(
        open=sum(by_state.values()),
        by_state=dict(by_state),
        waiting=dict(waiting),
        held=held,
        ended=dict(ended),
        ended_unverified=unverified,
    )


_OPEN = """
    SELECT state, waiting_for, paused_at IS NOT NULL OR held_since IS NOT NULL, count(*) FROM runs_run
    WHERE state = ANY(%(open)s) AND (%(all)s OR agent = ANY(%(agents)s)) GROUP BY 1, 2, 3
"""
_ENDED = """
    SELECT state, verified, count(*) FROM runs_run
    WHERE id > (SELECT coalesce(max(id), 0) FROM runs_run) - %(newest)s
        AND ended_at > lw_now() - make_interval(secs => %(within)s) AND (%(all)s OR agent = ANY(%(agents)s))
    GROUP BY 1, 2
"""
