"""Keep programs running below this process, and bury everything that ends there.

Linux, and nothing but the standard library, like `runs/supervise.py` beneath it.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runs.supervise import (
    Exit,
    Leader,
    ProcessStat,
    become_subreaper,
    bury,
    read_children,
    read_stat,
    spawn_leader,
)

log = logging.getLogger(__name__)

BACKOFF_LEAST_S = 0.2
BACKOFF_MOST_S = 5.0
STEADY_AFTER_S = 5.0
"""A child that lived this long is restarted at once when it ends."""


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
