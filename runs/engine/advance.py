"""The slice: one claimed run is advanced until it must wait, has used its share of time, or is not held any more."""

import logging
from enum import Enum, auto

from django.db import InterfaceError, OperationalError, transaction

from runs import allowances, course, lifecycle, operations, sql, steps, switches
from runs.agents import get_agent
from runs.engine import act, check, decide, finish, freshen, progress, reads, think
from runs.engine.hand import Hand
from runs.engine.toolhost import CannotStart
from runs.engine.waits import ask_about_failure, wait_for_contract, wait_for_place
from runs.errors import Lost, UnknownAgent
from runs.models import Run, Step
from runs.states import RUN_FINAL, RunState, StepKind, StepState

log = logging.getLogger(__name__)

# Not the step's fault, and over sooner or later.
_PASSING = (Lost, OperationalError, InterfaceError, CannotStart)


class Next(Enum):
    PARKED = auto()  # it waits, thinks, is held, or has ended: let go
    OVERDUE = auto()  # its max age or deadline has passed
    UNFINISHED = auto()  # it was to finish with what it had, and its last reply did not


def advance(hand: Hand) -> None:
    """Advance a claimed run. A run that someone else holds by now is let go without a change."""
    try:
        while True:
            ready = _choose(hand)
            if ready is Next.OVERDUE:
                expire(hand.claim.run)
                return
            if ready is Next.UNFINISHED:
                _end_unfinished(hand)
                return
            if isinstance(ready, Next):
                return
            step = ready[0]
            try:
                _work(hand, ready)
            except _PASSING:
                raise
            except Exception as error:
                log.exception("Step %d of run %d cannot be worked on", step.number, hand.claim.run)
                _ask_about(hand, step.pk, error)
                return
            if hand.used_up:
                _let_others(hand)
                return
    except Lost as lost:
        log.info("%s", lost.message)


def _choose(hand: Hand) -> list[Step] | Next:
    """Guard, then choose what can be done now, in order; or park the run, in the transaction that found nothing."""
    with transaction.atomic(durable=True):
        switches.lock_shared()
        run = lifecycle.lock_held(hand.claim)
        if overdue(run):
            return Next.OVERDUE
        if run.paused_at is not None:
            _hold(run, f"paused: {run.pause_reason}")
            return Next.PARKED
        if switch := switches.in_scope(run.pk):
            _hold(run, f"switch {switch[0]}: {switch[1]}")
            return Next.PARKED
        course.expire_cards(run)
        course.wake_due(run)
        open_steps = steps.open_steps(run)
        try:
            agent = get_agent(run.agent)
        except UnknownAgent:
            _wait_for_agent(run, open_steps)
            course.rest(run, holding=True)
            return Next.PARKED
        if (run.place_asked or run.step_seq == 0) and (full := allowances.admit(run)):
            think_step = open_steps[0] if open_steps else steps.plan(run, steps.Asked(kind=StepKind.THINK))
            wait_for_place(steps.lock(think_step.pk), full)
            course.rest(run, holding=True)
            return Next.PARKED
        if not open_steps and freshen.check_ahead(run):
            open_steps = steps.open_steps(run)
        if not open_steps:
            if think.has_thought_last(run):
                return Next.UNFINISHED
            if stall := progress.find_stall(run, agent):
                ask_about_failure(run, steps.plan(run, steps.Asked(kind=StepKind.THINK)), "no progress", stall)
                course.rest(run, holding=True)
                return Next.PARKED
            opened = think.open_step(run)
            return [opened] if agent.decide is not None else Next.PARKED
        ready = course.workable(open_steps)
        if not ready:
            course.rest(run, holding=True)
            return Next.PARKED
        if ready[0].kind == StepKind.THINK and agent.decide is None:
            # It waited for a budget, a provider or its next try: the gateway has it again.
            lifecycle.move(run, RunState.THINKING)
            return Next.PARKED
        return ready


def _end_unfinished(hand: Hand) -> None:
    with transaction.atomic(durable=True):
        tree = lifecycle.lock_with_descendants(hand.claim.run)
        run = lifecycle.lock_held(hand.claim)
        if steps.open_steps(run):
            return
        why = "it was to finish with what it had, and its last reply did not"
        freed = course.end(tree, RunState.FAILED, reason=why)
    operations.wake_lock_waiters(freed)
    for ended in tree:
        operations.wake_waiters_of_ended(ended.pk)


def _work(hand: Hand, ready: list[Step]) -> None:
    step = ready[0]
    match step.kind:
        case StepKind.ACT:
            agent = get_agent(step.run.agent)
            plain = reads.leading(agent, ready)
            if not plain or not reads.advance_reads(hand, agent, plain):
                act.advance_act(hand, step.pk)
        case StepKind.CHECK | StepKind.RECONCILE:
            check.advance_check(hand, step.pk)
        case StepKind.FINISH:
            finish.advance_finish(hand, step.pk)
        case _:
            decide.advance_decide(hand, step.pk)


def _ask_about(hand: Hand, step_id: int, error: Exception) -> None:
    """Ask a person about a step that breaks whoever works on it, before it does so with every worker in turn.

    What is in flight is left to its lease, and counted there.
    """
    with transaction.atomic(durable=True):
        run = lifecycle.lock_held(hand.claim)
        step = steps.lock(step_id)
        if step.state in (StepState.PLANNED, StepState.WAITING):
            ask_about_failure(run, step, "it cannot be worked on", f"{type(error).__name__}: {error}"[:1000])
        course.rest(run, holding=True)


def _let_others(hand: Hand) -> None:
    """The slice has had its share: queue the run again behind what is due."""
    with transaction.atomic(durable=True):
        run = lifecycle.lock_held(hand.claim)
        lifecycle.move(run, RunState.QUEUED)


def _hold(run: Run, why: str) -> None:
    """Put a held run where it belongs and let it lie until its next expiry."""
    course.rest(run, holding=True)
    lifecycle.hold(run.pk, why)


def _wait_for_agent(run: Run, open_steps: list[Step]) -> None:
    planned = [s for s in open_steps if s.state == StepState.PLANNED]
    for step in planned or ([] if open_steps else [steps.plan(run, steps.Asked(kind=StepKind.THINK))]):
        wait_for_contract(steps.lock(step.pk), run.agent)


def overdue(run: Run) -> bool:
    (passed,) = sql.fetch_row(
        "SELECT coalesce(least(expires_at, deadline_at) <= lw_clock(), false) FROM runs_run WHERE id = %s", [run.pk]
    )
    return bool(passed)


def expire(run: int) -> bool:
    """End a run whose max age or deadline has passed, with its tree. False: it has ended, or time is left."""
    with transaction.atomic(durable=True):
        tree = lifecycle.lock_with_descendants(run)
        last = tree[-1]
        if last.state in RUN_FINAL or not overdue(last):
            return False
        by_deadline = last.deadline_at is not None and (not last.expires_at or last.deadline_at < last.expires_at)
        reason = "its deadline passed" if by_deadline else "its max age passed"
        freed = course.end(tree, RunState.EXPIRED, reason=reason)
    operations.wake_lock_waiters(freed)
    for ended in tree:
        operations.wake_waiters_of_ended(ended.pk)
    return True
