"""A stop or a switch cuts a model call, and nothing is free; a pause lets it finish. Nothing new is taken meanwhile."""

import time
from collections.abc import Callable

import pytest
from django.db import transaction

from runs import budgets, lifecycle, operations
from runs.engine.sweep import sweep_once
from runs.lifecycle import Claim, Held
from runs.models import Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState
from tests.gateway_tools import START_S, Desk, desk, model_process, model_server, told
from tests.waiting import wait_until

__all__ = ["desk", "model_process", "model_server"]

pytestmark = pytest.mark.django_db(transaction=True)


def stop(desk: Desk, run: Run) -> Callable[[], object]:
    operations.stop_run(run.pk, reason="wrong customer", by=desk.person)
    return lambda: None


def pause(desk: Desk, run: Run) -> Callable[[], object]:
    operations.pause_run(run.pk, reason="let me look", by=desk.person)
    return lambda: operations.resume_run(run.pk, reason="looked", by=desk.person)


def switch_off(desk: Desk, run: Run) -> Callable[[], object]:
    switch = operations.engage_switch("agent:thinker", reason="it misbehaves", by=desk.person)
    return lambda: operations.release_switch(switch.pk, reason="mended", by=desk.person)


def test_a_stop_cuts_the_stream_at_once_and_books_an_estimate_that_is_not_zero(desk: Desk) -> None:
    desk.model.fault("slow", seconds=30)
    gateway = desk.gateway()
    run = desk.start()
    desk.until_streaming()
    began = time.monotonic()
    stop(desk, run)
    wait_until(lambda: desk.sent()[0]["client_gone"], what="the stream is cut")
    assert time.monotonic() - began < 1.0
    wait_until(lambda: gateway.in_flight() == 0, what="the call is closed")
    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert run.drained_at is not None
    (attempt,) = desk.attempts(run)
    assert (attempt.outcome, attempt.late) == (AttemptOutcome.CUT, True)
    assert desk.think_step(run).state == StepState.VOID
    assert Step.objects.filter(run=run).count() == 1
    (reserve,), (settle,) = desk.ledger(run, "reserve"), desk.ledger(run, "settle")
    assert settle.estimated
    assert 0 < settle.usd <= reserve.usd
    assert settle.usd >= 1000 * 10 / 1_000_000
    assert told(settle.usage)["input_tokens"] > 0
    assert desk.budget(run).usd_reserved == 0
    assert budgets.mismatches() == []
    assert len(desk.sent()) == 1


def test_a_switch_cuts_the_stream_and_the_run_thinks_again_when_it_is_released(desk: Desk) -> None:
    desk.model.fault("slow", seconds=30)
    gateway = desk.gateway()
    run = desk.start()
    desk.until_streaming()
    release = switch_off(desk, run)
    wait_until(lambda: desk.sent()[0]["client_gone"], what="the stream is cut")
    wait_until(lambda: gateway.in_flight() == 0, what="the call is closed")
    run.refresh_from_db()
    assert (run.state, run.held_since is not None) == (RunState.THINKING, True)
    assert desk.think_step(run).state == StepState.PLANNED
    assert desk.ledger(run, "settle")[0].estimated
    time.sleep(1.5)  # more than a poll: nothing is taken meanwhile
    assert len(desk.sent()) == 1
    release()
    desk.until(run, state="queued")
    assert [attempt.outcome for attempt in desk.attempts(run)] == [AttemptOutcome.CUT, AttemptOutcome.DONE]
    assert desk.think_step(run).tries == 2


def test_a_pause_lets_the_model_call_in_hand_finish_and_holds_what_it_asked_for(desk: Desk) -> None:
    desk.model.fault("slow", seconds=1.5)
    desk.gateway()
    run = desk.start()
    desk.until_streaming()
    resume = pause(desk, run)
    desk.until(run, state="queued")
    assert (run.held_since, desk.sent()[0]["client_gone"]) == (None, False)
    assert [attempt.outcome for attempt in desk.attempts(run)] == [AttemptOutcome.DONE]
    assert not desk.ledger(run, "settle")[0].estimated
    assert [step.state for step in Step.objects.filter(run=run).exclude(kind=StepKind.THINK)] == [StepState.PLANNED]
    with transaction.atomic():
        assert lifecycle.claim(desk.worker, lease_s=60.0) == Held(run=run.pk)
    run.refresh_from_db()
    assert run.held_since is not None
    resume()
    with transaction.atomic():
        assert isinstance(lifecycle.claim(desk.worker, lease_s=60.0), Claim)


@pytest.mark.parametrize("hold", [pause, switch_off], ids=lambda hold: hold.__name__)
def test_what_is_held_when_it_is_due_is_not_called_and_says_so(
    desk: Desk, hold: Callable[[Desk, Run], Callable[[], object]]
) -> None:
    run = desk.start()
    release = hold(desk, run)
    desk.gateway()
    wait_until(lambda: Run.objects.get(pk=run.pk).held_since, what="held")
    assert Run.objects.get(pk=run.pk).held_by
    assert desk.sent() == []
    release()
    desk.until(run, state="queued")


def test_a_run_that_is_stopped_before_its_call_was_taken_is_never_called(desk: Desk) -> None:
    run = desk.start()
    stop(desk, run)
    desk.gateway()
    time.sleep(1.5)
    assert desk.sent() == []
    assert desk.attempts(run) == []


def test_a_stop_between_the_take_and_the_last_look_sends_nothing(desk: Desk) -> None:
    """The last look finds it: the process is frozen in between."""
    point = desk.fail_point("think.taken", "stop")
    process = desk.gateway_process(LONGWATCH_FAIL_POINT=point)
    run = desk.start()
    wait_until(lambda: desk.is_frozen(process), what="frozen after the take", timeout_s=START_S)
    stop(desk, run)
    desk.thaw(process)
    wait_until(lambda: desk.attempts(run)[0].outcome == AttemptOutcome.NOT_BEGUN, what="not begun")
    assert desk.sent() == []
    (release,) = desk.ledger(run, "release")
    assert release.usd == desk.ledger(run, "reserve")[0].usd
    assert desk.budget(run).usd_spent == desk.budget(run).usd_reserved == 0
    run.refresh_from_db()
    assert run.drained_at is not None


def test_a_gateway_that_was_frozen_after_its_last_look_sends_nothing_when_it_wakes_too_late(desk: Desk) -> None:
    process = desk.gateway_process(LONGWATCH_FAIL_POINT=desk.fail_point("think.looked", "stop"))
    run = desk.start()
    wait_until(lambda: desk.is_frozen(process), what="frozen after the look", timeout_s=START_S)
    stop(desk, run)
    wait_until(lambda: sweep_once() >= 0 and desk.attempts(run)[0].outcome == AttemptOutcome.LOST, what="lease over")
    desk.thaw(process)
    process.terminate()
    assert process.wait(START_S) == 0
    assert desk.sent() == []
    assert desk.ledger(run, "settle")[0].estimated


def test_terminating_the_gateway_lets_a_short_reply_finish_and_takes_nothing_more(desk: Desk) -> None:
    desk.model.fault("slow", seconds=0.8)
    process = desk.gateway_process()
    run = desk.start()
    desk.until_streaming()
    process.terminate()
    desk.until(run, state="queued")
    later = desk.start()
    assert process.wait(START_S) == 0
    later.refresh_from_db()
    assert later.state == RunState.THINKING
    assert len(desk.sent()) == 1


def test_terminating_the_gateway_cuts_a_long_reply_after_its_grace_and_another_takes_it(desk: Desk) -> None:
    desk.model.fault("slow", seconds=30)
    process = desk.gateway_process()
    run = desk.start()
    desk.until_streaming()
    began = time.monotonic()
    process.terminate()
    assert process.wait(START_S) == 0
    assert 1.0 < time.monotonic() - began < 15.0
    assert desk.attempts(run)[0].outcome == AttemptOutcome.CUT
    assert desk.ledger(run, "settle")[0].estimated
    desk.gateway()
    desk.until(run, state="queued")
