"""Settling: one transaction that closes an attempt with its key, ledger entry and step, by the attempt's own id.

Whatever has become of the run meanwhile, what happened is recorded; only the run's own move needs its epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import transaction

from runs import approvals, artifacts, budgets, course, journal, keys, lifecycle, operations, steps
from runs.agents import Effect, Json, Tool
from runs.engine import awaiting, doubt, harmless, renewing
from runs.engine.hand import backoff, later
from runs.engine.toolhost import Died, Outcome
from runs.engine.toolwire import Report, Said
from runs.engine.waits import ask_about_failure
from runs.journal import append
from runs.lifecycle import Claim
from runs.models import Approval, Artifact, Attempt, Key, Run, Step
from runs.states import (
    MAY_HAVE_ACTED,
    RUN_FINAL,
    STEP_FINAL,
    ApprovalState,
    AttemptOutcome,
    KeyState,
    StepState,
    WaitingFor,
)

# A worker that is lost is seldom its step's fault; one that is lost with it every time is.
MOST_LOST = 10

_SETTLEABLE = frozenset({AttemptOutcome.OPEN}) | MAY_HAVE_ACTED


def settle_call(claim: Claim, attempt_id: int, tool: Tool, outcome: Outcome) -> None:
    """Settle a try of an act step."""
    with transaction.atomic(durable=True), journal.together():
        run, step, attempt, late = harmless.lock_try(claim, attempt_id)
        key = keys.lock(attempt.key_id) if attempt.key_id else None
        match outcome:
            case Report(said=Said.DONE | Said.WAITS) if attempt.outcome == AttemptOutcome.DISPROVED:
                closed = _Closed(freed=_contradict(run, step, attempt, key, outcome))
            case _ if attempt.outcome not in _SETTLEABLE:
                return
            case Report(said=Said.DONE | Said.WAITS):
                closed = _done(run, step, attempt, key, tool, outcome, late=late)
            case Report(said=Said.NOT_BEGUN):
                closed = _not_begun(run, step, attempt, key, outcome.error, late=late)
            case Report(said=Said.REFUSED):
                closed = _refused(run, step, attempt, key, outcome.error, late=late)
            case Report(said=Said.CREDENTIAL):
                closed = _credential(run, step, attempt, key, outcome, late=late)
            case _:
                closed = _not_known(run, step, attempt, key, tool, outcome, late=late)
        finish_late(run, late=late)
        # Last and shortest: the budgets of all ancestors are locked until the commit.
        if closed.book is not None:
            closed.book()
    operations.wake_lock_waiters(closed.freed)


@dataclass(frozen=True, kw_only=True)
class _Closed:
    """What is left to do when a try is closed: to book it, and to wake who waits for its locks."""

    book: Callable[[], None] | None = None
    freed: Sequence[str] = ()


def finish_late(run: Run, *, late: bool) -> None:
    """What came late changes no state of an ended run; an open run reads its steps again."""
    if run.state in RUN_FINAL:
        lifecycle.mark_drained(run.pk)
    elif late:
        course.rest(run)


def keep(report: Report) -> tuple[Json, Artifact | None]:
    """A result as the step keeps it."""
    if report.body is not None:
        stored = artifacts.store(report.body, media_type=report.media_type)
        return {
            "artifact": f"sha256:{stored.digest}",
            "bytes": stored.size,
            "media_type": stored.media_type,
            "text": report.result,
        }, stored
    return artifacts.shorten(report.result)


def _done(
    run: Run, step: Step, attempt: Attempt, key: Key | None, tool: Tool, report: Report, *, late: bool
) -> _Closed:
    result, artifact = keep(report)
    kept = artifact.pk if artifact else None
    steps.close_attempt(attempt, AttemptOutcome.DONE, late=late)
    freed: Sequence[str] = []
    if key is not None and key.state in (KeyState.TAKEN, KeyState.IN_DOUBT):
        _void_verdicts(key, why="the result arrived")
        freed = keys.close(key, KeyState.DONE, how="late" if late else "settled", result=result, artifact=kept)
    if late:
        # Whatever was asked about it meanwhile: nobody can answer that any more.
        approvals.void_all(run.pk, step=step.pk, why="the result arrived")
    if (step.state not in STEP_FINAL and not step.keeps_wait) or step.state == StepState.VOID:
        awaiting.conclude(
            run,
            step,
            result,
            waits=report.said is Said.WAITS,
            since=(key or attempt).taken_at,
            artifact=kept,
            why="arrived late" if late else "",
        )
    used = budgets.Amounts(steps=1, effects=int(tool.acts))
    return _Closed(book=lambda: budgets.settle(attempt.pk, used, note="arrived late" if late else ""), freed=freed)


def _contradict(run: Run, step: Step, attempt: Attempt, key: Key | None, report: Report) -> Sequence[str]:
    """It did happen, though a person or a look-up had said otherwise: that is written down, and not done again.

    The attempt keeps what was said of it. Where another one is under way by now, or nothing is open, only the journal
    can tell.
    """
    result, artifact = keep(report)
    append(
        "attempt.contradicted",
        run=attempt.run_id,
        step=step.pk,
        after={"attempt": attempt.number, "result": result},
        why="its result arrived after it was settled that it did nothing",
    )
    if key is None or key.state != KeyState.TAKEN or step.state not in (StepState.PLANNED, StepState.WAITING):
        return []
    kept = artifact.pk if artifact else None
    approvals.void_all(attempt.run_id, step=step.pk, why="the result arrived")
    freed = keys.close(key, KeyState.DONE, how="late", result=result, artifact=kept)
    waits = report.said is Said.WAITS
    awaiting.conclude(run, step, result, waits=waits, since=key.taken_at, artifact=kept, why="arrived late")
    return freed


def _goes_on(run: Run, step: Step, attempt: Attempt, error: str) -> bool:
    """Whether what comes next for its step is this attempt's to say: no newer one is at it, and its run goes on.

    The taken step of a run that has ended is void: nothing of it is waited for any more.
    """
    if step.state != StepState.TAKEN or step.tries != attempt.number:
        return False
    if run.state in RUN_FINAL:
        steps.close(step, StepState.VOID, error=error)
        return False
    return True


def _not_begun(run: Run, step: Step, attempt: Attempt, key: Key | None, error: str, *, late: bool) -> _Closed:
    """Nothing was sent: the approval is given back, nothing is charged, and it is looked at anew."""
    # A last look whose answer was lost may have marked a beginning that never came.
    certain = AttemptOutcome.NOT_BEGUN if attempt.began_at is None else AttemptOutcome.DISPROVED
    steps.close_attempt(attempt, certain, error=error, late=late)
    if step.tries == attempt.number:  # else a newer attempt has it
        doubt.give_back_approval(run, step)
    freed = course.close_if_nothing_happened(key)
    if _goes_on(run, step, attempt, error):
        steps.wait(step, WaitingFor.RETRY, note=f"not begun: {error}", wake_at=later(0.2))
    return _Closed(book=lambda: budgets.release(attempt.pk, note=error), freed=freed)


def _refused(run: Run, step: Step, attempt: Attempt, key: Key | None, error: str, *, late: bool) -> _Closed:
    steps.close_attempt(attempt, AttemptOutcome.REFUSED, error=error, late=late)

    def book() -> None:
        budgets.settle(attempt.pk, budgets.Amounts(steps=1), note=error)

    if key is not None and steps.judge_past(key=key.pk).may_have_acted:
        # This try did nothing, but an earlier one may have: its key is looked up, or asked about, next.
        if _goes_on(run, step, attempt, error):
            steps.wait(step, WaitingFor.RETRY, note="refused, but an earlier try may have acted", wake_at=later(0))
        return _Closed(book=book)
    freed = course.close_if_nothing_happened(key)
    open_states = (StepState.TAKEN, StepState.PLANNED, StepState.WAITING)
    if step.tries == attempt.number and step.state in open_states and not step.keeps_wait:
        approvals.void_all(run.pk, step=step.pk, why="it was refused")
        steps.close(step, StepState.REFUSED, error=error)
    return _Closed(book=book, freed=freed)


def _credential(run: Run, step: Step, attempt: Attempt, key: Key | None, report: Report, *, late: bool) -> _Closed:
    """Certainly nothing happened. With a renewed credential it is taken once more; else it waits for a person."""
    error = report.error
    steps.close_attempt(attempt, AttemptOutcome.REFUSED, error=error, late=late)
    if key is not None and steps.judge_past(key=key.pk).may_have_acted:
        freed: Sequence[str] = []
    else:
        if step.tries == attempt.number:
            doubt.give_back_approval(run, step)
        freed = course.close_if_nothing_happened(key)
    if _goes_on(run, step, attempt, error):
        renewing.go_on(run, step, report)
    return _Closed(book=lambda: budgets.release(attempt.pk, note=error), freed=freed)


def _not_known(
    run: Run, step: Step, attempt: Attempt, key: Key | None, tool: Tool, outcome: Report | Died, *, late: bool
) -> _Closed:
    """It failed, or died: what that means depends on whether it had begun, and on what it does to the world."""
    error = harmless.told(outcome)
    only_reads = tool.effect is Effect.READ
    if isinstance(outcome, Died):
        steps.close_attempt(
            attempt,
            AttemptOutcome.DEAD,
            error=error,
            exit_status=outcome.exit.status,
            exit_signal=outcome.exit.signal,
            maxrss_bytes=outcome.exit.maxrss_bytes,
            late=late,
        )
    else:
        known = AttemptOutcome.FAILED if outcome.said is Said.FAILED or only_reads else AttemptOutcome.UNKNOWN
        steps.close_attempt(attempt, known, error=error, late=late)

    def book() -> None:
        if tool.acts and attempt.began_at is None:
            budgets.release(attempt.pk, note=error)
        elif tool.acts:
            budgets.settle_as_reserved(attempt.pk, note=error)
        else:
            budgets.settle(attempt.pk, budgets.Amounts(steps=1), note=error)

    freed: Sequence[str] = []
    if tool.acts and attempt.began_at is None:
        if step.tries == attempt.number:
            doubt.give_back_approval(run, step)
        freed = course.close_if_nothing_happened(key)
    if _goes_on(run, step, attempt, error):
        try_again(run, step, tool, error, died=isinstance(outcome, Died))
    return _Closed(book=book, freed=freed)


def book_lost(run: Run, step: Step, attempt: Attempt, error: str) -> Sequence[str]:
    """What a lost attempt leaves, all locked: what never began is given back; what began is booked as an estimate."""
    key = keys.lock(attempt.key_id) if attempt.key_id else None
    freed: Sequence[str] = []
    if attempt.began_at is None and key is not None:
        budgets.release(attempt.pk, note=error)
        doubt.give_back_approval(run, step)
        freed = course.close_if_nothing_happened(key)
    else:
        budgets.settle_as_reserved(attempt.pk, note=error)
    if step.state != StepState.TAKEN:
        return freed
    lost = steps.count_lost(step)
    if run.state in RUN_FINAL:
        steps.close(step, StepState.VOID, error=error)
    elif lost >= MOST_LOST + step.tries_granted:
        ask_about_failure(run, step, f"its worker was lost {lost} times", error)
    else:
        steps.wake(step, why=error)
    return freed


def try_again(run: Run, step: Step, tool: Tool, error: str, *, died: bool) -> None:
    """Let a locked, taken step wait for its next try; when its tries are used up, the agent or a person hears of it.

    An effect whose outcome is not known is not counted out here: its key is resolved first, whatever the tries.
    """
    failures = steps.count_failures(step)
    in_question = (key := keys.open_key_of(step)) is not None and steps.judge_past(key=key.pk).may_have_acted
    if failures < max(tool.attempts, step.tries_granted) or in_question:
        pause = backoff(tool.backoff, failures)
        steps.wait(
            step,
            WaitingFor.RETRY,
            note=f"try {failures} failed: {error}",
            wake_at=later(pause),
            and_then="it is tried again" if not in_question else "its outcome is settled by what the tool allows",
        )
    elif died or tool.acts:
        what = f"its process died {failures} times" if died else f"it failed {failures} times"
        ask_about_failure(run, step, what, error)
    else:
        steps.close(step, StepState.FAILED, error=error)


def _void_verdicts(key: Key, *, why: str) -> None:
    for card in Approval.objects.select_for_update(of=("self",), no_key=True).filter(
        key=key, state=ApprovalState.PENDING
    ):
        approvals.void(card, why=why)
