"""Keep a cluster of django-q2 alive from outside, and know how each process below it ended.

q2 replaces its own parts when they die one at a time and in the right way. Everything else is done here: the whole
cluster is started again when its main process or its sentinel is gone, a part that is stuck is killed so that q2
replaces it, and a cluster that looks alive and does nothing is killed with all that it started. What lost its parent is
adopted, buried with its group and recorded: that record is what confirms a death to the engine.
"""

import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.db import connection

from runs import processes, switches
from runs.board import Activity, Board, Role, Seat
from runs.clerk import Clerk, Duty
from runs.reaching import reach_people
from runs.states import ProcessKind
from runs.supervise import Exit, is_alive, read_stat
from runs.supervisor import Program, Supervisor

log = logging.getLogger(__name__)

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
CLUSTER = "cluster"
STEP_S = 0.5
TICK_S = 0.25
SEEN_EVERY_S = 5.0
TELL_EVERY_S = 1.0
FLUSH_S = 3.0
"""How long the end waits for a database that may be down, to record the last exits."""

DUE = "SELECT EXISTS (SELECT FROM runs_run WHERE state IN ('queued', 'waiting') AND due_at <= lw_now())"
HOLDERS = """
SELECT p.pid, p.start_ticks FROM runs_run r JOIN runs_process p ON p.id = r.holder
WHERE r.state = 'running' AND r.lease_until > clock_timestamp() AND p.host = %s AND p.boot_id = %s
"""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long each sign of life may be missing, in seconds. None of these signs needs the database."""

    started: float = 20.0  # from the start until every part has a seat
    # A part that died is replaced by the sentinel within one round of its guard, which takes half a second; but where
    # much else is done, for seconds, and starting everything anew would only take more.
    complete: float = 15.0
    sentinel: float = 10.0
    pusher: float = 8.0  # it waits, connects and looks for at most 5 s each
    handover: float = 3.0  # a pipe between two processes that are both there
    due: float = 3.0  # a due run, while every worker waits
    # A worker at work without a lease: it ends what was stopped within its grace; and where much else is done, it takes
    # up to a minute to start a tool process, and kills would only make it start anew.
    worker: float = 75.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that does not get better by itself. `seat` is the part to blame; None means the whole cluster."""

    seat: Seat | None
    why: str


def find_fault(seats: Sequence[Seat], *, now_ns: int, limits: Limits) -> Fault | None:
    """Judge the living parts of a cluster by what they show; None when all is well."""

    def has_passed(since_ns: int, seconds: float) -> bool:
        return now_ns - since_ns > seconds * 1e9

    for seat in seats:
        match seat.role, seat.activity:
            case Role.SENTINEL, _ if has_passed(seat.beat_ns, limits.sentinel):
                return Fault(seat=None, why="its sentinel is stuck")
            case Role.PUSHER, Activity.WAITING if has_passed(seat.beat_ns, limits.pusher):
                return Fault(seat=seat, why="it does not look for due runs any more")
            case Role.MONITOR, Activity.BUSY if has_passed(seat.since_ns, limits.handover):
                return Fault(seat=seat, why="it does not finish with a result")
            case _:
                pass
    waiting = {
        role: next((seat for seat in seats if seat.role is role and seat.activity is Activity.WAITING), None)
        for role in (Role.WORKER, Role.MONITOR)
    }
    for giver, taker in ((Role.PUSHER, Role.WORKER), (Role.WORKER, Role.MONITOR)):
        idle = waiting[taker]
        if idle is not None and has_passed(idle.since_ns, limits.handover):
            for seat in seats:
                stuck = seat.activity is Activity.HANDING_OVER and has_passed(seat.since_ns, limits.handover)
                if seat.role is giver and stuck:
                    return Fault(seat=idle, why=f"it waits and does not take what the {giver.name.lower()} offers")
    return None


@dataclass(kw_only=True)
class ClusterWatch:
    """Run one cluster until SIGTERM. `sweep` runs in a thread of its own, and says after how many seconds again."""

    workers: int
    sweep: Callable[[], float]
    limits: Limits
    _ident: uuid.UUID | None = None
    _board: Board = field(default_factory=Board.create)
    _clerk: Clerk = field(default_factory=Clerk)
    _complete_ns: int = 0
    _looked_ns: int = 0
    _due_since_ns: int | None = None
    _idle_hands: dict[tuple[int, int], int] = field(default_factory=dict)
    """Since when a worker, by pid and start, has been at work without holding a run."""
    _blamed: dict[Role, int] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        supervisor = Supervisor(on_exit=self._take_exit)
        lifeline, hold = os.pipe()
        sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)
        sweeper.start()
        # Apart from the sweep: a receiver that hangs must delay nothing.
        threading.Thread(target=self._tell_people, name="teller", daemon=True).start()
        parts = [f"--board-fd={self._board.fd}", f"--lifeline-fd={lifeline}", f"--workers={self.workers}"]
        supervisor.add(
            Program(
                name=CLUSTER,
                argv=[sys.executable, str(MANAGE), "cluster", *parts],
                grace_s=settings.GRACE_S,
                pass_fds=[self._board.fd, lifeline],
            )
        )
        self._expect_start()
        while not supervisor.stop_requested:
            supervisor.step(STEP_S)
            self._look(supervisor)
        # Its closing tells every part to begin nothing more, also the pusher that waits for the database.
        os.close(hold)
        supervisor.stop(CLUSTER)
        supervisor.bury_rest(timeout_s=FLUSH_S)
        self._clear_seats()
        self._stopped.set()
        self._clerk.close(timeout_s=FLUSH_S)

    def _look(self, supervisor: Supervisor) -> None:
        self._clear_seats()
        now_ns = time.monotonic_ns()
        asleep, self._looked_ns = now_ns - self._looked_ns > 4 * STEP_S * 1e9, now_ns
        if supervisor.find_leader(CLUSTER) is None:
            self._expect_start()
            return
        seats = [seat for seat in self._board.read() if is_alive(seat.pid, seat.start_ticks)]
        if asleep or self._is_complete(seats):
            self._complete_ns = max(self._complete_ns, now_ns)
        if asleep:
            return  # this process was stopped itself, perhaps with all the others: look again
        if now_ns - self._complete_ns > self.limits.complete * 1e9:
            self._replace(supervisor, "it lacks one of its parts")
        elif (
            fault := find_fault(seats, now_ns=now_ns, limits=self.limits)
            or self._find_stuck_worker(seats, now_ns)
            or self._find_neglect(seats, now_ns)
        ):
            self._mend(supervisor, fault, now_ns)

    def _is_complete(self, seats: Sequence[Seat]) -> bool:
        roles = [seat.role for seat in seats]
        return {*roles} == {*Role} and roles.count(Role.WORKER) >= self.workers

    def _find_neglect(self, seats: Sequence[Seat], now_ns: int) -> Fault | None:
        """Find that runs were due all the time in which every worker waited."""
        workers = [seat for seat in seats if seat.role is Role.WORKER]
        due_since_ns = self._due_since_ns
        if due_since_ns is None or not workers or any(seat.activity is not Activity.WAITING for seat in workers):
            return None
        since_ns = max(due_since_ns, *(seat.since_ns for seat in workers))
        if now_ns - since_ns <= self.limits.due * 1e9:
            return None
        return Fault(seat=None, why="runs are due, its workers wait, and nobody brings the two together")

    def _find_stuck_worker(self, seats: Sequence[Seat], now_ns: int) -> Fault | None:
        """Find a worker that works on nothing: it let the lease of its run end, and is not done either."""
        for seat in seats:
            since_ns = self._idle_hands.get((seat.pid, seat.start_ticks), now_ns)
            if now_ns - since_ns > self.limits.worker * 1e9:
                return Fault(seat=seat, why="it is stuck at work and lost its lease")
        return None

    def _mend(self, supervisor: Supervisor, fault: Fault, now_ns: int) -> None:
        seat = fault.seat
        # q2 replaces a part that dies. One that is to blame again at once was not the cause.
        if seat is None or now_ns - self._blamed.get(seat.role, -1 << 62) < 10e9:
            self._replace(supervisor, fault.why)
            return
        self._blamed[seat.role] = now_ns
        log.warning("The %s (pid %d) is killed: %s", seat.role.name.lower(), seat.pid, fault.why)
        if is_alive(seat.pid, seat.start_ticks):
            os.kill(seat.pid, 9)

    def _replace(self, supervisor: Supervisor, why: str) -> None:
        supervisor.replace(CLUSTER, why)
        self._expect_start()

    def _expect_start(self) -> None:
        self._blamed.clear()
        self._idle_hands.clear()
        self._due_since_ns = None
        self._complete_ns = time.monotonic_ns() + int((self.limits.started - self.limits.complete) * 1e9)

    def _take_exit(self, ended: Exit, name: str | None) -> None:
        for seat in self._board.read():
            if (seat.pid, seat.start_ticks) == (ended.pid, ended.start_ticks):
                self._board.clear(seat)
        self._clerk.record(ended)

    def _clear_seats(self) -> None:
        """Free the seats of parts which the sentinel reaped. It does not say how they ended, only that they did."""
        for seat in self._board.read():
            stat = read_stat(seat.pid)
            if stat is None or stat.start_ticks != seat.start_ticks:
                self._board.clear(seat)
                if seat.role is Role.WORKER:
                    self._clerk.record(
                        Exit(pid=seat.pid, start_ticks=seat.start_ticks, status=None, signal=None, maxrss_bytes=None)
                    )

    def _sweep(self) -> None:
        """Sweep, show that this cluster is here, and ask the database what its parts cannot show on the board."""

        def sweep() -> None:
            sweeping.every_s = self.sweep()

        sweeping = Duty(what="The sweep failed", call=sweep)
        duties = [
            sweeping,
            Duty(what="The cluster cannot show that it is here", call=self._show_alive, every_s=SEEN_EVERY_S),
            Duty(what="Due runs cannot be looked for", call=self._look_for_due, every_s=self.limits.due),
            Duty(what="Leases cannot be looked at", call=self._look_at_leases, every_s=1.0),
        ]
        while not self._stopped.wait(TICK_S):
            for duty in duties:
                duty.do_if_due()
        connection.close()

    def _tell_people(self) -> None:
        duty = Duty(what="People cannot be told of cards", call=reach_people, every_s=TELL_EVERY_S)
        while not self._stopped.wait(TELL_EVERY_S / 2):
            duty.do_if_due()
        connection.close()

    def _show_alive(self) -> None:
        if self._ident is None:
            self._ident = processes.register(ProcessKind.CLUSTER)
        else:
            processes.saw(self._ident)
            switches.acknowledge(self._ident)

    def _look_for_due(self) -> None:
        since_ns, self._due_since_ns = self._due_since_ns, None
        now_ns = time.monotonic_ns()
        with connection.cursor() as cursor:
            cursor.execute(DUE)
            (is_due,) = cursor.fetchone() or (False,)
        if is_due:
            self._due_since_ns = since_ns or now_ns

    def _look_at_leases(self) -> None:
        now_ns = time.monotonic_ns()
        known, self._idle_hands = self._idle_hands, {}
        busy = [
            (seat.pid, seat.start_ticks)
            for seat in self._board.read()
            if seat.role is Role.WORKER and seat.activity is Activity.BUSY and now_ns - seat.since_ns > 5e9
        ]
        if not busy:
            return
        with connection.cursor() as cursor:
            cursor.execute(HOLDERS, [socket.gethostname(), processes.boot_id()])
            holders = set(cursor.fetchall())
        self._idle_hands = {who: known.get(who, now_ns) for who in busy if who not in holders}
