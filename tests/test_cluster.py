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
from runs.supervise import read_processes, read_stat
from tests.cluster_host import ClusterHost
from tests.cluster_work import add_run, count_done, list_done, wait_done
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module")
def kept() -> Iterator[list[ClusterHost]]:
    """The cluster that takes one blow after the other, and at last has to stop as if nothing had been."""
    hosts: list[ClusterHost] = []
    yield hosts
    for host in hosts:
        try:
            host.wait_complete()
            assert host.stop() < 6
            assert host.process.returncode == 0
            assert not host.descendants()
        finally:
            host.close()


@pytest.fixture
def host(database_url: str, kept: list[ClusterHost], tmp_path_factory: pytest.TempPathFactory) -> ClusterHost:
    if not kept:
        kept.append(ClusterHost(database_url, tmp_path_factory.mktemp("cluster")))
    kept[0].wait_complete()
    return kept[0]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "done"


def test_what_is_due_is_done_at_once_and_nothing_is_put_into_a_queue(host: ClusterHost, log: Path) -> None:
    waits = []
    for _ in range(20):
        began = time.monotonic()
        wait_done(log, add_run(log))
        waits.append(time.monotonic() - began)
    assert statistics.median(waits) < 0.2
    with connection.cursor() as cursor:
        cursor.execute("SELECT (SELECT count(*) FROM django_q_ormq) + (SELECT count(*) FROM django_q_task)")
        assert cursor.fetchone() == (0,)


def test_runs_that_are_due_together_are_done_side_by_side(host: ClusterHost, log: Path) -> None:
    began = time.monotonic()
    wait_done(log, add_run(log, seconds=1.5), add_run(log, seconds=1.5))
    assert time.monotonic() - began < 2.9


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
    host: ClusterHost, log: Path, blow: Callable[[ClusterHost], None]
) -> None:
    wait_done(log, add_run(log))
    before = host.descendants()
    blow(host)
    runs = [add_run(log) for _ in range(4)]
    wait_done(log, *runs)
    host.wait_complete()
    # One that was struck may have done one of them, and been gone before it could say so: that one is done again.
    struck = before - host.descendants()
    assert all(len(pids) == 1 or len(struck.intersection(pids)) == len(pids) - 1 for pids in list_done(log).values())
    # Nothing of what was replaced lives on beside its successor.
    wait_until(lambda: len(host.descendants()) == len(before), what="no part too many")


@pytest.mark.parametrize(
    "blow",
    [kill_busy_worker, kill_sentinel, kill_main, kill_pusher, kill_monitor, terminate_group],
    ids=lambda blow: blow.__name__,
)
def test_a_blow_to_a_busy_cluster_costs_no_run(
    host: ClusterHost, log: Path, blow: Callable[[ClusterHost], None]
) -> None:
    runs = [add_run(log, seconds=0.5) for _ in range(6)]
    host.find(Role.WORKER, Activity.BUSY)
    blow(host)
    wait_done(log, *runs, timeout_s=30)
    wait_until(lambda: not Run.objects.exclude(state="succeeded").exists(), what="all runs end")
    # The stand-in has no keys: what was in hand may reach the receiver again, and nothing else.
    assert sum(count_done(log).values()) <= len(runs) + host.workers
    host.wait_complete()


def test_a_frozen_monitor_is_replaced_when_results_pile_up(host: ClusterHost, log: Path) -> None:
    freeze_monitor(host)
    frozen = host.find(Role.MONITOR)
    runs = []

    def is_replaced() -> bool:
        runs.append(add_run(log))
        wait_done(log, runs[-1])
        return host.find(Role.MONITOR).pid != frozen.pid

    wait_until(is_replaced, timeout_s=30, what="another monitor")
    assert set(count_done(log).values()) == {1}


def test_a_worker_that_dies_while_it_hands_over_its_result_takes_no_lock_with_it(host: ClusterHost, log: Path) -> None:
    parts = {seat.pid for seat in host.seats() if seat.role is not Role.WORKER}
    wait_done(log, *[add_run(log, dies_handing_over=1) for _ in range(host.workers)])
    runs = [add_run(log) for _ in range(4)]
    wait_done(log, *runs)
    host.wait_complete()
    assert parts <= {seat.pid for seat in host.seats()}, "the sentinel replaced the workers, and nobody the sentinel"


def test_the_end_of_a_killed_workers_tool_process_is_recorded_when_its_group_is_empty(
    host: ClusterHost, log: Path
) -> None:
    run = add_run(log, seconds=1.5, tool=1)
    wait_until(Process.objects.filter(kind="tool").exists, what="a tool process")
    tool = Process.objects.get(kind="tool")
    wait_until(lambda: len(group_of(tool.pid)) == 2, what="a group of two")
    stat = read_stat(tool.pid)
    assert stat is not None
    os.kill(stat.parent, signal.SIGKILL)
    wait_until(Process.objects.filter(pk=tool.pk, ended_at__isnull=False).exists, what="the record of its end")
    assert not group_of(tool.pid)
    tool.refresh_from_db()
    assert (tool.exit_status, tool.exit_signal) == (None, signal.SIGKILL)
    assert tool.maxrss_bytes is not None
    wait_done(log, run)


def group_of(leader: int) -> set[int]:
    return {stat.pid for stat in read_processes() if stat.group == leader and stat.state not in "ZX"}
