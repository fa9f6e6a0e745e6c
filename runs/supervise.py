"""Start processes so that none outlives its parent, and say of each how it ended.

Linux, and nothing but the standard library: no Django, no database, so that any process may import it.

A child leads a session and a process group of its own (no ctrl-C of a terminal reaches it, and one
signal reaches all that it started), and the kernel ends it when its parent's *thread* ends, even by
kill -9. What still outlives its parent is handed to the nearest child subreaper above, which is the
process that called `become_subreaper`. That one buries it: the group is killed while its leader is
still a zombie, so its number cannot be taken by others meanwhile, and the leader's exit is reported
when nothing of the group can act any more.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# The child of a process with threads must not run Python between fork and exec, so a small program asks for the
# signal and then becomes the real one. A parent that died before it could ask is noticed by its number.
_LAUNCH = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,int(sys.argv[1]),0,0,0)\n"
    "if sys.argv[1]!='0' and os.getppid()!=int(sys.argv[2]): os.kill(os.getpid(),int(sys.argv[1]))\n"
    "try: os.execvp(sys.argv[3],sys.argv[3:])\n"
    "except OSError as e: sys.exit(f'{sys.argv[3]}: {e.strerror}')\n"
)


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended: reported by the process that reaped it, when its group was empty.

    `status` is None after a death by `signal`, and both, like `maxrss_bytes`, are None where
    only the death itself is known.
    """

    pid: int
    start_ticks: int
    status: int | None
    signal: int | None
    maxrss_bytes: int | None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"ended by {signal.Signals(self.signal).name}"
        return "ended" if self.status is None else f"ended with status {self.status}"


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """What /proc says about a process. `state` is one letter; Z is a zombie."""

    pid: int
    state: str
    parent: int
    group: int
    start_ticks: int


@dataclass(frozen=True, kw_only=True)
class Leader:
    """A started process that leads its group; `pid` is also the number of its group and session."""

    pid: int
    start_ticks: int

    def signal(self, number: int) -> None:
        """Send a signal to the leader alone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def spawn_leader(
    argv: Sequence[str],
    *,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_parent_death: int = signal.SIGKILL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Leader:
    """Start a process as leader of its own session and group; it gets `on_parent_death` when this thread ends.

    So call it from a thread that lives as long as the process. The caller buries the leader with `reap_leader` or a
    `Supervisor`. `stdout` and `stderr` are descriptors to write to; standard input is empty. With `on_parent_death` 0 it
    outlives its parent.
    """
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(int(on_parent_death)), str(os.getpid()), *argv]
    process = subprocess.Popen(
        launch,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
    # Popen would reap it behind our back, from a later Popen() in this process, and the exit would be lost.
    process.returncode = 0
    stat = read_stat(process.pid)
    assert stat is not None, "a child stays in /proc until it is reaped"
    return Leader(pid=process.pid, start_ticks=stat.start_ticks)


def reap_leader(pid: int, *, timeout_s: float | None = None) -> Exit | None:
    """Wait for a leader that this process started, empty its group, and report its exit; None after `timeout_s`.

    Does not end the leader itself. Members whose parent died belong to the subreaper above: they are killed and
    waited for here, and buried there.

    Raises:
        ChildProcessError: `pid` is no child of this process.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    descriptor = os.pidfd_open(pid)
    try:
        readable, _, _ = select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)
    if not readable:
        return None
    pause = 0.001
    while (ended := bury(pid)) is None:
        if until is not None and time.monotonic() >= until:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return ended


def bury(pid: int) -> Exit | None:
    """Reap a child that has ended, its group emptied first; None while it lives or its group is not empty yet.

    Raises:
        ChildProcessError: `pid` is no child of this process.
    """
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    stat = read_stat(pid)
    assert stat is not None, "a zombie stays in /proc until it is reaped"
    if stat.group == pid and not _empty_group(pid):
        return None
    _, status, usage = os.wait4(pid, 0)
    return Exit(
        pid=pid,
        start_ticks=stat.start_ticks,
        status=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        maxrss_bytes=usage.ru_maxrss * 1024,
    )


def _empty_group(group: int) -> bool:
    """Kill what is left of a group whose leader is a zombie; True when none of it can act any more."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    left = 0
    for stat in read_processes():
        if stat.group != group or stat.pid == group:
            continue
        if stat.state not in "ZX":
            left += 1
        elif stat.parent == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(stat.pid, os.WNOHANG)
    return left == 0


def become_subreaper() -> None:
    """Adopt every descendant whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel send `number` to this process when its parent, which was `parent`, ends. After a fork."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_libc = ctypes.CDLL(None, use_errno=True)


def read_stat(pid: int) -> ProcessStat | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets, which may itself hold brackets and blanks.
    values = line[line.rindex(")") + 2 :].split()
    return ProcessStat(
        pid=pid, state=values[0], parent=int(values[1]), group=int(values[2]), start_ticks=int(values[19])
    )


def read_processes() -> Iterator[ProcessStat]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            yield stat


def read_children() -> list[int]:
    """Return the children of this process, living or zombie, also those it adopted."""
    children: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                children += [int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [stat.pid for stat in read_processes() if stat.parent == os.getpid()]
    return children


def is_alive(pid: int, start_ticks: int) -> bool:
    """Say whether this very process can still act: a zombie cannot, nor another one with the same number."""
    stat = read_stat(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in "ZX"
