"""`up` starts everything on this machine, keeps it running, and leaves nothing behind, however it ends."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console.rotating import LARGEST
from runs.supervise import read_processes
from tests.process_tools import ROOT, find_marked, make_mark
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


class Up:
    """One `manage.py up` on a data folder of the test."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.mark = make_mark("up")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}
        environment.pop("DATABASE_URL", None)
        self.errors = (data.parent / "up.err").open("ab")
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "manage.py"),
                "up",
                "--port=0",
                f"--data={data}",
                "--json",
                "--no-demo",
                *options,
            ],
            cwd=data.parent,
            env={**environment, "MARK": self.mark, "LONGWATCH_GRACE_S": "3"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def read_ready_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 150)
        said = self.process.stdout.readline() if readable else b""
        assert said, f"no ready line\n{(self.data.parent / 'up.err').read_text()[-3000:]}"
        answer = json.loads(said)
        assert isinstance(answer, dict)
        return answer

    def find(self, word: str) -> int:
        """Return the child whose command line holds the word, 0 if there is none."""
        for stat in read_processes():
            if stat.parent == self.process.pid and stat.state not in "ZX":
                with suppress(OSError):
                    command = Path(f"/proc/{stat.pid}/cmdline").read_text().replace("\0", " ")
                    if word in command:
                        return stat.pid
        return 0

    def left(self) -> set[int]:
        """What of it still lives, its PostgreSQL included."""
        return find_marked(self.mark) | find_marked(f"{self.data}/pg")

    def left_beside_the_database(self) -> set[int]:
        return find_marked(self.mark) - find_marked(f"{self.data}/pg")

    def stop(self, number: int = signal.SIGTERM) -> float:
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        return time.monotonic() - began

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def ups(scratch_folder: Path) -> Iterator[list[Up]]:
    made: list[Up] = []
    yield made
    for up in made:
        up.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return bool(answer.status)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def count_operators(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM auth_user WHERE is_superuser AND password NOT LIKE '!%'"
        ).fetchone()
        assert row is not None
        return int(row[0])


def database_answers(database_url: str) -> bool:
    try:
        return count_operators(database_url) == 1
    except psycopg.OperationalError:
        return False


def test_it_starts_says_where_and_stops_with_nothing_left(ups: list[Up], scratch_folder: Path) -> None:
    ups.append(up := Up(scratch_folder / "data"))
    ready = up.read_ready_line()
    assert {"url", "pid", "database_url", "operator", "password", "shop_url"} <= set(ready)
    assert (ready["pid"], ready["operator"]) == (up.process.pid, "operator")
    assert len(ready["password"]) >= 12
    assert answers(ready["url"])
    assert answers(ready["shop_url"])
    assert ready["sign_in_url"].startswith(f"{ready['url']}/sign-in?token=")
    assert count_operators(ready["database_url"]) == 1
    second = run_up(f"--data={scratch_folder}/data", "--port=0")
    assert second.returncode == 1
    assert f"pid {up.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert up.stop() < 15
    assert up.process.returncode == 0
    assert not up.left()

    # On the same data, by ctrl-C: the password was shown once, the link is new.
    ups.append(again := Up(scratch_folder / "data"))
    ready_again = again.read_ready_line()
    assert ready_again["password"] is None
    assert ready_again["sign_in_url"] != ready["sign_in_url"]
    assert count_operators(ready_again["database_url"]) == 1
    assert again.stop(signal.SIGINT) < 15
    assert again.process.returncode == 0
    assert not again.left()


def test_every_process_that_dies_is_started_again(ups: list[Up], scratch_folder: Path) -> None:
    ups.append(up := Up(scratch_folder / "data"))
    ready = up.read_ready_line()
    # Their logs are rotated meanwhile, and what starts again goes on in the same file.
    logs = [up.data / "logs" / f"{name}.log" for name in ("web", "cluster", "gateway", "shop", "model", "keeper")]
    for log in logs:
        os.truncate(log, LARGEST + 1)
    wait_until(lambda: not any(log.stat().st_size > LARGEST for log in logs), what="the logs are rotated")
    assert all(log.with_name(f"{log.name}.1").stat().st_size > LARGEST for log in logs)
    programs = ["console.serve", "manage.py cluster", "manage.py modelgateway", "examples.shop", "examples.model"]
    for program in [*programs, "console.keeper", "bin/postgres"]:
        died = kill_and_wait_for_next(up, program)
        if program == "manage.py modelgateway":
            # Its end is on record, so what it had in hand need not wait until it could not act any more.
            wait_until(lambda pid=died: is_recorded(ready["database_url"], pid), what="its end on record")  # type: ignore[misc]
    # Who calls while the web server is away waits a moment and is served.
    os.kill(wait_until(lambda: up.find("console.serve"), what="the web server"), signal.SIGKILL)
    with urllib.request.urlopen(f"{ready['url']}/api/v1/health/live", timeout=120) as answer:  # noqa: S310
        assert answer.status == 200
    wait_until(lambda: answers(ready["url"]) and answers(ready["shop_url"]), what="both servers answer", timeout_s=60)
    wait_until(lambda: database_answers(ready["database_url"]), what="the database answers", timeout_s=60)
    assert (up.data / "logs" / "cluster.log").read_text()[:2] == "20"
    assert up.stop() < 15
    assert not up.left()


def is_recorded(database_url: str, pid: int) -> bool:
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT 1 FROM runs_process WHERE pid = %s AND exit_signal = 9", [pid]).fetchone()
        return found is not None


def kill_and_wait_for_next(up: Up, program: str) -> int:
    """Kill a program, wait until another one has taken its place, and return which was killed."""
    first = wait_until(lambda: up.find(program), what=program)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: up.find(program) not in (0, first), timeout_s=60, what=f"{program} again")
    return first


def test_nothing_is_left_when_it_is_killed_and_it_starts_again_on_the_same_data(
    ups: list[Up], scratch_folder: Path
) -> None:
    ups.append(up := Up(scratch_folder / "data"))
    up.read_ready_line()
    up.process.kill()
    up.process.wait()
    # At once, while what is left of the first still goes away.
    ups.append(again := Up(scratch_folder / "data"))
    ready = again.read_ready_line()
    assert ready["password"] is None
    # The second takes the database over where it still ran.
    wait_until(lambda: not up.left_beside_the_database(), timeout_s=60, what="nothing of the first is left")
    again.process.kill()
    again.process.wait()
    wait_until(lambda: not again.left(), timeout_s=60, what="nothing is left")

    # And after everything was killed at once, its keeper and its database included.
    ups.append(third := Up(scratch_folder / "data"))
    third.read_ready_line()
    for pid in third.left():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    third.process.wait()
    prepared = run_up(f"--data={scratch_folder}/data", "--prepare-only", "--json")
    assert json.loads(prepared.stdout)["password"] is None


def test_a_port_that_is_taken_is_named(scratch_folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = run_up(f"--data={scratch_folder}/data", f"--port={port}")
    assert refused.returncode == 1
    assert f"Port {port} cannot be used" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_preparing_alone_makes_the_operator_and_starts_nothing(scratch_folder: Path) -> None:
    first = run_up(f"--data={scratch_folder}/data", "--prepare-only", "--json")
    assert first.returncode == 0, first.stderr
    answer = json.loads(first.stdout)
    assert answer["operator"] == "operator"
    assert answer["password"]
    assert not find_marked(f"{scratch_folder}/data/pg")
    second = run_up(f"--data={scratch_folder}/data", "--prepare-only", "--json")
    assert json.loads(second.stdout)["password"] is None
    told = run_up(f"--data={scratch_folder}/data", "--prepare-only")
    assert "Nothing was started" in told.stdout
    assert "is ready at" not in told.stdout


@pytest.mark.parametrize("option", ["--workers=0", "--port=70000", "--nonsense"])
def test_wrong_usage_ends_with_status_2(scratch_folder: Path, option: str) -> None:
    assert run_up(f"--data={scratch_folder}/data", option).returncode == 2


def run_up(*options: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "up", *options],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
