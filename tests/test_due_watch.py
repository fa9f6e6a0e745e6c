"""The broker waits for what is due: at once after a hint, by itself at the right moment, and never in a tight loop."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django_q.conf import Conf

from runs.board import Role
from runs.cluster import DueWatch, PacketQueue, RunBroker
from tests.cluster_work import add_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watch() -> Iterator[DueWatch]:
    watch = DueWatch()
    yield watch
    watch.close()


def move_due(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET due_at = lw_clock() + make_interval(secs => %s)", [seconds])


def hint_after(seconds: float, database_url: str) -> threading.Thread:
    def hint() -> None:
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute("UPDATE runs_run SET due_at = lw_clock()")
            other.execute("NOTIFY longwatch_due")

    timer = threading.Timer(seconds, hint)
    timer.start()
    return timer


def test_what_is_due_is_seen_at_the_first_look(watch: DueWatch, tmp_path: Path) -> None:
    add_run(tmp_path / "log")
    assert watch.wait() == 1


def test_a_hint_ends_the_wait(watch: DueWatch, tmp_path: Path, database_url: str) -> None:
    add_run(tmp_path / "log")
    move_due(3600)
    assert watch.wait() == 0
    timer = hint_after(0.2, database_url)
    began = time.monotonic()
    assert watch.wait() == 1
    assert time.monotonic() - began < 0.9
    timer.join()


def test_a_moment_that_comes_needs_no_hint(watch: DueWatch, tmp_path: Path) -> None:
    add_run(tmp_path / "log")
    move_due(0.4)
    assert watch.wait() == 0
    began = time.monotonic()
    assert watch.wait() == 1
    assert 0.2 < time.monotonic() - began < 0.9


def test_no_more_tokens_are_given_than_there_are_workers(watch: DueWatch, tmp_path: Path) -> None:
    for _ in range(Conf.WORKERS + 3):
        add_run(tmp_path / "log")
    assert watch.wait() == Conf.WORKERS


def test_a_due_run_that_nobody_can_claim_is_offered_less_and_less_often(watch: DueWatch, tmp_path: Path) -> None:
    add_run(tmp_path / "log")
    offered: list[float] = []
    while len(offered) < 8:
        assert watch.wait() == 1
        offered.append(time.monotonic())
    gaps = [after - before for before, after in itertools.pairwise(offered)]
    assert gaps[0] < 0.2
    assert gaps[-1] > 0.5


def test_a_broker_gives_bare_tokens_and_stores_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        add_run(tmp_path / "log")
    broker = RunBroker()
    (first, second) = broker.dequeue() or []
    assert first[0] is None
    assert first == second
    assert broker.enqueue("a task") is None
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_q_ormq")
        assert cursor.fetchone() == (0,)
    broker.close()


def test_a_message_put_into_the_queue_comes_out_whole_and_once() -> None:
    queue = PacketQueue(reader=Role.WORKER, slots=2)
    queue.put({"name": "one"})
    queue.put("STOP")
    assert queue.qsize() == 1
    assert (queue.get(), queue.get()) == ({"name": "one"}, "STOP")
    assert queue.empty()


def test_a_result_that_is_too_long_keeps_its_end() -> None:
    queue = PacketQueue(reader=Role.MONITOR, slots=2)
    queue.put({"name": "one", "result": "x" * 100_000 + " : the reason"})
    shortened = queue.get()
    assert isinstance(shortened, dict)
    assert shortened["result"].endswith("the reason")


def test_a_reader_that_is_killed_while_it_waits_takes_nothing_with_it() -> None:
    queue = PacketQueue(reader=Role.WORKER, slots=2)
    reader = os.fork()
    if reader == 0:
        queue.get()
        os._exit(1)
    os.kill(reader, 9)
    os.waitpid(reader, 0)
    queue.put("still there")
    assert queue.get() == "still there"
