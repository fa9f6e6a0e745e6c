"""The five clocks of a run add up over every move, and the business clock moves for all without touching a lease."""

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import budgets, clock, course, lifecycle, operations, sql, steps
from runs.errors import LimitTooLow, OverBudget
from runs.models import Attempt, Run
from runs.states import AttemptOutcome, RunState, StepKind, WaitingFor
from tests.writers import claim, open_attempt, person, start, start_child

__all__ = ["person"]
pytestmark = pytest.mark.django_db

CLOCKS = ("working_s", "queued_s", "world_s", "people_s", "held_s")


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


# What the machine itself takes does not count beside it.
UNIT_S = 1000.0


def wait(units: float) -> None:
    clock.shift(timedelta(seconds=units * UNIT_S))


def move(run: Run, to: RunState, waiting_for: WaitingFor | str = "") -> None:
    with transaction.atomic():
        lifecycle.move(lifecycle.lock(run.pk), to, waiting_for=waiting_for, why="so it goes" if waiting_for else "")


def clocks(run: Run) -> dict[str, int]:
    run.refresh_from_db()
    units = {name: round(getattr(run, name) / UNIT_S) for name in CLOCKS}
    return {name: passed for name, passed in units.items() if passed}


def test_the_clocks_add_up_over_moves_pauses_and_holds(run: Run, person: User) -> None:
    wait(10)
    claim(run)
    assert clocks(run) == {"queued_s": 10}
    wait(20)
    move(run, RunState.WAITING, WaitingFor.TIMER)
    wait(30)
    move(run, RunState.QUEUED)
    claim(run)
    move(run, RunState.WAITING, WaitingFor.APPROVAL)
    wait(40)
    operations.pause_run(run.pk, reason="stop a moment", by=person)
    assert clocks(run) == {"queued_s": 10, "working_s": 20, "world_s": 30, "people_s": 40}
    wait(50)
    operations.resume_run(run.pk, reason="go on", by=person)
    assert clocks(run)["held_s"] == 50
    wait(5)
    claim(run)
    assert clocks(run)["people_s"] == 45
    move(run, RunState.THINKING)
    wait(60)
    move(run, RunState.QUEUED)
    operations.engage_switch("all", reason="look first", by=person)
    with transaction.atomic():
        assert isinstance(lifecycle.claim(uuid.uuid4(), lease_s=5), lifecycle.Held)
    wait(70)
    operations.stop_run(run.pk, reason="enough", by=person)
    assert clocks(run) == {"queued_s": 10, "working_s": 80, "world_s": 30, "people_s": 45, "held_s": 120}
    assert run.ended_at is not None
    total = sum(getattr(run, name) for name in CLOCKS)
    assert total == pytest.approx((run.ended_at - run.created_at).total_seconds(), abs=0.05)


def test_nothing_is_added_after_the_end(run: Run, person: User) -> None:
    operations.stop_run(run.pk, reason="enough", by=person)
    before = clocks(run)
    wait(100)
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        lifecycle.unhold(locked)
        lifecycle.hold(run.pk, "late")
        course.rest(locked)
    assert clocks(run) == before
    assert (run.due_at, run.held_since) == (None, None)


def test_a_clock_that_jumps_back_takes_nothing_away(run: Run) -> None:
    wait(10)
    claim(run)
    wait(-500)
    move(run, RunState.QUEUED)
    assert clocks(run) == {"queued_s": 10}
    wait(500 + 7)
    claim(run)
    # Not counted twice: the time from the mark on is counted once it has passed again.
    assert clocks(run) == {"queued_s": 17}


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.THINKING])
def test_a_pause_lets_the_work_in_hand_count_as_work_until_the_run_is_held(
    run: Run, person: User, state: RunState
) -> None:
    claim(run)
    if state == RunState.THINKING:
        move(run, RunState.THINKING)
    operations.pause_run(run.pk, reason="stop a moment", by=person)
    wait(8)
    move(run, RunState.QUEUED)
    with transaction.atomic():
        lifecycle.hold(run.pk, "paused: stop a moment")
    wait(9)
    operations.resume_run(run.pk, reason="go on", by=person)
    assert clocks(run) == {"working_s": 8, "held_s": 9}


def test_what_wakes_a_paused_run_does_not_end_its_hold(run: Run, person: User) -> None:
    operations.pause_run(run.pk, reason="stop a moment", by=person)
    wait(5)
    with transaction.atomic():
        course.rest(lifecycle.lock(run.pk))
    run.refresh_from_db()
    assert run.held_since is not None
    wait(6)
    operations.resume_run(run.pk, reason="go on", by=person)
    assert clocks(run) == {"held_s": 11}


def test_a_hold_by_a_switch_outlives_a_pause_within_it(run: Run, person: User) -> None:
    operations.engage_switch("all", reason="look first", by=person)
    with transaction.atomic():
        lifecycle.claim(uuid.uuid4(), lease_s=5)
    wait(5)
    operations.pause_run(run.pk, reason="stop a moment", by=person)
    wait(6)
    operations.resume_run(run.pk, reason="go on", by=person)
    assert clocks(run) == {"held_s": 11}


def test_max_working_counts_work_alone(run: Run, person: User) -> None:
    operations.set_budget(run.pk, {"working_s": 100 * UNIT_S}, reason="no longer", by=person)
    wait(1000)
    claim(run)
    wait(99)
    with transaction.atomic():
        budgets.require_room(run.pk, budgets.Amounts(steps=1))
    wait(2)
    with transaction.atomic(), pytest.raises(OverBudget, match="has used its working time"):
        budgets.require_room(run.pk, budgets.Amounts(steps=1))


def test_what_a_child_works_counts_for_the_runs_above_it(run: Run, person: User) -> None:
    operations.set_budget(run.pk, {"working_s": 100 * UNIT_S}, reason="no longer", by=person)
    child = start_child(run)
    claim(run)
    wait(60)
    claim(child)
    with transaction.atomic():
        budgets.require_room(child.pk, budgets.Amounts(steps=1))
    wait(21)
    with transaction.atomic(), pytest.raises(OverBudget, match=f"Run {run.pk} has used its working time"):
        budgets.require_room(child.pk, budgets.Amounts(steps=1))
    with pytest.raises(LimitTooLow):
        operations.set_budget(run.pk, {"working_s": 101 * UNIT_S}, reason="less", by=person)


def test_the_shift_moves_business_time_in_scans_and_under_locks_and_leaves_the_real_clock(db: None) -> None:
    real, scan, running = clock.real_now(), *sql.fetch_row("SELECT lw_now(), lw_clock()")
    clock.shift(timedelta(days=2))
    later = sql.fetch_row("SELECT lw_now(), lw_clock()")
    assert [round((b - a).total_seconds() / 86400, 3) for a, b in zip((scan, running), later, strict=True)] == [2, 2]
    assert (clock.real_now() - real).total_seconds() < 60
    clock.shift(timedelta(days=-2))


def test_a_lease_and_begin_by_do_not_feel_the_shift(run: Run) -> None:
    claim(run)
    with transaction.atomic():
        attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.THINK)), lease_s=30)
    clock.shift(timedelta(days=9))
    with transaction.atomic():
        assert steps.begin(attempt.pk)
    run.refresh_from_db()
    assert run.lease_until is not None
    assert run.lease_until > clock.real_now()
    clock.shift(timedelta(days=-9))


def test_no_last_look_is_passed_after_begin_by_or_after_the_lease(run: Run) -> None:
    for column in ("begin_by", "lease_until"):
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            attempt = open_attempt(steps.plan(locked, steps.Asked(kind=StepKind.CHECK, tool="t")), lease_s=0)
            assert not steps.begin(attempt.pk), column
    assert Attempt.objects.filter(began_at=None, outcome=AttemptOutcome.OPEN).count() == 2


def test_the_running_clock_runs_within_a_transaction_and_the_clock_of_scans_within_a_statement(db: None) -> None:
    assert clock.now() < clock.now()
    assert clock.real_now() < clock.real_now()
    assert sql.fetch_row("SELECT lw_now() = lw_now(), lw_clock() < lw_clock()") == (True, True)
