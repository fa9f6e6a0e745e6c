"""A cluster of the test's own: how it ends, how it shares, and what a random death costs."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from runs.board import Activity, Role
from runs.models import Process, Run
from runs.supervise import read_stat
from tests.cluster_host import ClusterHost
from tests.cluster_work import add_run, count_done, wait_done
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

type Start = Callable[..., ClusterHost]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start clusters of the test's own."""
    hosts: list[ClusterHost] = []

    def start_one(*, workers: int = 2, grace_s: int = 4) -> ClusterHost:
        hosts.append(ClusterHost(database_url, tmp_path, workers=workers, grace_s=grace_s))
        return hosts[-1]

    yield start_one
    for host in hosts:
        host.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "done"


def test_a_run_that_becomes_due_later_is_done_then_without_a_hint(start: Start, log: Path) -> None:
    run = add_run(log)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET due_at = lw_now() + interval '1 hour'")
    host = start()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET due_at = lw_now() + interval '1 second'")
    wait_done(log, run, timeout_s=8)
    assert host.process.poll() is None


def test_when_the_watch_is_killed_nothing_lives_on(start: Start, log: Path) -> None:
    host = start()
    add_run(log, seconds=30, tool=1)
    wait_until(Process.objects.filter(kind="tool").exists, what="a tool process")
    host.process.kill()
    wait_until(lambda: not host.descendants() - orphaned_members(host), what="all parts are gone")


def test_stopping_finishes_the_step_in_hand_and_begins_nothing_more(start: Start, log: Path) -> None:
    host = start(workers=1, grace_s=30)
    first = add_run(log, seconds=2)
    host.find(Role.WORKER, Activity.BUSY)
    second = add_run(log)
    assert host.stop() < 15
    assert host.process.returncode == 0
    assert count_done(log) == {first: 1}
    assert Run.objects.get(pk=second).state == "queued"
    assert not host.descendants()


def test_stopping_kills_what_takes_longer_than_its_grace(start: Start, log: Path) -> None:
    host = start()
    add_run(log, seconds=60, tool=1)
    wait_until(Process.objects.filter(kind="tool").exists, what="a tool process")
    assert 3.5 < host.stop() < 15
    assert not host.descendants()
    assert Process.objects.get(kind="tool").ended_at is not None


def test_two_clusters_share_the_work_without_doubling_it(start: Start, log: Path) -> None:
    start()
    start()
    runs = [add_run(log, seconds=0.02) for _ in range(60)]
    wait_done(log, *runs)
    assert set(count_done(log).values()) == {1}


def test_a_random_death_every_now_and_then_costs_nothing(start: Start, log: Path) -> None:
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


def orphaned_members(host: ClusterHost) -> set[int]:
    """What a tool process started is not ended by the kernel: that is what the watch, or `up` above it, is for."""
    tool = Process.objects.get(kind="tool")
    return {pid for pid in host.descendants() if (stat := read_stat(pid)) and stat.group == tool.pid != pid}
