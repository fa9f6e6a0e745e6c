"""Must show: who is frozen between take and send until his time is over sends nothing when he wakes."""

from collections.abc import Callable

import pytest

from runs import budgets, operations
from runs.approvals import Said
from runs.models import Attempt, Fact, Lock, Run
from runs.states import AttemptOutcome, KeyState, RunState, StepState, Verdict
from tests.stage import Stage, fleet_on_stage, stage

__all__ = ["fleet_on_stage", "stage"]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]

# taken: the worker stands still. received and looked: its tool process does; only after the last look may it have sent.
POINTS = ["taken", "received", "looked"]


def freeze(stage: Stage, tool: str, point: str, meanwhile: Callable[[Run], object]) -> tuple[Run, str, Attempt]:
    """Freeze who pays at a point of the protocol, do something, wait until his time is over, and let him wake."""
    order = stage.order()
    run = stage.start_payment(tool, order)
    stage.arm(point)
    stage.approve(run)
    frozen = stage.until_frozen()
    attempt = stage.attempt(run, tool)
    assert (attempt.began_at is not None) == (point == "looked")
    meanwhile(run)
    stage.until_begin_by_is_over(attempt)
    assert stage.paid(order) == 0
    frozen.thaw()
    return run, order, attempt


def settled(stage: Stage, run: Run, order: str) -> None:
    """One effect, one done key, nothing held, every cent where it belongs."""
    assert (run.state, stage.paid(order)) == (RunState.SUCCEEDED, 1), stage.tell(run)
    assert stage.key(run).state == KeyState.DONE
    assert not Lock.objects.filter(run=run).exists()
    assert not Attempt.objects.filter(run=run, outcome=AttemptOutcome.OPEN).exists()
    assert not budgets.mismatches()


@pytest.mark.parametrize("point", POINTS)
def test_another_one_takes_over_and_pays_once(stage: Stage, point: str) -> None:
    run, order, first = freeze(stage, "pay_keyed", point, lambda run: None)
    stage.until_over(run)
    settled(stage, run, order)
    first.refresh_from_db()
    assert first.outcome != AttemptOutcome.DONE
    assert stage.attempt(run, "pay_keyed").number > first.number


@pytest.mark.parametrize("point", POINTS)
def test_after_a_stop_nothing_is_sent_and_the_key_is_not_lost(stage: Stage, point: str) -> None:
    def stop(run: Run) -> None:
        operations.stop_run(run.pk, reason="enough", by=stage.person)

    run, order, attempt = freeze(stage, "pay_keyed", point, stop)
    stage.until_over(run)
    stage.until(run, lambda: stage.key(run).state != KeyState.TAKEN)
    assert (run.state, stage.paid(order)) == (RunState.STOPPED, 0)
    attempt.refresh_from_db()
    if point == "looked":
        # It may have sent, for all that is known: a person says.
        assert stage.key(run).state == KeyState.IN_DOUBT
        card = stage.until_card(run, "verdict")
        operations.decide(card.pk, Said(verdict=Verdict.DID_NOT_HAPPEN), by=stage.person)
    assert stage.key(run).state == KeyState.FAILED
    assert stage.act(run, "pay_keyed").state in (StepState.VOID, StepState.FAILED)
    assert not Lock.objects.filter(run=run).exists()
    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert not budgets.mismatches()


@pytest.mark.parametrize("point", POINTS)
def test_after_a_fact_changed_nothing_is_sent_and_the_agent_thinks_again(stage: Stage, point: str) -> None:
    def change(run: Run) -> None:
        fact = Fact.objects.get(run=run)
        stage.shop.change_order(fact.name.removeprefix("order."), paid="30.00")
        operations.recheck_fact(fact.pk, by=stage.person)
        stage.until(run, lambda: Fact.objects.get(run=run).version == 2)

    run, order, attempt = freeze(stage, "pay_checkable", point, change)
    stage.until_over(run)
    step = stage.act(run, "pay_checkable")
    assert (step.state, stage.paid(order)) == (StepState.VOID, 0), stage.tell(run)
    assert f"order.{order} changed" in step.error
    assert stage.key(run).state == KeyState.FAILED
    assert (run.state, run.end_reason) == (RunState.SUCCEEDED, "its finish was accepted")
    attempt.refresh_from_db()
    assert attempt.outcome in (
        AttemptOutcome.NOT_BEGUN,
        AttemptOutcome.LOST,
        AttemptOutcome.DEAD,
        AttemptOutcome.DISPROVED,
    )
    assert not budgets.mismatches()


@pytest.mark.parametrize("tool", ["pay_keyed", "pay_checkable"])
def test_a_worker_that_wakes_after_another_took_over_records_what_it_did_and_pays_nothing_more(
    stage: Stage, tool: str
) -> None:
    """Frozen after its tool has paid: the next one finds that out, and the late result changes no state."""
    order = stage.order()
    run = stage.start_payment(tool, order)
    stage.arm("returned")
    stage.approve(run)
    frozen = stage.until_frozen()
    assert stage.paid(order) == 1
    stage.until_over(run)
    settled(stage, run, order)
    first = Attempt.objects.filter(step=stage.act(run, tool)).earliest("number")
    epoch = run.epoch
    frozen.thaw()
    stage.until(run, lambda: Attempt.objects.get(pk=first.pk).outcome in (AttemptOutcome.DONE, AttemptOutcome.PROVED))
    assert run.epoch == epoch
    settled(stage, run, order)
