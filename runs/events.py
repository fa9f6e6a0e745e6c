"""Writer of events from outside: each delivery is stored once, and ends at most one wait.

A wait and an event have their name and key in common. Who stores an event and looks for its wait, and who begins a wait
and looks for its event, does so under one lock of these two (`hold`): of both, the second finds the first.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from runs import sql
from runs.errors import WrongState
from runs.journal import RUNTIME, Actor, append, require_transaction
from runs.models import Event, Run, Step
from runs.queries.paging import EVERY_AGENT

_LOCK = 0x4C57_0005


@dataclass(frozen=True, kw_only=True)
class Waiter:
    """A step that waits for an event."""

    run: int
    step: int


def hold(*, name: str, key: str) -> None:
    """Keep others from storing, or looking for, events of this name and key until the commit. Steps are locked before."""
    require_transaction()
    sql.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, f"{name} {key}"])


def store(
    *, name: str, key: str, payload: object, source: str, delivery_id: str, agents: Collection[str]
) -> tuple[Event, bool]:
    """(event, whether it is new). The same delivery gives the same event."""
    require_transaction()
    is_new = (
        sql.fetch_one(
            "INSERT INTO runs_event (name, key, payload, source, delivery_id, agents, received_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, lw_clock()) ON CONFLICT (source, delivery_id) DO NOTHING RETURNING id",
            [name, key, sql.jsonb(payload), source, delivery_id, sql.jsonb(sorted(agents))],
        )
        is not None
    )
    return Event.objects.get(source=source, delivery_id=delivery_id), is_new


def find_waiter(*, name: str, key: str, agents: Collection[str]) -> Waiter | None:
    """The oldest step that waits for such an event now, in the runs of these agents."""
    row = sql.fetch_one(
        "SELECT s.run_id, s.id FROM runs_step s JOIN runs_run r ON r.id = s.run_id"
        " WHERE s.state = 'waiting' AND s.waiting_for = 'event' AND s.result ->> 'event' = %s AND s.result ->> 'key' = %s"
        " AND coalesce(s.wake_at > lw_clock(), true) AND (%s OR r.agent = ANY(%s))"
        " ORDER BY s.id LIMIT 1",
        [name, key, EVERY_AGENT in agents, list(agents)],
    )
    return Waiter(run=row[0], step=row[1]) if row else None


def find_arrived(run: Run, *, name: str, key: str, since: datetime, until: datetime | None) -> Event | None:
    """The oldest such event that nobody has yet, of those that came in this time from who may reach the run."""
    found = sql.load(
        Event,
        "name = %s AND key = %s AND matched_at IS NULL AND received_at >= %s AND coalesce(received_at <= %s, true)"
        " AND agents ?| ARRAY[%s, %s] ORDER BY received_at, id LIMIT 1",
        [name, key, since, until, EVERY_AGENT, run.agent],
    )
    return found[0] if found else None


def delete_unmatched(*, older_than_s: float, actor: Actor) -> int:
    """Delete the events that were received so many seconds ago and ended no wait; how many.

    An open run may still ask for what came since it began, if its sender may reach it; that stays.
    """
    require_transaction()
    rows = sql.fetch_all(
        "DELETE FROM runs_event e WHERE matched_at IS NULL AND received_at < lw_clock() - make_interval(secs => %s)"
        " AND NOT EXISTS (SELECT FROM runs_run r WHERE r.ended_at IS NULL AND r.created_at <= e.received_at"
        "                 AND e.agents ?| ARRAY[%s, r.agent])"
        " RETURNING received_at",
        [older_than_s, EVERY_AGENT],
    )
    if rows:
        append("events.deleted", actor=actor, after={"events": len(rows), "older_than_s": older_than_s})
    return len(rows)


def match(event: Event, step: Step, *, actor: Actor = RUNTIME) -> None:
    """Let an event end the wait of a locked step. Raises: WrongState, when it has ended another."""
    require_transaction()
    row = sql.fetch_one(
        "UPDATE runs_event SET step_id = %s, matched_at = lw_clock() WHERE id = %s AND matched_at IS NULL"
        " RETURNING matched_at",
        [step.pk, event.pk],
    )
    if row is None:
        raise WrongState(f"Event {event.pk}", "matched", "matched again")
    event.step, event.matched_at = step, row[0]
    append(
        "event.matched",
        actor=actor,
        run=step.run_id,
        step=step.pk,
        after={"event": event.pk, "name": event.name, "key": event.key, "source": event.source},
    )
