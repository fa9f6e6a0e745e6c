"""kill -9 of the gateway, and of the database under it, at the worst moments: nothing is lost, nothing is free."""

import pytest

from runs import budgets
from runs.engine.sweep import sweep_once
from runs.models import Run, Step
from runs.states import AttemptOutcome, StepKind
from tests.gateway_tools import START_S, Desk, desk, kill, model_process, model_server
from tests.waiting import wait_until

__all__ = ["desk", "model_process", "model_server"]

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


def check_end(desk: Desk, run: Run) -> None:
    """Whatever happened before: one reply was carried out, once, and the money is right."""
    desk.until(run, state="queued")
    assert Step.objects.filter(run=run, kind=StepKind.THINK).count() == 1
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1
    budget = desk.budget(run)
    assert budget.usd_reserved == 0
    assert budget.usd_spent == sum(entry.usd for entry in desk.ledger(run, "settle"))
    assert budgets.mismatches() == []


def test_after_kill_9_in_the_middle_of_a_stream_the_step_is_tried_again_and_the_old_try_is_booked(desk: Desk) -> None:
    desk.model.fault("slow", seconds=30)
    process = desk.gateway_process()
    run = desk.start()
    desk.until_streaming()
    kill(process)
    desk.gateway()
    check_end(desk, run)
    assert [attempt.outcome for attempt in desk.attempts(run)][-2:] == [AttemptOutcome.LOST, AttemptOutcome.DONE]
    estimated, real = desk.ledger(run, "settle")
    assert estimated.estimated
    assert estimated.usd == desk.ledger(run, "reserve")[0].usd > real.usd > 0
    assert len(desk.sent()) == 2


@pytest.mark.parametrize(
    ("point", "calls", "outcome"),
    [
        ("think.looked", 1, AttemptOutcome.LOST),
        ("think.replied", 2, AttemptOutcome.LOST),
        ("think.taken", 1, AttemptOutcome.LOST),
        ("think.streaming", 2, AttemptOutcome.LOST),
        ("think.settled", 1, AttemptOutcome.DONE),
    ],
)
def test_kill_9_between_any_two_phases_costs_at_most_one_call(
    desk: Desk, point: str, calls: int, outcome: AttemptOutcome, full_matrix: bool
) -> None:
    if not full_matrix and point not in ("think.looked", "think.replied"):
        pytest.skip("only with --full-matrix")
    process = desk.gateway_process(LONGWATCH_FAIL_POINT=desk.fail_point(point, "kill"))
    run = desk.start()
    assert process.wait(START_S) == -9
    desk.gateway()
    check_end(desk, run)
    assert len(desk.sent()) == calls
    # On a machine that is very busy a try may have been given up before it was sent.
    assert outcome in [attempt.outcome for attempt in desk.attempts(run)]
    if point == "think.taken":
        assert desk.ledger(run, "release")
    elif outcome == AttemptOutcome.LOST:
        assert any(entry.estimated for entry in desk.ledger(run, "settle"))


def test_a_reply_that_comes_after_its_lease_ran_out_still_counts_while_nothing_has_taken_its_place(desk: Desk) -> None:
    process = desk.gateway_process(LONGWATCH_FAIL_POINT=desk.fail_point("think.replied", "stop"))
    run = desk.start()
    wait_until(lambda: desk.is_frozen(process), what="frozen with a reply in its hand", timeout_s=START_S)
    wait_until(lambda: sweep_once() and desk.attempts(run)[0].outcome == AttemptOutcome.LOST, what="the lease ran out")
    run.refresh_from_db()
    assert run.state == "thinking"
    # Nobody else takes it: the gateway wakes first.
    desk.thaw(process)
    desk.until(run, state="queued")
    attempts = desk.attempts(run)
    assert attempts[0].outcome in (AttemptOutcome.DONE, AttemptOutcome.LOST)
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1
