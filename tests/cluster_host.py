"""A real `manage.py cluster` for a test, and a view into it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from runs.board import Activity, Board, Role, Seat
from runs.supervise import is_alive, read_processes
from tests.process_tools import ROOT, find_marked, make_mark
from tests.waiting import wait_until


class ClusterHost:
    """Starts the cluster's watch; `close` ends whatever is left of it."""

    def __init__(self, database_url: str, folder: Path, *, workers: int = 2, grace_s: int = 4) -> None:
        self.mark = make_mark("cluster")
        self.log = folder / f"{self.mark}.log"
        self._output = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "cluster", f"--workers={workers}"],
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": database_url,
                "DJANGO_SETTINGS_MODULE": "tests.cluster_settings",
                "PYTHONPATH": str(ROOT),
                "LONGWATCH_DATA": str(folder / "data"),
                "LONGWATCH_LEASE_S": "1",
                "LONGWATCH_GRACE_S": str(grace_s),
                "MARK": self.mark,
            },
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        self._board: Board | None = None
        self.workers = workers
        try:
            self.wait_complete()
        except BaseException:
            self.close()
            raise

    def wait_complete(self, *, timeout_s: float = 60.0) -> None:
        """Wait until every part is there and every worker waits for work."""
        wait_until(self._is_complete, timeout_s=timeout_s, what=f"a complete cluster, see {self.log}")

    def _is_complete(self) -> bool:
        assert self.process.poll() is None, f"the watch ended\n{self.log.read_text()[-3000:]}"
        seats = self.seats()
        roles = sorted(seat.role for seat in seats)
        return roles == sorted([Role.SENTINEL, Role.PUSHER, Role.MONITOR, *[Role.WORKER] * self.workers])

    def seats(self) -> list[Seat]:
        if self._board is None and (fd := self._find_board()) is not None:
            self._board = Board(fd)
        if self._board is None:
            return []
        return [seat for seat in self._board.read() if is_alive(seat.pid, seat.start_ticks)]

    def _find_board(self) -> int | None:
        folder = Path(f"/proc/{self.process.pid}/fd")
        for link in folder.iterdir():
            with suppress(OSError):
                # It is given its size after its name.
                if "longwatch-board" in os.readlink(link) and link.stat().st_size:
                    return os.open(link, os.O_RDWR)
        return None

    def find(self, role: Role, activity: Activity | None = None) -> Seat:
        """Return a part, when there is one that does `activity`."""

        def look() -> Seat | None:
            return next(
                (s for s in self.seats() if s.role is role and (activity is None or s.activity is activity)), None
            )

        seat = wait_until(look, what=f"{role.name} {activity}")
        assert seat is not None
        return seat

    @property
    def main(self) -> int:
        """The process that q2 calls the cluster."""
        return next(stat.pid for stat in read_processes() if stat.parent == self.process.pid and stat.state not in "ZX")

    def descendants(self) -> set[int]:
        return find_marked(self.mark) - {self.process.pid}

    def stop(self) -> float:
        """Ask it to stop and return how long that took, in seconds."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)
        return time.monotonic() - began

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in find_marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._output.close()
        if self._board is not None:
            os.close(self._board.fd)
