"""A page of runs as people read it: each with what it waits for, on whom, until when and what happens then. Two queries."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runs import sql
from runs.queries.factstate import FACT_UNUSABLE
from runs.queries.paging import Page, Window
from runs.queries.runpage import ACTED_BY
from runs.queries.runs import RunFilter, list_numbers, list_runs, read_runs
from runs.queries.shapes import RunRow


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The open wait that a run shows. `since`: when its card was made, if it has one. `stale`: how many of the facts it
    rests on; `stale_in_s`: when one more is. `on_expiry`: of its card, where that has a time limit.
    """

    step: int
    tool: str
    on: str
    note: str
    until: datetime | None
    and_then: str
    approval: int | None
    kind: str
    since: datetime | None
    on_expiry: str
    stale: int
    stale_in_s: float | None


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """The oldest try that is under way."""

    step: int
    kind: str
    tool: str
    attempt: int
    taken_at: datetime
    began_at: datetime | None
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """`acted_by`: who ended or paused it, as the journal names them; empty for none."""

    run: RunRow
    acted_by: str
    held_since: datetime | None
    held_by: str
    drained_at: datetime | None
    in_flight: int
    waiting: Waiting | None
    under_way: UnderWay | None


def list_run_lines(wanted: RunFilter, window: Window, *, agents: Collection[str]) -> Page[RunLine]:
    """Runs, newest first."""
    page = list_runs(wanted, window, agents=agents)
    return Page(items=_add_lines(page.items), next=page.next)


def read_run_lines(numbers: Sequence[int], *, agents: Collection[str]) -> list[RunLine]:
    """These runs in this order, whatever filter they fit by now; without those that the reader may not see."""
    return _add_lines(read_runs(numbers, agents=agents))


def count_newer(wanted: RunFilter, shown: Sequence[int], *, agents: Collection[str], most: int) -> int:
    """How many of the first `most` runs that a filter finds now are not among those that are shown."""
    return len(set(list_numbers(wanted, most, agents=agents)) - set(shown))


def _add_lines(rows: list[RunRow]) -> list[RunLine]:
    if not rows:
        return []
    found = {row[0]: row for row in sql.fetch_all(_LINES, [[run.id for run in rows]])}
    return [_show(run, found[run.id]) for run in rows if run.id in found]


def _show(run: RunRow, row: tuple[Any, ...]) -> RunLine:
    _, acted_by, held_since, held_by, drained_at, in_flight, *rest = row
    wait, card, work = rest[:6], rest[6:13], rest[13:]
    waiting = None
    if wait[0] is not None:
        step, tool, on, note, wake_at, and_then = wait
        approval, kind, since, expires_at, on_expiry, stale, stale_in_s = card
        waiting = Waiting(
            step=step,
            tool=tool,
            on=on,
            note=note,
            until=expires_at or wake_at,
            and_then=and_then,
            approval=approval,
            kind=kind or "",
            since=since,
            on_expiry=on_expiry if expires_at is not None else "",
            stale=stale,
            stale_in_s=stale_in_s,
        )
    return RunLine(
        run=run,
        acted_by=acted_by or "",
        held_since=held_since,
        held_by=held_by,
        drained_at=drained_at,
        in_flight=in_flight,
        waiting=waiting,
        under_way=None if work[0] is None else sql.fill(UnderWay, work),
    )


# The wait that a run shows is the first of the kind that its `waiting_for` names (course.rest). The last seven columns
# are in the order of UnderWay.
_LINES = f"""
    SELECT r.id, ({ACTED_BY}), r.held_since, r.held_by, r.drained_at,
        (SELECT count(*) FROM runs_attempt a WHERE a.run_id = r.id AND a.outcome = 'open'),
        w.number, w.tool, w.waiting_on, w.wait_note, w.wake_at, w.and_then,
        c.id, c.kind, c.created_at, c.expires_at, c.on_expiry,
        n.stale, n.stale_in_s,
        t.number, t.kind, t.tool, t.attempt, t.taken_at, t.began_at, t.timeout_s
    FROM runs_run r
    LEFT JOIN LATERAL (
        SELECT s.id, s.number, s.tool, s.waiting_on, s.wait_note, s.wake_at, s.and_then, s.rests_on FROM runs_step s
        WHERE s.run_id = r.id AND s.state IN ('waiting', 'in_doubt') AND s.waiting_for = r.waiting_for
        ORDER BY s.number LIMIT 1) w ON true
    LEFT JOIN LATERAL (
        SELECT a.id, a.kind, a.created_at, a.expires_at, a.on_expiry FROM runs_approval a
        WHERE a.step_id = w.id AND a.state = 'pending' ORDER BY a.id LIMIT 1) c ON true
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE {FACT_UNUSABLE}) AS stale,
            (min(f.max_age_s - extract(epoch FROM lw_now() - f.verified_at))
                FILTER (WHERE NOT {FACT_UNUSABLE}))::float8 AS stale_in_s
        FROM runs_fact f WHERE w.id IS NOT NULL AND f.run_id = r.id AND w.rests_on @> to_jsonb(f.name)) n
    LEFT JOIN LATERAL (
        SELECT s.number, s.kind, s.tool, a.number AS attempt, a.taken_at, a.began_at, a.timeout_s
        FROM runs_attempt a JOIN runs_step s ON s.id = a.step_id
        WHERE a.run_id = r.id AND a.outcome = 'open' ORDER BY a.id LIMIT 1) t ON true
    WHERE r.id = ANY(%s)
"""
