"""Cards of the rarer kinds, as the engine would leave them."""

from decimal import Decimal

from django.contrib.auth.models import User
from django.db import transaction

from runs import approvals, budgets, clock, course, facts, lifecycle, steps
from runs.agents import Json, get_agent
from runs.engine import doubt, renewing
from runs.models import Approval, Fact, Key, Run, Step
from runs.states import ApprovalKind, AttemptOutcome, StepKind, WaitingFor
from tests import situations
from tests.writers import open_attempt


def put_in_doubt(run: Run) -> Approval:
    """A refund that began, and of which nobody knows whether it happened."""
    attempt = situations.take(run, tool="refund", arguments={"order": "1001", "amount": "84.00"})
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        steps.lock(attempt.step_id)
        steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.UNKNOWN, error="no answer after 30 s")
        assert attempt.key_id is not None
        card = doubt.put_in_doubt(
            locked, steps.lock(attempt.step_id), Key.objects.select_for_update().get(pk=attempt.key_id)
        )
        course.rest(locked, holding=True)
    return card


def keep_failing(run: Run) -> Approval:
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="read_order", arguments={"order": "1001"}))
        steps.wait(step, WaitingFor.FAILURE, note="it failed 3 times: 503", on="an approver")
        card = approvals.ask(
            locked,
            ApprovalKind.FAILURE,
            title="read_order: it failed 3 times",
            why="503 from the shop",
            step=step,
            evidence={"tries": []},
        )
        course.rest(locked)
    return card


def record_fact(run: Run, name: str = "order.1001", value: Json = None, *, max_age_s: float = 900.0) -> Fact:
    with transaction.atomic():
        return facts.record(
            lifecycle.lock(run.pk),
            name=name,
            value=value if value is not None else {"paid": "420.00"},
            source={"tool": "read_order", "arguments": {"order": "1001"}, "pointer": ""},
            observed_at=clock.now(),
            max_age_s=max_age_s,
        )


def ask_about_fact(run: Run) -> Approval:
    fact = record_fact(run)
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
        steps.wait(step, WaitingFor.FACT, note="nothing can check order.1001", on="an approver")
        card = approvals.ask(
            locked,
            ApprovalKind.FACT,
            title="Is order.1001 still so?",
            why="nothing can check it",
            step=step,
            fact=fact.pk,
        )
        course.rest(locked)
    return card


def ask_other(run: Run, kind: ApprovalKind, waiting_for: WaitingFor) -> Approval:
    """A card of kind credential or escalation."""
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="read_order", arguments={"order": "1001"}))
        steps.wait(step, waiting_for, note="401 from the shop", on="an operator")
        card = approvals.ask(locked, kind, title=f"A card of kind {kind}", why="401 from the shop", step=step)
        course.rest(locked)
    return card


def ask_at_length(run: Run, memo: str) -> Approval:
    """An approval of a refund whose memo is as long as it likes."""
    tool = get_agent(situations.AGENT).tool("refund")
    assert tool is not None
    arguments = tool.normalise({"order": "1001", "amount": "300", "memo": memo})
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        asked = steps.Asked(
            kind=StepKind.ACT, tool=tool.name, arguments=arguments, because=memo, contract=tool.contract
        )
        step = steps.plan(locked, asked)
        steps.set_gate(step, "amount 300 is above 200")
        steps.wait(step, WaitingFor.APPROVAL, note="amount 300 is above 200", on="an approver")
        card = approvals.ask(
            locked,
            ApprovalKind.APPROVAL,
            title="Refund 300.00 of order 1001",
            why="amount 300 is above 200",
            step=step,
            because=memo,
            contract=tool.contract,
            arguments=arguments,
        )
        course.rest(locked)
    return card


def book(
    run: Run, usd: str, *, model: str = "claude-sonnet-5-5", tokens: int = 1000, note: str = "", estimated: bool = False
) -> int:
    """A model call that has been made: the id of its try."""
    amounts = budgets.Amounts(usd=Decimal(usd), tokens=tokens, calls=1, steps=1)
    with transaction.atomic():
        attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.CHECK, tool="read_order")))
        budgets.reserve(run.pk, amounts, attempt=attempt.pk, asked=True)
        pricing = budgets.Pricing(model=model)
        budgets.settle(attempt.pk, amounts, pricing=pricing, note=note, estimated=estimated)
    return attempt.pk


def wait_for_credential(run: Run, name: str) -> Step:
    """A call that its receiver did not let in."""
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="read_order", arguments={"order": "1001"}))
        renewing.wait_for_credential(locked, step, name, why=f"{name} is not accepted: 401 <b>from the shop</b>")
        course.rest(locked)
    return step


def make_card(kind: str, by: User) -> Approval:
    """A pending card of a kind, of a run of its own."""
    run = situations.start(by, usd="1.00")
    match kind:
        case ApprovalKind.APPROVAL:
            return situations.ask_approval(run).card
        case ApprovalKind.QUESTION:
            return situations.ask_question(run)
        case ApprovalKind.BUDGET:
            return situations.ask_budget(run)
        case ApprovalKind.FAILURE:
            return keep_failing(run)
        case ApprovalKind.FACT:
            return ask_about_fact(run)
        case ApprovalKind.VERDICT:
            return put_in_doubt(run)
        case ApprovalKind.CREDENTIAL:
            return ask_other(run, ApprovalKind.CREDENTIAL, WaitingFor.CREDENTIAL)
    return ask_other(run, ApprovalKind.ESCALATION, WaitingFor.APPROVAL)
