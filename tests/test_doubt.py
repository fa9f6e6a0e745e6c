"""What may or may not have happened: looked up where it can be, else a person says, and nothing of it is dropped."""

from typing import Any

import pytest
from django.db import transaction

from runs import operations, steps
from runs.approvals import Said
from runs.engine import advance
from runs.engine.sweep import sweep_once
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Perform, Report
from runs.engine.toolwire import Said as Told
from runs.models import Approval, Key, Lock, Run, Step
from runs.states import (
    ApprovalState,
    AttemptOutcome,
    KeyState,
    RunState,
    StepKind,
    StepState,
    Verdict,
    WaitingFor,
)
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.test_crash_fences import advance_to, bury, claim, lose, take
from tests.waiting import wait_until

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")


def stopped_in_question(engine: Engine, tool: str, fault: str) -> tuple[Run, str]:
    """A run that was stopped while nobody knew whether its payment had happened."""
    order = engine.order()
    engine.shop.add_fault(fault, match={"method": "POST", "order": order}, times=1)
    run = engine.start(*engine.read(order), [call(tool, order=order, amount="20.00")])
    advance_to(engine, run, tool)
    held = take(engine.worker)
    held.settle(held.perform())
    assert held.attempt.outcome == AttemptOutcome.UNKNOWN
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    return run, order


def settle_orphans(engine: Engine, run: Run) -> Key:
    """Sweep, and let the worker look up what it finds, until the key is not in question any more."""

    def settled() -> bool:
        sweep_once()
        engine.worker.look_up_orphan()
        return Key.objects.get(run=run).state != KeyState.TAKEN

    wait_until(settled, what="the key is settled or in doubt")
    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    return Key.objects.get(run=run)


def cards(run: Run) -> list[str]:
    return list(Approval.objects.filter(run=run, state=ApprovalState.PENDING).values_list("kind", flat=True))


class TestOpenKeysOfStoppedRuns:
    def test_one_that_can_be_looked_up_and_happened_is_done_and_asks_nobody(self, engine: Engine) -> None:
        run, order = stopped_in_question(engine, "pay_checkable", "act_and_drop")
        key = settle_orphans(engine, run)
        assert (key.state, key.closed_how, cards(run)) == (KeyState.DONE, "reconciled", [])
        step = Step.objects.get(run=run, tool="pay_checkable", kind=StepKind.ACT)
        assert (step.state, dig(step.result, "amount")) == (StepState.DONE, "20.00")
        assert engine.paid(order) == 1
        assert not Lock.objects.filter(run=run).exists()

    def test_one_that_can_be_looked_up_and_did_not_happen_has_failed_and_asks_nobody(self, engine: Engine) -> None:
        run, order = stopped_in_question(engine, "pay_checkable", "drop_before")
        key = settle_orphans(engine, run)
        assert (key.state, cards(run), engine.paid(order)) == (KeyState.FAILED, [], 0)
        assert Step.objects.get(run=run, tool="pay_checkable", kind=StepKind.ACT).state == StepState.VOID
        assert not Lock.objects.filter(run=run).exists()

    def test_one_that_nobody_can_look_up_is_asked_about(self, engine: Engine) -> None:
        run, order = stopped_in_question(engine, "pay_once", "act_and_drop")
        key = settle_orphans(engine, run)
        assert (key.state, cards(run)) == (KeyState.IN_DOUBT, ["verdict"])
        operations.decide(engine.card(run, "verdict").pk, Said(verdict=Verdict.HAPPENED), by=engine.person)
        assert (Key.objects.get(run=run).state, engine.paid(order)) == (KeyState.DONE, 1)
        assert not Lock.objects.filter(run=run).exists()

    def test_one_whose_receiver_does_not_answer_is_asked_about_with_what_was_tried(self, engine: Engine) -> None:
        run, order = stopped_in_question(engine, "pay_checkable", "act_and_drop")
        engine.shop.add_fault("fail", match={"method": "GET", "order": order}, status=503)
        key = settle_orphans(engine, run)
        assert (key.state, cards(run)) == (KeyState.IN_DOUBT, ["verdict"])
        assert "503" in str(dig(engine.card(run, "verdict").evidence, "looked_up"))

    def test_a_switch_holds_the_look_up_too(self, engine: Engine) -> None:
        run, _ = stopped_in_question(engine, "pay_checkable", "act_and_drop")
        switch = operations.engage_switch("tool:pay_checkable", reason="an audit", by=engine.person)
        wait_until(lambda: steps.judge_past(key=Key.objects.get(run=run).pk).visible_in_s == 0, what="it is visible")
        assert not engine.worker.look_up_orphan()
        operations.release_switch(switch.pk, reason="audited", by=engine.person)
        assert settle_orphans(engine, run).state == KeyState.DONE


def test_a_look_up_that_fails_is_made_again_in_time_also_in_a_run_that_waits_for_hours(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step was given up, and the agent went on: nobody holds the run while the call is looked up."""
    monkeypatch.setattr("runs.engine.settle.MOST_LOST", 1)
    order = engine.order()
    pay = [call("pay_checkable", order=order, amount="20.00")]
    run = engine.start(*engine.read(order), pay, [call("wait_until", seconds=7200, reason="a while")])
    advance_to(engine, run, "pay_checkable")
    held = take(engine.worker)
    with transaction.atomic(durable=True):
        assert steps.begin(held.taken.attempt)
    lose(held)
    bury(held)
    given_up = Said(verdict=Verdict.RESPOND, answer="leave it")
    operations.decide(engine.card(run, "failure").pk, given_up, by=engine.person)
    assert engine.go(run).waiting_for == WaitingFor.TIMER
    perform, failed = engine.worker.tools.perform, list[int]()

    def performing(asked: Perform, **also: Any) -> Outcome:
        if asked.function is Function.RECONCILE and not failed:
            failed.append(asked.attempt)
            return Report(attempt=asked.attempt, said=Told.FAILED, error="no answer")
        return perform(asked, **also)

    monkeypatch.setattr(engine.worker.tools, "perform", performing)

    def settled() -> bool:
        sweep_once()
        engine.worker.look_up_orphan()
        engine.go(run)
        return Key.objects.get(run=run).state != KeyState.TAKEN

    wait_until(settled, what="the key is settled", timeout_s=15.0)
    assert failed
    assert (Key.objects.get(run=run).state, cards(run)) == (KeyState.FAILED, [])
    assert engine.go(run).waiting_for == WaitingFor.TIMER


def test_lost_tries_that_did_nothing_are_no_failures(engine: Engine) -> None:
    """Three workers that die in the middle of one call say nothing about the call; looked up, it is made again."""
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_checkable", order=order, amount="20.00")])
    advance_to(engine, run, "pay_checkable")
    for _ in range(3):
        held = take(engine.worker)
        with transaction.atomic(durable=True):
            assert steps.begin(held.taken.attempt)
        lose(held)
        bury(held)
        wait_until(lambda: advance_past_look_up(engine, run), what="it was looked up")
    assert cards(run) == []
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert engine.paid(order) == 1


def advance_past_look_up(engine: Engine, run: Run) -> bool:
    """Work on what is due, up to the moment before the call would be made again."""
    engine.hasten(run)
    hand = claim(engine.worker)
    ready = advance._choose(hand)
    key = Key.objects.get(run=run)
    again = False
    if isinstance(ready, list):
        again = ready[0].kind == StepKind.ACT and not steps.judge_past(key=key.pk).may_have_acted
        if not again:
            advance._work(hand, ready)
        advance._let_others(hand)
    return again


@pytest.mark.parametrize("gate_first", [False, True])
def test_while_one_is_in_doubt_another_call_of_its_tool_needs_a_person(engine: Engine, gate_first: bool) -> None:
    first, second = engine.order(), engine.order()
    engine.shop.add_fault("act_and_drop", match={"method": "POST", "order": first}, times=1)
    reads = [[call("read_order", order=order)] for order in (first, second)]
    records = [[call("record_fact", name=f"order.{order}", from_step=n)] for order, n in ((first, 2), (second, 4))]
    pays = [call("pay_once", order=order, amount="20.00") for order in (first, second)]
    run = engine.start(reads[0], reads[1], *records, pays)
    if gate_first:  # it waits for a lock, with its gate behind it
        advance_to(engine, run, "pay_once")
        step = Step.objects.get(run=run, tool="pay_once", place=1)
        with transaction.atomic(durable=True):
            steps.set_gate(step, None)
    engine.go(run)
    engine.hasten(run)
    engine.go(run)
    assert (run.state, sorted(cards(run))) == (RunState.WAITING, ["approval", "verdict"])
    assert run.waiting_for in (WaitingFor.APPROVAL, WaitingFor.VERDICT)
    assert "is in doubt" in engine.card(run).why
    assert (engine.paid(first), engine.paid(second)) == (1, 0)
    operations.decide(engine.card(run, "verdict").pk, Said(verdict=Verdict.HAPPENED), by=engine.person)
    operations.decide(engine.card(run).pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert (engine.paid(first), engine.paid(second)) == (1, 1)
