"""A gateway for a test: in a thread of the test's own process, or as the process it is, at a real rehearsal server."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import clock, lifecycle, operations, processes, sql
from runs.course import wake_due
from runs.engine import think
from runs.engine.worker import Worker
from runs.gateway.process import Gateway
from runs.gateway.provider import Credential
from runs.models import Attempt, Budget, LedgerEntry, Run, Step
from runs.operations import Start
from runs.states import RUN_FINAL, ProcessKind, RunState, StepKind, StepState
from runs.supervise import read_stat
from tests.process_tools import ROOT
from tests.rehearsal_tools import RehearsalServer, run_server
from tests.waiting import wait_until

__all__ = ["Desk", "desk", "model_process", "model_server", "work_through"]


START_S = 60.0
"""Within this a gateway has started as a process of its own; importing the SDK alone takes seconds on a busy machine."""


class Desk:
    """Starts runs, hands their thinks over as a worker would, and runs gateways."""

    def __init__(self, model: RehearsalServer, database_url: str, folder: Path) -> None:
        self.model = model
        self.person = User.objects.create_superuser("ana")
        self.worker = processes.register(ProcessKind.WORKER)
        self._database_url = database_url
        self._folder = folder
        self._inside: list[GatewayThread] = []
        self._outside: list[subprocess.Popen[bytes]] = []

    def start(self, agent: str = "thinker", **start: Any) -> Run:
        """A run whose first think is handed over."""
        start = {"goal": "Look at it.", "inputs": {"value": 7}, **start}
        run, _ = operations.start_run(Start(agent=agent, **start), by=self.person)
        return self.hand_over(run)

    def hand_over(self, run: Run, *, wake: bool = True) -> Run:
        """Do with this run what a worker does when there is nothing to do but to think, whatever else is due.

        wake: also where its moment has not come yet.
        """
        with transaction.atomic():
            sql.execute("UPDATE runs_run SET priority = 9, due_at = lw_clock() WHERE id = %s", [run.pk])
            if wake:
                sql.execute(
                    "UPDATE runs_step SET wake_at = lw_clock() WHERE run_id = %s AND wake_at IS NOT NULL", [run.pk]
                )
            claim = lifecycle.claim(self.worker, lease_s=60.0)
            assert isinstance(claim, lifecycle.Claim), f"run {run.pk} cannot be claimed: {claim}"
            assert claim.run == run.pk
            held = lifecycle.lock_held(claim)
            wake_due(held)
            if Step.objects.filter(run=held, kind=StepKind.THINK, state=StepState.PLANNED).exists():
                lifecycle.move(held, RunState.THINKING)
            else:
                think.plan_step(held)
            sql.execute("UPDATE runs_run SET priority = 0 WHERE id = %s", [run.pk])
        run.refresh_from_db()
        return run

    def gateway(self, *, credential: Credential | None = None, **options: Any) -> "GatewayThread":
        """A gateway in a thread of this process."""
        made = GatewayThread(credential or Credential(key="test", base_url=self.model.url), **options)
        self._inside.append(made)
        return made

    def gateway_process(self, **env: str) -> subprocess.Popen[bytes]:
        """A gateway as a process of its own."""
        log = self._folder / f"gateway-{len(self._outside)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "modelgateway"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DATABASE_URL": self._database_url,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "PYTHONPATH": str(ROOT),
                    "LONGWATCH_DATA": str(self._folder / "data"),
                    "LONGWATCH_LEASE_S": str(django_settings.LEASE_S),
                    "LONGWATCH_GRACE_S": str(django_settings.GRACE_S),
                    "ANTHROPIC_BASE_URL": self.model.url,
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._outside.append(process)
        return process

    def fail_point(self, point: str, action: str) -> str:
        """A fail point that acts once."""
        file = self._folder / f"{point}-{action}"
        file.touch()
        return f"{point}={action}@{file}"

    def is_frozen(self, process: subprocess.Popen[bytes]) -> bool:
        stat = read_stat(process.pid)
        return stat is not None and stat.state == "T"

    def thaw(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGCONT)

    def logs(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in self._folder.glob("gateway-*.log"))

    def until(self, run: Run, **wanted: str) -> Run:
        """Wait until a run has these values, such as state="queued"."""

        def look() -> bool:
            run.refresh_from_db()
            return all(getattr(run, name) == value for name, value in wanted.items())

        try:
            wait_until(look, what="", timeout_s=40)
        except AssertionError:
            told = f"run {run.pk} is {run.state}, waiting for {run.waiting_for!r} ({run.why}); wanted {wanted}"
            raise AssertionError(f"{told}\n{self.logs()}") from None
        return run

    def until_streaming(self, count: int = 1) -> None:
        """Wait until the server has begun to stream so many replies that are not over."""
        wait_until(
            lambda: sum(call["open"] and call["events_sent"] > 2 for call in self.model.calls()) >= count,
            what=f"{count} open streams {self.logs()}",
            timeout_s=START_S,
        )

    def sent(self) -> list[dict[str, Any]]:
        """The calls that reached the server."""
        return self.model.calls()

    def think_step(self, run: Run) -> Step:
        return Step.objects.filter(run=run, kind=StepKind.THINK).latest("number")

    def attempts(self, run: Run) -> list[Attempt]:
        return list(Attempt.objects.filter(run=run).order_by("pk"))

    def ledger(self, run: Run, kind: str) -> list[LedgerEntry]:
        return list(LedgerEntry.objects.filter(budget_id=run.pk, kind=kind).order_by("pk"))

    def budget(self, run: Run) -> Budget:
        return Budget.objects.get(pk=run.pk)

    def waits_s(self, run: Run) -> float:
        """Seconds until the open think step is looked at again."""
        wake_at = self.think_step(run).wake_at
        assert wake_at is not None
        return (wake_at - clock.now()).total_seconds()

    def close(self) -> None:
        for inside in self._inside:
            inside.close()
        for process in self._outside:
            process.kill()
            process.wait()


def work_through(run: Run) -> Run:
    """Have a worker of its own advance what is due until this run has ended; gateways think meanwhile."""
    worker = Worker()

    def is_over() -> bool:
        worker.claim_and_advance()
        run.refresh_from_db()
        return run.state in RUN_FINAL

    try:
        wait_until(is_over, what="the end of the run", timeout_s=60)
    finally:
        worker.tools.close()
    return run


class GatewayThread:
    """A gateway with a loop of its own."""

    def __init__(self, credential: Credential | None, **options: Any) -> None:
        self.gateway: Gateway | None = None
        self.error: BaseException | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, args=(credential, options), name="gateway")
        self._thread.start()
        assert self._ready.wait(10)

    def _main(self, credential: Credential | None, options: dict[str, Any]) -> None:
        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            self.gateway = Gateway(credential, **options)
            self._ready.set()
            await self.gateway.run()

        try:
            asyncio.run(run())
        except BaseException as error:
            self.error = error
            self._ready.set()

    def in_flight(self) -> int:
        assert self.gateway is not None
        return len(self.gateway.calls)

    def stop(self) -> None:
        if self._loop is not None and self.gateway is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.gateway.stop)

    def close(self) -> float:
        """Stop it and wait for its end; seconds that it took."""
        began = time.monotonic()
        self.stop()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the gateway does not stop"
        if self.error is not None:
            raise self.error
        return time.monotonic() - began


def told(value: Any) -> Any:
    """What a JSON column holds, when it holds anything."""
    assert value is not None
    return value


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def model_process() -> Iterator[RehearsalServer]:
    with run_server() as server:
        yield server


@pytest.fixture
def model_server(model_process: RehearsalServer) -> RehearsalServer:
    """One server for the session; each test finds it without faults and calls."""
    model_process.control("DELETE", "/faults")
    model_process.control("DELETE", "/calls")
    return model_process


@pytest.fixture
def desk(database_url: str, model_server: RehearsalServer, tmp_path: Path, settings: Any) -> Iterator[Desk]:
    settings.LEASE_S = 2.0
    settings.GRACE_S = 2.0
    made = Desk(model_server, database_url, tmp_path)
    yield made
    made.close()
    connection.close()
