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
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings

from console.env import process_environment
from console.soak.marks import find_marked, make_mark
from console.soak.parts import HOLDERS, PERFORMERS, SEATS, WORDS, Part, Victim, read_command, victim_of
from console.soak.waiting import wait_until
from runs.board import Activity, Board, Role
from runs.examples.shop.client import ShopClient, ShopRefused, ShopUnknown
from runs.supervise import Leader, ProcessStat, read_processes, reap_leader, spawn_leader

READY_WITHIN_S = 300.0  # on a machine that does much else besides


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
        self.lease_s, self.grace_s = lease_s, grace_s
        self.mark = make_mark("fleet")
        self._port = _find_free_port()
        self._workers = workers
        self._env = {
            **{
                name: value
                for name, value in process_environment.variables.items()
                if not name.startswith(("ANTHROPIC_", "LONGWATCH_"))
            },
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
        self._asking = threading.Lock()
        self.kills: dict[Part, int] = {}
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    # Its life

    def start(self) -> None:
        """Start everything and wait for the ready line."""
        argv = [
            sys.executable,
            str(settings.BASE_DIR / "manage.py"),
            "up",
            f"--data={self.data}",
            f"--port={self._port}",
        ]
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
                return self._ask_for(HOLDERS)
            case Part.TOOL:
                return self._ask_for(PERFORMERS)
            case Part.DATABASE:
                return self._find_postmaster()
            case Part.MAIN:
                return [victim_of(stat) for stat in self._below(Part.WATCH) if "--board-fd" in read_command(stat.pid)]
            case Part.PUSHER | Part.MONITOR | Part.SENTINEL | Part.IDLE_WORKER:
                return self._read_board(SEATS[part])
            case Part.EVERYTHING:
                raise ValueError("everything is no process")
            case _:
                return [victim_of(stat) for stat in self._below_up() if WORDS[part] in read_command(stat.pid)]

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

    def find_resting_workers(self) -> list[Victim]:
        """The workers that have nothing in hand just now."""
        return self._read_board(Role.WORKER, Activity.WAITING)

    def _read_board(self, role: Role, activity: Activity | None = None) -> list[Victim]:
        for watch in self.find(Part.WATCH):
            for main in self.find(Part.MAIN):
                number = read_command(main.pid).partition("--board-fd=")[2].split()[0]
                with suppress(OSError):
                    board = os.open(f"/proc/{watch.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
                    try:
                        seats = Board(board).read()
                    finally:
                        os.close(board)
                    taken = [
                        Victim(pid=s.pid, start_ticks=s.start_ticks)
                        for s in seats
                        if s.role is role and activity in (None, s.activity)
                    ]
                    return [victim for victim in taken if victim.alive]
        return []

    def _find_postmaster(self) -> list[Victim]:
        marked = find_marked(f"{self.data}/pg")
        mine = {stat.pid: stat for stat in read_processes() if stat.pid in marked}
        # The one that is no other's child, and whose command line is the server's own.
        return [
            victim_of(stat)
            for stat in mine.values()
            if stat.state not in "ZX" and stat.parent not in mine and "bin/postgres" in read_command(stat.pid)
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
            [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"manage.py {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def environment(self, **more: str) -> dict[str, str]:
        """What a process that joins this installation is given."""
        found = {
            "DATABASE_URL": self.database_url,
            "LONGWATCH_DATA": str(self.data),
            "LONGWATCH_SHOP_URL": self.shop_url,
        }
        return self._env | found | more

    def shop(self, caller: str = "the test") -> ShopClient:
        """A client of its shop, whose address is new after everything was started again."""
        return ShopClient(url=self.shop_url, timeout_s=10.0, caller=caller)

    def model(self, method: str, path: str, body: object = None) -> Any:
        """Use a control route of its rehearsal model."""
        (model,) = self.find(Part.MODEL)
        port = read_command(model.pid).partition("--port=")[2].split()[0]
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
        with self._asking:  # several threads ask; one makes it
            if role not in self._tokens:
                made = self.manage("createtoken", f"fleet {role}", "--role", role, "--json")
                self._tokens[role] = json.loads(made)["token"]
            return self._tokens[role]


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
