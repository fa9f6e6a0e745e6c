"""All of Longwatch on one machine: what is started, in which order, with which environment, and how it stops."""

import fcntl
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from django.conf import settings
from django.db import connections

from console.databases import read_database_url
from console.env import process_environment
from console.postgres import EmbeddedServer, embedded_server
from console.rotating import rotate
from console.running import Running, running_file
from runs.clerk import Clerk
from runs.supervise import Exit, ProcessStat
from runs.supervisor import Program, Supervisor

log = logging.getLogger(__name__)

MANAGE = settings.BASE_DIR / "manage.py"
READY_WITHIN_S = 120.0
STEP_S = 0.5
# What stops side by side, one row after the other.
STOP_ORDER = (("web", "cluster"), ("gateway",), ("model", "shop"))


class CannotLaunch(Exception):
    """Longwatch cannot be started here; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the preparation found or made. `password` is None unless the operator was made now."""

    operator: str | None = None
    password: str | None = None
    sign_in_token: str | None = None


@dataclass(kw_only=True)
class Launch:
    """One installation on this machine, in the foreground. `prepare`, then `start`, `wait_ready`, `run`; then `stop`.

    `rehearsal`: a local model plays the agents, also where a key for a real one is set; `pace_s` is how long it takes
    for a reply.
    """

    port: int
    data_dir: Path
    workers: int
    rehearsal: bool = settings.ANTHROPIC_API_KEY is None
    pace_s: float = 0.0
    _server: EmbeddedServer | None = None
    _database_url: str = ""
    _listener: socket.socket | None = None
    _hold: int | None = None
    _alive: tuple[int, int] = field(default_factory=os.pipe)
    _ports: dict[str, int] = field(default_factory=dict)
    _logs: list[Path] = field(default_factory=list)
    _clerk: Clerk | None = None
    _supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        self._supervisor = Supervisor(on_exit=self._take_exit, spare=_is_postgres)

    @property
    def url(self) -> str:
        return process_environment.read_url("LONGWATCH_URL", f"http://127.0.0.1:{self.port}")

    @property
    def database_url(self) -> str:
        return self._database_url

    @property
    def shop_url(self) -> str | None:
        """The shop that the example agents act on; None before it has a port."""
        given = process_environment.read_optional_url("LONGWATCH_SHOP_URL")
        return given or (self._local_url("shop") if "shop" in self._ports else None)

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def stop_requested(self) -> bool:
        return self._supervisor.stop_requested

    def prepare(self) -> Prepared:
        """Take the data folder, start the database and bring it up to date.

        Raises:
            CannotLaunch: the folder is taken, or the database refuses.
        """
        self._hold = _hold_folder(self.data_dir)
        self.log_dir.mkdir(exist_ok=True)
        url = process_environment.read_optional("DATABASE_URL")
        if url is None:
            self._server = embedded_server(self.data_dir).acquire(keep=True)
            url = self._server.url
        self._database_url = url
        given = read_database_url(url, engine_process=False, process_name="up")
        connections.databases["default"].update(given)
        self._clerk = Clerk()
        done = self._run_command("prepare", "--json")
        if done.returncode != 0 and not self.stop_requested:
            raise CannotLaunch(done.stderr.strip() or f"The preparation ended with status {done.returncode}.")
        return Prepared(**json.loads(done.stdout or "{}"))

    def take_port(self) -> None:
        """Open the socket of the web server, before anything else takes time.

        Raises:
            CannotLaunch: the port is taken.
        """
        self._listener, self.port = _listen(self.port)

    def start(self) -> None:
        """Start every process, on the port that was taken."""
        assert self._listener is not None
        python = sys.executable
        if self._server is not None:
            keeper = [python, "-m", "console.keeper", str(self._alive[0]), str(self.data_dir)]
            # Ends on its own, after this process; it must not hold the end of the pipe that it waits for.
            self._add("keeper", keeper, pass_fds=[self._alive[0]], on_parent_death=0)
        if not process_environment.read_optional("LONGWATCH_SHOP_URL"):
            port = self._choose_port("shop")
            data = self.data_dir / "shop"
            self._add("shop", [python, "-m", "runs.examples.shop", f"--port={port}", f"--data={data}"])
        if self.rehearsal:
            port = self._choose_port("model")
            self._add("model", [python, "-m", "runs.examples.model", f"--port={port}", f"--pace={self.pace_s:g}"])
        listener = self._listener.fileno()
        self._add("web", [python, "-m", "console.serve", str(listener)], pass_fds=[listener, self._alive[1]])
        cluster = [python, str(MANAGE), "cluster", f"--workers={self.workers}"]
        # The cluster's watch outlives this process by the steps in hand, and then leaves nothing behind.
        self._add("cluster", cluster, grace_s=settings.GRACE_S + 6, on_parent_death=signal.SIGTERM)
        # It lets the replies in flight finish within the grace time, and then books what it cuts.
        self._add("gateway", [python, str(MANAGE), "modelgateway"], grace_s=settings.GRACE_S + 4)
        self._say_that_it_runs()

    def wait_ready(self) -> bool:
        """Wait until the web server says that all is there; False when a stop was asked for meanwhile.

        Raises:
            CannotLaunch: it did not say so in time.
        """
        until = time.monotonic() + READY_WITHIN_S
        missing = "it does not answer"
        while not self.stop_requested:
            self.step(0.1)
            missing = self._find_missing()
            if not missing:
                return True
            if time.monotonic() > until:
                raise CannotLaunch(f"Not ready after {READY_WITHIN_S:g} s: {missing}. The logs are in {self.log_dir}.")
        return False

    def start_demo(self) -> None:
        """Start the example runs, where there are none yet and the shop is our own.

        Raises:
            CannotLaunch: they could not be started.
        """
        if "shop" not in self._ports:
            return
        done = self._run_command("startdemo")
        if done.returncode != 0 and not self.stop_requested:
            raise CannotLaunch(done.stderr.strip() or f"The example runs did not start (status {done.returncode}).")

    def run(self) -> None:
        """Keep everything running until a stop is asked for."""
        while not self.stop_requested:
            self.step(STEP_S)

    def stop(self) -> None:
        """Stop all in order, the database last."""
        if self._hold is not None:
            running_file(self.data_dir).unlink(missing_ok=True)
        for names in STOP_ORDER:
            self._supervisor.stop(*names)
        self._supervisor.bury_rest(timeout_s=2.0)
        if self._clerk is not None:
            self._clerk.close(timeout_s=2.0)
        if self._server is not None:
            self._server.release()
        if keeper := self._supervisor.find_leader("keeper"):
            keeper.kill_group()
            self._supervisor.stop("keeper")
        if self._listener is not None:
            self._listener.close()

    def _run_command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of our commands to its end, in the environment that everything here runs in."""
        return subprocess.run(
            [sys.executable, str(MANAGE), name, *arguments],
            env=self._make_environment(name),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def step(self, timeout_s: float) -> None:
        """Look after the processes, their logs and the database for `timeout_s`: what ended is started again."""
        self._supervisor.step(timeout_s)
        for path in self._logs:
            rotate(path)
        if self._server is not None and not self.stop_requested:
            try:
                self._server.ensure_running()
            except Exception:
                log.exception("The embedded PostgreSQL does not start again; another try follows")

    def _add(
        self,
        name: str,
        argv: Sequence[str],
        *,
        grace_s: float = 6.0,
        on_parent_death: int = signal.SIGKILL,
        pass_fds: Sequence[int] | None = None,
    ) -> None:
        self._logs.append(path := self.log_dir / f"{name}.log")
        self._supervisor.add(
            Program(
                name=name,
                argv=argv,
                grace_s=grace_s,
                env=self._make_environment(name),
                cwd=settings.BASE_DIR,
                pass_fds=[self._alive[1]] if pass_fds is None else pass_fds,
                on_parent_death=on_parent_death,
                output=os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600),
            )
        )

    def _take_exit(self, ended: Exit, name: str | None) -> None:
        """Record the end of a gateway, of a cluster, and of what a killed cluster left to this process."""
        if self._clerk is not None:
            self._clerk.record(ended)

    def _say_that_it_runs(self) -> None:
        running = Running(
            pid=os.getpid(),
            url=self.url,
            database_url=self._database_url,
            shop_url=self.shop_url,
            rehearsal=self.rehearsal,
        )
        path = running_file(self.data_dir)
        # Not there at all, or whole: and, since an address may hold a password, for its owner only.
        with os.fdopen(
            os.open(made := path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
        ) as file:
            json.dump(asdict(running), file)
        made.replace(path)

    def _make_environment(self, name: str) -> Mapping[str, str]:
        """Return the environment of one process: what this one was given, and what it found out."""
        made = {
            "DATABASE_URL": self._database_url,
            "LONGWATCH_DATA": str(self.data_dir),
            "LONGWATCH_URL": self.url,
            "LONGWATCH_ENVIRONMENT": "rehearsal" if self._against_a_key else settings.ENVIRONMENT,
            "LONGWATCH_PROCESS": "modelgateway" if name == "gateway" else name,
        }
        if self.shop_url:
            made["LONGWATCH_SHOP_URL"] = self.shop_url
        if name == "gateway" and "model" in self._ports:
            made |= {"ANTHROPIC_BASE_URL": self._local_url("model"), "ANTHROPIC_API_KEY": "rehearsal"}
        given = process_environment.variables
        if self._against_a_key:
            given = {name: value for name, value in given.items() if not name.startswith("ANTHROPIC_")}
        return {**given, **made}

    @property
    def _against_a_key(self) -> bool:
        """A rehearsal although there is a key: no process may find it."""
        return self.rehearsal and settings.ANTHROPIC_API_KEY is not None

    def _choose_port(self, name: str) -> int:
        """Choose a port that stays the same when the process is started again: others were told of it."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._ports[name] = probe.getsockname()[1]
        return self._ports[name]

    def _local_url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}"

    def _find_missing(self) -> str:
        """Ask the web server what is missing; nothing is an empty text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        try:
            connection.request("GET", "/api/v1/health/ready")
            answer = connection.getresponse()
            return "" if answer.status < 500 else answer.read(500).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        finally:
            connection.close()


def _hold_folder(data_dir: Path) -> int:
    """Hold the data folder against a second `up`, until this process ends."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        hold = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotLaunch(
            f"The data folder {data_dir} cannot be used ({error.strerror}). Name another: --data."
        ) from None
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(hold, 20).decode() or "unknown"
        raise CannotLaunch(
            f"Longwatch already runs on {data_dir} (pid {pid}). Stop it, or name another: --data."
        ) from None
    os.truncate(hold, 0)
    os.write(hold, str(os.getpid()).encode())
    return hold


def _listen(port: int) -> tuple[socket.socket, int]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise CannotLaunch(f"Port {port} cannot be used ({error.strerror}). Name another: --port.") from None
    return listener, listener.getsockname()[1]


def _is_postgres(stat: ProcessStat) -> bool:
    """Say whether an adopted process is the embedded server's: it is nobody's child, so it becomes ours."""
    try:
        return Path(f"/proc/{stat.pid}/comm").read_text().strip() == "postgres"
    except OSError:
        return False
