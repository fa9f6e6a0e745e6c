"""Writer of runs: creating, claiming, moving, holding. Every move is one guarded UPDATE and its journal entry."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction

from runs import notify, sql, switches
from runs.errors import Lost, Malformed, RunEnded, WrongState
from runs.journal import RUNTIME, Actor, append, require_transaction
from runs.models import Run, WorkItem
from runs.sanitise import clean_text
from runs.states import RUN_FINAL, RUN_MOVES, RUN_OPEN, WAITS_ON_PEOPLE, RunState, Verified, WaitingFor, WorkState

# Adds the time since the last move to one of the five clocks. Judged by what the run was, before this UPDATE.
_PASSED = "greatest(extract(epoch FROM lw_clock() - clock_mark), 0)"
_PEOPLE = ", ".join(f"'{w}'" for w in sorted(WAITS_ON_PEOPLE))
ADD_CLOCKS = f"""
    clock_mark = greatest(lw_clock(), clock_mark),
    held_s = held_s + CASE WHEN held_since IS NOT NULL THEN {_PASSED} ELSE 0 END,
    working_s = working_s + CASE WHEN held_since IS NULL AND state IN ('running', 'thinking') THEN {_PASSED} ELSE 0 END,
    queued_s = queued_s + CASE WHEN held_since IS NULL AND state = 'queued' THEN {_PASSED} ELSE 0 END,
    people_s = people_s + CASE WHEN held_since IS NULL AND state = 'waiting' AND waiting_for IN ({_PEOPLE})
               THEN {_PASSED} ELSE 0 END,
    world_s = world_s + CASE WHEN held_since IS NULL AND state = 'waiting' AND waiting_for NOT IN ({_PEOPLE})
              THEN {_PASSED} ELSE 0 END,
    changed_at = greatest(lw_clock(), changed_at)
"""


# Added to the priority of a run that goes on because a person acted, until it is claimed: it passes whatever else is due.
HURRY = 10_000
_IN_NO_HURRY = f"priority = priority - CASE WHEN priority > {HURRY // 2} THEN {HURRY} ELSE 0 END"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A run that a worker holds, at the epoch that its claim raised."""

    run: int
    epoch: int
    crowded: bool = field(default=False, compare=False)  # others were due as well
    row: Run | None = field(default=None, compare=False, repr=False)  # for the transaction that claimed it


@dataclass(frozen=True, kw_only=True)
class Held:
    """A run that was due, and is held by a pause or a switch."""

    run: int


def create(
    *,
    agent: str,
    contract: str,
    goal: str,
    constraints: Sequence[str] = (),
    inputs: Mapping[str, object] | None = None,
    labels: Mapping[str, object] | None = None,
    parent: Run | None = None,
    max_age_s: float | None = None,
    deadline_at: datetime | None = None,
    priority: int = 0,
    actor: Actor = RUNTIME,
) -> Run:
    """Insert a run, queued and due now. `parent` is locked by the caller. Raises: RunEnded when that has ended."""
    require_transaction()
    if parent is not None and parent.state in RUN_FINAL:
        raise RunEnded(parent.pk, parent.state)
    uid = uuid.uuid4()
    created = sql.fetch_row(
        "WITH new AS (SELECT nextval(pg_get_serial_sequence('runs_run', 'id')) AS id, lw_clock() AS now)"
        " INSERT INTO runs_run (id, uid, agent, goal, constraints, inputs, labels, started_by_id, parent_id, root_id,"
        " depth, origin, contract, state, priority, due_at, epoch, waiting_for, why, pause_reason, held_by, created_at,"
        " changed_at, deadline_at, expires_at, max_age_s, clock_mark, working_s, queued_s, world_s, people_s, held_s,"
        " step_seq, journal_seq, end_reason, verified)"
        " SELECT id, %s, %s, %s, %s, %s, %s, %s, %s, coalesce(%s, id), %s, %s, %s, 'queued', %s, now, 0, '', '', '', '',"
        " now, now, %s, now + make_interval(secs => %s), %s, now, 0, 0, 0, 0, 0, 0, 0, '', %s"
        f" FROM new RETURNING {sql.columns(Run)}",
        [
            uid,
            agent,
            clean_text(goal),
            sql.jsonb(list(constraints)),
            sql.jsonb(inputs or {}),
            sql.jsonb(labels or {}),
            actor.user,
            parent.pk if parent else None,
            parent.root_id if parent else None,
            parent.depth + 1 if parent else 0,
            uid,
            contract,
            priority,
            deadline_at,
            max_age_s,
            max_age_s,
            Verified.UNCLAIMED,
        ],
    )
    (run,) = sql.build(Run, [created])
    append("run.started", actor=actor, run=run.pk, after={"agent": agent, "parent": parent.pk if parent else None})
    notify.due()
    return run


def lock(run: int) -> Run:
    """Lock a run's row. Everything that is decided about it is read after this.

    Here and in every writer the lock is FOR NO KEY UPDATE: a foreign key to this row (a child's to its parent, checked
    when the child's transaction commits) must not wait for it, or two that lock in order would still deadlock.
    """
    require_transaction()
    return sql.lock(Run, run)


def lock_held(claim: Claim) -> Run:
    """Lock a run that the caller holds. Raises: Lost when its epoch moved on; nothing may be changed then."""
    run = lock(claim.run)
    if run.epoch != claim.epoch or run.state not in (RunState.RUNNING, RunState.THINKING):
        raise Lost(claim.run, claim.epoch)
    return run


def lock_with_descendants(run: int, *, then: Callable[[], None] = lambda: None) -> list[Run]:
    """Lock a run and all its descendants, child before parent, until no new child appears. The run itself comes last.

    then: asks or queues what goes in the same message; it is undone, and done again, where a child has appeared.

    A child that appeared while its parent was waited for would be locked after it, and two that stop one tree could wait
    for each other: so these locks are let go (they are of a savepoint), and all are taken again in order.
    """
    require_transaction()
    while True:
        try:
            with transaction.atomic():
                # From the newest: a child's number is always above its parent's.
                locked = sql.ask(
                    f"SELECT {sql.columns(Run)} FROM runs_run WHERE id = ANY (ARRAY ({_DOWN}))"
                    " ORDER BY id DESC FOR NO KEY UPDATE",
                    [run],
                )
                now = sql.ask(_DOWN, [run])
                then()
                tree = sql.build(Run, locked.all())
                # Nothing is created under a locked parent.
                if {number for (number,) in now.all()} != {one.pk for one in tree}:
                    raise _Grew
                return tree
        except _Grew:
            continue


class _Grew(Exception):
    """A child appeared while the locks of its tree were waited for."""


# A run and all below it.
_DOWN = (
    "WITH RECURSIVE down AS (SELECT id FROM runs_run WHERE id = %s"
    " UNION ALL SELECT c.id FROM runs_run c JOIN down ON c.parent_id = down.id) SELECT id FROM down"
)


def claim(holder: uuid.UUID, *, lease_s: float) -> Claim | Held | None:
    """Claim one due run, or mark one as held, or find none due.

    A run under a pause or a switch is not claimed: it is marked `held_since` and looked at again at its next expiry.
    """
    switches.lock_shared()
    row = sql.fetch_one(_CLAIM, [holder, lease_s])
    if row is None and (due := sql.fetch_one(f"SELECT r.id, r.paused_at IS NOT NULL, r.pause_reason {_DUE}")):
        number, paused, pause_reason = due
        switch = None if paused else switches.in_scope(number)
        if paused or switch:
            hold(number, f"paused: {pause_reason}" if switch is None else f"switch {switch[0]}: {switch[1]}")
            return Held(run=number)
        row = sql.fetch_one(_CLAIM, [holder, lease_s])  # it has become due, or free, in between
    if row is None:
        return None
    *columns, state, waiting_for, crowded = row
    (run,) = sql.build(Run, [columns])
    append(
        "run.moved",
        run=run.pk,
        before={"state": state, "waiting_for": waiting_for},
        after={"state": RunState.RUNNING, "waiting_for": "", "epoch": run.epoch, "holder": holder},
        why="claimed by a worker",
    )
    return Claim(run=run.pk, epoch=run.epoch, crowded=crowded, row=run)


_DUE = (
    "FROM runs_run r WHERE r.state IN ('queued', 'waiting') AND r.due_at <= lw_now()"
    " ORDER BY r.priority DESC, r.due_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED"
)
# Nothing is waited for, so what is judged is as it was locked; only a switch could not be seen, and its lock is held.
_CLAIM = f"""
    WITH due AS MATERIALIZED (SELECT r.id AS number, r.state AS was, r.waiting_for AS waited_for {_DUE})
    UPDATE runs_run r SET {ADD_CLOCKS}, state = 'running', epoch = epoch + 1, holder = %s, waiting_for = '', why = '',
        held_since = NULL, held_by = '', {_IN_NO_HURRY}, lease_until = clock_timestamp() + make_interval(secs => %s)
    FROM due WHERE r.id = number AND r.paused_at IS NULL AND NOT EXISTS ({switches.in_scope_of("''")})
    RETURNING {sql.columns(Run, "r")}, was, waited_for, (SELECT count(*) FROM
        (SELECT FROM runs_run WHERE state IN ('queued', 'waiting') AND due_at <= lw_now() LIMIT 2) d) > 1
"""


def hold(run: int, by: str) -> None:
    """Mark a due run as held and let it lie until its next expiry; a release or a resume queues it again."""
    if sql.fetch_one(
        f"UPDATE runs_run SET {ADD_CLOCKS}, held_since = coalesce(held_since, lw_clock()), held_by = %s,"
        " due_at = least(expires_at, deadline_at, lw_clock() + interval '1 day')"
        " WHERE id = %s AND state IN ('queued', 'waiting', 'thinking') RETURNING held_since",
        [clean_text(by), run],
    ):
        append("run.held", run=run, why=by)


def unhold(run: Run, *, after_s: float = 0.0) -> None:
    """Let a locked run be looked at again, at once or later. One that is paused or has ended stays as it is."""
    if sql.execute(
        f"UPDATE runs_run SET {ADD_CLOCKS}, held_since = NULL, held_by = '',"
        " due_at = lw_clock() + make_interval(secs => %s) WHERE id = %s AND paused_at IS NULL AND ended_at IS NULL",
        [after_s, run.pk],
    ):
        notify.due()
        notify.think()


def renew(claim: Claim, *, lease_s: float) -> bool:
    """Renew the lease on a held run, and count what it has worked until now. False: no longer held."""
    return (
        sql.execute(
            f"UPDATE runs_run SET working_s = working_s + {_PASSED}, clock_mark = greatest(lw_clock(), clock_mark),"
            " lease_until = clock_timestamp() + make_interval(secs => %s)"
            " WHERE id = %s AND epoch = %s AND state = 'running'",
            [lease_s, claim.run, claim.epoch],
        )
        > 0
    )


def close_gap(run: Run, *, lease_s: float, attempt: int | None = None) -> None:
    """Whoever held a locked run was lost: what comes after the end of its last lease was no work. It counts as queued.

    attempt: that of the model call which was renewed in place of the run.
    """
    sql.execute(
        "UPDATE runs_run r SET clock_mark = now, working_s = working_s + greatest(extract(epoch FROM alive - clock_mark), 0),"
        " queued_s = queued_s + greatest(extract(epoch FROM now - greatest(alive, clock_mark)), 0)"
        " FROM (SELECT greatest(lw_clock(), i.clock_mark) AS now, least(lw_clock(),"
        "   greatest(i.clock_mark, coalesce(a.seen_at, a.taken_at)) + make_interval(secs => %s)) AS alive"
        "   FROM runs_run i LEFT JOIN runs_attempt a ON a.id = %s WHERE i.id = %s) g"
        " WHERE r.id = %s AND r.held_since IS NULL AND r.state IN ('running', 'thinking')",
        [lease_s, attempt, run.pk, run.pk],
    )


def count_queued(run: Run) -> None:
    """A locked run that thinks was not worked at until now: no gateway had taken its call."""
    sql.execute(
        f"UPDATE runs_run SET queued_s = queued_s + {_PASSED}, clock_mark = greatest(lw_clock(), clock_mark)"
        " WHERE id = %s AND state = 'thinking' AND held_since IS NULL AND clock_mark < lw_clock() - interval '1 s'",
        [run.pk],
    )


def move(
    run: Run,
    to: RunState,
    *,
    due_at: datetime | None = None,
    waiting_for: WaitingFor | str = "",
    why: str = "",
    actor: Actor = RUNTIME,
) -> None:
    """Move a locked run to an open state. Raises: WrongState; Lost when the row is not what the caller locked.

    due_at: None is now for queued and thinking runs. What a person queues is claimed before all that is merely due.
    """
    hurry = HURRY if to == RunState.QUEUED and actor.user is not None else 0
    if to not in RUN_MOVES[RunState(run.state)] or to in RUN_FINAL or to is RunState.RUNNING:
        raise WrongState(f"Run {run.pk}", run.state, to)
    row = sql.fetch_one(
        f"UPDATE runs_run SET {ADD_CLOCKS}, state = %s, due_at = coalesce(%s, lw_clock()), waiting_for = %s, why = %s,"
        f" {_IN_NO_HURRY} + %s, holder = NULL, lease_until = NULL WHERE id = %s AND epoch = %s AND state = %s"
        " RETURNING due_at",
        [to, due_at, waiting_for, clean_text(why), hurry, run.pk, run.epoch, run.state],
    )
    if row is None:
        raise Lost(run.pk, run.epoch)
    append(
        "run.moved",
        actor=actor,
        run=run.pk,
        before={"state": run.state, "waiting_for": run.waiting_for},
        after={"state": to, "waiting_for": waiting_for},
        why=why,
    )
    run.state, run.due_at, run.waiting_for, run.why = to, row[0], waiting_for, why
    run.holder = run.lease_until = None
    if to == RunState.QUEUED:
        notify.due()
    elif to == RunState.THINKING:
        notify.think()


def finalise(
    run: Run,
    to: RunState,
    *,
    reason: str,
    outcome: object = None,
    verified: Verified | str = "",
    actor: Actor = RUNTIME,
) -> bool:
    """Move a locked run to a final state. True: nothing of it is in flight any more, which the caller says in the journal.

    `runs.course.end` does what belongs to that; call it instead.
    """
    if run.state in RUN_FINAL:
        raise RunEnded(run.pk, run.state)
    if to not in RUN_MOVES[RunState(run.state)] or to not in RUN_FINAL:
        raise WrongState(f"Run {run.pk}", run.state, to)
    row = sql.fetch_one(
        f"UPDATE runs_run SET {ADD_CLOCKS}, state = %s, epoch = epoch + 1, due_at = NULL, waiting_for = '', why = '',"
        " holder = NULL, lease_until = NULL, held_since = NULL, held_by = '', ended_at = lw_clock(), end_reason = %s,"
        " outcome = coalesce(%s, outcome), verified = coalesce(nullif(%s, ''), verified),"
        f" drained_at = CASE WHEN {_NOTHING_IN_FLIGHT} THEN lw_clock() END"
        " WHERE id = %s AND state = %s RETURNING epoch, ended_at, drained_at IS NOT NULL",
        [
            to,
            clean_text(reason),
            sql.jsonb(outcome),
            verified,
            run.pk,
            run.state,
        ],
    )
    if row is None:
        raise Lost(run.pk, run.epoch)
    append(f"run.{to}", actor=actor, run=run.pk, before={"state": run.state}, after={"state": to}, why=reason)
    run.state, (run.epoch, run.ended_at, drained) = to, row
    if not drained:
        notify.stop(run.pk)
    return bool(drained)


_NOTHING_IN_FLIGHT = "NOT EXISTS (SELECT FROM runs_attempt a WHERE a.run_id = runs_run.id AND a.outcome = 'open')"


def mark_drained(run: int) -> bool:
    """Note that nothing of an ended run is in flight any more. True: this call noted it."""
    drained = (
        sql.execute(
            "UPDATE runs_run SET drained_at = lw_clock() WHERE id = %s AND drained_at IS NULL AND ended_at IS NOT NULL"
            f" AND {_NOTHING_IN_FLIGHT}",
            [run],
        )
        > 0
    )
    if drained:
        append("run.drained", run=run)
    return drained


def raise_epoch(run: Run) -> None:
    """Fence whoever held a locked run: its claim is not valid any more."""
    (run.epoch,) = sql.fetch_row("UPDATE runs_run SET epoch = epoch + 1 WHERE id = %s RETURNING epoch", [run.pk])


def set_ends(run: Run, *, max_age_s: float | None, deadline_at: datetime | None, actor: Actor, why: str) -> bool:
    """Set when an open run expires, whatever it is doing; None is no limit. False: it is so already.

    Raises: RunEnded, Malformed (it would have expired already).
    """
    if (run.max_age_s, run.deadline_at) == (max_age_s, deadline_at):
        return False
    if run.state not in RUN_OPEN:
        raise RunEnded(run.pk, run.state)
    before = {"max_age_s": run.max_age_s, "deadline_at": run.deadline_at and run.deadline_at.isoformat()}
    (over,) = sql.fetch_row(
        "UPDATE runs_run SET max_age_s = %s, expires_at = created_at + make_interval(secs => %s), deadline_at = %s"
        " WHERE id = %s RETURNING coalesce(least(expires_at, deadline_at) <= lw_clock(), false)",
        [max_age_s, max_age_s, deadline_at, run.pk],
    )
    if over:
        raise Malformed(f"Run {run.pk} would have expired already.", remedy="Name a later end, or stop it.")
    after = {"max_age_s": max_age_s, "deadline_at": deadline_at and deadline_at.isoformat()}
    append("run.ends_set", actor=actor, run=run.pk, before=before, after=after, why=why)
    return True


def pause(run: Run, *, reason: str, actor: Actor, at: datetime | None = None) -> datetime:
    """Set the flag that claims and takes refuse, and return its moment. at: that of the run with which it is paused."""
    if run.state not in RUN_OPEN:
        raise RunEnded(run.pk, run.state)
    if run.paused_at is not None:
        raise WrongState(f"Run {run.pk}", "paused", "paused again")
    (paused_at,) = sql.fetch_row(
        f"UPDATE runs_run SET {ADD_CLOCKS}, paused_at = coalesce(%s, lw_clock()), pause_reason = %s,"
        " held_since = CASE WHEN state IN ('queued', 'waiting') THEN coalesce(held_since, lw_clock()) ELSE held_since END,"
        " held_by = CASE WHEN state IN ('queued', 'waiting') THEN %s ELSE held_by END WHERE id = %s"
        " RETURNING paused_at",
        [at, clean_text(reason), clean_text(f"paused: {reason}"), run.pk],
    )
    append("run.paused", actor=actor, run=run.pk, why=reason)
    notify.stop(run.pk)
    moment: datetime = paused_at
    return moment


def resume(run: Run, *, reason: str, actor: Actor) -> None:
    """Clear the pause and queue the run again, at once."""
    if run.state not in RUN_OPEN:
        raise RunEnded(run.pk, run.state)
    if run.paused_at is None:
        raise WrongState(f"Run {run.pk}", "not paused", "resumed")
    sql.execute("UPDATE runs_run SET paused_at = NULL, pause_reason = '' WHERE id = %s", [run.pk])
    append("run.resumed", actor=actor, run=run.pk, why=reason)
    unhold(run)


def amend(run: Run, text: str, *, actor: Actor) -> None:
    """Add to the goal of a locked run, signed and dated. The agent reads it before its next decision. Raises: RunEnded."""
    require_transaction()
    if run.state in RUN_FINAL:
        raise RunEnded(run.pk, run.state)
    sql.execute(
        "INSERT INTO runs_amendment (run_id, text, by_id, at) VALUES (%s, %s, %s, lw_clock())",
        [run.pk, clean_text(text), actor.user],
    )
    append("run.amended", actor=actor, run=run.pk, why=text)


# Counts so many more steps of a locked run, as a part of the statement that makes them: (how many, run).
COUNT_STEPS = "UPDATE runs_run SET step_seq = step_seq + %s WHERE id = %s RETURNING id, step_seq"


def mark_thought(run: int) -> None:
    sql.queue("UPDATE runs_run SET last_thought_at = lw_clock() WHERE id = %s", [run])


def set_claim(run: int, *, outcome: object, verified: Verified) -> None:
    """Keep what a finish claimed, and what was found of it, while the run goes on (a refuted claim)."""
    sql.execute(
        "UPDATE runs_run SET outcome = %s, verified = %s WHERE id = %s",
        [sql.jsonb(outcome), verified, run],
    )


def add_work(run: int, titles: Sequence[str], *, step: int) -> list[WorkItem]:
    start = WorkItem.objects.filter(run_id=run).count()
    items = []
    for place, title in enumerate(titles, start=start + 1):
        items.append(
            WorkItem.objects.get(
                pk=sql.fetch_row(
                    "INSERT INTO runs_workitem (run_id, ref, title, state, outcome, opened_by_id, created_at)"
                    " VALUES (%s, %s, %s, %s, '', %s, lw_clock()) RETURNING id",
                    [run, f"w{place}", clean_text(title), WorkState.OPEN, step],
                )[0]
            )
        )
    return items


def close_work(item: WorkItem, *, state: WorkState, outcome: str, step: int) -> None:
    if (
        sql.execute(
            "UPDATE runs_workitem SET state = %s, outcome = %s, closed_by_id = %s, closed_at = lw_clock()"
            " WHERE id = %s AND state = 'open'",
            [state, clean_text(outcome), step, item.pk],
        )
        == 0
    ):
        raise WrongState(f"Work item {item.ref}", item.state, state)
