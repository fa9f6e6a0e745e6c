"""What every test stands on: a real PostgreSQL of its own, and the product's commands against it."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection, connections

from console.databases import read_database_url, write_database_url
from console.postgres import EmbeddedServer

PROJECT = Path(__file__).resolve().parent.parent
_server = pytest.StashKey[EmbeddedServer]()


def pytest_configure(config: pytest.Config) -> None:
    """Start one throwaway server per session; the workers of pytest-xdist inherit its address."""
    if hasattr(config, "workerinput") or os.environ.get("DATABASE_URL"):
        return
    if config.option.collectonly or config.option.help or config.option.version:
        return
    # Its data are thrown away whole, so nothing is lost by not waiting for the disk: kill -9 does not need it.
    folder = Path(tempfile.mkdtemp(prefix="longwatch-tests-"))
    server = EmbeddedServer(folder, settings={"fsync": "off", "full_page_writes": "off"})
    config.stash[_server] = server.acquire(keep=True)
    os.environ["DATABASE_URL"] = server.url
    # pytest-django has loaded the settings before this file could be read.
    settings.DATABASES["default"].update(read_database_url(server.url, engine_process=False, process_name="pytest"))
    connections.databases["default"].update(settings.DATABASES["default"])


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(_server, None)
    if server is not None:
        server.destroy()


@pytest.fixture
def database_url(db: None) -> str:
    """The address of the test database, for processes of their own. They see only what is committed:
    ask for `transactional_db` too."""
    return write_database_url(connection.settings_dict)


@pytest.fixture
def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


type Manage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def manage(database_url: str, tmp_path: Path) -> Manage:
    """Run `manage.py` as a process of its own against the test database, with a data folder of its own."""

    def run(
        *arguments: str, env: dict[str, str] | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", str(PROJECT / "manage.py"), *arguments],
            cwd=PROJECT,
            env=os.environ | {"DATABASE_URL": database_url, "LONGWATCH_DATA": str(tmp_path / "data")} | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
