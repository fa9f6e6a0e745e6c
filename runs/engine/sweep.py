"""The sweep: what must happen on time whatever state a run is in, and needs no free worker.

One statement finds what is due and when there may be something next; each thing is then judged again under its run's
lock, in a short transaction of its own. It runs in every gateway and every cluster; a try-lock lets one at a time do
what is due. The lock only spares work: who finds it taken for longer than any sweep lasts goes ahead, because its holder
may be a process that was stopped (SIGSTOP).
"""

import logging
import time
from collections.abc import Callable, Sequence

from django.conf import settings
from django.db import DatabaseError, transaction

from runs import allowances, budgets, course, lifecycle, operations, sql, steps, switches
from runs.engine import orphans, renewing, think
from runs.engine.advance import expire
from runs.engine.settle import book_lost
from runs.journal import append
from runs.models import Attempt, Run, Step
from runs.states import RUN_FINAL, AttemptOutcome, RunState, StepKind, StepState, WaitingFor

log = logging.getLogger(__name__)

SWEEP_LOCK = 0x4C57_0002
_MOST = 500
_LONGEST_S = 3.0
_BUSY_S = 1.0
_IDLE_S = 5.0
_LEAST_S = 0.1
# A child whose end woke nobody was killed just then: it is among those that ended since the last look, and a while before.
_OVERLAP_S = 60.0
_EVER_S = 1e9
_LOCK_NOT_AVAILABLE = "55P03"

# Besides what is due: in how many milliseconds the next moment comes that is known now. A lease that is taken after this
# look ends no sooner than a lease after it, so who looks again before that is not late.
_DUE = f"""
    WITH up AS (SELECT clock_timestamp() - pg_postmaster_start_time() > make_interval(secs => %(lease)s) AS long_enough)
    (SELECT 'attempt' AS duty, a.id FROM runs_attempt a, up
      WHERE a.outcome = 'open' AND a.lease_until < clock_timestamp() AND up.long_enough LIMIT %(most)s)
    UNION ALL
    (SELECT 'run', r.id FROM runs_run r, up
      WHERE r.state = 'running' AND r.lease_until < clock_timestamp() AND up.long_enough LIMIT %(most)s)
    UNION ALL
    (SELECT 'expire', r.id FROM runs_run r
      WHERE r.state IN ('queued', 'running', 'thinking', 'waiting') AND r.expires_at <= lw_now() LIMIT %(most)s)
    UNION ALL
    (SELECT 'expire', r.id FROM runs_run r
      WHERE r.state IN ('queued', 'running', 'thinking', 'waiting') AND r.deadline_at <= lw_now() LIMIT %(most)s)
    UNION ALL
    (SELECT 'cards', p.run_id FROM runs_approval p
      WHERE p.state IN ('pending', 'approved') AND p.expires_at <= lw_now() AND p.effective_at IS NULL LIMIT %(most)s)
    UNION ALL
    (SELECT 'decision', p.id FROM runs_approval p WHERE p.effective_at <= lw_now() LIMIT %(most)s)
    UNION ALL
    (SELECT 'child', s.run_id FROM runs_run c JOIN runs_step s ON s.run_id = c.parent_id
      WHERE c.parent_id IS NOT NULL AND c.ended_at > lw_now() - make_interval(secs => %(unseen)s)
        AND s.state = 'waiting' AND s.waiting_for = 'child' AND s.waiting_on = c.id::text LIMIT %(most)s)
    UNION ALL
    (SELECT 'key', k.id FROM runs_key k JOIN runs_step s ON s.id = k.step_id
      WHERE k.state = 'taken' AND s.ended_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM runs_attempt a WHERE a.key_id = k.id AND a.outcome = 'open') LIMIT %(most)s)
    UNION ALL
    (SELECT 'drained', r.id FROM runs_run r
      WHERE r.state IN ('succeeded', 'failed', 'stopped', 'expired') AND r.drained_at IS NULL
        AND NOT EXISTS (SELECT FROM runs_attempt a WHERE a.run_id = r.id AND a.outcome = 'open') LIMIT %(most)s)
    UNION ALL
    (SELECT 'credential', min(s.id) FROM runs_step s
      WHERE s.state = 'waiting' AND s.waiting_for = 'credential' AND NOT EXISTS (
          SELECT FROM runs_approval p WHERE p.kind = 'credential' AND p.state = 'pending'
            AND p.evidence ->> 'credential' = s.waiting_on)
      GROUP BY s.waiting_on LIMIT %(most)s)
    UNION ALL
    (SELECT 'held', r.id FROM runs_run r
      WHERE r.held_since IS NOT NULL AND r.paused_at IS NULL AND r.ended_at IS NULL
        AND NOT EXISTS ({switches.in_scope_of("''")}) LIMIT %(most)s)
    UNION ALL
    (SELECT 'threshold', b.run_id FROM runs_budget b WHERE b.notice_due LIMIT %(most)s)
    UNION ALL
    (SELECT 'allowance', w.id FROM runs_allowancewindow w WHERE w.notice_due LIMIT %(most)s)
    UNION ALL
    (SELECT 'next', floor(1000 * extract(epoch FROM least(
        (SELECT min(lease_until) FROM runs_attempt WHERE outcome = 'open') - clock_timestamp(),
        (SELECT min(lease_until) FROM runs_run WHERE state = 'running') - clock_timestamp(),
        (SELECT min(expires_at) FROM runs_run WHERE state IN ('queued', 'running', 'thinking', 'waiting')) - lw_now(),
        (SELECT min(deadline_at) FROM runs_run WHERE state IN ('queued', 'running', 'thinking', 'waiting')) - lw_now(),
        (SELECT min(expires_at) FROM runs_approval WHERE state IN ('pending', 'approved')) - lw_now(),
        (SELECT min(effective_at) FROM runs_approval WHERE effective_at IS NOT NULL) - lw_now(),
        CASE WHEN EXISTS (SELECT FROM runs_run WHERE state IN ('running', 'thinking'))
             THEN make_interval(secs => {_BUSY_S}) ELSE make_interval(secs => {_IDLE_S}) END
     )))::bigint)
"""


def sweep() -> float:
    """Do what is due; return after how many seconds to call this again. Safe to run anywhere, any number of times."""
    due, next_s = _look()
    if due:
        _do(due)
        return _BUSY_S
    return max(min(next_s, settings.LEASE_S / 3), _LEAST_S)


def sweep_once() -> int:
    """Do what is due; how many things were."""
    due, _ = _look()
    return _do(due) if due else 0


def _look() -> tuple[list[tuple[str, int]], float]:
    """What is due, and in how many seconds more may be."""
    global _looked_at
    now = time.monotonic()
    unseen_s = _EVER_S if _looked_at is None else now - _looked_at + _OVERLAP_S
    *due, (_, next_ms) = sql.fetch_all(_DUE, {"lease": settings.LEASE_S, "most": _MOST, "unseen": unseen_s})
    _looked_at = now
    return [(str(duty), int(ident)) for duty, ident in due], float(next_ms) / 1000


def _do(due: Sequence[tuple[str, int]]) -> int:
    global _refused_since
    (mine,) = sql.fetch_row("SELECT pg_try_advisory_lock(%s)", [SWEEP_LOCK])
    if mine:
        _refused_since = None
    else:
        _refused_since = _refused_since or time.monotonic()
        if time.monotonic() - _refused_since < _LONGEST_S:
            return 0
    try:
        for duty, ident in due:
            try:
                _DUTIES[duty](ident)
            except DatabaseError as error:
                if getattr(error.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
                # A process that was stopped in a transaction; the server ends that before long.
                log.warning("The sweep could not do %s %s: its row is locked", duty, ident)
            except Exception:
                # One thing that cannot be done must not keep the sweep from the others.
                log.exception("The sweep could not do %s %s", duty, ident)
        return len(due)
    finally:
        if mine:
            sql.execute("SELECT pg_advisory_unlock(%s)", [SWEEP_LOCK])


_looked_at: float | None = None
_refused_since: float | None = None


def reap_attempt(attempt_id: int) -> None:
    """Close an attempt whose lease ran out, whatever its run's state: lost, unless its parent confirmed its end.

    A lease that ran out proves nothing about the process. What it may still do is judged when its step goes on.
    """
    found = Attempt.objects.select_related("step").get(pk=attempt_id)
    if found.step.kind == StepKind.THINK and found.holder == found.performer:
        think.fail(
            attempt_id,
            outcome=AttemptOutcome.LOST,
            error="the gateway's lease ran out",
            spent=think.Spent(nothing=found.began_at is None),
            retry=think.Retry(),
        )
        return
    with transaction.atomic(durable=True):
        run = lifecycle.lock(found.run_id)
        step = steps.lock(found.step_id)
        attempt = steps.lock_attempt(attempt_id)
        if attempt.outcome != AttemptOutcome.OPEN or not steps.lease_is_over(attempt_id):
            return
        known = steps.exit_of(attempt.performer)
        status, signal, maxrss = known or (None, None, None)
        error = "its worker's lease ran out" + ("; its process was reaped" if known else "")
        steps.close_attempt(
            attempt, AttemptOutcome.LOST, error=error, exit_status=status, exit_signal=signal, maxrss_bytes=maxrss
        )
        freed = book_lost(run, step, attempt, error)
        if run.state in RUN_FINAL:
            lifecycle.mark_drained(run.pk)
        else:
            course.rest(run)
    operations.wake_lock_waiters(freed)


def reap_run(number: int) -> None:
    """Take a run from a worker whose lease ran out; its epoch rises, so that worker can change nothing any more."""
    with transaction.atomic(durable=True):
        run = lifecycle.lock(number)
        (over,) = sql.fetch_row(
            "SELECT coalesce(lease_until < clock_timestamp(), false) FROM runs_run WHERE id = %s", [number]
        )
        if run.state != RunState.RUNNING or not over:
            return
        lifecycle.raise_epoch(run)
        lifecycle.close_gap(run, lease_s=settings.LEASE_S)
        append("run.lease_lost", run=run.pk, before={"holder": str(run.holder)})
        course.rest(run, holding=True)


def _expire_cards(number: int) -> None:
    with transaction.atomic(durable=True):
        run = lifecycle.lock(number)
        if course.expire_cards(run):
            course.rest(run)


def _wake_parent(number: int) -> None:
    with transaction.atomic(durable=True):
        run = lifecycle.lock(number)
        for step in Step.objects.filter(run=run, state=StepState.WAITING, waiting_for=WaitingFor.CHILD):
            if Run.objects.filter(pk=int(step.waiting_on), state__in=RUN_FINAL).exists():
                course.wake_run(run, WaitingFor.CHILD, step.waiting_on, why=f"run {step.waiting_on} ended")


def _ask_for_credential(ident: int) -> None:
    """The run whose card asked for a credential has ended; others still wait for it."""
    with transaction.atomic(durable=True):
        run = lifecycle.lock(Step.objects.values_list("run_id", flat=True).get(pk=ident))
        step = steps.lock(ident)
        if step.state == StepState.WAITING and step.waiting_for == WaitingFor.CREDENTIAL:
            renewing.ask_for_credential(run, step, step.waiting_on, why=step.wait_note)


def _mark_drained(number: int) -> None:
    with transaction.atomic(durable=True):
        lifecycle.lock(number)
        lifecycle.mark_drained(number)


def _unhold(number: int) -> None:
    with transaction.atomic(durable=True):
        run = lifecycle.lock(number)
        if run.held_since is not None and run.paused_at is None and run.state not in RUN_FINAL:
            lifecycle.unhold(run)


def _tell_threshold(number: int) -> None:
    """Here, because an entry in the journal of a run above needs that run's lock, and the ledger must not wait for it."""
    with transaction.atomic(durable=True):
        lifecycle.lock(number)
        budgets.tell_threshold(number)


def _tell_soft(window: int) -> None:
    with transaction.atomic(durable=True):
        allowances.tell_soft(window)


_DUTIES: dict[str, Callable[[int], object]] = {
    "attempt": reap_attempt,
    "run": reap_run,
    "expire": expire,
    "cards": _expire_cards,
    "decision": operations.apply_held_decision,
    "child": _wake_parent,
    "key": orphans.settle,
    "credential": _ask_for_credential,
    "drained": _mark_drained,
    "held": _unhold,
    "threshold": _tell_threshold,
    "allowance": _tell_soft,
}
