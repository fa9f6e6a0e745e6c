"""Cases from the field about effects that happen twice, or are lost: A1, A2, A3, E4, F1, G1, I3, K1. Counted at the shop."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from runs import budgets, operations, sql, steps
from runs.agents import get_agent
from runs.approvals import Said
from runs.engine import briefing, briefing_request
from runs.engine import hand as hands
from runs.engine.persist import persist
from runs.engine.sweep import sweep_once
from runs.engine.worker import Worker
from runs.models import Approval, Attempt, JournalEntry, Key, Process, Run, Step
from runs.states import (
    RUN_FINAL,
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
from tests.test_crash_fences import Held, advance_to, bury, lose, rename_tool, rival, take
from tests.waiting import wait_until

__all__ = ["engine", "rival", "shop_process", "workers"]
pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("transactional_db")]


def three_calls(engine: Engine, last: str = "pay_keyed") -> tuple[Run, list[str]]:
    """A run whose one reply asks for a payment, the closing of a request, and another payment."""
    orders = [engine.order(), engine.order()]
    reads = [[call("read_order", order=order) for order in orders]]
    records = [[call("record_fact", name=f"order.{order}", from_step=n) for n, order in enumerate(orders, 2)]]
    closes = call("close_request", request=f"r{orders[0]}", outcome="refunded")
    calls = [
        call("pay_checkable", order=orders[0], amount="20.00"),
        closes,
        call(last, order=orders[1], amount="20.00"),
    ]
    return engine.start(*reads, *records, calls, [calls[2]]), orders


def effects(engine: Engine, orders: list[str]) -> tuple[int, int, int]:
    """How often each of the three really happened."""
    closed = len(engine.shop.effects(order=orders[0], kind="close"))
    return engine.paid(orders[0]), closed, engine.paid(orders[1])


class TestA1SeveralCallsOfOneReply:
    def test_after_a_certain_refusal_of_the_third_only_the_third_is_made_again(self, engine: Engine) -> None:
        run, orders = three_calls(engine)
        engine.shop.add_fault("fail", match={"method": "POST", "order": orders[1]}, times=1, status=403)
        engine.go_on(run)
        assert (run.state, effects(engine, orders)) == (RunState.SUCCEEDED, (1, 1, 1))
        first, second = engine.steps(run, "pay_keyed")
        assert (first.state, second.state) == (StepState.REFUSED, StepState.DONE)
        assert [k.state for k in Key.objects.filter(tool="pay_keyed").order_by("generation")] == ["failed", "done"]
        for tool in ("pay_checkable", "close_request"):
            assert Attempt.objects.filter(run=run, step__tool=tool, step__kind=StepKind.ACT).count() == 1

    def test_when_the_outcome_of_the_third_is_unknown_it_is_asked_about_and_the_others_stay_done(
        self, engine: Engine
    ) -> None:
        run, orders = three_calls(engine, "pay_once")
        engine.shop.add_fault("act_and_drop", match={"method": "POST", "order": orders[1]}, times=1)
        engine.go_on(run)
        assert (run.state, run.waiting_for, effects(engine, orders)) == (
            RunState.WAITING,
            WaitingFor.VERDICT,
            (1, 1, 1),
        )
        # The operator's own Resume repeats nothing either.
        operations.pause_run(run.pk, reason="look", by=engine.person)
        operations.resume_run(run.pk, reason="go on", by=engine.person)
        engine.go_on(run)
        assert (run.waiting_for, effects(engine, orders)) == (WaitingFor.VERDICT, (1, 1, 1))
        operations.decide(engine.card(run, "verdict").pk, Said(verdict=Verdict.HAPPENED), by=engine.person)
        assert engine.go_on(run).state == RunState.SUCCEEDED
        assert effects(engine, orders) == (1, 1, 1)

    def test_a_worker_that_dies_right_after_the_second_returned_repeats_neither(self, engine: Engine) -> None:
        run, orders = three_calls(engine)
        advance_to(engine, run, "close_request")
        held = take(engine.worker)
        held.perform()
        lose(held)
        bury(held)
        engine.go_on(run)
        assert (run.state, effects(engine, orders)) == (RunState.SUCCEEDED, (1, 1, 1))
        assert Attempt.objects.filter(run=run, step__tool="pay_checkable").count() == 1


@contextmanager
def sweeping() -> Iterator[None]:
    """Let another process look for what is overdue all the time."""
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(0.1):
            sweep_once()
        connection.close()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a2_a_call_that_lasts_longer_than_its_lease_is_not_given_to_a_second_worker(
    engine: Engine, rival: Worker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LEASE_S = 1.5
    monkeypatch.setattr(hands, "SLICE_S", 60.0)  # one that is used up lets another worker go on
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="20.00")])
    advance_to(engine, run, "pay_keyed")
    # Longer than a lease, and shorter than the tool waits.
    engine.shop.add_fault("slow", match={"method": "POST", "order": order}, seconds=1.9)
    done = threading.Event()

    def work() -> None:
        engine.worker.claim_and_advance()
        connection.close()
        done.set()

    thread = threading.Thread(target=work)
    with sweeping():
        thread.start()
        wait_until(lambda: Run.objects.get(pk=run.pk).state == RunState.RUNNING, what="the claim")
        taken_by_others = 0
        while not done.wait(0.05):
            taken_by_others += rival.claim_and_advance()
        thread.join()
    engine.go_on(run)
    assert taken_by_others == 0
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
    assert Attempt.objects.filter(run=run, step__tool="pay_keyed").count() == 1
    assert not JournalEntry.objects.filter(run=run, kind="run.lease_lost").exists()


class TestA3AKeyThatACrashLeftTaken:
    @pytest.mark.parametrize("acted", [False, True])
    def test_is_in_question_as_soon_as_its_lease_is_over_and_never_in_progress_for_ever(
        self, engine: Engine, acted: bool
    ) -> None:
        order = engine.order()
        run = engine.start(*engine.read(order), [call("pay_once", order=order, amount="20.00")])
        advance_to(engine, run, "pay_once")
        held = take(engine.worker)
        if acted:
            held.perform()
        lose(held)
        bury(held)
        for _ in range(3):  # resumed three times
            if run.state not in RUN_FINAL:
                operations.pause_run(run.pk, reason="look", by=engine.person)
                operations.resume_run(run.pk, reason="go on", by=engine.person)
                engine.go_on(run)
        assert engine.paid(order) == 1
        if acted:
            card = engine.card(run, "verdict")
            assert set(card.verdicts) == {Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN, Verdict.STOP}
            assert Approval.objects.filter(run=run).count() == 1
        else:
            assert run.state == RunState.SUCCEEDED

    def test_a_result_that_cannot_be_saved_for_a_moment_is_saved_and_not_made_again(self, engine: Engine) -> None:
        order = engine.order()
        run = engine.start(*engine.read(order), [call("pay_once", order=order, amount="20.00")])
        advance_to(engine, run, "pay_once")
        held = take(engine.worker)
        outcome = held.perform()
        times = iter([True, True, False])

        def save() -> None:
            if next(times):
                break_connection()
            held.settle(outcome)

        persist(save)
        assert Key.objects.get(run=run).state == KeyState.DONE
        assert engine.paid(order) == 1


def break_connection() -> None:
    """The server ends this process's connection, as it does when it restarts."""
    (mine,) = sql.fetch_row("SELECT pg_backend_pid()")

    def end() -> None:
        sql.execute("SELECT pg_terminate_backend(%s, 5000)", [mine])
        connection.close()

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()


@pytest.mark.parametrize("ahead_s", [300.0, -600.0])
def test_e4_a_worker_whose_clock_is_wrong_takes_no_live_lease(
    engine: Engine, rival: Worker, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="20.00")])
    advance_to(engine, run, "pay_keyed")
    held = take(engine.worker)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    assert not rival.claim_and_advance()
    sweep_once()
    with transaction.atomic(durable=True):
        assert Attempt.objects.get(pk=held.taken.attempt).outcome == AttemptOutcome.OPEN
    rival._seen = 0.0
    rival.show_alive()
    held.settle(held.perform())
    run.refresh_from_db()
    assert (run.holder, run.epoch) == (engine.worker.ident, held.hand.claim.epoch)
    assert Attempt.objects.filter(step=held.step).count() == 1
    assert engine.paid(order) == 1
    offset = Process.objects.get(pk=rival.ident).clock_offset_s
    assert offset is not None
    assert offset == pytest.approx(ahead_s, abs=5.0)
    for name in ("working_s", "queued_s", "world_s", "people_s", "held_s"):
        assert getattr(run, name) >= 0


class TestF1ADeployWhileARunWaits:
    def test_an_approval_after_the_deploy_is_carried_out_by_a_new_worker(self, engine: Engine, rival: Worker) -> None:
        run, order = self.waiting(engine)
        sweep_once()  # all that the old workers were is gone; this one has never seen the run
        operations.decide(engine.card(run).pk, Said(verdict=Verdict.APPROVE), by=engine.person)
        engine.worker = rival
        assert engine.go_on(run).state == RunState.SUCCEEDED
        assert engine.paid(order) == 1

    def test_a_tool_that_the_deploy_removed_is_said_to_be_missing_and_a_rollback_goes_on(self, engine: Engine) -> None:
        run, order = self.waiting(engine)
        rename_tool(run, "pay_keyed", "gone")
        operations.decide(engine.card(run).pk, Said(verdict=Verdict.APPROVE), by=engine.person)
        engine.go(run)
        assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.CONTRACT)
        assert "gone is not part of scripted any more" in run.why
        assert engine.paid(order) == 0
        rename_tool(run, "gone", "pay_keyed")
        engine.hasten(run)
        assert engine.go_on(run).state == RunState.SUCCEEDED
        assert engine.paid(order) == 1

    def waiting(self, engine: Engine) -> tuple[Run, str]:
        order = engine.order("900.00")
        run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
        engine.go(run)
        assert run.waiting_for == WaitingFor.APPROVAL
        return run, order


def test_g1_whatever_a_payment_returns_is_stored_and_it_is_not_made_again(engine: Engine) -> None:
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_and_tell_odd_things", order=order)], [call("give", value="on")])
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert (engine.paid(order), Key.objects.get(run=run).state) == (1, KeyState.DONE)
    (step,) = engine.steps(run, "pay_and_tell_odd_things")
    assert step.state == StepState.DONE
    assert step.tries == 1
    assert "\x00" not in str(step.result)
    assert dig(step.result, "emoji") == "😀"
    assert dig(step.result, "decimal") == "0.1"


def test_g1_the_author_of_a_tool_is_told_once_what_was_no_json(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine.worker.tools.close()  # the next tool process has said nothing yet
    one, two = engine.order(), engine.order()
    for order in (one, two):
        run = engine.start(*engine.read(order), [call("pay_and_tell_odd_things", order=order)])
        assert engine.go_on(run).state == RunState.SUCCEEDED
    engine.worker.tools.close()
    told = [line.partition("] ")[2] for line in caplog.messages if "is no JSON" in line]
    assert [line.partition(" a value of type ")[2].partition(". ")[0] for line in told] == [
        "float at nan, stored as str",
        "Decimal at decimal, stored as str",
        "int at huge, stored as str",
        "bytes at bytes, stored as dict",
        "datetime at at, stored as str",
        "list at deep" + "[0]" * 32 + "…, stored as str",
    ]
    assert all(line.startswith("pay_and_tell_odd_things of scripted returned") for line in told)


def test_i3_a_step_that_kills_its_process_is_quarantined_and_its_neighbours_are_charged_nothing(
    engine: Engine, rival: Worker
) -> None:
    deadly = engine.start([call("die")])
    others = [engine.start([call("give", value=n) for n in range(10)]) for _ in range(3)]

    def settled() -> bool:
        engine.hasten(deadly)
        engine.worker.claim_and_advance()
        rival.claim_and_advance()
        deadly.refresh_from_db()
        return deadly.waiting_for == WaitingFor.FAILURE and not Run.objects.filter(
            pk__in=[o.pk for o in others], ended_at=None
        )

    wait_until(settled, what="the deadly one is put aside and the others are over", timeout_s=200)
    neighbours = Step.objects.filter(run__in=others, tool="give")
    assert [(s.state, s.tries) for s in neighbours] == [(StepState.DONE, 1)] * 30
    card = engine.card(deadly, "failure")
    assert "its process died 3 times" in card.title
    assert [t["signal"] for t in dig(card.evidence, "tries")] == [9, 9, 9]
    engine.worker = Worker()  # after a restart of the cluster it is not tried again
    try:
        sweep_once()
        assert engine.go(deadly).waiting_for == WaitingFor.FAILURE
        assert Step.objects.get(run=deadly, tool="die").tries == 3
    finally:
        engine.worker.tools.close()


def test_k1_after_a_crash_in_a_call_every_call_has_one_line_in_the_next_request(engine: Engine) -> None:
    run, orders = three_calls(engine, "pay_once")
    advance_to(engine, run, "pay_once")
    held: Held = take(engine.worker)
    held.perform()
    lose(held)
    bury(held)
    engine.go_on(run)
    assert run.waiting_for == WaitingFor.VERDICT
    said = told(run)
    assert [block["type"] for block in said] == ["text"] * len(said)  # no call without its result can stand in it
    operations.decide(engine.card(run, "verdict").pk, Said(verdict=Verdict.HAPPENED), by=engine.person)
    assert engine.go_on(run).state == RunState.SUCCEEDED
    lines = [
        line
        for line in briefing.build(run.pk).log
        if line.get("tool") in ("pay_checkable", "close_request", "pay_once")
    ]
    numbers = [line["step"] for line in lines]
    assert len(numbers) == len(set(numbers)) == 4
    # The fourth is what the script asks for once more: the first one's result, said to be that.
    assert [line["outcome"] for line in lines] == ["done", "done", "done", "replayed"]
    assert effects(engine, orders) == (1, 1, 1)
    assert not budgets.mismatches()
    assert not Approval.objects.filter(run=run, state=ApprovalState.PENDING).exists()
    assert steps.count_lost(Step.objects.get(pk=held.step)) == 1


def told(run: Run) -> list[dict[str, Any]]:
    """The blocks of the one message that a model would get now."""
    request = briefing_request.request(get_agent(run.agent), briefing.build(run.pk))
    (message,) = request.messages
    blocks: list[dict[str, Any]] = list(message["content"])
    return blocks
