"""The fences of the protocol: who lost his run, his attempt or his permission changes nothing but his own record."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from runs import budgets, clock, facts, lifecycle, operations, sql, steps
from runs.agents import get_agent
from runs.approvals import Said
from runs.engine import act, advance, decide
from runs.engine.hand import Hand
from runs.engine.settle import settle_call
from runs.engine.sweep import reap_attempt, reap_run, sweep_once
from runs.engine.toolwire import Report
from runs.engine.toolwire import Said as Told
from runs.engine.worker import Worker
from runs.lifecycle import Claim
from runs.models import Approval, Attempt, Budget, Fact, JournalEntry, Key, Lock, Run, Step
from runs.sanitise import clean_json
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
from tests.waiting import wait_until

__all__ = ["engine", "shop_process", "workers"]
pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("transactional_db")]


@dataclass(kw_only=True)
class Held:
    """A call that was taken and not performed: its worker stands still there."""

    hand: Hand
    taken: act.Taken
    step: int

    def perform(self) -> Any:
        """Go on as the worker does when it wakes."""
        tools, attempt = self.hand.tools, self.taken.attempt
        return tools.perform(self.taken.perform, tick=lambda: self.hand.tick(attempt))

    def settle(self, outcome: Any) -> None:
        settle_call(self.hand.claim, self.taken.attempt, self.taken.tool, outcome)

    @property
    def attempt(self) -> Attempt:
        return Attempt.objects.get(pk=self.taken.attempt)


def claim(worker: Worker) -> Hand:
    with transaction.atomic(durable=True):
        held = lifecycle.claim(worker.ident, lease_s=60.0)
    assert isinstance(held, Claim)
    return Hand(claim=held, worker=worker.ident, tools=worker.tools)


def list_ready(hand: Hand) -> list[Step]:
    """The steps that can be worked on now in a claimed run that is neither parked nor to be ended."""
    chosen = advance._choose(hand)
    assert isinstance(chosen, list)
    return chosen


def take(worker: Worker) -> Held:
    """Claim the due run and take its call."""
    hand = claim(worker)
    ready = list_ready(hand)
    step = ready[0]
    taken = act._take(hand, step.pk)
    assert taken is not None, Step.objects.get(pk=step.pk).wait_note
    return Held(hand=hand, taken=taken, step=step.pk)


def approved_payment(engine: Engine, tool: str = "pay_keyed") -> tuple[Run, str]:
    """A run whose only due step is an approved refund that needs a person, and its order."""
    order = engine.order("900.00")
    pay = {**call(tool, order=order, amount="420.00"), "again": "so that a person is asked"}
    run = engine.start(*engine.read(order), [pay])
    engine.go(run)
    operations.decide(engine.card(run).pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    return run, order


def lose(held: Held) -> None:
    """Let the leases of a worker that stands still be over, and the sweep find that."""
    for table, ident in (("runs_attempt", held.taken.attempt), ("runs_run", held.hand.claim.run)):
        sql.execute(
            f"UPDATE {table} SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE id = %s AND lease_until IS NOT NULL",
            [ident],
        )
    reap_attempt(held.taken.attempt)
    reap_run(held.hand.claim.run)


@pytest.fixture
def rival(engine: Engine) -> Iterator[Worker]:
    """A second worker."""
    worker = Worker()
    yield worker
    worker.tools.close()


def charged(run: Run) -> tuple[int, int]:
    """(effects spent, effects reserved)"""
    budget = Budget.objects.get(pk=run.pk)
    return budget.effects_spent, budget.effects_reserved


def test_an_attempt_that_was_closed_cannot_begin(engine: Engine) -> None:
    _, order = approved_payment(engine)
    held = take(engine.worker)
    lose(held)
    with transaction.atomic(durable=True):
        assert not steps.begin(held.taken.attempt)
    assert held.attempt.began_at is None
    assert engine.paid(order) == 0


def test_what_is_settled_by_an_old_epoch_is_recorded_and_moves_no_run(engine: Engine, rival: Worker) -> None:
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="20.00")], [call("give", value=1)])
    run = advance_to(engine, run, "pay_keyed")
    held = take(engine.worker)
    outcome = held.perform()
    assert engine.paid(order) == 1
    # Its run is lost, its attempt is not: their leases are renewed one after the other.
    sql.execute("UPDATE runs_run SET lease_until = clock_timestamp() - interval '1 second' WHERE id = %s", [run.pk])
    reap_run(run.pk)
    sql.execute("UPDATE runs_run SET due_at = lw_clock() WHERE id = %s", [run.pk])
    other = claim(rival)
    held.settle(outcome)
    now = Run.objects.get(pk=run.pk)
    assert (now.state, now.holder, now.epoch) == (RunState.RUNNING, rival.ident, other.claim.epoch)
    assert (held.attempt.outcome, held.attempt.late) == (AttemptOutcome.DONE, True)
    assert Key.objects.get(run=run).closed_how == "late"
    assert Step.objects.get(pk=held.step).state == StepState.DONE
    advance.advance(other)
    assert engine.go(run).state == RunState.SUCCEEDED
    assert (engine.paid(order), charged(run)) == (1, (1, 0))
    assert not budgets.mismatches()


def advance_to(engine: Engine, run: Run, tool: str) -> Run:
    """Let a run go on until its next due step is a call of this tool, and let it lie there."""
    for _ in range(50):
        hand = claim(engine.worker)
        ready = list_ready(hand)
        step = ready[0]
        if step.tool != tool:
            advance._work(hand, ready)
        advance._let_others(hand)
        if step.tool == tool:
            return Run.objects.get(pk=run.pk)
    raise AssertionError(f"no call of {tool} came")


def test_two_workers_claim_one_run_at_once_and_one_gets_it(engine: Engine) -> None:
    holders = [engine.worker.ident, Worker().ident]
    for _ in range(10):
        run = engine.start()
        gate = threading.Barrier(2)
        got: list[object] = []

        def race(holder: Any, gate: threading.Barrier = gate, got: list[object] = got) -> None:
            try:
                gate.wait(10)
                with transaction.atomic(durable=True):
                    got.append(lifecycle.claim(holder, lease_s=60.0))
            finally:
                connection.close()

        threads = [threading.Thread(target=race, args=(holder,)) for holder in holders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(each) for each in got].count(Claim) == 1, got
        run.refresh_from_db()
        assert run.epoch == 1
        operations.stop_run(run.pk, reason="the next race", by=engine.person)


def test_a_run_that_somebody_keeps_locked_keeps_the_sweep_from_no_other(engine: Engine, database_url: str) -> None:
    """A worker that was stopped in its transaction, until the server ends that."""
    locked, free = (engine.start([call("give", value=1)]) for _ in range(2))
    for _ in range(2):
        claim(engine.worker)
    sql.execute("UPDATE runs_run SET lease_until = clock_timestamp() - interval '1 second'")
    sql.execute("SET lock_timeout = '50ms'")
    try:
        with psycopg.connect(database_url) as stopped:
            stopped.execute("SELECT 1 FROM runs_run WHERE id = %s FOR UPDATE", [locked.pk])
            sweep_once()
            locked.refresh_from_db()
            free.refresh_from_db()
            assert (locked.state, free.state) == (RunState.RUNNING, RunState.QUEUED)
    finally:
        sql.execute("RESET lock_timeout")
    sweep_once()
    locked.refresh_from_db()
    assert locked.state == RunState.QUEUED


@pytest.mark.parametrize("scope", ["all", "agent:scripted", "tool:pay_keyed", "run:{run}"])
def test_a_switch_between_take_and_look_lets_nothing_begin(engine: Engine, scope: str) -> None:
    run, order = approved_payment(engine)
    held = take(engine.worker)
    switch = operations.engage_switch(scope.format(run=run.pk), reason="an audit", by=engine.person)
    outcome = held.perform()
    assert outcome.said is Told.NOT_BEGUN
    held.settle(outcome)
    assert (held.attempt.outcome, held.attempt.began_at) == (AttemptOutcome.NOT_BEGUN, None)
    assert Approval.objects.get(run=run).state == ApprovalState.APPROVED
    assert (charged(run), engine.paid(order)) == ((0, 0), 0)
    assert Key.objects.get(run=run).state == KeyState.FAILED
    assert not Lock.objects.exists()
    operations.release_switch(switch.pk, reason="audited", by=engine.person)
    engine.hasten(run)
    advance._let_others(held.hand)
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert (charged(run), engine.paid(order)) == ((1, 0), 1)
    assert Approval.objects.get(run=run).state == ApprovalState.CONSUMED


def test_a_stop_between_take_and_look_leaves_nothing_open(engine: Engine) -> None:
    run, order = approved_payment(engine)
    held = take(engine.worker)
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    outcome = held.perform()
    assert outcome.said is Told.NOT_BEGUN
    held.settle(outcome)
    run.refresh_from_db()
    assert (run.state, run.drained_at is not None) == (RunState.STOPPED, True)
    assert Step.objects.get(pk=held.step).state == StepState.VOID
    assert Approval.objects.get(run=run).state == ApprovalState.VOID
    assert Key.objects.get(run=run).state == KeyState.FAILED
    assert (charged(run), engine.paid(order)) == ((0, 0), 0)


@pytest.mark.parametrize("begun", [False, True])
def test_a_fact_that_changes_after_the_take_lets_the_agent_think_again(engine: Engine, begun: bool) -> None:
    """Not begun, or begun and found to have done nothing: the redo must not pay by a value that nobody has seen."""
    order = engine.order()
    run = engine.start(*engine.read(order), [call("pay_checkable", order=order, amount="20.00")])
    advance_to(engine, run, "pay_checkable")
    held = take(engine.worker)
    if begun:
        with transaction.atomic(durable=True):
            assert steps.begin(held.taken.attempt)
    engine.shop.change_order(order, paid="30.00")
    with transaction.atomic(durable=True):
        lifecycle.lock(run.pk)
        fact = Fact.objects.get(run=run)
        facts.check_changed(fact, clean_json(engine.shop.read_order(order)), began_at=clock.now(), step=held.step)
    if begun:
        held.settle(Report(attempt=held.taken.attempt, said=Told.UNKNOWN, error="no answer"))
    else:
        outcome = held.perform()
        assert outcome.said is Told.NOT_BEGUN
        held.settle(outcome)
    advance._let_others(held.hand)
    engine.go_on(run)
    step = Step.objects.get(pk=held.step)
    assert (step.state, step.error) == (StepState.VOID, f"order.{order} changed")
    assert (dig(step.result, "old", "paid"), dig(step.result, "new", "paid")) == ("50.00", "30.00")
    assert engine.paid(order) == 0
    assert Key.objects.get(run=run).state == KeyState.FAILED
    assert not Lock.objects.exists()


@pytest.mark.parametrize("said", [Told.UNKNOWN, Told.FAILED, Told.CREDENTIAL])
def test_a_failure_that_comes_after_the_stop_is_not_tried_again_and_asks_nobody(engine: Engine, said: Told) -> None:
    run, _ = approved_payment(engine)
    held = take(engine.worker)
    with transaction.atomic(durable=True):
        assert steps.begin(held.taken.attempt)
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    held.settle(Report(attempt=held.taken.attempt, said=said, error="no answer"))
    assert Step.objects.get(pk=held.step).state == StepState.VOID
    assert not Approval.objects.filter(run=run, state=ApprovalState.PENDING).exists()
    # What may have happened is asked about, and never dropped.
    wait_until(lambda: sweep_once() or Key.objects.get(run=run).state != KeyState.TAKEN, what="the key is looked at")
    asked = Approval.objects.filter(run=run, kind="verdict", state=ApprovalState.PENDING).exists()
    assert asked == (said is Told.UNKNOWN)


def test_a_late_not_begun_takes_nothing_from_the_attempt_that_followed(engine: Engine, rival: Worker) -> None:
    run, order = approved_payment(engine)
    frozen = take(engine.worker)
    lose(frozen)
    follower = take(rival)
    outcome = frozen.perform()
    assert outcome.said is Told.NOT_BEGUN
    frozen.settle(outcome)
    step = Step.objects.get(pk=frozen.step)
    assert (step.state, step.tries) == (StepState.TAKEN, 2)
    assert Approval.objects.get(run=run).state == ApprovalState.CONSUMED
    follower.settle(follower.perform())
    step.refresh_from_db()
    assert (step.state, engine.paid(order)) == (StepState.DONE, 1)
    assert Approval.objects.get(run=run).state == ApprovalState.CONSUMED
    assert charged(run) == (1, 0)
    assert not budgets.mismatches()


def test_a_late_refusal_does_not_refuse_the_attempt_that_followed(engine: Engine, rival: Worker) -> None:
    run, order = approved_payment(engine)
    frozen = take(engine.worker)
    with transaction.atomic(durable=True):
        assert steps.begin(frozen.taken.attempt)
    # Its process is known to be dead, so the next one may follow; what it said last was in the pipe.
    lose(frozen)
    bury(frozen)
    follower = take(rival)
    frozen.settle(Report(attempt=frozen.taken.attempt, said=Told.REFUSED, error="no such order"))
    assert Step.objects.get(pk=frozen.step).state == StepState.TAKEN
    follower.settle(follower.perform())
    assert Step.objects.get(pk=frozen.step).state == StepState.DONE
    assert (engine.paid(order), Key.objects.get(run=run).state) == (1, KeyState.DONE)


def bury(held: Held) -> None:
    """Record the death of the tool process of a call, as its parent does. Its row went with the test before this one."""
    sql.execute(
        "INSERT INTO runs_process (id, kind, host, boot_id, pid, start_ticks, started_at, seen_at, ended_at)"
        " VALUES (%s, 'tool', 'here', 'this', %s, 1, clock_timestamp(), clock_timestamp(), clock_timestamp())"
        " ON CONFLICT (id) DO UPDATE SET ended_at = clock_timestamp()",
        [held.attempt.performer, held.taken.attempt],
    )


def test_a_late_result_settles_the_step_and_the_attempt_that_followed_changes_nothing(
    engine: Engine, rival: Worker
) -> None:
    run, order = approved_payment(engine)
    frozen = take(engine.worker)
    outcome = frozen.perform()
    lose(frozen)
    bury(frozen)
    follower = take(rival)
    frozen.settle(outcome)
    assert Step.objects.get(pk=frozen.step).state == StepState.DONE
    follower.settle(follower.perform())
    assert [a.outcome for a in Attempt.objects.filter(step=frozen.step).order_by("number")] == ["done", "done"]
    assert engine.paid(order) == 1
    assert Approval.objects.get(run=run).state == ApprovalState.CONSUMED
    assert not budgets.mismatches()


def test_a_fact_is_as_old_as_the_try_that_read_it_also_where_another_one_followed(
    engine: Engine, rival: Worker
) -> None:
    run = engine.start(*engine.read(engine.order()))
    advance_to(engine, run, "read_order")
    frozen = take(engine.worker)
    outcome = frozen.perform()
    lose(frozen)
    follower = take(rival)
    frozen.settle(outcome)
    follower.settle(follower.perform())
    advance._let_others(follower.hand)
    engine.go(run)
    assert Fact.objects.get(run=run).observed_at == frozen.attempt.taken_at < follower.attempt.taken_at


def test_a_check_that_came_too_late_to_begin_says_nothing_of_its_source(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.start(*engine.read(engine.order()), [call("wait_until", seconds=3600, reason="a while")])
    engine.go(run)
    fact = Fact.objects.get(run=run)
    operations.recheck_fact(fact.pk, by=engine.person)
    perform = engine.worker.tools.perform
    with monkeypatch.context() as patch:
        # Its worker stood still after the take.
        patch.setattr(
            engine.worker.tools, "perform", lambda asked, **also: perform(replace(asked, begin_by=0.0), **also)
        )
        engine.go(run)
    check = Step.objects.get(run=run, kind=StepKind.CHECK)
    assert list(Attempt.objects.filter(step=check).values_list("outcome", flat=True)) == [AttemptOutcome.NOT_BEGUN]
    assert (check.state, check.waiting_for) == (StepState.WAITING, WaitingFor.RETRY)
    fact.refresh_from_db()
    assert (fact.check_failed_at, fact.checks.count()) == (None, 0)
    engine.hasten(run)
    engine.go(run)
    check.refresh_from_db()
    assert (check.state, fact.checks.count()) == (StepState.DONE, 1)
    done = Attempt.objects.filter(run=run, outcome=AttemptOutcome.DONE).count()
    assert Budget.objects.get(pk=run.pk).steps_spent == done
    assert not budgets.mismatches()


def test_a_late_result_leaves_nobody_asked_about_its_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.engine.settle.MOST_LOST", 1)
    run = engine.start(*engine.read(engine.order()))
    advance_to(engine, run, "read_order")
    frozen = take(engine.worker)
    outcome = frozen.perform()
    lose(frozen)
    card = engine.card(run, "failure")
    frozen.settle(outcome)
    card.refresh_from_db()
    assert (card.state, Step.objects.get(pk=frozen.step).state) == (ApprovalState.VOID, StepState.DONE)
    assert engine.go(run).state == RunState.SUCCEEDED


def test_a_result_that_arrives_after_it_did_not_was_said_is_not_done_again(engine: Engine) -> None:
    run, order = approved_payment(engine, "pay_once")
    held = take(engine.worker)
    outcome = held.perform()
    lose(held)
    bury(held)
    engine.go(run)
    operations.decide(engine.card(run, "verdict").pk, Said(verdict=Verdict.DID_NOT_HAPPEN), by=engine.person)
    held.settle(outcome)
    assert held.attempt.outcome == AttemptOutcome.DISPROVED
    assert JournalEntry.objects.filter(run=run, kind="attempt.contradicted").count() == 1
    step = Step.objects.get(pk=held.step)
    assert (step.state, dig(step.result, "order")) == (StepState.DONE, order)
    assert Key.objects.get(run=run).state == KeyState.DONE
    assert engine.go(run).state == RunState.SUCCEEDED
    assert engine.paid(order) == 1


def test_a_tool_that_tells_much_keeps_its_lease(engine: Engine, settings: Any) -> None:
    settings.LEASE_S = 1.0
    run = engine.start([call("linger", for_s=3.0)])
    stop = threading.Event()

    def sweep() -> None:
        while not stop.wait(0.1):
            sweep_once()
        connection.close()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        engine.go(run)
    finally:
        stop.set()
        sweeper.join()
    (step,) = engine.steps(run, "linger")
    assert (step.state, step.tries) == (StepState.DONE, 1)
    assert Attempt.objects.get(step=step).progress is not None


def test_a_tool_process_that_is_frozen_before_it_is_asked_is_killed_and_another_one_pays(
    engine: Engine, settings: Any
) -> None:
    settings.LEASE_S = 1.0
    run, order = approved_payment(engine)
    engine.worker.tools.ready()
    leader = engine.worker.tools._leader
    assert leader is not None
    os.kill(leader.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert time.monotonic() - began < 20
    first, second = Attempt.objects.filter(step__tool="pay_keyed").order_by("pk")
    assert (first.outcome, first.began_at, first.exit_signal) == (AttemptOutcome.DEAD, None, 9)
    assert second.outcome == AttemptOutcome.DONE
    assert (engine.paid(order), charged(run)) == (1, (1, 0))


def test_a_run_is_held_while_its_worker_starts_a_tool_process(engine: Engine, settings: Any) -> None:
    """On a busy machine that takes longer than a lease; workers that lose the run meanwhile would each start one."""
    settings.LEASE_S = 1.5
    run = engine.start([call("give", value=1)])
    engine.worker.tools.close()
    stop = threading.Event()

    def sweep() -> None:
        while not stop.wait(0.05):
            sweep_once()
        connection.close()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        assert engine.worker.claim_and_advance()
    finally:
        stop.set()
        sweeper.join()
    assert Attempt.objects.filter(run=run, epoch=1).exists()
    assert not JournalEntry.objects.filter(run=run, kind="run.lease_lost").exists()


def test_an_attempt_whose_taking_was_committed_unheard_runs_out_while_its_worker_is_busy(
    engine: Engine, settings: Any
) -> None:
    settings.LEASE_S = 1.0
    run, order = approved_payment(engine)
    unheard = take(engine.worker)  # and the answer of the commit was lost
    busy = engine.start([call("linger", for_s=2.5)])
    sql.execute("UPDATE runs_run SET priority = 1 WHERE id = %s", [busy.pk])
    engine.go(busy)
    (over,) = sql.fetch_row(
        "SELECT lease_until < clock_timestamp() - interval '1 second' FROM runs_attempt WHERE id = %s",
        [unheard.taken.attempt],
    )
    assert over
    sql.execute("UPDATE runs_run SET lease_until = clock_timestamp() WHERE id = %s", [run.pk])
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert engine.paid(order) == 1


def test_a_verification_whose_run_was_lost_meanwhile_is_made_again(engine: Engine) -> None:
    run = engine.start(agent="verified")
    hand = claim(engine.worker)
    advance._work(hand, list_ready(hand))  # it thinks
    finish = list_ready(hand)
    assert finish[0].kind == StepKind.FINISH
    original = hand.tools.perform

    def lose_meanwhile(*args: Any, **more: Any) -> Any:
        outcome = original(*args, **more)
        sql.execute("UPDATE runs_run SET lease_until = clock_timestamp() - interval '1 second' WHERE id = %s", [run.pk])
        reap_run(run.pk)
        return outcome

    hand.tools.perform = lose_meanwhile  # type: ignore[method-assign]
    try:
        advance._work(hand, finish)
    finally:
        del hand.tools.perform
    assert engine.go_on(run, timeout_s=10).state == RunState.SUCCEEDED


def test_an_approval_that_runs_out_after_a_look_up_frees_the_order(engine: Engine) -> None:
    """The call certainly did not happen and its approval is over: its key must not hold the order for ever."""
    run, order = approved_payment(engine)
    held = take(engine.worker)
    with transaction.atomic(durable=True):
        assert steps.begin(held.taken.attempt)
    lose(held)
    bury(held)
    with transaction.atomic(durable=True):
        lifecycle.lock(run.pk)
        steps.lock(held.step)
        steps.settle_doubt(Key.objects.get(run=run).pk, AttemptOutcome.DISPROVED, why="not found at the receiver")
        sql.execute("UPDATE runs_approval SET state = 'approved' WHERE run_id = %s", [run.pk])
    assert Lock.objects.filter(name=f"order.{order}").exists()
    sql.execute("UPDATE runs_run SET due_at = lw_clock() + interval '1 hour' WHERE id = %s", [run.pk])
    clock.shift(timedelta(days=1, minutes=1))
    sql.execute("UPDATE runs_run SET expires_at = NULL WHERE id = %s", [run.pk])
    sweep_once()
    assert Step.objects.get(pk=held.step).state == StepState.EXPIRED
    assert Key.objects.get(run=run).state == KeyState.FAILED
    assert not Lock.objects.exists()


def test_a_call_that_dies_each_time_before_it_acts_becomes_a_card(engine: Engine) -> None:
    """Looked up, not found, done again, for ever: that would be days of retries."""
    order = engine.order()
    engine.shop.add_fault("drop_before", match={"method": "POST", "order": order})
    run = engine.start(*engine.read(order), [call("pay_checkable", order=order, amount="20.00")])
    engine.go_on(run, timeout_s=60)
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.FAILURE)
    step = Step.objects.get(run=run, tool="pay_checkable", kind=StepKind.ACT)
    assert step.tries == get_agent("scripted").tool("pay_checkable").attempts  # type: ignore[union-attr]
    engine.shop.clear_faults()
    operations.decide(engine.card(run, "failure").pk, Said(verdict=Verdict.RETRY), by=engine.person)
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert engine.paid(order) == 1


def test_a_step_that_breaks_its_worker_becomes_a_card_and_the_others_go_on(engine: Engine) -> None:
    run = engine.start([call("give", value=1), call("give", value=2)])
    run = advance_to(engine, run, "give")
    poisoned = Step.objects.filter(run=run, tool="give").earliest("number")
    sql.execute("UPDATE runs_step SET arguments = '5' WHERE id = %s", [poisoned.pk])
    engine.go(run)
    card = engine.card(run, "failure")
    assert card.step == poisoned
    assert "cannot be worked on" in card.title
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.FAILURE)
    assert Step.objects.get(run=run, tool="give", place=1).state == StepState.DONE
    sql.execute("UPDATE runs_step SET arguments = asked WHERE id = %s", [poisoned.pk])
    operations.decide(card.pk, Said(verdict=Verdict.RETRY), by=engine.person)
    assert engine.go(run).state == RunState.SUCCEEDED


def test_a_look_up_whose_tool_is_gone_lets_its_call_say_so(engine: Engine) -> None:
    order = engine.order()
    engine.shop.add_fault("act_and_drop", match={"method": "POST", "order": order}, times=1)
    run = engine.start(*engine.read(order), [call("pay_checkable", order=order, amount="20.00")])

    look_up: Step | None = None
    for _ in range(50):
        engine.hasten(run)
        hand = claim(engine.worker)
        ready = list_ready(hand)
        look_up = ready[0]
        if look_up.kind == StepKind.RECONCILE:
            break
        advance._work(hand, ready)
        advance._let_others(hand)
    assert isinstance(look_up, Step)
    assert look_up.kind == StepKind.RECONCILE
    advance._let_others(hand)
    rename_tool(run, "pay_checkable", "gone")
    engine.hasten(run)
    engine.go(run)
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.CONTRACT)
    assert "gone is not part of scripted any more" in run.why
    rename_tool(run, "gone", "pay_checkable")
    engine.hasten(run)
    assert engine.go_on(run).state == RunState.SUCCEEDED
    assert engine.paid(order) == 1


def rename_tool(run: Run, old: str, new: str) -> None:
    """What a deploy does to a waiting step, the other way round: its tool is not there any more."""
    with transaction.atomic(durable=True):
        sql.execute("SET LOCAL session_replication_role = replica")  # the column is fixed, by a trigger
        sql.execute("UPDATE runs_step SET tool = %s WHERE run_id = %s AND tool = %s", [new, run.pk, old])


def test_a_run_that_breaks_whoever_chooses_in_it_is_claimed_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, judge = engine.start([call("give", value=1)]), advance._judge

    def breaking(hand: Hand, *given: Any, claimed: bool = False, **named: Any) -> Any:
        if claimed:
            raise ValueError("not in this transaction")
        return judge(hand, *given, **named)

    monkeypatch.setattr(advance, "_judge", breaking)
    assert engine.worker.claim_and_advance()
    assert engine.go_on(run).state == RunState.SUCCEEDED


def test_a_run_that_is_paused_while_it_decides_to_end_is_not_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, carry_out = engine.start([call("give", value=1)]), decide.carry_out

    def pausing(hand: Hand, *given: Any) -> Any:
        if engine.steps(run, "give"):  # this is its second thought
            operations.pause_run(run.pk, reason="look first", by=engine.person)
        return carry_out(hand, *given)

    with monkeypatch.context() as patch:
        patch.setattr(decide, "carry_out", pausing)
        engine.go(run)
    run.refresh_from_db()
    assert run.paused_at is not None
    assert run.ended_at is None
    assert Step.objects.get(run=run, kind=StepKind.FINISH).state == StepState.PLANNED
    operations.resume_run(run.pk, reason="looked", by=engine.person)
    assert engine.go_on(run).state == RunState.SUCCEEDED
