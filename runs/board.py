"""A page of shared memory on which the parts of a cluster show what they are doing, for the process that watches them.

Everything that a part could be asked it may be too stuck to answer, and a queue between it and its watcher can be
broken by the very death that the watcher looks for. So nobody asks: each part writes a few words of its own seat, each
in one machine word, without a lock, and the watcher reads them. Linux (memfd). Times are CLOCK_MONOTONIC, which all
processes of a machine share.
"""

import fcntl
import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum

from runs.supervise import read_stat

SEATS = 256
_WORDS = 8  # of a seat: pid, role, start ticks, activity and since when, last beat
_PID, _ROLE, _TICKS, _ACTIVITY, _BEAT = range(5)
_FRUITFUL = 0  # in the first row, which is nobody's seat


class Role(IntEnum):
    SENTINEL = 1
    PUSHER = 2
    WORKER = 3
    MONITOR = 4


class Activity(IntEnum):
    WAITING = 0  # for something to do
    BUSY = 1
    HANDING_OVER = 2  # gives something to the next part, and waits until that takes it


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What one part showed when it was read. Times in nanoseconds of the monotonic clock."""

    number: int
    pid: int
    start_ticks: int
    role: Role
    activity: Activity
    since_ns: int
    beat_ns: int


class Board:
    """All seats. The watcher creates it and passes `fd` on; a part attaches to it and takes a seat."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._words = memoryview(mmap.mmap(fd, SEATS * _WORDS * 8)).cast("Q")

    @classmethod
    def create(cls) -> "Board":
        fd = os.memfd_create("longwatch-board")
        os.truncate(fd, SEATS * _WORDS * 8)
        return cls(fd)

    def take_seat(self, role: Role) -> "Place":
        """Take a free seat for this process.

        Raises:
            RuntimeError: no seat is free.
        """
        stat = read_stat(os.getpid())
        assert stat is not None
        # A record lock: the kernel drops it however its holder ends.
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            for number in range(1, SEATS):
                row = number * _WORDS
                if self._words[row + _PID]:
                    continue
                now = time.monotonic_ns()
                self._words[row + _ROLE] = role
                self._words[row + _TICKS] = stat.start_ticks
                self._words[row + _ACTIVITY] = now << 2
                self._words[row + _BEAT] = now
                # Last, because a seat with a pid is a seat that is read.
                self._words[row + _PID] = stat.pid
                return Place(words=self._words, row=row)
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
        raise RuntimeError(f"all {SEATS - 1} seats of the board are taken")

    def read(self) -> list[Seat]:
        """Return every seat that was taken and not cleared, also those of processes that ended."""
        seats = []
        for number in range(1, SEATS):
            row = number * _WORDS
            if pid := self._words[row + _PID]:
                activity = self._words[row + _ACTIVITY]
                seats.append(
                    Seat(
                        number=number,
                        pid=pid,
                        start_ticks=self._words[row + _TICKS],
                        role=Role(self._words[row + _ROLE]),
                        activity=Activity(activity & 3),
                        since_ns=activity >> 2,
                        beat_ns=self._words[row + _BEAT],
                    )
                )
        return seats

    def clear(self, seat: Seat) -> None:
        """Free the seat of a process that ended."""
        self._words[seat.number * _WORDS + _PID] = 0

    def mark_fruitful(self) -> None:
        """Say that work found something to do, as opposed to having been called for nothing."""
        self._words[_FRUITFUL] = time.monotonic_ns()

    def read_fruitful(self) -> int:
        return self._words[_FRUITFUL]


class Place:
    """The seat of this process."""

    def __init__(self, *, words: "memoryview[int]", row: int) -> None:
        self._words = words
        self._row = row

    def show(self, activity: Activity) -> None:
        """Show what this process does from now on. Also a beat."""
        now = time.monotonic_ns()
        # One word, so that nobody reads a new activity with an old time.
        self._words[self._row + _ACTIVITY] = now << 2 | activity
        self._words[self._row + _BEAT] = now

    def beat(self) -> None:
        self._words[self._row + _BEAT] = time.monotonic_ns()
