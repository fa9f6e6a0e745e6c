"""A check step reads a fact's source again; a look-up step asks the receiver whether an effect happened."""

from collections.abc import Sequence

from django.db import transaction

from runs import approvals, clock, course, facts, keys, operations, steps
from runs.agents import Agent, Json, digest, get_agent
from runs.engine import doubt, freshen, harmless, renewing
from runs.engine.hand import Hand, backoff, later
from runs.engine.harmless import Order, Settling
from runs.engine.persist import persist
from runs.engine.reading import NotNow, observed_at, resolve_pointer
from runs.engine.settle import finish_late, keep
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Report, Said
from runs.lifecycle import Claim
from runs.models import Fact, FactCheck, Run, Step
from runs.states import CheckOutcome, StepKind, StepState, WaitingFor

TRIES = 3


def advance_check(hand: Hand, step_id: int) -> None:
    """Work on a planned check or look-up step: take, perform, settle."""
    performed = harmless.perform(hand, step_id, _order)
    if performed is None:
        return
    attempt, outcome = performed
    persist(lambda: settle(hand.claim, attempt, outcome))


def settle(claim: Claim, attempt: int, outcome: Outcome) -> None:
    """Settle a try of a check or look-up step. What a look-up found counts also when its run has ended."""
    freed: Sequence[str] = []
    with transaction.atomic(durable=True):
        settling = harmless.close(claim, attempt, outcome)
        if settling is None:
            return
        if settling.needs_credential and isinstance(outcome, Report):
            # It says nothing about the source: the same step goes on when the credential is renewed.
            renewing.go_on(settling.run, settling.step, outcome)
        elif not settling.begun:
            pass  # it is made again
        elif settling.step.kind == StepKind.RECONCILE and (settling.counts or settling.step.state == StepState.VOID):
            freed = _settle_look_up(settling.run, settling.step, outcome)
        elif settling.counts:
            _settle_check(settling, outcome)
        # As if late: nobody may hold the run (`orphans`), and then nobody else looks when it is due again.
        finish_late(settling.run, late=True)
    operations.wake_lock_waiters(freed)


def _order(run: Run, step: Step, agent: Agent) -> Order | None:
    tool = agent.tool_or_checker(step.tool)
    if tool is None:
        steps.close(step, StepState.FAILED, error=f"{step.tool} is not part of {agent.name} any more")
        if step.fact is not None:
            course.wake_run(run, WaitingFor.FACT, step.fact.name, why="it cannot be checked")
        if step.subject is not None:
            course.wake_run(run, WaitingFor.RETRY, keys.waited_on(step.subject), why="it cannot be looked up")
        return None
    return Order(
        function=Function.RECONCILE if step.kind == StepKind.RECONCILE else Function.CALL,
        tool=tool.name,
        arguments=dict(step.arguments),
        key=step.subject.header if step.subject else "",
        timeout_s=tool.timeout,
    )


def _settle_check(settling: Settling, outcome: Outcome) -> None:
    run, step, attempt = settling.run, settling.step, settling.attempt
    assert step.fact_id is not None
    facts.lock([step.fact_id])
    fact = Fact.objects.get(pk=step.fact_id)
    report = harmless.result_of(outcome)
    if report is None:
        _check_failed(run, step, fact, CheckOutcome.UNREACHABLE, harmless.told(outcome))
        return
    try:
        value = resolve_pointer(report.result, str(fact.source.get("pointer") or ""))
    except NotNow as wrong:
        _check_failed(run, step, fact, CheckOutcome.MALFORMED, str(wrong))
        return
    at = observed_at(get_agent(run.agent).tool_or_checker(step.tool), report.result, attempt.taken_at)
    if at is None:
        _check_failed(run, step, fact, CheckOutcome.MALFORMED, "it does not say from when its answer is")
    elif fact.verified_at is not None and at < fact.verified_at <= clock.now():
        # A newer reading is known: this one says nothing about that.
        steps.close(step, StepState.DONE, result={"fact": fact.name, "outcome": "overtaken"})
    elif digest(value) == digest(fact.value):
        facts.check_same(fact, began_at=at, step=step.pk)
        steps.close(step, StepState.DONE, result={"fact": fact.name, "outcome": CheckOutcome.SAME})
    else:
        old = fact.value
        facts.check_changed(fact, value, began_at=at, step=step.pk)
        result: Json = {"fact": fact.name, "outcome": CheckOutcome.CHANGED, "old": old, "new": value}
        steps.close(step, StepState.DONE, result=result)
        course.void_dependents(run, facts.names_resting_on(run, fact.name), old=old, new=value)
    fact.refresh_from_db()
    if fact.check_failed_at is None:
        approvals.void_about_fact(fact.pk, why="its source could say again")
    course.wake_run(run, WaitingFor.FACT, fact.name, why=f"{fact.name} was checked")


def _check_failed(run: Run, step: Step, fact: Fact, outcome: CheckOutcome, error: str) -> None:
    """Value and dates stay as they are. Tried again, then a person is asked."""
    tries = facts.check_failed(fact, outcome, error, step=step.pk)
    # An answer that cannot be read is a try that was done, and as good as none.
    if FactCheck.objects.filter(step=step).count() < TRIES:
        steps.wait(
            step,
            WaitingFor.FACT,
            note=f"{fact.name} could not be checked (try {tries}): {error}",
            on=f"check.{fact.pk}",
            wake_at=later(backoff(1.0, step.tries)),
            and_then="it is checked again",
        )
        return
    steps.close(step, StepState.FAILED, error=error)
    for waiting in steps.open_steps(run):
        if waiting.kind == StepKind.ACT and waiting.waiting_for == WaitingFor.FACT and waiting.waiting_on == fact.name:
            locked = steps.lock(waiting.pk)
            steps.wake(locked, why="its fact could not be checked")
            freshen.ask_about(run, locked, fact, f"{fact.name} could not be checked: {error}")


def _settle_look_up(run: Run, step: Step, outcome: Outcome) -> Sequence[str]:
    assert step.subject_id is not None
    waiting = steps.lock(Step.objects.values_list("pk", flat=True).get(keys=step.subject_id))
    key = keys.lock(step.subject_id)
    report = harmless.result_of(outcome)
    result = report.result if report else None
    if not isinstance(result, dict) or "found" not in result:
        error = harmless.told(outcome) if report is None else "the look-up answered nothing that can be read"
        over = step.state == StepState.VOID  # with its run: `orphans` makes another one
        if not over and steps.count_failures(step) < TRIES:
            pause = later(backoff(1.0, step.tries))
            steps.wait(step, WaitingFor.RETRY, note=f"the look-up failed: {error}", wake_at=pause)
            return []
        steps.close(step, StepState.FAILED, error=error)
        if over and Step.objects.filter(subject=key, state=StepState.FAILED).count() < TRIES:
            return []
        return doubt.settle_found(run, waiting, key, "unsure", None, {"look_up_failed": error})
    found, wait, evidence = str(result["found"]), result.get("wait"), result.get("evidence")
    kept, _ = keep(Report(said=Said.DONE, result=wait or result.get("result")))
    steps.close(step, StepState.DONE, result={"found": found, "result": kept, "evidence": evidence})
    freed = doubt.settle_found(run, waiting, key, found, kept, evidence, waits=wait is not None)
    return [*freed, *course.close_if_nothing_happened(key)] if waiting.state == StepState.VOID else freed
