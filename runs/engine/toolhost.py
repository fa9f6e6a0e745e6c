"""The worker's side of its tool process: starts it, gives it work, renews the lease meanwhile, ends it, buries it."""

import json
import math
import os
import select
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError

from runs import clock, processes, supervise
from runs.agents import Json
from runs.engine.printed import Printed
from runs.engine.toolwire import Perform, Report, Said
from runs.supervise import Exit, Leader

_MANAGE = Path(__file__).resolve().parent.parent.parent / "manage.py"
_START_S = 60.0
_TICK_S = 0.25
# So long after its deadline a tool process has been killed by its timer, unless it was frozen before that was set.
_SLACK_S = 1.0
# The timer was set so long before its worker heard that the call had begun, at most.
_TIMER_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Died:
    """The tool process ended without a report: by itself, by its deadline, or by the worker after the grace time."""

    exit: Exit
    why: str


type Outcome = Report | Died


@dataclass(frozen=True, kw_only=True)
class Tick:
    """What the worker learned while the tool works. stop: the run was stopped or switched off."""

    stop: bool = False


@dataclass(kw_only=True)
class _Watch:
    """Looks up from a call several times a second: renews leases, hears of a stop, passes on what is told meanwhile."""

    tick: Callable[[int], Tick]
    progress: Callable[[int, Json], None] | None
    news: Report | None = None
    stopped: bool = False
    tick_at: float = field(default_factory=lambda: time.monotonic() + _TICK_S)

    def look(self, attempt: int) -> Tick | None:
        """By the clock, not when nothing comes: a tool that tells much must not keep its own lease from being renewed."""
        if time.monotonic() < self.tick_at:
            return None
        self.tick_at = time.monotonic() + _TICK_S
        if self.news is not None and self.progress is not None:
            with suppress(DatabaseError):  # it is for people to see, nothing rests on it
                self.progress(self.news.attempt, self.news.result)
            self.news = None
        return self.tick(attempt)


class CannotStart(Exception):
    """A tool process did not come up in time."""


class ToolHost:
    """One tool process at a time, started when it is first needed and again after it died."""

    def __init__(self, worker: uuid.UUID) -> None:
        self.worker = worker
        self.ident: uuid.UUID | None = None
        self._leader: Leader | None = None
        self._pipe: Connection | None = None
        self._pidfd = -1
        self._printed = Printed()
        self._unrecorded: list[Exit] = []
        self._lately_s: dict[tuple[str, str], float] = {}

    def ready(self, *, meanwhile: Callable[[], None] = lambda: None) -> uuid.UUID:
        """The id of a living tool process; starts one if there is none, which may take its time.

        `meanwhile` is called several times a second until it is there.

        Raises:
            CannotStart: it did not come up in time.
        """
        if self._leader is not None and self._ended(0.0):
            self._bury()
        if self.ident is None:
            self._start(meanwhile)
        assert self.ident is not None
        return self.ident

    def living(self) -> uuid.UUID | None:
        """The id of the tool process, where one is there already."""
        return None if self._leader is None or self._ended(0.0) else self.ident

    def usual_s(self, agent: str, tool: str) -> float:
        """How many seconds a call of this tool takes by the last ones that were made here; infinite where none was."""
        return self._lately_s.get((agent, tool), math.inf)

    def perform(
        self, perform: Perform, *, tick: Callable[[], Tick], progress: Callable[[Json], None] | None = None
    ) -> Outcome:
        """Have one function performed. `tick` is called several times a second meanwhile.

        After a stop the tool gets the grace time to return by itself; then its whole group is killed, as it is when it
        has neither begun nor ended in its time.
        """
        tell = None if progress is None else lambda attempt, news: progress(news)
        ((_, outcome),) = self.perform_each([perform], tick=lambda attempt: tick(), progress=tell)
        return outcome

    def perform_each(
        self,
        performs: Sequence[Perform],
        *,
        tick: Callable[[int], Tick],
        progress: Callable[[int, Json], None] | None = None,
    ) -> Iterator[tuple[Perform, Outcome]]:
        """Have functions performed one after another: the next one begins while the outcome of the last is taken.

        All are sent at once, so together they have to fit into the pipe. `tick` and `progress` are told the attempt that
        is under way. When it dies, those behind it have not begun; nor have those behind one that met a stop, since the
        process ends then.
        """
        watch, dead = _Watch(tick=tick, progress=progress), ""
        self._printed.end()  # what was printed while nothing was called
        try:
            self._send(performs)
            if len(performs) > 1:
                # They are quick: looked for when all should be over, which costs less than to be woken by each.
                self._ended(min(sum(self.usual_s(each.agent, each.tool) for each in performs), _TICK_S))
            for perform in performs:
                if watch.stopped and not dead:
                    self.close()
                    dead = "it was stopped or held before it began"
                if dead:
                    yield perform, Report(attempt=perform.attempt, said=Said.NOT_BEGUN, error=dead)
                    continue
                began = time.monotonic()
                self._printed.begin(perform)
                outcome = self._await(perform, watch)
                if isinstance(outcome, Report):
                    self._printed.end(outcome.printed)
                self._note_duration(
                    perform, outcome.took_s if isinstance(outcome, Report) else time.monotonic() - began
                )
                if isinstance(outcome, Died):
                    dead = "its process ended in a call before it"
                yield perform, outcome
        except BaseException:
            # Whoever gives up on a call must not leave it running, nor its answer in the pipe for the next one.
            self.close()
            raise

    def _send(self, performs: Sequence[Perform]) -> None:
        assert self._pipe is not None
        with suppress(OSError):  # it has ended, which is seen when its answer is waited for
            self._pipe.send_bytes(Perform.dump(performs))

    def _await(self, perform: Perform, watch: "_Watch") -> Outcome:
        over_at = max(perform.begin_by, clock.boottime()) + _SLACK_S
        ends_at = math.inf
        if not perform.look:  # it begins without a word
            over_at += perform.timeout_s
            ends_at = clock.boottime() + perform.timeout_s
        kill_at: float | None = None
        why = ""
        while True:
            report = self._report(perform, max(watch.tick_at - time.monotonic(), 0.0))
            if report is None and self._ended(0.0):
                late = clock.boottime() >= ends_at - _TIMER_S
                return self._last_word(perform) or self._died(perform, why, late=late)
            if report is not None and report.said is Said.BEGUN:
                over_at += perform.timeout_s
                ends_at = clock.boottime() + perform.timeout_s
            elif report is not None and report.said is Said.PROGRESS:
                watch.news = report
            elif report is not None:
                return report
            if (told := watch.look(perform.attempt)) is None:
                continue
            self._printed.tell()
            if told.stop and kill_at is None:
                watch.stopped = True
                kill_at = time.monotonic() + settings.GRACE_S
            if kill_at is not None and time.monotonic() >= kill_at:
                why = f"it did not return within {settings.GRACE_S:g} s after the stop"
            elif clock.boottime() >= over_at:
                why = "it neither began nor ended in its time"
            if why and self._leader is not None:
                self._leader.kill_group()

    def _died(self, perform: Perform, why: str, *, late: bool) -> Died:
        """It ended without a report. late: when its timer ends it, at the deadline of this call."""
        ended = self._bury()
        if not why and late and ended.signal == signal.SIGKILL:
            why = f"it did not return within its timeout of {perform.timeout_s:g} s"
        return Died(exit=ended, why=why or "it died")

    def _note_duration(self, perform: Perform, took_s: float) -> None:
        called = (perform.agent, perform.tool)
        self._lately_s[called] = (self._lately_s.get(called, took_s) + took_s) / 2

    def close(self) -> None:
        """End the tool process, if there is one."""
        if self._leader is not None:
            self._leader.kill_group()
            self._bury()

    def _start(self, meanwhile: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, str(_MANAGE), "toolprocess", "--fd", str(theirs.fileno()), "--parent", str(self.worker)]
        output = self._printed.open()
        self._leader = supervise.spawn_leader(argv, pass_fds=[theirs.fileno()], stdout=output, stderr=output)
        theirs.close()
        self._pidfd = os.pidfd_open(self._leader.pid)
        self._pipe = Connection(ours.detach())
        until = time.monotonic() + _START_S
        while (hello := self._receive(_TICK_S)) is None and not self._ended(0.0) and time.monotonic() < until:
            meanwhile()
        if hello is None:
            self._leader.kill_group()
            raise CannotStart(f"The tool process did not start: {self._bury()}")
        self.ident = uuid.UUID(json.loads(hello)["hello"])

    def _receive(self, timeout_s: float) -> bytes | None:
        """The next message; None when none came in time, or the process ended."""
        assert self._pipe is not None
        readable, _, _ = select.select([self._pipe.fileno(), self._pidfd], [], [], timeout_s)
        if self._pipe.fileno() not in readable:
            return None
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            self._ended(1.0)
            return None

    def _report(self, perform: Perform, timeout_s: float) -> Report | None:
        """The next report of this attempt."""
        message = self._receive(timeout_s)
        report = None if message is None else Report.load(message)
        return report if report is not None and report.attempt == perform.attempt else None

    def _last_word(self, perform: Perform) -> Report | None:
        """What it still said before it died."""
        while (report := self._report(perform, 0.0)) is not None:
            if report.said not in (Said.BEGUN, Said.PROGRESS):
                return report
        return None

    def _ended(self, timeout_s: float) -> bool:
        readable, _, _ = select.select([self._pidfd], [], [], timeout_s)
        return bool(readable)

    def _bury(self) -> Exit:
        """Wait for its end, with its whole group, and record it: only this confirms its death."""
        assert self._leader is not None
        assert self._pipe is not None
        ended = supervise.reap_leader(self._leader.pid)
        assert ended is not None
        self._printed.close()
        self._pipe.close()
        os.close(self._pidfd)
        self._leader = self._pipe = self.ident = None
        self._unrecorded.append(ended)
        with suppress(DatabaseError):  # written later, then; whoever needs it waits
            self.record_exits()
        return ended

    def record_exits(self) -> None:
        """Write the exits that are not written yet; the database may have been away."""
        while self._unrecorded:
            ended = self._unrecorded[0]
            processes.record_exit(
                boot=processes.boot_id(),
                pid=ended.pid,
                started=ended.start_ticks,
                status=ended.status,
                signal=ended.signal,
                maxrss=ended.maxrss_bytes,
            )
            self._unrecorded.pop(0)
