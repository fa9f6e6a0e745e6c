"""A throwaway installation: a folder, an embedded PostgreSQL as the product runs it, and the real processes on it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psycopg
from django.conf import settings
from django.db import connection

from console.bench.readings import list_tree, read_cpu_s
from console.databases import EMBEDDED_NAME, EMBEDDED_USER, write_database_url
from console.env import process_environment
from console.postgres import SERVER_SETTINGS, EmbeddedServer
from runs.states import ProcessKind
from runs.supervise import Leader, reap_leader, spawn_leader

MANAGE = settings.BASE_DIR / "manage.py"
READY_WITHIN_S = 120.0
# How an operator's installation is set up, and who may call what, is nothing that a benchmark may use.
_PREFIX = "longwatch-bench-"
_KEPT = ("LONGWATCH_LEASE_S", "LONGWATCH_GRACE_S", "LONGWATCH_VENV")


class CannotMeasure(Exception):
    """A benchmark cannot be made; the message says why."""


@contextmanager
def open_house() -> Iterator[Mapping[str, str]]:
    """Make a throwaway installation without any process, and give the environment for what is to run on it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    folder.chmod(0o755)  # the server may run as a user of its own
    server = EmbeddedServer(folder)
    try:
        server.acquire(keep=True)
        environment = {
            name: value
            for name, value in process_environment.variables.items()
            if not name.startswith(("ANTHROPIC_", "LONGWATCH_")) or name in _KEPT
        } | {
            "DATABASE_URL": server.url,
            "LONGWATCH_DATA": str(folder),
            "LONGWATCH_APPS": "console.bench",
            "LONGWATCH_ENVIRONMENT": "rehearsal",
        }
        asked = [sys.executable, str(MANAGE), "prepare", "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotMeasure(done.stderr.strip()[-2000:] or f"The preparation ended with status {done.returncode}.")
        yield environment
    finally:
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(kw_only=True)
class Stage:
    """The installation, seen from inside: starts its processes, and reads what they cost."""

    workers: int = 2
    folder: Path = field(default_factory=lambda: Path(settings.DATA_DIR))
    server: EmbeddedServer = field(default_factory=lambda: EmbeddedServer(Path(settings.DATA_DIR)))
    _leaders: dict[str, Leader] = field(default_factory=dict)
    _listeners: list[socket.socket] = field(default_factory=list)

    def address(self, database: str = EMBEDDED_NAME) -> str:
        place = {"NAME": database, "USER": EMBEDDED_USER, "PASSWORD": "", "HOST": self.server.host, "PORT": ""}
        return write_database_url(place)

    def __post_init__(self) -> None:
        if not self.folder.name.startswith(_PREFIX):
            raise CannotMeasure(f"{self.folder} is no throwaway installation.")

    def start_cluster(self) -> None:
        """Start `manage.py cluster`, as `up` does."""
        self.start("cluster", [sys.executable, str(MANAGE), "cluster", f"--workers={self.workers}"])

    def start_gateway(self, *, provider_url: str = "http://127.0.0.1:9") -> None:
        """Start `manage.py modelgateway`; where no provider is named, with one that does not answer."""
        argv = [sys.executable, str(MANAGE), "modelgateway"]
        self.start("gateway", argv, env={"ANTHROPIC_API_KEY": "rehearsal", "ANTHROPIC_BASE_URL": provider_url})
        wait_for("The gateway", lambda: self.read_pids(ProcessKind.GATEWAY), within_s=READY_WITHIN_S)

    def start_model(self, *, pace_s: float) -> str:
        """Start the rehearsal model, whose replies take that long; return its address."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.start("model", [sys.executable, "-m", "runs.examples.model", f"--port={port}", f"--pace={pace_s:g}"])

        def listens() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        wait_for("The rehearsal model", listens, within_s=READY_WITHIN_S, every_s=0.1)
        return f"http://127.0.0.1:{port}"

    def start_web(self) -> int:
        """Start the web server; return its port."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        port: int = listener.getsockname()[1]
        argv = [sys.executable, "-m", "console.serve", str(listener.fileno())]
        self.start("web", argv, pass_fds=[listener.fileno()])
        wait_for("The web server", lambda: _answers(port), within_s=READY_WITHIN_S, every_s=0.2)
        self._listeners.append(listener)
        return port

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start a process in this installation; it ends with this one."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._leaders[name] = spawn_leader(
                argv,
                pass_fds=pass_fds,
                env={**process_environment.variables, **env, "LONGWATCH_PROCESS": _process_name(name)},
                cwd=settings.BASE_DIR,
                # The cluster's watch ends what is below it in order.
                on_parent_death=signal.SIGTERM,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )

    def freeze(self) -> None:
        """Stop every process that was started here where it is, until `thaw`."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End every process that was started here."""
        self.thaw()
        for leader in self._leaders.values():
            leader.signal(signal.SIGTERM)
        for leader in self._leaders.values():
            if reap_leader(leader.pid, timeout_s=settings.GRACE_S + 10.0) is None:
                leader.kill_group()
                reap_leader(leader.pid)
        self._leaders.clear()
        while self._listeners:
            self._listeners.pop().close()

    def pids(self) -> list[int]:
        """Every process that was started here, and what those started."""
        return [pid for leader in self._leaders.values() for pid in list_tree(leader.pid)]

    def pids_of(self, name: str) -> list[int]:
        """The process that was started by this name, and what that started."""
        return list_tree(self._leaders[name].pid)

    def read_pids(self, kind: ProcessKind) -> list[int]:
        """The living processes of one kind, as the process table knows them."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM runs_process WHERE kind = %s AND ended_at IS NULL", [kind])
            return [pid for (pid,) in cursor.fetchall()]

    def read_cost(self) -> "Cost":
        """What was used up so far."""
        workers, tools = self.read_pids(ProcessKind.WORKER), self.read_pids(ProcessKind.TOOL)
        others = set(self.pids()) - {*workers, *tools}
        postmaster = self.server.pid
        return Cost(
            transactions=self.read_transactions(),
            worker_s=read_cpu_s(workers),
            tool_s=read_cpu_s(tools),
            other_s=read_cpu_s(others),
            postgres_s=read_cpu_s(list_tree(postmaster)) if postmaster else 0.0,
        )

    def read_transactions(self) -> int:
        """Transactions of the installation's database so far. Asked in another one, so that asking does not count.

        A connection tells its own at the end of a transaction, at most once a second, or when it was idle for ten.
        """
        with psycopg.connect(self.address("postgres"), autocommit=True) as asking:
            row = asking.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [EMBEDDED_NAME]
            ).fetchone()
        assert row is not None
        return int(row[0])

    def describe(self) -> dict[str, object]:
        """The settings that a figure depends on."""
        return {
            "workers": self.workers,
            "lease_s": settings.LEASE_S,
            "cores": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 2),
            "postgres": self._version(),
            **{name: SERVER_SETTINGS[name] for name in ("fsync", "synchronous_commit", "shared_buffers")},
            "journal": "on",
        }

    def _version(self) -> str:
        with psycopg.connect(self.address("postgres")) as asking:
            return str(asking.info.parameter_status("server_version"))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Transactions, and processor seconds by kind of process."""

    transactions: int
    worker_s: float
    tool_s: float
    other_s: float
    postgres_s: float

    def since(self, before: "Cost", *, steps: int) -> dict[str, float]:
        """What each of so many steps cost."""
        return {
            "tx_per_step": round((self.transactions - before.transactions) / steps, 2),
            **{
                f"{name}_cpu_ms_per_step": round(
                    (getattr(self, f"{name}_s") - getattr(before, f"{name}_s")) / steps * 1e3, 2
                )
                for name in ("worker", "tool", "other", "postgres")
            },
        }


def wait_for[T](what: str, look: Callable[[], T | None], *, within_s: float, every_s: float = 0.02) -> T:
    """Return what `look` finds, as soon as it is something.

    Raises:
        CannotMeasure: nothing was found in time.
    """
    until = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > until:
            raise CannotMeasure(f"{what} did not come within {within_s:g} s.")
        time.sleep(every_s)
    return found


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/health/live", timeout=2.0) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def _process_name(name: str) -> str:
    return {"gateway": "modelgateway"}.get(name, name)
