"""The seam to django-q2, and its only importer: q2 runs the processes, the run table is the queue.

The broker (q2's documented extension point) stores nothing. It waits until a run is due and hands out a bare token; the
worker that gets it claims a run from the table. So nothing ages, is lost or is repeated in a queue of q2.

Two parts of q2 do not survive kill -9 of a process that holds them, and are replaced here: the queue between its
processes (a semaphore shared by all readers, which a reader killed while it waits never gives back; upstream issues 23
and 339) and the timer of a worker (a lock which a worker killed while it hands over its result never gives back). What
is left is found by the watch (`runs/watch.py`), by what each part shows on the board.
"""

import ctypes
import fcntl
import logging
import os
import pickle
import select
import signal
import struct
import termios
import time
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.sharedctypes import RawValue
from typing import Any

import django_q.cluster
import psycopg
from django.utils import timezone
from django_q.brokers import Broker
from django_q.conf import Conf
from django_q.signing import SignedPackage
from psycopg.rows import TupleRow

from runs import notify, sql
from runs.board import Activity, Board, Place, Role
from runs.supervise import die_with_parent

log = logging.getLogger(__name__)

TASK = "runs.tasks.advance"
LARGEST_MESSAGE = 4096  # PIPE_BUF of Linux: a write up to this size is one packet
PAUSE_LEAST_S = 0.01
PAUSE_MOST_S = 1.0
POLL_LEAST_S = 1.0
POLL_MOST_S = 5.0
OUTAGE_PAUSE_S = 0.5

# At most `limit` rows of the partial index run_due, one more for the moment of the next, and the few keys that are taken:
# one whose step is over is looked up by a worker.
DUE = """
SELECT (SELECT count(*) FROM (SELECT FROM runs_run
                              WHERE state IN ('queued', 'waiting') AND due_at <= lw_now() LIMIT %s) AS due)
       + (SELECT count(*) FROM (SELECT FROM runs_key k JOIN runs_step s ON s.id = k.step_id
                                WHERE k.state = 'taken' AND s.ended_at IS NOT NULL LIMIT 1) AS orphaned),
       (SELECT extract(epoch FROM min(due_at) - lw_now())::float8 FROM runs_run
        WHERE state IN ('queued', 'waiting') AND due_at > lw_now())
"""


def run_cluster(*, workers: int, board_fd: int, lifeline_fd: int) -> int:
    """Run q2's cluster in this process until SIGTERM or until its sentinel ends; return the exit status.

    `lifeline_fd` is the end of a pipe that the watch holds open: when it closes, nothing new is begun.
    """
    _here.board = Board(board_fd)
    _here.lifeline = lifeline_fd
    Conf.WORKERS = workers
    django_q.cluster.Queue = _make_queue
    django_q.cluster.Value = Timer
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    cluster = django_q.cluster.Cluster()
    cluster.start()
    cluster.sentinel.join()
    return 0 if cluster.has_stopped else 1


def is_draining() -> bool:
    """Say whether the cluster is to finish the steps in hand and begin nothing more."""
    return _here.lifeline is not None and bool(select.select([_here.lifeline], [], [], 0)[0])


def mark_fruitful() -> None:
    """Say that the round of work that ends now found something to do."""
    if _here.board is not None:
        _here.board.mark_fruitful()


class RunBroker(Broker):  # type: ignore[misc]
    """Hands out a token while a run is due. Tasks cannot be put into it: `enqueue` does nothing."""

    def __init__(self, list_key: str | None = None) -> None:
        super().__init__(list_key=list_key)
        self._due: DueWatch | None = None
        self._token = ""

    def dequeue(self) -> list[tuple[None, str]] | None:
        """Wait until a run is due, not longer than a poll interval. Never raises: q2 would pause for 10 s."""
        if self._due is None:
            self._due = DueWatch()
            self._token = _make_token()
        place = _take_place(Role.PUSHER)
        if place:
            place.show(Activity.WAITING)
        due = self._due.wait()
        # One token for each run that is due, so that idle workers start side by side.
        return [(None, self._token)] * due or None

    def set_stat(self, key: str, value: str, timeout: int) -> None:
        """Show a sign of life: the sentinel calls this at every round of its guard."""
        if place := _take_place(Role.SENTINEL):
            place.beat()

    def get_stat(self, key: str) -> None:
        return None

    def get_stats(self, pattern: str) -> list[object]:
        return []

    def ping(self) -> bool:
        return True

    def info(self) -> str:
        return "the run table"

    @staticmethod
    def get_cache() -> None:
        return None

    def close(self) -> None:
        if self._due is not None:
            self._due.close()


class DueWatch:
    """Waits for due runs on a connection of its own: LISTEN, and a slow poll for what was not notified.

    After a token it looks again only when its worker had the time to claim, and less and less often while what is due
    stays due and no work is fruitful: somebody else may hold its row.
    """

    def __init__(self) -> None:
        self._connection: psycopg.Connection[TupleRow] | None = None
        self._look_at = time.monotonic()
        self._hold_until = 0.0
        self._hinted = False
        self._pause_s = PAUSE_LEAST_S
        self._poll_s = POLL_LEAST_S
        self._fruitful = 0
        self._reachable = True

    def wait(self) -> int:
        """Return how many runs are due, not more than there are workers; 0 when it is time to be asked again."""
        if is_draining():
            time.sleep(0.02)
            return 0
        try:
            if self._connection is None:
                self._connection = self._connect()
            # Before each thing that may take its time, so that a missing beat means that it is stuck in that one thing.
            _beat()
            if not self._wait_for_look(self._connection):
                return 0
            _beat()
            due, next_s = self._look(self._connection)
        except Exception as error:
            self._lose_connection(error)
            return 0
        self._reachable = True
        self._plan_look(due, next_s)
        return due

    def _wait_for_look(self, connection: psycopg.Connection[TupleRow]) -> bool:
        """Wait for a hint or for the next look; False when the cluster drains."""
        self._sleep(self._hold_until - time.monotonic())
        if not self._hinted:
            self._sleep(self._look_at - time.monotonic(), connection.fileno())
        return not is_draining()

    def _sleep(self, seconds: float, *wake_fds: int) -> None:
        lifeline = [] if _here.lifeline is None else [_here.lifeline]
        select.select([*wake_fds, *lifeline], [], [], max(0.0, seconds))

    def _look(self, connection: psycopg.Connection[TupleRow]) -> tuple[int, float | None]:
        # Hints up to here are answered by this look; one that comes while it runs may be about what it did not see.
        connection.pgconn.consume_input()
        while connection.pgconn.notifies():
            pass
        self._hinted = False
        row = connection.execute(DUE, [Conf.WORKERS], prepare=True).fetchone()
        assert row is not None
        due, next_s = row
        return int(due), next_s

    def _plan_look(self, due: int, next_s: float | None) -> None:
        now = time.monotonic()
        if not due:
            self._pause_s = PAUSE_LEAST_S
            self._look_at = now + min(self._poll_s, POLL_MOST_S if next_s is None else next_s)
            self._poll_s = min(self._poll_s * 1.5, POLL_MOST_S)
            return
        self._poll_s = POLL_LEAST_S
        fruitful = _here.board.read_fruitful() if _here.board else 0
        self._pause_s = PAUSE_LEAST_S if fruitful != self._fruitful else min(self._pause_s * 2, PAUSE_MOST_S)
        self._fruitful = fruitful
        self._hold_until = now + PAUSE_LEAST_S
        self._look_at = now + self._pause_s

    def _connect(self) -> psycopg.Connection[TupleRow]:
        parameters = sql.connection_parameters()
        options = f"{parameters.pop('options', None) or ''} -c statement_timeout=5s".strip()
        connection: psycopg.Connection[TupleRow] = psycopg.connect(**parameters, options=options)
        connection.add_notify_handler(self._take_hint)
        connection.execute(f"LISTEN {notify.DUE}")
        self._look_at = time.monotonic()
        return connection

    def _take_hint(self, notification: psycopg.Notify) -> None:
        self._hinted = True

    def _lose_connection(self, error: Exception) -> None:
        if self._reachable:
            log.warning("The database cannot be asked for due runs: %s", str(error).strip() or type(error).__name__)
        self._reachable = False
        self.close()
        self._sleep(OUTAGE_PAUSE_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PacketQueue:
    """The queue between q2's processes, on a pipe in packet mode: one write is one read, and the kernel hands it over.

    There is no lock in user space that a killed process could keep. `slots` messages wait in it, then `put` waits.
    What a killed reader had taken is lost, which loses nothing: what was due is still due.
    """

    def __init__(self, *, reader: Role, slots: int) -> None:
        self._reader = reader
        self._read_fd, self._write_fd = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
        # A packet fills a page of its own, however small it is.
        fcntl.fcntl(self._write_fd, fcntl.F_SETPIPE_SZ, slots * LARGEST_MESSAGE)

    def put(self, item: object) -> None:
        place = _here.place
        if place:
            place.show(Activity.HANDING_OVER)
        os.write(self._write_fd, _pack(item))
        if place:
            place.show(Activity.BUSY)

    def get(self) -> object:
        place = _take_place(self._reader)
        if place:
            place.show(Activity.WAITING)
        message = os.read(self._read_fd, LARGEST_MESSAGE)
        if place:
            place.show(Activity.BUSY)
        return pickle.loads(message)  # noqa: S301  (written by a process of this cluster)

    def empty(self) -> bool:
        return self.qsize() == 0

    def qsize(self) -> int:
        """Return whether something waits, as 0 or 1: q2 only shows it."""
        (waiting,) = struct.unpack("i", fcntl.ioctl(self._read_fd, termios.FIONREAD, b"\0\0\0\0"))
        return min(int(waiting), 1)

    def close(self) -> None:
        """Do nothing: what was put is already in the pipe."""

    def join_thread(self) -> None:
        """Do nothing: there is no feeding thread."""


class Timer:
    """The clock of a worker that q2's sentinel reads, without the lock that a killed worker would keep.

    Only the worker writes it here, since no token has a timeout: what takes too long is the lease's business.
    """

    def __init__(self, kind: str, value: float) -> None:
        self._cell: ctypes.c_float = RawValue(kind, value)

    @property
    def value(self) -> float:
        return float(self._cell.value)

    @value.setter
    def value(self, value: float) -> None:
        self._cell.value = value

    def get_lock(self) -> AbstractContextManager[None]:
        return nullcontext()


class _Here:
    """What this process knows of the cluster that it is part of; nothing outside of one."""

    board: Board | None = None
    lifeline: int | None = None
    place: Place | None = None
    forked_by: int = 0


_here = _Here()


def _before_fork() -> None:
    _here.forked_by = os.getpid()


def _after_fork() -> None:
    _here.place = None
    # kill -9 of a part ends all that it started: the watch then starts everything anew, with nothing left beside it.
    die_with_parent(_here.forked_by, signal.SIGKILL)


def _take_place(role: Role) -> Place | None:
    if _here.place is None and _here.board is not None:
        _here.place = _here.board.take_seat(role)
    return _here.place


def _beat() -> None:
    if _here.place is not None:
        _here.place.beat()


def _make_queue(maxsize: int = 0) -> PacketQueue:
    # The sentinel makes two: tasks, which is bounded, and results, which is not.
    return PacketQueue(reader=Role.WORKER, slots=1) if maxsize else PacketQueue(reader=Role.MONITOR, slots=16)


def _pack(item: object) -> bytes:
    message = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    if len(message) > LARGEST_MESSAGE and isinstance(item, dict):
        # Only a traceback can be that long. Its end says what went wrong.
        message = pickle.dumps(item | {"result": str(item.get("result"))[-1000:]}, pickle.HIGHEST_PROTOCOL)
    if len(message) > LARGEST_MESSAGE:
        raise ValueError(f"a message of {len(message)} bytes does not fit into one packet of {LARGEST_MESSAGE}")
    return message


def _make_token() -> str:
    """Build what q2's pusher unpacks: a task that names no run, saves nothing and has no timeout."""
    task: dict[str, Any] = {
        "id": "0" * 32,
        "name": "advance",
        "func": TASK,
        "args": (),
        "kwargs": {},
        "started": timezone.now(),
        "save": False,
        "timeout": -1,
    }
    return str(SignedPackage.dumps(task))
