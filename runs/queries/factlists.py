"""Facts over all runs that are not finished: what is wrong with them, how many, and what they hold up.

Each list is one partial index, whatever the number of facts; how many there are is counted no further than COUNTED.
"""

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from runs import sql
from runs.agents import Json
from runs.queries.factstate import FACT_STATE
from runs.queries.paging import EVERY_AGENT

COUNTED = 100
SHOWN = 200
VALUE_BYTES = 4_000  # of one value in a list; beyond, the fact's own page has it


class FactList(StrEnum):
    """What a list shows."""

    STALE = "stale"
    CONTRADICTED = "contradicted"
    CHECK_FAILED = "check_failed"
    UNKNOWN = "unknown"
    AGEING = "ageing"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class FactOver:
    """A fact of a run that is not finished, as it stands now. `value`: None where it is too large for a list."""

    id: int
    run: int
    agent: str
    name: str
    source_tool: str
    person: bool
    value_text: str | None
    version: int
    age_s: float | None
    max_age_s: float
    extended: bool
    state: str
    check_failed_at: datetime | None
    check_tries: int
    checking: bool

    @property
    def value(self) -> Json:
        return json.loads(self.value_text) if self.value_text is not None else None


@dataclass(frozen=True, kw_only=True)
class HeldUp:
    """An open step that rests on a fact; `approval`: the card that it waits on, if it does."""

    run: int
    step: int
    tool: str
    waiting_for: str
    approval: int | None


@dataclass(frozen=True, kw_only=True)
class FactsOver:
    """`more`: there are further ones than `facts` shows. `holds_up`: by fact id. `stale_in_s`: when one more is stale."""

    now: datetime
    stale_in_s: float | None
    counts: dict[FactList, int]
    facts: list[FactOver]
    holds_up: dict[int, list[HeldUp]]
    more: bool


def list_facts_over_runs(
    which: FactList, *, agents: Collection[str], source: str | None = None, name: str | None = None
) -> FactsOver:
    """One list, in three queries. With a source, or a source and a name: every live fact that came from it."""
    given = _given(agents) | {"limit": SHOWN + 1, "source": source, "name": name}
    counts = sql.fetch_row(_COUNTS, given)
    statement = _of_source(with_name=name is not None) if source is not None else _LISTS[which]
    rows = [sql.fill(FactOver, row) for row in sql.fetch_all(statement, given)]
    facts = rows[:SHOWN]
    return FactsOver(
        now=counts[0],
        stale_in_s=counts[1],
        counts=dict(zip(_COUNTED, counts[2:], strict=True)),
        facts=facts,
        holds_up=read_held_up([(fact.id, fact.run, fact.name) for fact in facts]),
        more=len(rows) > SHOWN,
    )


def count_facts_to_look_at(*, agents: Collection[str]) -> int:
    """Facts that nothing may act on now, at most COUNTED: for the badge. One query."""
    (count,) = sql.fetch_row(_BADGE, _given(agents))
    return int(count)


def read_held_up(facts: list[tuple[int, int, str]]) -> dict[int, list[HeldUp]]:
    """What each of these facts (id, run, name) holds up: the open calls that rest on it. One query."""
    held: dict[int, list[HeldUp]] = defaultdict(list)
    if facts:
        given = {"runs": sorted({run for _, run, _ in facts}), "names": sorted({name for *_, name in facts})}
        by_place = {(run, name): ident for ident, run, name in facts}
        for run, name, step, tool, waiting_for, approval in sql.fetch_all(_HELD_UP, given):
            if (ident := by_place.get((run, name))) is not None:
                held[ident].append(HeldUp(run=run, step=step, tool=tool, waiting_for=waiting_for, approval=approval))
    return dict(held)


def _given(agents: Collection[str]) -> dict[str, Any]:
    return {"every": EVERY_AGENT in agents, "agents": list(agents), "counted": COUNTED, "value_bytes": VALUE_BYTES}


_ENDS = "lw_fact_ends(f.verified_at, f.max_age_s)"
_DATED = "f.contradicted_at IS NULL AND f.observed_at <= f.verified_at"
# The rows of each list, in its order, each by one index.
_STALE = f"{_ENDS} <= lw_now() AND {_DATED} AND f.check_failed_at IS NULL ORDER BY {_ENDS}, f.id"
_FAILED = f"f.check_failed_at IS NOT NULL AND {_ENDS} <= lw_now() AND {_DATED} ORDER BY f.check_failed_at"
_CONTRADICTED = "f.contradicted_at IS NOT NULL ORDER BY f.contradicted_at"
_AGEING = f"lw_fact_ageing(f.verified_at, f.max_age_s) @> lw_now() AND {_DATED}"
_UNDATED = (
    "(f.observed_at IS NULL OR f.verified_at IS NULL OR f.verified_at < f.observed_at)"
    " AND f.contradicted_at IS NULL ORDER BY f.id"
)
_AHEAD = "f.verified_at > lw_now() AND f.contradicted_at IS NULL ORDER BY f.verified_at, f.id"
_ANY = "true ORDER BY f.verified_at, f.id"


def _select(rows: str) -> str:
    return f"SELECT f.* FROM {_visible(rows)}"


def _visible(rows: str) -> str:
    """The live facts that a reader sees of one list."""
    return (
        "runs_fact f JOIN runs_run r ON r.id = f.run_id"
        f" WHERE f.live AND (%(every)s OR r.agent = ANY(%(agents)s)) AND {rows}"
    )


def _show(rows: str) -> str:
    """Of at most so many facts, what a list shows: in the order of FactOver."""
    return f"""
        SELECT f.id, f.run_id, r.agent, f.name, f.source_tool, f.source ? 'person',
            CASE WHEN pg_column_size(f.value) <= %(value_bytes)s THEN f.value::text END, f.version,
            greatest(extract(epoch FROM lw_now() - f.verified_at), 0)::float8, f.max_age_s,
            f.extended_from_s IS NOT NULL, {FACT_STATE}, f.check_failed_at, f.check_tries,
            EXISTS (SELECT FROM runs_step s WHERE s.run_id = f.run_id AND s.fact_id = f.id AND s.kind = 'check'
                AND s.state IN ('planned', 'waiting', 'taken', 'in_doubt'))
        FROM ({rows}) f JOIN runs_run r ON r.id = f.run_id
    """


def _limit(rows: str) -> str:
    return f"{_select(rows)} LIMIT %(limit)s"


def _of_source(*, with_name: bool) -> str:
    rows = "f.source_tool = %(source)s" + (" AND f.name = %(name)s" if with_name else "") + " ORDER BY f.name, f.id"
    return _show(_limit(rows))


_LISTS: dict[FactList, str] = {
    FactList.STALE: _show(_limit(_STALE)),
    FactList.CONTRADICTED: _show(_limit(_CONTRADICTED)),
    FactList.CHECK_FAILED: _show(_limit(_FAILED)),
    FactList.UNKNOWN: _show(f"({_limit(_UNDATED)}) UNION ALL ({_limit(_AHEAD)})"),
    FactList.AGEING: _show(_limit(_AGEING)),
    FactList.ALL: _show(_limit(_ANY)),
}


def _count(*lists: str) -> str:
    parts = " UNION ALL ".join(f"(SELECT 1 FROM {_visible(rows)} LIMIT %(counted)s)" for rows in lists)
    return f"(SELECT least(count(*), %(counted)s) FROM ({parts}) found)"


_COUNTED = (
    FactList.STALE,
    FactList.CONTRADICTED,
    FactList.CHECK_FAILED,
    FactList.UNKNOWN,
    FactList.AGEING,
    FactList.ALL,
)
_NEXT = f"""(SELECT extract(epoch FROM {_ENDS} - lw_now())::float8 FROM
    {_visible(f"{_ENDS} > lw_now() AND {_DATED} ORDER BY {_ENDS}, f.id")} LIMIT 1)"""
_COUNTS = f"SELECT lw_now(), {_NEXT}, " + ", ".join(
    _count(*rows) for rows in ((_STALE,), (_CONTRADICTED,), (_FAILED,), (_UNDATED, _AHEAD), (_AGEING,), (_ANY,))
)
_BADGE = f"SELECT {_count(_STALE, _CONTRADICTED, _FAILED, _UNDATED, _AHEAD)}"
_HELD_UP = """
    SELECT s.run_id, rests.name, s.number, s.tool, s.waiting_for,
        (SELECT min(a.id) FROM runs_approval a WHERE a.step_id = s.id AND a.state = 'pending')
    FROM runs_step s CROSS JOIN LATERAL jsonb_array_elements_text(s.rests_on) AS rests(name)
    WHERE s.run_id = ANY(%(runs)s) AND s.state IN ('planned', 'waiting', 'taken', 'in_doubt')
        AND rests.name = ANY(%(names)s)
    ORDER BY s.run_id, s.number
"""
