"""The watch judges a cluster by what its parts show: what is stuck is found, and what is only slow or new is not."""

import os
import time
from collections.abc import Iterator

import pytest

from runs.board import Activity, Board, Role, Seat
from runs.watch import ClusterWatch, Fault, Limits, find_fault

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
LIMITS = Limits()


def seat(role: Role, activity: Activity = Activity.WAITING, *, since_s: float = 0.1, beat_s: float = 0.1) -> Seat:
    return Seat(
        number=int(role),
        pid=os.getpid(),
        start_ticks=1,
        role=role,
        activity=activity,
        since_ns=NOW - int(since_s * SECOND),
        beat_ns=NOW - int(beat_s * SECOND),
    )


def judge(*seats: Seat) -> Fault | None:
    return find_fault(seats, now_ns=NOW, limits=LIMITS)


def test_a_cluster_that_has_waited_for_hours_is_well() -> None:
    assert not judge(
        seat(Role.SENTINEL),
        seat(Role.PUSHER, since_s=9_000, beat_s=4.9),
        seat(Role.MONITOR, since_s=9_000, beat_s=9_000),
        seat(Role.WORKER, since_s=9_000, beat_s=9_000),
    )


def test_workers_that_are_busy_for_hours_while_the_pusher_offers_are_well() -> None:
    assert not judge(
        seat(Role.SENTINEL),
        seat(Role.PUSHER, Activity.HANDING_OVER, since_s=9_000, beat_s=9_000),
        seat(Role.MONITOR, since_s=9_000),
        seat(Role.WORKER, Activity.BUSY, since_s=9_000, beat_s=9_000),
    )


def test_a_silent_sentinel_costs_the_whole_cluster() -> None:
    fault = judge(seat(Role.SENTINEL, beat_s=LIMITS.sentinel + 1))
    assert fault is not None
    assert fault.seat is None


def test_a_silent_pusher_is_to_blame_itself() -> None:
    pusher = seat(Role.PUSHER, beat_s=LIMITS.pusher + 1)
    fault = judge(seat(Role.SENTINEL), pusher)
    assert fault is not None
    assert fault.seat is pusher


@pytest.mark.parametrize(("giver", "taker"), [(Role.PUSHER, Role.WORKER), (Role.WORKER, Role.MONITOR)])
def test_who_waits_and_does_not_take_what_is_offered_is_to_blame(giver: Role, taker: Role) -> None:
    idle = seat(taker, since_s=LIMITS.handover + 1)
    offers = seat(giver, Activity.HANDING_OVER, since_s=LIMITS.handover + 1)
    fault = judge(seat(Role.SENTINEL), idle, offers)
    assert fault is not None
    assert fault.seat is idle


def test_who_began_to_wait_a_moment_ago_is_not_to_blame() -> None:
    assert not judge(
        seat(Role.SENTINEL),
        seat(Role.PUSHER, Activity.HANDING_OVER, since_s=60),
        seat(Role.WORKER, since_s=0.5),
    )


def test_a_monitor_that_does_not_finish_is_to_blame() -> None:
    monitor = seat(Role.MONITOR, Activity.BUSY, since_s=LIMITS.handover + 1)
    fault = judge(seat(Role.SENTINEL), monitor)
    assert fault is not None
    assert fault.seat is monitor


@pytest.fixture
def watch() -> Iterator[ClusterWatch]:
    watch = ClusterWatch(workers=1, sweep=lambda: 1.0, limits=LIMITS)
    yield watch
    watch._clerk.close(timeout_s=5)
    os.close(watch._board.fd)


@pytest.mark.parametrize(
    ("due_s", "activity", "since_s", "found"),
    [
        (60, Activity.WAITING, 60, True),
        (60, Activity.WAITING, 1, False),  # it was given something a moment ago, or has just been started
        (1, Activity.WAITING, 60, False),  # the run has just become due
        (60, Activity.BUSY, 60, False),
    ],
)
def test_due_runs_and_workers_that_wait_side_by_side_are_found(
    watch: ClusterWatch, due_s: float, activity: Activity, since_s: float, found: bool
) -> None:
    watch._due_since_ns = NOW - int(due_s * SECOND)
    assert bool(watch._find_neglect([seat(Role.WORKER, activity, since_s=since_s)], NOW)) is found


def test_due_runs_without_any_worker_are_not_neglected_but_a_start_that_takes_its_time(watch: ClusterWatch) -> None:
    watch._due_since_ns = NOW - 60 * SECOND
    assert watch._find_neglect([seat(Role.SENTINEL)], NOW) is None


def test_a_seat_shows_who_sits_there_and_what_it_does() -> None:
    board = Board.create()
    place = board.take_seat(Role.WORKER)
    place.show(Activity.BUSY)
    (read,) = board.read()
    assert (read.pid, read.role, read.activity) == (os.getpid(), Role.WORKER, Activity.BUSY)
    assert 0 <= time.monotonic_ns() - read.since_ns < SECOND
    board.clear(read)
    assert board.read() == []
    os.close(board.fd)
