"""Must show: a stop cuts the model's stream, and what was done all the same is recorded: key, result and cost."""

from decimal import Decimal

import pytest

from runs import budgets, operations, sql
from runs.approvals import Said
from runs.models import Attempt, Budget, LedgerEntry, Lock, Run, Step
from runs.states import AttemptOutcome, EntryKind, KeyState, RunState, StepKind, StepState, Verdict
from tests.engine_tools import call
from tests.page_tools import client_of, read
from tests.stage import Stage, fleet_on_stage, stage
from tests.waiting import wait_until

__all__ = ["fleet_on_stage", "stage"]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]


def effects(run: Run) -> tuple[int, int]:
    budget = Budget.objects.get(pk=run.pk)
    return budget.effects_spent, budget.effects_reserved


def test_a_stop_during_a_model_call_cuts_the_stream_and_books_an_estimate(stage: Stage) -> None:
    goal = "Decide these requests, and be cut while you think."
    batch = stage.shop.create_batch(3)["batch"]
    stage.fleet.model("POST", "/faults", {"kind": "stall", "seconds": 120, "after": 4, "match": {"text": goal}})
    run = stage.start("refund-desk", goal, inputs={"batch": batch})

    def calls() -> list[dict[str, object]]:
        return [c for c in stage.fleet.model("GET", "/calls")["calls"] if goal in c["goal"]]

    wait_until(
        lambda: any(c["open"] and int(str(c["events_sent"])) > 2 for c in calls()), what="a stream", timeout_s=60
    )
    stage.fleet.manage("stoprun", str(run.pk), "--reason", "enough")
    wait_until(lambda: all(c["client_gone"] for c in calls()), what="the stream is cut", timeout_s=20)
    stage.until_over(run)
    assert (run.state, run.end_reason) == (RunState.STOPPED, "enough")
    attempt = Attempt.objects.get(run=run)
    assert (attempt.outcome, attempt.late) == (AttemptOutcome.CUT, True)
    entries = LedgerEntry.objects.filter(attempt=attempt).order_by("pk")
    assert [e.kind for e in entries] == [EntryKind.RESERVE, EntryKind.SETTLE]
    assert entries[1].estimated
    assert Decimal(0) < entries[1].usd <= entries[0].usd
    assert run.budget.usd_reserved == 0
    assert run.budget.usd_spent == entries[1].usd
    # Nothing came of it, and nothing new was taken.
    assert [(s.kind, s.state) for s in Step.objects.filter(run=run)] == [(StepKind.THINK, StepState.VOID)]
    assert len(calls()) == 1
    assert not budgets.mismatches()


@pytest.mark.parametrize("lost", [False, True])
def test_a_stop_between_perform_and_settle_keeps_key_result_and_cost(stage: Stage, lost: bool) -> None:
    """The worker stands still with the answer in its hands; lost: until its lease was over and its attempt reaped."""
    order = stage.order()
    run = stage.start_payment("pay_keyed", order)
    stage.arm("returned")
    stage.approve(run)
    frozen = stage.until_frozen()
    assert stage.paid(order) == 1
    operations.stop_run(run.pk, reason="enough", by=stage.person)
    attempt = stage.attempt(run, "pay_keyed")
    if lost:
        stage.until(run, lambda: Attempt.objects.get(pk=attempt.pk).outcome == AttemptOutcome.LOST)
    before = (run.state, run.epoch)
    frozen.thaw()
    stage.until(run, lambda: stage.key(run).state == KeyState.DONE)
    stage.until_over(run)
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.late) == (AttemptOutcome.DONE, True)
    key, step = stage.key(run), stage.act(run, "pay_keyed")
    assert key.closed_how == "late"
    assert (step.state, step.result) == (StepState.DONE, key.result)
    assert isinstance(key.result, dict)
    assert key.result["order"] == order
    assert effects(run) == (1, 0)
    assert (run.state, run.end_reason) == (RunState.STOPPED, "enough")
    assert before[0] == RunState.STOPPED or run.epoch >= before[1]
    assert not Lock.objects.filter(run=run).exists()
    assert stage.paid(order) == 1
    assert not budgets.mismatches()


def test_an_answer_that_comes_within_the_grace_time_of_a_stop_is_recorded(stage: Stage) -> None:
    order = stage.order()
    run = stage.start_payment("pay_keyed", order)
    stage.shop.add_fault("slow_after", match={"order": order, "method": "POST"}, seconds=1.0)
    stage.approve(run)
    wait_until(lambda: stage.paid(order) == 1, what="the shop has paid", timeout_s=40)
    operations.stop_run(run.pk, reason="enough", by=stage.person)
    assert Step.objects.get(run=run, tool="pay_keyed").state == StepState.TAKEN
    stage.until_over(run)
    assert (stage.key(run).state, stage.act(run, "pay_keyed").state) == (KeyState.DONE, StepState.DONE)
    assert (effects(run), stage.paid(order), run.state) == ((1, 0), 1, RunState.STOPPED)


def test_a_tool_that_heeds_no_stop_is_ended_and_its_effect_is_asked_about(stage: Stage) -> None:
    order = stage.order()
    run = stage.start_payment("pay_once", order)
    # Paid, and the answer comes long after the grace time.
    stage.shop.add_fault("slow_after", match={"order": order, "method": "POST"}, seconds=60.0)
    stage.approve(run)
    wait_until(lambda: stage.paid(order) == 1, what="the shop has paid", timeout_s=40)
    operations.stop_run(run.pk, reason="enough", by=stage.person)
    card = stage.until_card(run, "verdict")
    stage.until_over(run)
    step = stage.act(run, "pay_once")
    assert (step.state, stage.key(run).state) == (StepState.VOID, KeyState.IN_DOUBT)
    assert effects(run) == (1, 0)  # booked as reserved: never as nothing
    operations.decide(card.pk, Said(verdict=Verdict.HAPPENED, result={"refund": "seen"}), by=stage.person)
    run.refresh_from_db()
    assert (run.state, stage.key(run).state, stage.act(run, "pay_once").state) == (
        RunState.STOPPED,
        KeyState.DONE,
        StepState.DONE,
    )
    assert stage.paid(order) == 1


def test_c1_a_run_stopped_in_its_fourth_round_begins_nothing_more_however_deaf_its_call_is(stage: Stage) -> None:
    """Blocked in a read, catching whatever is thrown, computing in C: three workers, and all three are free afterwards."""
    rounds = [[call("give", value=n)] for n in range(3)]
    after = [[call("give", value=n)] for n in range(16)]
    runs = [
        stage.start("scripted", inputs={"script": [*rounds, [call("be_deaf", how=how)], *after]})
        for how in ("reads", "catches", "computes")
    ]
    deaf = [Attempt.objects.filter(run=run, step__tool="be_deaf", outcome=AttemptOutcome.OPEN) for run in runs]
    wait_until(lambda: all(found.exists() for found in deaf), what="three deaf calls", timeout_s=60)
    for run in runs:
        operations.stop_run(run.pk, reason="enough", by=stage.person)
    words = read(client_of(stage.person).get(f"/runs/{runs[0].pk}"))
    assert "Stopping" in words
    assert "1 call in flight" in words
    for run in runs:
        stage.until_over(run)
        assert run.ended_at is not None
        assert run.drained_at is not None
        assert (run.drained_at - run.ended_at).total_seconds() >= stage.fleet.grace_s
        assert stage.act(run, "be_deaf").state == StepState.VOID
        assert not Attempt.objects.filter(run=run, taken_at__gt=run.ended_at).exists()
        assert Step.objects.filter(run=run, tool="give").count() == len(rounds)
        # What was begun is paid for.
        assert run.budget.steps_reserved == 0
    others = [stage.start("scripted", inputs={"script": [[call("linger", for_s=0.5)]]}) for _ in runs]
    assert {stage.until_over(other).state for other in others} == {RunState.SUCCEEDED}
    assert not budgets.mismatches()


def test_what_a_switch_holds_goes_on_when_it_is_released(stage: Stage) -> None:
    order = stage.order()
    run = stage.start_payment("pay_keyed", order)
    switch = operations.engage_switch(f"run:{run.pk}", reason="an audit", by=stage.person)
    stage.approve(run)
    stage.until(run, lambda: run.held_since is not None)
    assert "an audit" in run.held_by
    assert stage.paid(order) == 0
    operations.release_switch(switch.pk, reason="audited", by=stage.person)
    stage.until_over(run)
    assert (run.state, stage.paid(order)) == (RunState.SUCCEEDED, 1)
    (held_s,) = sql.fetch_row("SELECT held_s FROM runs_run WHERE id = %s", [run.pk])
    assert held_s > 0
