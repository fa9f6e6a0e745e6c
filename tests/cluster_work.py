"""Work for tests of the processes alone: claims a run from the real table, takes its time, and ends it.

`inputs` of a run: `seconds` it takes, `tool` to start a process that leads a group and one more in that group,
`dies_handing_over` to end its worker when that hands its result to the monitor. Each finished run is a line in the file
of its label `log`, which is the receiver that counts effects.
"""

import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from django.db import connection
from django_q.signals import post_execute_in_worker

from runs import processes
from runs.models import Run
from runs.states import ProcessKind
from runs.supervise import Leader, spawn_leader
from tests.waiting import wait_until

LEASE_S = 1.0

CLAIM = """
UPDATE runs_run SET state = 'running', holder = %s, lease_until = clock_timestamp() + make_interval(secs => %s),
       epoch = epoch + 1, waiting_for = '', why = ''
WHERE id = (SELECT id FROM runs_run WHERE state IN ('queued', 'waiting') AND due_at <= lw_now()
            ORDER BY priority DESC, due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, epoch, inputs, labels
"""
RENEW = "UPDATE runs_run SET lease_until = clock_timestamp() + make_interval(secs => %s) WHERE id = %s AND epoch = %s"
END = """
UPDATE runs_run SET state = 'succeeded', holder = NULL, lease_until = NULL, due_at = NULL, ended_at = lw_clock()
WHERE id = %s AND epoch = %s AND state = 'running'
"""
SWEEP = """
UPDATE runs_run SET state = 'queued', holder = NULL, lease_until = NULL, due_at = lw_clock()
WHERE state = 'running' AND lease_until < clock_timestamp()
"""

_tools: list[Leader] = []
_idents: dict[int, uuid.UUID] = {}


def work(*, draining: Callable[[], bool]) -> int:
    until = time.monotonic() + 1.0
    advanced = 0
    while time.monotonic() < until and not draining():
        row = _execute(CLAIM, [_register(), LEASE_S])
        if row is None:
            break
        run, epoch = int(str(row[0])), int(str(row[1]))
        inputs, labels = json.loads(str(row[2])), json.loads(str(row[3]))
        if inputs.get("tool"):
            _start_tool()
        _take_time(run, epoch, float(inputs.get("seconds", 0)), draining)
        if inputs.get("dies_handing_over"):
            # The worst moment for q2's own timer: a worker that dies here would keep its lock.
            post_execute_in_worker.connect(_die)
        with Path(labels["log"]).open("a") as log:
            log.write(f"{run} {os.getpid()}\n")
        _execute(END, [run, epoch])
        advanced += 1
    return advanced


def _die(**signal_arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _register() -> uuid.UUID:
    if os.getpid() not in _idents:
        _idents[os.getpid()] = processes.register(ProcessKind.WORKER)
    return _idents[os.getpid()]


def sweep() -> float:
    _execute(SWEEP, [])
    _execute("NOTIFY longwatch_due", [])
    return 1.0


def _take_time(run: int, epoch: int, seconds: float, draining: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        draining()
        _execute(RENEW, [LEASE_S, run, epoch])
        time.sleep(0.1)


def _start_tool() -> None:
    tool = spawn_leader(["sh", "-c", "sleep 1000 & wait"])
    _tools.append(tool)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_process (id, kind, host, boot_id, pid, start_ticks, started_at, seen_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp())",
            [uuid.uuid4(), ProcessKind.TOOL, socket.gethostname(), processes.boot_id(), tool.pid, tool.start_ticks],
        )


def _execute(sql: str, parameters: Sequence[str | int | float | uuid.UUID]) -> tuple[object, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone() if cursor.description else None


def add_run(log: Path, **inputs: object) -> int:
    """Queue a run for this work; for the test's own process."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('runs_run', 'id')), lw_clock()")
        row = cursor.fetchone()
    assert row is not None
    number, now = row
    uid = uuid.uuid4()
    Run.objects.create(
        id=number,
        uid=uid,
        origin=uid,
        root_id=number,
        agent="stand-in",
        goal="end",
        contract="",
        inputs=inputs,
        labels={"log": str(log)},
        due_at=now,
        created_at=now,
        changed_at=now,
        clock_mark=now,
    )
    with connection.cursor() as cursor:
        cursor.execute("NOTIFY longwatch_due")
    return int(number)


def list_done(log: Path) -> dict[int, list[int]]:
    """Return by which processes each run reached the receiver, in order."""
    done: dict[int, list[int]] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        run, pid = map(int, line.split())
        done.setdefault(run, []).append(pid)
    return done


def count_done(log: Path) -> dict[int, int]:
    """Return how often each run reached the receiver."""
    return {run: len(pids) for run, pids in list_done(log).items()}


def wait_done(log: Path, *runs: int, timeout_s: float = 30.0) -> None:
    wait_until(lambda: set(runs) <= set(count_done(log)), timeout_s=timeout_s, what=f"{runs} in {count_done(log)}")
