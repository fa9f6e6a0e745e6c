"""A real cluster does what is due, survives the death of each of its parts, and leaves nothing behind."""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from runs.board import Activity, Role
from runs.models import Process, Run
from runs.supervise import read_stat
from tests.cluster_host import ClusterHost
from tests.cluster_work import add_run, count_done
from tests.process_tools import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.django_db(transaction=True)]

type Start = Callable[..., ClusterHost]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    hosts: list[ClusterHost] = []

    def start_one(**options: int) -> ClusterHost:
        hosts.append(ClusterHost(database_url, tmp_path, **options))
        return hosts[-1]

    yield start_one
    for host in hosts:
        host.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "done"


def wait_done(log: Path, *runs: int, timeout_s: float = 20.0) -> None:
    wait_until(lambda: set(runs) <= set(count_done(log)), timeout_s=timeout_s, what=f"{runs} in {count_done(log)}")


def test_what_is_due_is_done_at_once_and_nothing_is_put_into_a_queue(start: Start, log: Path) -> None:
    start()
    waits = []
    for _ in range(20):
        began = time.monotonic()
        wait_done(log, add_run(log))
        waits.append(time.monotonic() - began)
    assert statistics.median(waits) < 0.2
    with connection.cursor() as cursor:
        cursor.execute("SELECT (SELECT count(*) FROM django_q_ormq) + (SELECT count(*) FROM django_q_task)")
        assert cursor.fetchone() == (0,)


def test_runs_that_are_due_together_are_done_side_by_side(start: Start, log: Path) -> None:
    start()
    began = time.monotonic()
    wait_done(log, add_run(log, seconds=1.5), add_run(log, seconds=1.5))
    assert time.monotonic() - began < 2.9


def test_a_run_that_becomes_due_later_is_done_then_without_a_hint(start: Start, log: Path) -> None:
    run = add_run(log)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET due_at = lw_now() + interval '1 hour'")
    host = start()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET due_at = lw_now() + interval '1 second'")
    wait_done(log, run, timeout_s=8)
    assert host.process.poll() is None


def kill_busy_worker(host: ClusterHost) -> None:
    os.kill(host.find(Role.WORKER, Activity.BUSY).pid, signal.SIGKILL)


def kill_idle_workers(host: ClusterHost) -> None:
    for seat in host.seats():
        if seat.role is Role.WORKER:
            os.kill(seat.pid, signal.SIGKILL)


def kill_one_idle_worker(host: ClusterHost) -> None:
    os.kill(host.find(Role.WORKER, Activity.WAITING).pid, signal.SIGKILL)


def kill_monitor(host: ClusterHost) -> None:
    os.kill(host.find(Role.MONITOR).pid, signal.SIGKILL)


def kill_pusher(host: ClusterHost) -> None:
    os.kill(host.find(Role.PUSHER).pid, signal.SIGKILL)


def kill_sentinel(host: ClusterHost) -> None:
    os.kill(host.find(Role.SENTINEL).pid, signal.SIGKILL)


def kill_main(host: ClusterHost) -> None:
    os.kill(host.main, signal.SIGKILL)


def terminate_main(host: ClusterHost) -> None:
    os.kill(host.main, signal.SIGTERM)


def terminate_sentinel(host: ClusterHost) -> None:
    os.kill(host.find(Role.SENTINEL).pid, signal.SIGTERM)


def terminate_group(host: ClusterHost) -> None:
    os.killpg(host.main, signal.SIGTERM)


def interrupt_group(host: ClusterHost) -> None:
    os.killpg(host.main, signal.SIGINT)


def freeze_sentinel(host: ClusterHost) -> None:
    os.kill(host.find(Role.SENTINEL).pid, signal.SIGSTOP)


def freeze_idle_workers(host: ClusterHost) -> None:
    for seat in host.seats():
        if seat.role is Role.WORKER:
            os.kill(seat.pid, signal.SIGSTOP)


def freeze_monitor(host: ClusterHost) -> None:
    os.kill(host.find(Role.MONITOR).pid, signal.SIGSTOP)


def freeze_pusher(host: ClusterHost) -> None:
    os.kill(host.find(Role.PUSHER).pid, signal.SIGSTOP)


BLOWS = [
    kill_one_idle_worker,
    kill_idle_workers,
    kill_monitor,
    kill_pusher,
    kill_sentinel,
    kill_main,
    terminate_main,
    terminate_sentinel,
    terminate_group,
    interrupt_group,
    freeze_sentinel,
    freeze_idle_workers,
    freeze_pusher,
]


@pytest.mark.parametrize("blow", BLOWS, ids=lambda blow: blow.__name__)
def test_a_blow_to_an_idle_cluster_is_survived_within_seconds(
    start: Start, log: Path, blow: Callable[[ClusterHost], None]
) -> None:
    host = start()
    wait_done(log, add_run(log))
    before = host.descendants()
    blow(host)
    runs = [add_run(log) for _ in range(4)]
    wait_done(log, *runs, timeout_s=20)
    host.wait_complete()
    assert set(count_done(log).values()) == {1}
    # Nothing of what was replaced lives on beside its successor.
    wait_until(lambda: len(host.descendants()) == len(before), what="no part too many")
    assert host.stop() < 6
    assert host.process.returncode == 0
    assert not host.descendants()


@pytest.mark.parametrize(
    "blow",
    [kill_busy_worker, kill_sentinel, kill_main, kill_pusher, kill_monitor, terminate_group],
    ids=lambda blow: blow.__name__,
)
def test_a_blow_to_a_busy_cluster_costs_no_run(start: Start, log: Path, blow: Callable[[ClusterHost], None]) -> None:
    host = start()
    runs = [add_run(log, seconds=0.5) for _ in range(6)]
    host.find(Role.WORKER, Activity.BUSY)
    blow(host)
    wait_done(log, *runs, timeout_s=30)
    wait_until(lambda: not Run.objects.exclude(state="succeeded").exists())
    # The stand-in has no keys: what was in hand may reach the receiver again, and nothing else.
    assert sum(count_done(log).values()) <= len(runs) + host.workers
    host.wait_complete()


def test_a_frozen_monitor_is_replaced_when_results_pile_up(start: Start, log: Path) -> None:
    host = start()
    freeze_monitor(host)
    frozen = host.find(Role.MONITOR)
    runs = []

    def is_replaced() -> bool:
        runs.append(add_run(log))
        wait_done(log, runs[-1])
        return host.find(Role.MONITOR).pid != frozen.pid

    wait_until(is_replaced, timeout_s=30)
    assert set(count_done(log).values()) == {1}


def test_when_the_watch_is_killed_nothing_lives_on(start: Start, log: Path) -> None:
    host = start()
    add_run(log, seconds=30, tool=1)
    wait_until(lambda: Process.objects.exists())
    host.process.kill()
    wait_until(lambda: not host.descendants() - orphaned_members(host), what="all parts are gone")


def orphaned_members(host: ClusterHost) -> set[int]:
    """What a tool process started is not ended by the kernel: that is what the watch, or `up` above it, is for."""
    tool = Process.objects.get()
    return {pid for pid in host.descendants() if (stat := read_stat(pid)) and stat.group == tool.pid != pid}


def test_the_end_of_a_killed_workers_tool_process_is_recorded_when_its_group_is_empty(start: Start, log: Path) -> None:
    host = start()
    run = add_run(log, seconds=1.5, tool=1)
    tool = wait_until(lambda: Process.objects.first())
    assert tool is not None
    wait_until(lambda: len(group_of(tool.pid)) == 2)
    kill_busy_worker(host)
    wait_until(lambda: Process.objects.filter(pk=tool.pk, ended_at__isnull=False).exists())
    assert not group_of(tool.pid)
    tool.refresh_from_db()
    assert (tool.exit_status, tool.exit_signal) == (None, signal.SIGKILL)
    assert tool.maxrss_bytes is not None
    wait_done(log, run)


def group_of(leader: int) -> set[int]:
    from runs.supervise import read_processes

    return {stat.pid for stat in read_processes() if stat.group == leader and stat.state not in "ZX"}


def test_stopping_finishes_the_step_in_hand_and_begins_nothing_more(start: Start, log: Path) -> None:
    host = start(workers=1)
    first = add_run(log, seconds=2)
    host.find(Role.WORKER, Activity.BUSY)
    second = add_run(log)
    assert host.stop() < 5
    assert host.process.returncode == 0
    assert count_done(log) == {first: 1}
    assert Run.objects.get(pk=second).state == "queued"
    assert not host.descendants()


def test_stopping_kills_what_takes_longer_than_its_grace(start: Start, log: Path) -> None:
    host = start()
    add_run(log, seconds=60, tool=1)
    wait_until(lambda: Process.objects.exists())
    assert 3.5 < host.stop() < 9
    assert not host.descendants()
    assert Process.objects.get().ended_at is not None


def test_two_clusters_share_the_work_without_doubling_it(start: Start, log: Path) -> None:
    start()
    start()
    runs = [add_run(log, seconds=0.02) for _ in range(60)]
    wait_done(log, *runs)
    assert set(count_done(log).values()) == {1}


def test_a_random_death_every_now_and_then_costs_nothing(start: Start, log: Path) -> None:
    import random

    host = start(workers=3)
    dice = random.Random(7)
    runs = []
    for _ in range(12):
        runs += [add_run(log, seconds=dice.random() * 0.3) for _ in range(3)]
        seats = host.seats()
        if seats:
            os.kill(dice.choice(seats).pid, signal.SIGKILL)
        wait_done(log, runs[-3], timeout_s=30)
    wait_done(log, *runs, timeout_s=30)
    host.wait_complete()
