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
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
BACKOFF_LEAST_S = 0.2
BACKOFF_MOST_S = 5.0
STEADY_AFTER_S = 5.0
"""A child that lived this long is restarted at once when it ends."""

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


def read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_alive(pid: int, start_ticks: int) -> bool:
    """Say whether this very process can still act: a zombie cannot, nor another one with the same number."""
    stat = read_stat(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in "ZX"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a supervisor keeps running. `grace_s` is how long it may take to stop after SIGTERM."""

    name: str
    argv: Sequence[str]
    grace_s: float
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    pass_fds: Sequence[int] = ()
    on_parent_death: int = signal.SIGKILL
    output: int | None = None
    """Where standard output and error go; None leaves them with this process's own."""


@dataclass(kw_only=True)
class _Child:
    program: Program
    leader: Leader | None = None
    started: float = 0.0
    backoff_s: float = 0.0
    start_at: float | None = None
    """When to start it, by the monotonic clock; None while it runs or is not wanted."""
    kill_at: float | None = None
    stopping: bool = False


@dataclass(kw_only=True)
class Supervisor:
    """Keep programs running and bury everything that ends below this process. Single-threaded: one per process.

    `on_exit` is called with every exit, and the program's name where it was one. `spare` names adopted processes
    that may go on living; all others that lost their parent are killed.
    """

    on_exit: Callable[[Exit, str | None], None]
    spare: Callable[[ProcessStat], bool] = lambda stat: False
    stop_requested: bool = False
    _children: dict[str, _Child] = field(default_factory=dict)
    _wakeup: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        become_subreaper()
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, frame: object) -> None:
        self.stop_requested = True

    def add(self, program: Program) -> None:
        """Keep a program running from now on."""
        self._children[program.name] = _Child(program=program, start_at=time.monotonic())
        self._start_due()

    def find_leader(self, name: str) -> Leader | None:
        child = self._children.get(name)
        return child.leader if child else None

    def step(self, timeout_s: float) -> None:
        """Wait for a signal or for what is due, up to `timeout_s`; then bury, kill and start what has to be."""
        due = [at for child in self._children.values() for at in (child.start_at, child.kill_at) if at is not None]
        wait_s = max(0.0, min([timeout_s, *(at - time.monotonic() for at in due)]))
        select.select([self._wakeup[0]], [], [], wait_s)
        with suppress(BlockingIOError):
            while os.read(self._wakeup[0], 4096):
                pass
        self.bury_dead()
        for child in self._children.values():
            if child.kill_at is not None and child.kill_at <= time.monotonic() and child.leader:
                log.warning("%s (pid %d) did not stop in time and is killed", child.program.name, child.leader.pid)
                child.leader.kill_group()
                child.kill_at = None
        self._start_due()

    def replace(self, name: str, why: str) -> None:
        """Kill a program with all its group; it starts again when it is buried."""
        child = self._children[name]
        if child.leader is not None:
            log.warning("%s (pid %d) is replaced: %s", name, child.leader.pid, why)
            child.leader.kill_group()

    def stop(self, *names: str) -> None:
        """Stop programs side by side: SIGTERM to the leader alone, its group killed when its grace is over."""
        stopping = [self._children[name] for name in names if name in self._children]
        for child in stopping:
            child.stopping = True
            child.start_at = None
            child.kill_at = time.monotonic() + child.program.grace_s
            if child.leader is not None:
                child.leader.signal(signal.SIGTERM)
        while any(child.leader is not None for child in stopping):
            self.step(0.5)
        for child in stopping:
            del self._children[child.program.name]

    def bury_rest(self, *, timeout_s: float) -> bool:
        """Bury until only programs are left below this process; False when `timeout_s` was not enough."""
        until = time.monotonic() + timeout_s
        programs = {child.leader.pid for child in self._children.values() if child.leader}
        while any((stat := read_stat(pid)) and not self.spare(stat) for pid in read_children() if pid not in programs):
            if time.monotonic() > until:
                return False
            self.step(0.05)
        return True

    def bury_dead(self) -> None:
        """Report every child that has ended and kill adopted ones that live."""
        names = {child.leader.pid: name for name, child in self._children.items() if child.leader}
        # Emptying one group hands its members to this process, so look again until there is nothing new.
        seen: set[int] = set()
        while new := [pid for pid in read_children() if pid not in seen]:
            seen.update(new)
            for pid in new:
                self._bury_one(pid, names.get(pid))

    def _bury_one(self, pid: int, name: str | None) -> None:
        try:
            ended = bury(pid)
        except ChildProcessError:
            return  # buried with its group a moment ago
        if ended is None:
            if name is None and (stat := read_stat(pid)) and stat.state not in "ZX" and not self.spare(stat):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        if name is not None:
            self._plan_restart(self._children[name], ended)
        self.on_exit(ended, name)

    def _plan_restart(self, child: _Child, ended: Exit) -> None:
        child.leader = child.kill_at = None
        if child.stopping or self.stop_requested:
            return
        now = time.monotonic()
        steady = now - child.started > STEADY_AFTER_S
        child.backoff_s = 0.0 if steady else min(max(child.backoff_s * 2, BACKOFF_LEAST_S), BACKOFF_MOST_S)
        child.start_at = now + child.backoff_s
        log.warning("%s (pid %d) %s; it starts again", child.program.name, ended.pid, ended)

    def _start_due(self) -> None:
        for child in self._children.values():
            if child.start_at is None or child.start_at > time.monotonic() or self.stop_requested:
                continue
            program = child.program
            child.start_at = None
            child.started = time.monotonic()
            child.leader = spawn_leader(
                program.argv,
                env=program.env,
                cwd=program.cwd,
                pass_fds=program.pass_fds,
                on_parent_death=program.on_parent_death,
                stdout=program.output,
                stderr=program.output,
            )
            log.info("%s runs as pid %d", program.name, child.leader.pid)
