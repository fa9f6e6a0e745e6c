"""A process has one row, and only the exit that its parent reaped confirms its death."""

import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

import pytest

from runs import processes, sql, steps
from runs.models import Process
from runs.states import ProcessKind

pytestmark = pytest.mark.django_db


def record_own_exit(**other: object) -> bool:
    given = {
        "boot": processes.boot_id(),
        "pid": os.getpid(),
        "started": processes.start_ticks(os.getpid()),
        "status": None,
        "signal": 9,
        "maxrss": 4096,
    }
    return processes.record_exit(**(given | other))  # type: ignore[arg-type]


def test_a_process_that_registers_again_keeps_its_id_so_its_attempts_stay_its_own() -> None:
    first = processes.register(ProcessKind.WORKER)
    parent = uuid.uuid4()
    assert processes.register(ProcessKind.GATEWAY, parent=parent) == first
    row = Process.objects.get()
    assert (row.kind, row.parent, row.pid, row.host) == (ProcessKind.GATEWAY, parent, os.getpid(), socket.gethostname())


def test_an_exit_confirms_the_death_of_exactly_that_process() -> None:
    ident = processes.register(ProcessKind.TOOL)
    assert steps.exit_of(ident) is None
    assert record_own_exit()
    row = Process.objects.get(pk=ident)
    assert (row.exit_status, row.exit_signal, row.maxrss_bytes) == (None, 9, 4096)
    assert row.ended_at is not None
    assert steps.exit_of(ident) == (None, 9, 4096)


@pytest.mark.parametrize(
    "other", [{"pid": 2**22}, {"started": 1}, {"boot": "another"}], ids=lambda other: next(iter(other))
)
def test_the_exit_of_another_process_confirms_nothing(other: dict[str, object]) -> None:
    ident = processes.register(ProcessKind.TOOL)
    assert not record_own_exit(**other)
    assert steps.exit_of(ident) is None


def test_a_process_of_the_same_number_in_another_container_is_another_process() -> None:
    ident = processes.register(ProcessKind.TOOL)
    sql.execute("UPDATE runs_process SET host = 'other' WHERE id = %s", [ident])
    mine = processes.register(ProcessKind.TOOL)
    assert mine != ident
    assert record_own_exit()
    assert steps.exit_of(mine) is not None
    assert steps.exit_of(ident) is None


def test_an_exit_is_recorded_once_and_keeps_what_was_recorded_first() -> None:
    ident = processes.register(ProcessKind.TOOL)
    assert record_own_exit(signal=9)
    assert not record_own_exit(signal=15)
    assert steps.exit_of(ident) == (None, 9, 4096)


def test_neither_silence_nor_a_dead_pid_confirms_a_death() -> None:
    ident = processes.register(ProcessKind.TOOL)
    sql.execute("UPDATE runs_process SET pid = %s, seen_at = seen_at - interval '1 year' WHERE id = %s", [2**22, ident])
    assert steps.exit_of(ident) is None
    assert steps.exit_of(uuid.uuid4()) is None


def test_a_process_shows_that_it_lives_and_how_far_its_clock_is_off() -> None:
    ident = processes.register(ProcessKind.WEB)
    sql.execute("UPDATE runs_process SET seen_at = seen_at - interval '1 hour'")
    before = Process.objects.get(pk=ident)
    processes.saw(ident)
    after = Process.objects.get(pk=ident)
    assert after.seen_at > before.seen_at
    assert after.clock_offset_s is not None
    assert abs(after.clock_offset_s) < 5


def test_the_start_of_a_process_is_read_whatever_its_name(tmp_path: Path) -> None:
    program = tmp_path / "a) 1 (b"
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, program)
    odd = subprocess.Popen([str(program), "60"])
    try:
        assert processes.start_ticks(odd.pid) - processes.start_ticks(os.getpid()) >= 0
    finally:
        odd.kill()
        odd.wait()
