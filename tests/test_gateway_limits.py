"""Case I1: what a provider says is obeyed, for the whole credential, and costs no attempt, no step and no money."""

import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import budgets, clock, lifecycle, limits, operations, sql, steps
from runs.journal import RUNTIME
from runs.models import Approval, ProviderLimit, Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState, WaitingFor
from tests.gateway_tools import Desk, desk, model_process, model_server
from tests.waiting import wait_until
from tests.writers import person, shifted, start

__all__ = ["desk", "model_process", "model_server", "person"]

pytestmark = pytest.mark.django_db(transaction=True)


def forget_limit() -> None:
    """The limit has ended long ago."""
    sql.execute(
        "UPDATE runs_providerlimit SET not_before = lw_clock() - interval '1 s', ramp_until = NULL, strikes = 0"
    )


def assert_nothing_was_used(desk: Desk, run: Run) -> None:
    budget = desk.budget(run)
    assert budget.usd_spent == budget.usd_reserved == budget.calls_spent == budget.steps_spent == 0
    assert len(desk.ledger(run, "release")) == 1
    assert budgets.mismatches() == []


@pytest.mark.parametrize(
    ("kind", "given", "least", "most"),
    [
        ("rate_limit", {"retry_after": 45}, 44, 47),
        ("rate_limit", {"retry_after": 3600}, 3598, 3603),
        ("rate_limit", {"retry_after": 2.5}, 2, 5),
        ("rate_limit", {"retry_after": 30, "as_date": True}, 28, 34),
        ("rate_limit", {"retry_after": None}, 1, 5),
        ("overloaded", {"retry_after": 20}, 19, 22),
        ("overloaded", {}, 1, 5),
    ],
)
def test_retry_after_is_obeyed_as_given_and_nothing_is_paid_or_counted(
    desk: Desk, kind: str, given: dict[str, Any], least: float, most: float
) -> None:
    desk.model.fault(kind, **given)
    desk.gateway()
    run = desk.start()
    desk.until(run, state="waiting", waiting_for=WaitingFor.PROVIDER)
    assert least <= desk.waits_s(run) <= most
    assert "429" in run.why or "529" in run.why
    tried = [(attempt.outcome, attempt.error) for attempt in desk.attempts(run)]
    assert [outcome for outcome, _ in tried] == [AttemptOutcome.REFUSED], tried
    assert_nothing_was_used(desk, run)
    forget_limit()
    desk.hand_over(run)
    desk.until(run, state="queued")
    assert len(desk.sent()) == 2


def test_a_limit_holds_every_run_of_the_credential_and_model_and_no_other(desk: Desk) -> None:
    desk.model.fault("rate_limit", retry_after=60)
    desk.gateway()
    first = desk.start()
    desk.until(first, state="waiting", waiting_for="provider")
    second = desk.start()
    desk.until(second, state="waiting", waiting_for="provider")
    assert desk.attempts(second) == []
    assert desk.waits_s(second) > 50
    other = desk.start("pondering")
    desk.until(other, state="queued")
    assert len(desk.sent()) == 2


def test_a_stop_works_while_a_run_waits_for_its_provider(desk: Desk) -> None:
    desk.model.fault("rate_limit", retry_after=60)
    desk.gateway()
    run = desk.start()
    desk.until(run, state="waiting", waiting_for="provider")
    operations.stop_run(run.pk, reason="enough", by=desk.person)
    run.refresh_from_db()
    assert (run.state, desk.think_step(run).state) == (RunState.STOPPED, StepState.VOID)


def test_calls_that_meet_one_limit_together_count_as_one_strike(desk: Desk) -> None:
    desk.model.fault("rate_limit", retry_after=30, times=5)
    runs = [desk.start() for _ in range(5)]
    desk.gateway()
    for run in runs:
        desk.until(run, state="waiting", waiting_for="provider")
    assert ProviderLimit.objects.get(strikes__gt=0).strikes == 1
    assert 1 <= len(desk.sent()) <= 5


def pass_through(step: Step, model: str = "m") -> float | None:
    """Seconds that a step has to wait for its call, or None."""
    with transaction.atomic():
        closed = limits.pass_through("c", model, step=step.pk)
    return None if closed is None else closed.wait_s


def planned(by: User, count: int) -> list[Step]:
    made = []
    for _ in range(count):
        run = start(by)
        with transaction.atomic():
            made.append(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.THINK)))
    return made


def test_after_a_limit_calls_are_let_through_one_by_one_and_then_freely_again(person: User) -> None:
    one, two, three = planned(person, 3)
    with transaction.atomic():
        limits.strike("c", "m", retry_after_s=10.0, reason="429")
        assert limits.strike("c", "m", retry_after_s=5.0, reason="429 again") > 9
    assert 9 < (pass_through(one) or 0) < 11
    assert pass_through(two, "other") is None
    assert 10 < (pass_through(two) or 0) < 12
    with shifted(timedelta(seconds=10)):
        assert pass_through(three) is not None, "others wait in front of it"
        assert pass_through(one) is None
        assert pass_through(two) is not None
        clock.shift(timedelta(seconds=2))
        assert pass_through(two) is None
        assert pass_through(three) is None
        clock.shift(timedelta(seconds=-2))
    with shifted(timedelta(seconds=80)):
        assert [pass_through(step) for step in (one, two, three)] == [None] * 3
        assert ProviderLimit.objects.get(model="m").strikes == 0


def test_a_credential_makes_no_more_calls_than_its_rate_and_in_order(person: User) -> None:
    with transaction.atomic():
        limits.know("c")
        limits.set_rate(ProviderLimit.objects.get().pk, 10, actor=RUNTIME, why="the contract")
    first, *others = planned(person, 5)
    assert pass_through(first) is None
    waits = [pass_through(step) or 0.0 for step in others]
    assert all(6 * n - 0.5 < wait < 6 * n + 1 for n, wait in enumerate(waits, start=1)), waits
    operations.stop_run(others[0].run_id, reason="enough", by=person)
    assert 5 < (pass_through(first) or 0) < 7, "the place of the stopped run is not lost"
    for turn, step in enumerate(others[1:], start=2):
        with shifted(timedelta(seconds=6 * turn + 0.5)):
            assert pass_through(step) is None
    (late,) = planned(person, 1)
    with shifted(timedelta(seconds=24.6)):
        assert pass_through(late) is not None


def test_what_was_not_used_before_a_limit_is_not_made_up_for_after_it(person: User) -> None:
    with transaction.atomic():
        limits.know("c")
        limits.set_rate(ProviderLimit.objects.get().pk, 60, actor=RUNTIME, why="the contract")
        limits.strike("c", "", retry_after_s=45.0, reason="429")
    waiting = planned(person, 6)
    assert all((pass_through(step) or 0) >= 44 for step in waiting)
    with shifted(timedelta(seconds=45.2)):
        assert sum(pass_through(step) is None for step in waiting) == 1


def test_without_a_retry_after_the_pause_grows_each_time() -> None:
    pauses = []
    for _ in range(4):
        with transaction.atomic():
            pauses.append(limits.strike("c", "m", retry_after_s=None, reason="529"))
        sql.execute("UPDATE runs_providerlimit SET not_before = lw_clock()")
    assert all(later > earlier * 1.1 for earlier, later in pairwise(pauses))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "rate_limit", "error_code": "enforced_spend_limit_reached", "retry_after": 5}, "limit on spending"),
        ({"kind": "error", "status": 402, "message": "no funds"}, "limit on spending"),
        ({"kind": "error", "status": 401, "message": "invalid x-api-key"}, "401"),
        ({"kind": "error", "status": 403, "message": "not yours"}, "403"),
    ],
)
def test_what_no_waiting_mends_is_put_before_a_person_and_not_tried_again(
    desk: Desk, fault: dict[str, Any], told: str
) -> None:
    desk.model.fault(**fault)
    desk.gateway()
    run = desk.start()
    desk.until(run, state="waiting", waiting_for=WaitingFor.CREDENTIAL)
    assert told in run.why
    card = Approval.objects.get(run=run)
    assert (card.kind, card.verdicts) == ("credential", ["renewed", "stop"])
    assert_nothing_was_used(desk, run)
    assert len(desk.sent()) == 1


def test_a_request_that_is_wrong_is_not_tried_again_and_says_why(desk: Desk) -> None:
    desk.model.fault("error", status=400, message="messages: too odd")
    desk.gateway()
    run = desk.start()
    desk.until(run, state="waiting", waiting_for=WaitingFor.FAILURE)
    assert "too odd" in run.why
    assert Approval.objects.get(run=run).kind == "failure"
    assert_nothing_was_used(desk, run)
    time.sleep(1.0)
    assert len(desk.sent()) == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "cut_stream", "after": 4},
        {"kind": "error", "status": 500},
        {"kind": "error", "status": 500, "after": 4},
    ],
)
def test_a_call_that_breaks_off_is_booked_as_estimated_and_tried_again_until_a_person_is_asked(
    desk: Desk, fault: dict[str, Any]
) -> None:
    desk.model.fault(**fault, times=None)
    desk.gateway()
    run = desk.start()
    for tries in (1, 2):
        desk.until(run, state="waiting", waiting_for=WaitingFor.RETRY)
        assert len(desk.ledger(run, "settle")) == tries
        desk.hand_over(run)
    desk.until(run, state="waiting", waiting_for=WaitingFor.FAILURE)
    settled = desk.ledger(run, "settle")
    assert len(settled) == 3
    assert all(entry.estimated and entry.usd > 0 for entry in settled)
    assert "failed 3 times" in Approval.objects.get(run=run).why
    assert len(desk.sent()) == 3


def test_an_overload_in_the_middle_of_a_reply_is_paid_for_as_estimated_and_waits_for_the_provider(desk: Desk) -> None:
    desk.model.fault("overloaded", after=4)
    desk.gateway()
    run = desk.start()
    desk.until(run, state="waiting", waiting_for=WaitingFor.PROVIDER)
    assert desk.ledger(run, "settle")[0].estimated
    wait_until(lambda: ProviderLimit.objects.exists(), what="the limit is kept")
