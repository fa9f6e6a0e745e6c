"""Must show: what the budget does not cover is not called; what rests on an old fact is read again first."""

from datetime import timedelta
from decimal import Decimal

import pytest

from runs import budgets, clock, operations
from runs.approvals import Said
from runs.models import Approval, Attempt, Budget, Fact, Run, Step
from runs.states import ApprovalState, RunState, StepKind, StepState, Verdict, Verified, WaitingFor
from tests.stage import Stage, fleet_on_stage, stage

__all__ = ["fleet_on_stage", "stage"]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]


def calls(stage: Stage, goal: str) -> int:
    return sum(goal in call["goal"] for call in stage.fleet.model("GET", "/calls")["calls"])


def test_a_call_that_the_budget_does_not_cover_is_not_made_until_the_limit_is_raised(stage: Stage) -> None:
    goal = "Decide these requests for one cent."
    batch = stage.shop.create_batch(11, kinds=["plain"])["batch"]
    run = stage.start("refund-desk", goal, inputs={"batch": batch}, usd="0.01")
    stage.until(run, lambda: run.waiting_for == WaitingFor.BUDGET)
    card = stage.until_card(run, "budget")
    assert "USD" in card.title
    assert calls(stage, goal) == 0
    assert run.budget.usd_spent == run.budget.usd_reserved == 0
    assert not Attempt.objects.filter(run=run).exists()
    # What the admin calls, too.
    operations.set_budget(run.pk, {"usd": Decimal("5.00")}, reason="it is worth it", by=stage.person)
    stage.until_over(run, timeout_s=120)
    assert (run.state, run.verified) == (RunState.SUCCEEDED, Verified.VERIFIED)
    assert calls(stage, goal) > 0
    card.refresh_from_db()
    assert card.state == ApprovalState.VOID
    budget = Budget.objects.get(pk=run.pk)
    assert Decimal(0) < budget.usd_spent <= Decimal("5.00")
    assert budget.usd_reserved == 0
    assert not budgets.mismatches()


def until_asked(stage: Stage, goal: str) -> tuple[Run, Approval, str]:
    """A run of refund-desk that waits for the approval of a large refund, with its card and its order."""
    batch = stage.shop.create_batch(5, kinds=["large"])["batch"]
    run = stage.start("refund-desk", goal, inputs={"batch": batch}, usd="20.00")
    card = stage.until_card(run, "approval")
    assert card.arguments is not None
    return run, card, str(card.arguments["order"])


def approve(stage: Stage, card: Approval) -> None:
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE, version=card.version), by=stage.person)


def test_a_fact_past_its_age_is_read_again_before_the_refund_that_rests_on_it(stage: Stage) -> None:
    run, card, order = until_asked(stage, "Decide these requests, slowly.")
    clock.shift(timedelta(minutes=1))
    approve(stage, card)
    stage.until_over(run, timeout_s=120)
    assert (run.state, stage.paid(order)) == (RunState.SUCCEEDED, 1), stage.tell(run)
    fact = Fact.objects.get(run=run, name=f"order.{order}")
    refund = stage.attempt(run, "refund")
    check = Step.objects.get(run=run, kind=StepKind.CHECK, fact=fact)
    assert check.state == StepState.DONE
    assert check.ended_at is not None
    assert check.ended_at <= refund.taken_at
    # The shop was asked, too: a read of the order after the card and before the effect.
    (effect,) = stage.shop.effects(order=order, kind="refund")
    reads = stage.shop.log(kind="read", path=f"/orders/{order}", before=effect["seq"])
    assert len(reads) == 2
    for use in refund.facts.filter(fact=fact):
        assert use.age_s < fact.max_age_s


def test_a_refund_whose_fact_changed_is_not_made_and_the_agent_thinks_again(stage: Stage) -> None:
    run, card, order = until_asked(stage, "Decide these requests, while the world moves.")
    assert card.arguments is not None
    asked = Decimal(str(card.arguments["amount"]))
    thinks = Step.objects.filter(run=run, kind=StepKind.THINK).count()
    stage.shop.change_order(order, paid=f"{asked - 50:.2f}")
    clock.shift(timedelta(minutes=1))
    approve(stage, card)
    first = card.step
    assert first is not None
    stage.until(run, lambda: Step.objects.get(pk=first.pk).state == StepState.VOID)
    assert stage.paid(order) == 0
    card.refresh_from_db()
    assert card.state == ApprovalState.VOID
    assert not Attempt.objects.filter(step=first).exists()
    # It thinks again, on what is so now: and asks anew, where that is still above the limit.
    stage.until(run, lambda: Step.objects.filter(run=run, kind=StepKind.THINK).count() > thinks, timeout_s=90)
    stage.until(run, lambda: run.state == RunState.SUCCEEDED or stage.card(run, "approval") is not None, timeout_s=90)
    if again := stage.card(run, "approval"):
        approve(stage, again)
    stage.until_over(run, timeout_s=120)
    (effect,) = stage.shop.effects(order=order, kind="refund")
    assert effect["amount"] is not None
    assert Decimal(effect["amount"]) <= asked - 50
    assert (run.state, run.verified) == (RunState.SUCCEEDED, Verified.VERIFIED)
