"""Writer of the process table. A death is confirmed only by the exit that the parent reaped."""

import gc
import os
import socket
import time
import uuid
from pathlib import Path

from runs import sql
from runs.models import Process
from runs.states import ProcessKind


def spare_collector() -> None:
    """Let Python's garbage collector look less, in a process that stays: what it has loaded by now is no garbage.

    The briefing of a long run is made of some fifty thousand objects, and the collector looked through them again and
    again while they were made: a tenth of the time that it takes.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def register(kind: ProcessKind, *, parent: uuid.UUID | None = None) -> uuid.UUID:
    """Give this process its row, or find it: one process has one id, in whatever role it holds attempts.

    Autocommit: a process that cannot be seen must not take anything.
    """
    ident: uuid.UUID = sql.fetch_row(
        "INSERT INTO runs_process (id, kind, parent, host, boot_id, pid, start_ticks, started_at, seen_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp())"
        " ON CONFLICT ON CONSTRAINT process_once DO UPDATE SET kind = excluded.kind, parent = excluded.parent,"
        " seen_at = excluded.seen_at RETURNING id",
        [uuid.uuid4(), kind, parent, socket.gethostname(), boot_id(), os.getpid(), start_ticks(os.getpid())],
    )[0]
    return ident


def saw(ident: uuid.UUID) -> None:
    """This process is alive. `clock_offset_s`: its clock minus the database's, shown to people, never decided on."""
    sql.execute(
        "UPDATE runs_process SET seen_at = clock_timestamp(),"
        " clock_offset_s = %s - extract(epoch FROM clock_timestamp()) WHERE id = %s",
        [time.time(), ident],
    )


def record_exit(
    *,
    boot: str,
    pid: int,
    started: int,
    status: int | None,
    signal: int | None,
    maxrss: int | None,
) -> bool:
    """Record the exit of a process that the caller has reaped, its group empty. False: no such process is known.

    maxrss in bytes; started in clock ticks since boot.
    """
    return (
        sql.execute(
            "UPDATE runs_process SET ended_at = clock_timestamp(), exit_status = %s, exit_signal = %s, maxrss_bytes = %s"
            " WHERE host = %s AND boot_id = %s AND pid = %s AND start_ticks = %s AND ended_at IS NULL",
            [status, signal, maxrss, socket.gethostname(), boot, pid, started],
        )
        > 0
    )


def confirmed_dead(ident: uuid.UUID) -> Process | None:
    return Process.objects.filter(pk=ident, ended_at__isnull=False).first()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat (proc(5)); the name in field 2 may hold spaces and brackets."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
