"""A real web process, as `manage.py up` starts one, on the test database."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from console.databases import write_database_url
from tests.conftest import PROJECT
from tests.waiting import wait_until

# Tests that run beside this one have web processes of their own, on databases of the same server.
IS_OURS = "datname = current_database() AND application_name LIKE 'longwatch web%%'"
IS_LISTENER = f"{IS_OURS} AND application_name LIKE '%% live'"


class Frame(NamedTuple):
    event: str
    data: Any
    id: int


@dataclass
class WebProcess:
    """uvicorn on a socket that outlives it: who calls while it is away waits, as with `up`."""

    database_url: str
    folder: Path
    settings_module: str = "tests.live_site.settings"
    process: subprocess.Popen[bytes] | None = None
    listener: socket.socket = field(default_factory=socket.socket)

    def __post_init__(self) -> None:
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(512)

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "web.log"

    def start(self) -> None:
        descriptor = self.listener.fileno()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "console.serve", str(descriptor)],
                cwd=PROJECT,
                env=os.environ
                | {
                    "DATABASE_URL": self.database_url,
                    "DJANGO_SETTINGS_MODULE": self.settings_module,
                    "LONGWATCH_DATA": str(self.folder / "data"),
                    "LONGWATCH_SECRET_KEY": settings.SECRET_KEY,  # sessions of the test are sessions of the process
                    "LONGWATCH_URL": self.url,
                    "LONGWATCH_PROCESS": "web",
                },
                pass_fds=[descriptor],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, what="the web process answers", timeout_s=60.0)

    def stop(self) -> float:
        """Ask it to stop; how long it took, in seconds."""
        assert self.process is not None
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(timeout=30.0)
        return time.monotonic() - began

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.kill()
        self.listener.close()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20.0)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        with suppress(OSError):
            return self.get("/api/v1/health/live")[0] == 200
        return False


def end_listener() -> None:
    """End the connection with which the web process of this test's database hears."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {IS_LISTENER}")


def session_cookie(user: User) -> str:
    """The value of the session cookie of somebody who has just signed in."""
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


class Stream:
    """One open `/live`, read frame by frame."""

    def __init__(self, web: WebProcess, cookie: str | None = None, *, since: int | None = None) -> None:
        self._connection = HTTPConnection("127.0.0.1", web.port, timeout=20.0)
        headers = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"} if cookie else {}
        self._connection.request("GET", "/live" if since is None else f"/live?since={since}", headers=headers)
        self.response: HTTPResponse = self._connection.getresponse()
        self.status = self.response.status

    def frames(self) -> Iterator[Frame]:
        """Every frame as it comes, until the stream ends. Raises: TimeoutError after 20 s of silence."""
        fields: dict[str, str] = {}
        for raw in self.response:
            line = raw.decode().rstrip("\n")
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                yield Frame(event=fields["event"], data=json.loads(fields["data"]), id=int(fields["id"]))
                fields = {}

    def next(self, *events: str) -> Frame:
        """The next frame; with names, the next of those."""
        for frame in self.frames():
            if not events or frame.event in events:
                return frame
        raise AssertionError(f"the stream ended before {events}")

    def next_about(self, topic: str) -> Frame:
        """The next frame that tells of this topic; a new stream may first be told what it knows."""
        for frame in self.frames():
            if frame.event == "changed" and topic in frame.data:
                return frame
        raise AssertionError(f"the stream ended before {topic}")

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_shared: list[WebProcess] = []  # a fixture that is imported into two modules is made twice


@pytest.fixture(scope="session")
def web_process(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One for all tests, also those of other modules: whoever harms it leaves it to the next to make it whole again."""
    if not _shared:
        _shared.append(WebProcess(write_database_url(connection.settings_dict), tmp_path_factory.mktemp("web")))
    yield _shared[0]
    _shared[0].close()


@pytest.fixture
def web(web_process: WebProcess, transactional_db: None) -> Iterator[WebProcess]:
    """The web process, running, on data that the test has committed."""
    if not web_process.is_running():
        web_process.start()
    yield web_process
    if web_process.is_running():
        web_process.thaw()
