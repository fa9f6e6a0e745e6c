"""A whole installation as `manage.py up` runs it, whose every process can be found by its part, killed and frozen.

Nothing of the product is imported that could lie about it: parts are found in /proc, on the cluster's own board and, for
what only the database knows (who holds a run, who performs a call), by plain SQL.
"""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg

from runs.board import Board, Role
from runs.examples.shop.client import ShopClient, ShopRefused, ShopUnknown
from runs.supervise import Leader, ProcessStat, is_alive, read_processes, read_stat, reap_leader, spawn_leader
from tests.process_tools import ROOT, find_marked, make_mark
from tests.waiting import wait_until

READY_WITHIN_S = 150.0


class Part(StrEnum):
    """What can be killed. The value is what a log of kills calls it."""

    BUSY_WORKER = "busy worker"  # holds a run just now
    TOOL = "tool process"  # performs a call just now
    IDLE_WORKER = "worker"
    PUSHER = "pusher"
    MONITOR = "monitor"
    SENTINEL = "sentinel"
    MAIN = "cluster"  # q2's main process
    WATCH = "watch"  # `manage.py cluster` itself, above q2's main process
    GATEWAY = "gateway"
    WEB = "web"
    DATABASE = "database"  # the postmaster
    SHOP = "shop"
    MODEL = "model"
    EVERYTHING = "everything"  # up and all below it, at once


_WORDS = {
    Part.WEB: "console.serve",
    Part.GATEWAY: "manage.py modelgateway",
    Part.WATCH: "manage.py cluster",
    Part.SHOP: "runs.examples.shop",
    Part.MODEL: "runs.examples.model",
}
_SEATS = {
    Part.PUSHER: Role.PUSHER,
    Part.MONITOR: Role.MONITOR,
    Part.SENTINEL: Role.SENTINEL,
    Part.IDLE_WORKER: Role.WORKER,
}
_HOLDERS = """
    SELECT p.pid, p.start_ticks FROM runs_run r JOIN runs_process p ON p.id = r.holder
    WHERE r.state = 'running' AND p.ended_at IS NULL
    ORDER BY EXISTS (SELECT FROM runs_attempt a WHERE a.holder = r.holder AND a.outcome = 'open') DESC
"""
_PERFORMERS = """
    SELECT p.pid, p.start_ticks FROM runs_attempt a JOIN runs_process p ON p.id = a.performer
    WHERE a.outcome = 'open' AND p.kind = 'tool' AND p.ended_at IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """One process, told apart from any later one with its number."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.start_ticks)

    def send(self, number: int) -> bool:
        """Signal this very process; False when it is gone."""
        if not self.alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def freeze(self) -> bool:
        return self.send(signal.SIGSTOP)

    def thaw(self) -> bool:
        return self.send(signal.SIGCONT)

    @property
    def frozen(self) -> bool:
        stat = read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state == "T"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the HTTP API said."""

    status: int
    body: Any


class Fleet:
    """One `manage.py up` on a scratch folder; after `kill(Part.EVERYTHING)` it is started again on the same data."""

    def __init__(
        self, folder: Path, *, lease_s: float = 1.0, grace_s: float = 2.0, workers: int = 2, **env: str
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.lease_s = lease_s
        self.mark = make_mark("fleet")
        self._port = _find_free_port()
        self._workers = workers
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "LONGWATCH_"))},
            "MARK": self.mark,
            "LONGWATCH_LEASE_S": str(lease_s),
            "LONGWATCH_GRACE_S": str(grace_s),
            **env,
        }
        for inherited in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE"):
            self._env.pop(inherited, None)
        self._up: Leader | None = None
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._tokens: dict[str, str] = {}
        self.kills: dict[Part, int] = {}
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    # Its life

    def start(self) -> None:
        """Start everything and wait for the ready line."""
        argv = [sys.executable, str(ROOT / "manage.py"), "up", f"--data={self.data}", f"--port={self._port}"]
        argv += [f"--workers={self._workers}", "--no-demo", "--json"]
        ours, theirs = os.pipe()
        with (self.folder / "up.err").open("ab") as errors, open(ours, "rb") as output:
            # It ends with the test, however the test ends.
            self._up = spawn_leader(
                argv,
                cwd=self.folder,
                env=self._env,
                stdout=theirs,
                stderr=errors.fileno(),
                on_parent_death=signal.SIGTERM,
            )
            os.close(theirs)
            readable, _, _ = select.select([output], [], [], READY_WITHIN_S)
            said = output.readline() if readable else b""
        assert said, f"no ready line\n{self.tell()}"
        ready = json.loads(said)
        self.url: str = ready["url"]
        self.database_url: str = ready["database_url"]
        self.shop_url: str = ready["shop_url"]

    def close(self) -> None:
        """End whatever of it still lives."""
        self._forget_connection()
        if self._up is not None:
            self._kill_all()

    def stop(self) -> int | None:
        """Stop it in order, as ctrl-C does; its exit status."""
        self._forget_connection()
        assert self._up is not None
        self._up.signal(signal.SIGTERM)
        ended = reap_leader(self._up.pid, timeout_s=60)
        assert ended is not None, f"it does not stop\n{self.tell()}"
        self._up = None
        return ended.status

    def left(self) -> set[int]:
        """What of it still lives, its PostgreSQL included."""
        return find_marked(self.mark) | find_marked(f"{self.data}/pg")

    def tell(self, *, lines: int = 25) -> str:
        """The ends of its logs, for whoever reads a failure."""
        parts = [self.folder / "up.err", *sorted((self.data / "logs").glob("*.log"))]
        told = []
        for path in parts:
            if path.exists() and (text := path.read_text(errors="replace").strip()):
                told.append(f"--- {path.name}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(told)

    # Its parts

    def find(self, part: Part) -> list[Victim]:
        """Every living process of a part. Of a busy part: what is busy at this moment."""
        match part:
            case Part.BUSY_WORKER:
                return self._ask_for(_HOLDERS)
            case Part.TOOL:
                return self._ask_for(_PERFORMERS)
            case Part.DATABASE:
                return self._find_postmaster()
            case Part.MAIN:
                return [_victim(stat) for stat in self._below(Part.WATCH) if "--board-fd" in _command(stat.pid)]
            case Part.PUSHER | Part.MONITOR | Part.SENTINEL | Part.IDLE_WORKER:
                return self._read_board(_SEATS[part])
            case Part.EVERYTHING:
                raise ValueError("everything is no process")
            case _:
                return [_victim(stat) for stat in self._below_up() if _WORDS[part] in _command(stat.pid)]

    def kill(self, part: Part, *, dice: random.Random | None = None) -> bool:
        """kill -9 one process of a part; False when there is none now. Everything: and start it again."""
        if part is Part.EVERYTHING:
            self._kill_all()
            self.kills[part] = self.kills.get(part, 0) + 1
            self.start()
            return True
        victims = self.find(part)
        if not victims or not (dice or random).choice(victims).send(signal.SIGKILL):
            return False
        self.kills[part] = self.kills.get(part, 0) + 1
        return True

    def kill_when_there(self, part: Part, *, within_s: float, dice: random.Random | None = None) -> bool:
        """The same, waiting a little for one that is busy."""
        until = time.monotonic() + within_s
        while not self.kill(part, dice=dice):
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _kill_all(self) -> None:
        self._forget_connection()
        assert self._up is not None
        self._up.signal(signal.SIGKILL)
        reap_leader(self._up.pid)
        self._up = None

        def gone() -> bool:
            for pid in self.left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.left()

        wait_until(gone, what="nothing of the fleet is left", timeout_s=30)

    def _below_up(self) -> Iterator[ProcessStat]:
        assert self._up is not None
        return (stat for stat in read_processes() if stat.parent == self._up.pid and stat.state not in "ZX")

    def _below(self, part: Part) -> list[ProcessStat]:
        parents = {victim.pid for victim in self.find(part)}
        return [stat for stat in read_processes() if stat.parent in parents and stat.state not in "ZX"]

    def _read_board(self, role: Role) -> list[Victim]:
        for watch in self.find(Part.WATCH):
            for main in self.find(Part.MAIN):
                number = _command(main.pid).partition("--board-fd=")[2].split()[0]
                with suppress(OSError):
                    board = os.open(f"/proc/{watch.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
                    try:
                        seats = Board(board).read()
                    finally:
                        os.close(board)
                    taken = [Victim(pid=s.pid, start_ticks=s.start_ticks) for s in seats if s.role is role]
                    return [victim for victim in taken if victim.alive]
        return []

    def _find_postmaster(self) -> list[Victim]:
        marked = find_marked(f"{self.data}/pg")
        mine = {stat.pid: stat for stat in read_processes() if stat.pid in marked}
        # The one that is no other's child, and whose command line is the server's own.
        return [
            _victim(stat)
            for stat in mine.values()
            if stat.state not in "ZX" and stat.parent not in mine and "bin/postgres" in _command(stat.pid)
        ]

    def _ask_for(self, statement: str) -> list[Victim]:
        found = [Victim(pid=pid, start_ticks=ticks) for pid, ticks in self.look(statement)]
        return [victim for victim in found if victim.alive]

    # Its database, as seen from outside

    def look(self, statement: str, parameters: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        """Read with plain SQL; nothing while the database is away."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self.database_url, autocommit=True, connect_timeout=5)
            return self._connection.execute(statement, parameters).fetchall()
        except psycopg.OperationalError:
            self._forget_connection()
            return []

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Its surface

    def api(
        self, method: str, path: str, body: object = None, *, role: str = "approver", key: str = ""
    ) -> Answer | None:
        """One request to the HTTP API; None when nobody answered, and so nobody knows whether it was done."""
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/api/v1{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {self._token(role)}",
                "Content-Type": "application/json",
                **({"Idempotency-Key": key} if key else {}),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return Answer(status=answer.status, body=json.load(answer))
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code >= 500:
                    return None
                return Answer(status=refusal.code, body=json.load(refusal))
        except (OSError, ValueError):
            return None

    def api_until(self, method: str, path: str, body: object = None, **options: str) -> Answer:
        """The same, as often as it takes: only for what may be asked twice."""
        got: list[Answer] = []

        def asked() -> bool:
            if answer := self.api(method, path, body, **options):
                got.append(answer)
            return bool(got)

        wait_until(asked, what=f"{method} {path}", timeout_s=90, poll_s=0.3)
        return got[0]

    def manage(self, *arguments: str) -> str:
        """Run a command of `manage.py` against this installation; what it printed."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            cwd=self.folder,
            env=self._env | {"DATABASE_URL": self.database_url, "LONGWATCH_DATA": str(self.data)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"manage.py {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def shop(self, caller: str = "the test") -> ShopClient:
        """A client of its shop, whose address is new after everything was started again."""
        return ShopClient(url=self.shop_url, timeout_s=10.0, caller=caller)

    def model(self, method: str, path: str, body: object = None) -> Any:
        """Use a control route of its rehearsal model."""
        (model,) = self.find(Part.MODEL)
        port = _command(model.pid).partition("--port=")[2].split()[0]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def surely[T](self, work: Callable[[], T]) -> T:
        """Do something at the shop, which may be being started again."""

        got: list[T] = []

        def tried() -> bool:
            with suppress(ShopRefused, ShopUnknown):
                got.append(work())
            return bool(got)

        wait_until(tried, what="the shop answers", timeout_s=90, poll_s=0.2)
        return got[0]

    def _token(self, role: str) -> str:
        if role not in self._tokens:
            self._tokens[role] = json.loads(self.manage("createtoken", f"fleet {role}", "--role", role, "--json"))[
                "token"
            ]
        return self._tokens[role]


def _victim(stat: ProcessStat) -> Victim:
    return Victim(pid=stat.pid, start_ticks=stat.start_ticks)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
