"""Runs as the engine would leave them, made through the writers: for tests of what is read and decided."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from runs import approvals, clock, course, facts, keys, lifecycle, operations, steps
from runs.agents import Json, Tool, get_agent
from runs.engine.hand import later
from runs.models import Approval, Attempt, Fact, Key, Run, Step
from runs.operations import Start
from runs.states import ApprovalKind, AttemptOutcome, KeyState, StepKind, StepState, Verdict, WaitingFor

AGENT = "refund-desk"


def start(by: User, **given: Any) -> Run:
    run, _ = operations.start_run(
        Start(**{"agent": AGENT, "goal": "Work off batch b1", "inputs": {"batch": "b1"}} | given), by=by
    )
    return run


@dataclass(kw_only=True)
class Asking:
    """A run that waits for an approval of a refund, resting on one fact."""

    run: Run
    step: Step
    card: Approval
    fact: Fact


def ask_approval(
    run: Run, *, order: str = "1001", amount: str = "420.00", valid_for_s: float | None = 3600.0
) -> Asking:
    tool = _tool("refund")
    arguments = tool.normalise({"order": order, "amount": amount})
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        fact = facts.record(
            locked,
            name=f"order.{order}",
            value={"paid": amount},
            source={"tool": "read_order", "arguments": {"order": order}, "pointer": ""},
            observed_at=clock.now(),
            max_age_s=900.0,
        )
        step = steps.plan(
            locked,
            steps.Asked(
                kind=StepKind.ACT,
                tool=tool.name,
                arguments=arguments,
                because="it was paid twice",
                rests_on=(fact.name,),
                contract=tool.contract,
            ),
        )
        steps.set_gate(step, f"amount {amount} is above 200")
        steps.wait(
            step, WaitingFor.APPROVAL, note=f"amount {amount} is above 200", on="an approver", and_then="it is expired"
        )
        card = approvals.ask(
            locked,
            ApprovalKind.APPROVAL,
            title=f"Refund {amount} of order {order}",
            why=f"amount {amount} is above 200",
            step=step,
            because="it was paid twice",
            contract=tool.contract,
            arguments=arguments,
            facts=facts.shown(facts.judge(run.pk, [fact.name]).values()),
            valid_for_s=valid_for_s,
        )
        course.rest(locked)
    return Asking(run=locked, step=step, card=card, fact=fact)


def ask_question(run: Run, question: str = "Which batch first?") -> Approval:
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="ask", arguments={"question": question}))
        steps.wait(step, WaitingFor.QUESTION, note=question, on="an operator")
        card = approvals.ask(locked, ApprovalKind.QUESTION, title=question, step=step, options=["b1", "b2"])
        course.rest(locked)
    return card


def ask_budget(run: Run) -> Approval:
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
        steps.wait(
            step,
            WaitingFor.BUDGET,
            note="the next call may take more than is left",
            on="an operator",
            wake_at=later(3600),
            and_then="it is looked at again",
        )
        card = approvals.ask(
            locked,
            ApprovalKind.BUDGET,
            title="The budget is used up",
            step=step,
            verdicts=[Verdict.GRANT, Verdict.STOP],
        )
        course.rest(locked)
    return card


def take(run: Run, *, tool: str = "close_request", arguments: dict[str, Json] | None = None) -> Attempt:
    """A claimed run with a call under way."""
    worker = uuid.uuid4()
    made = _tool(tool)
    wanted = made.normalise(arguments or {"request": "r1", "outcome": "refused"})
    with transaction.atomic():
        claim = lifecycle.claim(worker, lease_s=15.0)
    assert isinstance(claim, lifecycle.Claim)
    assert claim.run == run.pk
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool=tool, arguments=wanted, contract=made.contract))
        key = keys.take(locked, step, made, approval=None) if made.acts else None
        return steps.open_attempt(
            step,
            epoch=claim.epoch,
            holder=worker,
            performer=uuid.uuid4(),
            lease_s=15.0,
            begin_within_s=10.0,
            timeout_s=30.0,
            key=key.pk if key else None,
        )


def finish(attempt: Attempt, result: Any = None) -> None:
    with transaction.atomic():
        locked = lifecycle.lock(attempt.run_id)
        step = steps.lock(attempt.step_id)
        steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.DONE)
        if attempt.key_id is not None:
            keys.close(keys.lock(attempt.key_id), KeyState.DONE, how="settled", result=result)
        steps.close(step, StepState.DONE, result=result)
        course.rest(locked, holding=True)


def key_of(attempt: Attempt) -> Key:
    assert attempt.key_id is not None
    return Key.objects.get(pk=attempt.key_id)


def _tool(name: str) -> Tool:
    tool = get_agent(AGENT).tool(name)
    assert tool is not None
    return tool
