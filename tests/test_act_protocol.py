"""The act step in one worker: each phase does what the protocol says, counted at a real receiver."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from runs import budgets, operations
from runs.approvals import Said
from runs.clock import shift
from runs.errors import AlreadyDecided
from runs.models import Approval, Attempt, Fact, Key, Run, Step
from runs.states import (
    ApprovalState,
    AttemptOutcome,
    KeyState,
    RunState,
    StepKind,
    StepState,
    Verdict,
    Verified,
    WaitingFor,
)
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")


def test_a_run_reads_records_pays_once_and_finishes(engine: Engine) -> None:
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="20.00")])
    engine.go(run)
    assert (run.state, run.verified, run.end_reason) == (
        RunState.SUCCEEDED,
        Verified.NOT_VERIFIED,
        "its finish was accepted",
    )
    assert engine.paid(order) == 1
    key = Key.objects.get(run=run)
    assert (key.state, key.closed_how) == (KeyState.DONE, "settled")
    assert run.budget.effects_spent == 1
    assert run.budget.effects_reserved == 0


def test_an_act_without_its_fact_is_refused_with_read_it_first(engine: Engine) -> None:
    order = engine.order()
    run = engine.go(engine.start([call("pay_keyed", order=order, amount="20.00")]))
    (step,) = engine.steps(run, "pay_keyed")
    assert step.state == StepState.REFUSED
    assert "read it first" in step.error
    assert engine.paid(order) == 0


def test_above_the_limit_it_waits_and_an_approval_pays_exactly_once(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.APPROVAL)
    assert "420.00 is above 200" in run.why
    card = engine.card(run)
    assert card.arguments == {"order": order, "amount": "420.00", "memo": ""}
    assert [shown["name"] for shown in card.facts] == [f"order.{order}"]
    assert engine.paid(order) == 0
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE, version=card.version), by=engine.person)
    engine.go(run)
    assert run.state == RunState.SUCCEEDED
    assert engine.paid(order) == 1
    card.refresh_from_db()
    assert card.state == ApprovalState.CONSUMED
    with pytest.raises(AlreadyDecided):
        operations.decide(card.pk, Said(verdict=Verdict.REJECT), by=engine.person)


def test_a_rejected_call_never_runs_and_the_agent_carries_on(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    operations.decide(engine.card(run).pk, Said(verdict=Verdict.REJECT, comment="too much"), by=engine.person)
    engine.go(run)
    (step,) = engine.steps(run, "pay_keyed")
    assert (step.state, step.error) == (StepState.REJECTED, "too much")
    assert run.state == RunState.SUCCEEDED
    assert engine.paid(order) == 0


def test_an_edited_call_runs_exactly_as_edited(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    said = Said(verdict=Verdict.EDIT, arguments={"order": order, "amount": "80.00", "memo": ""})
    operations.decide(engine.card(run).pk, said, by=engine.person)
    engine.go(run)
    assert [Decimal(r["amount"]) for r in engine.shop.list_refunds(order)["refunds"]] == [Decimal("80.00")]


def test_a_stale_fact_is_checked_before_the_call_and_the_same_value_goes_on(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    card = engine.card(run)
    shift(timedelta(minutes=5))
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    assert run.state == RunState.SUCCEEDED
    assert engine.paid(order) == 1
    fact = Fact.objects.get(run=run)
    assert fact.version == 1
    assert fact.verified_at is not None
    assert fact.observed_at is not None
    assert fact.verified_at - fact.observed_at > timedelta(minutes=4)
    use = Attempt.objects.get(step__tool="pay_keyed", run=run).facts.get()
    assert use.age_s < 60


def test_a_changed_fact_voids_the_approval_and_the_call(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    card = engine.card(run)
    engine.shop.change_order(order, paid="500.00")
    shift(timedelta(minutes=5))
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    (step,) = engine.steps(run, "pay_keyed")
    assert step.state == StepState.VOID
    assert dig(step.result, "old", "paid") == "900.00"
    assert dig(step.result, "new", "paid") == "500.00"
    card.refresh_from_db()
    assert card.state == ApprovalState.VOID
    assert engine.paid(order) == 0


def test_a_replanned_call_returns_the_first_result_and_says_so(engine: Engine) -> None:
    order = engine.order()
    pay = call("pay_keyed", order=order, amount="20.00", memo="sorry")
    again = call("pay_keyed", order=order, amount="20.00", memo="reworded")
    run = engine.go(engine.start(*engine.read(order), [pay], [again]))
    first, second = engine.steps(run, "pay_keyed")
    assert second.state == StepState.DONE
    assert second.replay_of_id == first.pk
    assert second.result == first.result
    assert engine.paid(order) == 1


def test_again_with_a_reason_is_a_new_occurrence_and_asks(engine: Engine) -> None:
    order = engine.order()
    pay = call("pay_keyed", order=order, amount="20.00")
    run = engine.start(*engine.read(order), [pay], [{**pay, "again": "the customer was charged twice"}])
    engine.go(run)
    assert run.waiting_for == WaitingFor.APPROVAL
    operations.decide(engine.card(run).pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    assert engine.paid(order) == 2
    assert sorted(Key.objects.filter(run=run).values_list("occurrence", flat=True)) == [1, 2]


@pytest.mark.parametrize("tool", ["pay_keyed", "pay_checkable"])
def test_a_dropped_answer_is_settled_without_a_second_effect(engine: Engine, tool: str) -> None:
    order = engine.order()
    engine.shop.add_fault("act_and_drop", match={"method": "POST", "order": order}, times=1)
    run = engine.start(*engine.read(order), [call(tool, order=order, amount="20.00")])
    engine.go_on(run)
    assert run.state == RunState.SUCCEEDED, (run.why, run.end_reason)
    assert engine.paid(order) == 1
    assert Key.objects.get(run=run).state == KeyState.DONE


def test_a_dropped_answer_of_a_once_tool_is_in_doubt_until_a_person_says(engine: Engine) -> None:
    order = engine.order()
    engine.shop.add_fault("act_and_drop", match={"method": "POST", "order": order}, times=1)
    run = engine.start(*engine.read(order), [call("pay_once", order=order, amount="20.00")])
    engine.go(run)
    engine.hasten(run)
    engine.go(run)
    (step,) = engine.steps(run, "pay_once")
    assert (run.waiting_for, step.state) == (WaitingFor.VERDICT, StepState.IN_DOUBT)
    card = engine.card(run, "verdict")
    assert dig(card.evidence, "tries", 0, "outcome") == AttemptOutcome.UNKNOWN
    operations.decide(card.pk, Said(verdict=Verdict.HAPPENED, result={"refund": "seen in the bank"}), by=engine.person)
    engine.go(run)
    step.refresh_from_db()
    assert (run.state, step.state) == (RunState.SUCCEEDED, StepState.DONE)
    assert step.result == {"refund": "seen in the bank"}
    assert engine.paid(order) == 1
    with pytest.raises(AlreadyDecided):
        operations.decide(card.pk, Said(verdict=Verdict.DID_NOT_HAPPEN), by=engine.person)


def test_the_verdict_it_did_not_does_it_again_once(engine: Engine) -> None:
    order = engine.order()
    engine.shop.add_fault("drop_before", match={"method": "POST", "order": order}, times=1)
    run = engine.start(*engine.read(order), [call("pay_once", order=order, amount="20.00")])
    engine.go(run)
    engine.hasten(run)
    engine.go(run)
    operations.decide(engine.card(run, "verdict").pk, Said(verdict=Verdict.DID_NOT_HAPPEN), by=engine.person)
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)


def try_all(engine: Engine, run: Run) -> Run:
    """Let it be tried three times, without the pauses in between."""
    engine.go(run)
    for _ in range(3):
        engine.hasten(run)
        engine.go(run)
    return run


def test_a_tool_that_kills_its_process_three_times_waits_for_a_person(engine: Engine) -> None:
    run = try_all(engine, engine.start([call("die")]))
    card = engine.card(run, "failure")
    assert "its process died 3 times" in card.title
    tries = dig(card.evidence, "tries")
    assert [t["signal"] for t in tries] == [9, 9, 9]
    assert all(t["maxrss_bytes"] > 0 for t in tries)
    assert run.waiting_for == WaitingFor.FAILURE


def test_a_failing_read_is_tried_as_often_as_its_tool_says_and_then_told(engine: Engine) -> None:
    run = engine.start([call("fail", word="no such luck")])
    engine.go(run)
    engine.hasten(run)
    engine.go(run)
    (step,) = engine.steps(run, "fail")
    assert step.state == StepState.FAILED
    assert "no such luck" in step.error
    assert Attempt.objects.filter(step=step).count() == 2
    assert run.state == RunState.SUCCEEDED


def test_a_stop_ends_the_run_voids_its_card_and_nothing_can_be_approved(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    card = engine.card(run)
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    card.refresh_from_db()
    assert card.state == ApprovalState.VOID
    with pytest.raises(AlreadyDecided):
        operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    assert (run.state, run.drained_at is not None) == (RunState.STOPPED, True)
    assert engine.paid(order) == 0


def test_too_small_a_budget_of_steps_waits_and_a_raise_lets_it_go_on(engine: Engine) -> None:
    order = engine.order()
    run = engine.start(*engine.read(order), steps=3)
    engine.go(run)
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.BUDGET)
    operations.set_budget(run.pk, {"steps": 50}, reason="more", by=engine.person)
    engine.go(run)
    assert run.state == RunState.SUCCEEDED


def test_a_question_is_answered_and_the_answer_reaches_the_log(engine: Engine) -> None:
    run = engine.start([call("ask", question="Which way?", options=["left", "right"])])
    engine.go(run)
    assert run.waiting_for == WaitingFor.QUESTION
    card = Approval.objects.get(run=run)
    operations.decide(card.pk, Said(verdict=Verdict.RESPOND, answer="left"), by=engine.person)
    engine.go(run)
    assert engine.steps(run, "ask")[0].result == {"answer": "left"}
    assert run.state == RunState.SUCCEEDED


def test_a_child_is_waited_for_and_its_outcome_returned(engine: Engine) -> None:
    run = engine.start([call("spawn", agent="scripted", goal="a part of it", inputs={"script": []})])
    engine.go(run)
    child = Run.objects.get(parent=run)
    (step,) = engine.steps(run, "spawn")
    assert (run.state, child.state) == (RunState.SUCCEEDED, RunState.SUCCEEDED)
    assert dig(step.result, "state") == "succeeded"
    assert (child.root_id, child.depth) == (run.pk, 1)


@pytest.mark.parametrize(
    "decided", [None, "look", ["look"], [{"tool": 3}], {"tool": "give"}, [call("give", value=1), 2]]
)
def test_a_decision_that_is_none_is_a_try_that_failed_and_a_person_is_asked(engine: Engine, decided: Any) -> None:
    run = try_all(engine, engine.start(agent="hesitant", inputs={"decided": decided}))
    card = engine.card(run, "failure")
    assert card.title == "think: its decide function failed 3 times"
    assert card.why == "its decide function did not return a list of Ask"
    assert list(Attempt.objects.filter(run=run).values_list("outcome", flat=True)) == [AttemptOutcome.FAILED] * 3
    assert not Step.objects.filter(run=run, kind=StepKind.ACT).exists()
    assert not budgets.mismatches()


@pytest.mark.parametrize("found", [None, True, [True], {"ok": True}, {"holds": "yes"}])
def test_a_verdict_that_is_none_is_a_try_that_failed_and_a_person_is_asked(engine: Engine, found: Any) -> None:
    run = try_all(engine, engine.start(agent="mumbling", inputs={"found": found}))
    card = engine.card(run, "failure")
    assert card.title == "finish: its claim could not be verified"
    assert card.why == "its verify function did not return a Verdict"
    tries = Attempt.objects.filter(run=run, step__kind=StepKind.FINISH).values_list("outcome", flat=True)
    assert list(tries) == [AttemptOutcome.FAILED] * 3
    assert run.verified == Verified.UNCLAIMED
    assert not budgets.mismatches()


def test_a_tool_that_is_ended_at_its_timeout_is_said_to_be(engine: Engine) -> None:
    run = engine.go(engine.start([call("oversleep", for_s=60.0)]))
    card = engine.card(run, "failure")
    assert card.why == "it did not return within its timeout of 1 s; ended by SIGKILL"


def test_a_tool_whose_process_dies_before_its_timeout_is_not_said_to_have_been_late(engine: Engine) -> None:
    run = try_all(engine, engine.start([call("die")]))
    assert engine.card(run, "failure").why == "it died; ended by SIGKILL"
