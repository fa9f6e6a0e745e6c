"""A try that changes nothing outside: a check, a look-up, a verification, a decision. Taken, performed and closed alike."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from runs import budgets, clock, journal, lifecycle, steps, switches
from runs.agents import Agent, Json, get_agent
from runs.engine import failpoints
from runs.engine.hand import Hand, later
from runs.engine.toolhost import Died, Outcome
from runs.engine.toolwire import Function, Perform, Report, Said
from runs.engine.waits import wait_for_budget, wait_for_switch
from runs.errors import OverBudget
from runs.lifecycle import Claim
from runs.models import Attempt, Run, Step
from runs.states import MAY_HAVE_ACTED, RUN_FINAL, AttemptOutcome, StepKind, StepState, WaitingFor


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be performed for a step.

    asks: it asks the world outside. One that does not is made again unnoticed, when the database forgets it as it dies.
    """

    function: Function
    asks: bool = True
    tool: str = ""
    arguments: dict[str, Json]
    key: str = ""
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A try that was taken."""

    step: Step
    call: Perform


type OrderOf = Callable[[Run, Step, Agent], Order | None]


def perform(hand: Hand, step_id: int, order_of: OrderOf) -> tuple[int, Outcome] | None:
    """Take a try of a planned step and perform what `order_of` says of it, locked; None: nothing was taken."""
    performer, before = hand.ready_tools(), clock.boottime()
    with transaction.atomic(durable=True), journal.together():
        switches.lock_shared()
        run = lifecycle.lock_held(hand.claim)
        step = steps.lock(step_id)
        # Engaged since this step was chosen: whoever chooses next holds the run.
        if step.state != StepState.PLANNED or run.paused_at is not None or switches.in_scope(run.pk):
            return None
        taken = _take(hand, run, step, order_of, performer=performer, before=before)
    return None if taken is None else (taken.call.attempt, carry_out(hand, taken))


def _take(hand: Hand, run: Run, step: Step, order_of: OrderOf, *, performer: uuid.UUID, before: float) -> Taken | None:
    """Take a try of a planned step, locked and judged; None: there is nothing to perform, or no budget for it."""
    order = order_of(run, step, get_agent(run.agent))
    if order is None:
        return None
    if order.tool and (switch := switches.in_scope(run.pk, order.tool)):
        wait_for_switch(step, *switch)
        return None
    try:
        with transaction.atomic(), journal.together():
            attempt = steps.open_attempt(
                step,
                epoch=run.epoch,
                holder=hand.worker,
                performer=performer,
                lease_s=settings.LEASE_S,
                begin_within_s=settings.LEASE_S,
                timeout_s=order.timeout_s,
            )
            budgets.reserve(run.pk, budgets.Amounts(steps=1), attempt=attempt.pk, at_once=order.asks)
    except OverBudget as short:
        step.refresh_from_db()
        wait_for_budget(run, step, short)
        return None
    return as_taken(step, order, attempt=attempt.pk, before=before)


def as_taken(step: Step, order: Order, *, attempt: int, before: float) -> Taken:
    """A try of a step that was taken. before: this machine's clock before the transaction began."""
    call = Perform(
        attempt=attempt,
        agent=step.run.agent,
        function=order.function,
        tool=order.tool,
        arguments=order.arguments,
        key=order.key,
        run=step.run_id,
        step=step.number,
        begin_by=before + settings.LEASE_S,
        timeout_s=order.timeout_s,
        look=False,
    )
    return Taken(step=step, call=call)


def carry_out(hand: Hand, taken: Taken) -> Outcome:
    """Have a taken try performed."""
    failpoints.reach(f"{taken.step.kind}.taken")
    outcome = hand.tools.perform(taken.call, tick=lambda: hand.tick(taken.call.attempt))
    failpoints.reach(f"{taken.step.kind}.returned")
    return outcome


@dataclass(frozen=True, kw_only=True)
class Settling:
    """A try that is being settled: everything locked, its attempt closed and booked. late: the run moved on."""

    run: Run
    step: Step
    attempt: Attempt
    late: bool
    needs_credential: bool  # it was refused only because of that, and the step is still this try's

    @property
    def begun(self) -> bool:
        """Whether it began. One that did not says nothing."""
        return self.attempt.outcome != AttemptOutcome.NOT_BEGUN

    @property
    def counts(self) -> bool:
        """Whether the step is still this try's to close."""
        open_states = (StepState.TAKEN, StepState.PLANNED, StepState.WAITING)
        return self.begun and self.step.tries == self.attempt.number and self.step.state in open_states


def lock_try(claim: Claim, attempt_id: int) -> tuple[Run, Step, Attempt, bool]:
    """Lock a worker's try with its run and step, in order; late: the run has moved on without us."""
    run, step, attempt = steps.lock_try(attempt_id, claim=claim)
    late = run.epoch != claim.epoch or run.state in RUN_FINAL or attempt.outcome != AttemptOutcome.OPEN
    return run, step, attempt, late


def close(claim: Claim, attempt_id: int, outcome: Outcome) -> Settling | None:
    """Lock a run, step and attempt, close the attempt and book it. None: it is settled already."""
    run, step, attempt, late = lock_try(claim, attempt_id)
    if attempt.outcome != AttemptOutcome.OPEN and attempt.outcome not in MAY_HAVE_ACTED:
        return None
    if isinstance(outcome, Died):
        steps.close_attempt(
            attempt,
            AttemptOutcome.DEAD,
            error=told(outcome),
            exit_status=outcome.exit.status,
            exit_signal=outcome.exit.signal,
            maxrss_bytes=outcome.exit.maxrss_bytes,
            late=late,
        )
    elif outcome.said is Said.DONE:
        steps.close_attempt(attempt, AttemptOutcome.DONE, late=late)
    elif outcome.said is Said.NOT_BEGUN:
        steps.close_attempt(attempt, AttemptOutcome.NOT_BEGUN, error=outcome.error, late=late)
    else:
        ended = AttemptOutcome.REFUSED if _needs_credential(step, outcome) else AttemptOutcome.FAILED
        steps.close_attempt(attempt, ended, error=outcome.error, late=late)
    if attempt.outcome == AttemptOutcome.NOT_BEGUN:
        budgets.release(attempt.pk, note=told(outcome))
    else:
        budgets.settle(attempt.pk, budgets.Amounts(steps=1))
    if run.state in RUN_FINAL and step.state == StepState.TAKEN:
        # It changed nothing outside, and nobody asks for its result any more.
        steps.close(step, StepState.VOID, error=f"run {run.state}")
    elif attempt.outcome == AttemptOutcome.NOT_BEGUN and _is_at(step, attempt):
        steps.wait(step, WaitingFor.RETRY, note=f"not begun: {told(outcome)}", wake_at=later(0.2))
    waits = _needs_credential(step, outcome) and _is_at(step, attempt)
    return Settling(run=run, step=step, attempt=attempt, late=late, needs_credential=waits)


def _is_at(step: Step, attempt: Attempt) -> bool:
    """Whether this try is the one for which its step is taken."""
    return step.state == StepState.TAKEN and step.tries == attempt.number


def _needs_credential(step: Step, outcome: Outcome) -> bool:
    asks = step.kind in (StepKind.CHECK, StepKind.RECONCILE)
    return asks and isinstance(outcome, Report) and outcome.said is Said.CREDENTIAL


def result_of(outcome: Outcome) -> Report | None:
    """The report of a try that came to its end, else None."""
    return outcome if isinstance(outcome, Report) and outcome.said is Said.DONE else None


def told(outcome: Outcome) -> str:
    """Why a try came to nothing, in words."""
    return f"{outcome.why}; {outcome.exit}" if isinstance(outcome, Died) else outcome.error
