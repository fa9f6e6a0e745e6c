"""A second cluster on the database of a fleet, whose first payment stands still just before its last look."""

import os
import signal
import sys
import uuid
from collections.abc import Iterable
from contextlib import suppress

from django.conf import settings

from console.soak.fleet import Fleet
from console.soak.marks import find_marked, make_mark
from runs.models import Process
from runs.states import ProcessKind
from runs.supervise import read_stat, reap_leader, spawn_leader
from tests.waiting import wait_until


class SecondCluster:
    """One worker: what stands still is all that it has in flight."""

    def __init__(self, fleet: Fleet) -> None:
        self._mark = make_mark("second")
        self._points = fleet.folder / "second"
        self._points.mkdir(exist_ok=True)
        with (fleet.folder / "second.log").open("ab") as log:
            self._leader = spawn_leader(
                [sys.executable, str(settings.BASE_DIR / "manage.py"), "cluster", "--workers=1"],
                env=fleet.environment(
                    MARK=f"{fleet.mark} {self._mark}",
                    LONGWATCH_FAIL_POINT=f"received=stop@{self._points}/{{call}}",
                    LONGWATCH_PROCESS="cluster",
                ),
                cwd=fleet.folder,
                on_parent_death=signal.SIGTERM,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def has_tool_process(self) -> bool:
        tools = Process.objects.filter(kind=ProcessKind.TOOL, ended_at__isnull=True)
        return tools.filter(pid__in=find_marked(self._mark)).exists()

    def holders(self) -> list[uuid.UUID]:
        """Its worker, as it is known in the database."""
        workers = Process.objects.filter(kind=ProcessKind.WORKER, pid__in=find_marked(self._mark))
        return list(workers.values_list("pk", flat=True))

    def arm(self, run: int, tool: str) -> None:
        """Let this call stand still if it comes here."""
        (self._points / f"{run}.{tool}").touch()

    def disarm(self) -> None:
        for point in self._points.iterdir():
            point.unlink()

    def until_it_stands(self) -> None:
        wait_until(lambda: "T" in self._states().values(), what="a call that stands still", timeout_s=60)

    def freeze(self) -> None:
        """Stop all of it where it is; again, until nothing is left that could have started another."""

        def stop() -> bool:
            running = [pid for pid, state in self._states().items() if state != "T"]
            self._signal(running, signal.SIGSTOP)
            return not running

        wait_until(stop, what="a frozen cluster", timeout_s=20, poll_s=0.01)

    def thaw(self) -> None:
        self._signal(find_marked(self._mark), signal.SIGCONT)

    def close(self) -> None:
        self.thaw()
        self._leader.signal(signal.SIGTERM)
        if reap_leader(self.pid, timeout_s=20.0) is None:
            self._signal(find_marked(self._mark), signal.SIGKILL)
            reap_leader(self.pid)

    def _states(self) -> dict[int, str]:
        stats = [read_stat(pid) for pid in find_marked(self._mark)]
        return {stat.pid: stat.state for stat in stats if stat is not None}

    def _signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
