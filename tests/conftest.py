"""What every test stands on: a real PostgreSQL of its own, and the product's commands against it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from xdist.scheduler import LoadScopeScheduling

from console.databases import read_database_url, write_database_url
from console.postgres import EmbeddedServer

PROJECT = Path(__file__).resolve().parent.parent
SCRATCH = "longwatch-tests-"
LANES = ("crash", "processes", "browser")

# Its data are thrown away whole, so nothing is gained by waiting for the disk: kill -9 of a process, even of
# the server, loses nothing that the operating system was given.
THROWAWAY = {"fsync": "off", "full_page_writes": "off"}

# What migrations put there stays; everything else that a test committed goes.
KEPT_TABLES = {"auth_permission", "django_content_type"}

_server = pytest.StashKey[EmbeddedServer]()

type Manage = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full-matrix", action="store_true", help="every crash point, not the quick choice of them")


def pytest_configure(config: pytest.Config) -> None:
    """Start one throwaway server per session; the workers of pytest-xdist inherit its address."""
    if hasattr(config, "workerinput") or os.environ.get("DATABASE_URL"):
        return
    if config.option.collectonly or config.option.help or config.option.version:
        return
    _remove_leftovers()
    server = EmbeddedServer(make_scratch_folder(), settings=THROWAWAY)
    config.stash[_server] = server.acquire(keep=True)
    os.environ["DATABASE_URL"] = server.url
    # pytest-django has loaded the settings before this file could be read.
    connections.databases["default"].update(read_database_url(server.url, engine_process=False, process_name="pytest"))


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(_server, None)
    if server is not None:
        del os.environ["DATABASE_URL"]
        server.destroy()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the long ones begin first."""
    items.sort(key=lambda item: next((i for i, lane in enumerate(LANES) if item.get_closest_marker(lane)), len(LANES)))


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Give all files of a lane to one worker; every other test goes to whichever is free.

    Its tests keep a machine busy and use one fleet, so they run one after another. Groups by marker (`xdist_group`) would
    do, but pytest-xdist 3.8 adds them to an attribute that pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        return find_lane(self.config.rootpath / nodeid.partition("::")[0]) or nodeid


@cache
def find_lane(file: Path) -> str | None:
    """The lane of all tests of a file; None where each is given out by itself."""
    if file.parent.name == "browser":
        return "browser"
    text = file.read_text()
    return next((lane for lane in LANES if f"pytest.mark.{lane}" in text), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling | None:
    return LaneScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(autouse=True, scope="session")
def _quick_emptying() -> Iterator[None]:
    """Empty the tables in which a test has left rows, instead of truncating all and making every permission anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _case: _empty_tables())
        yield


def _empty_tables() -> None:
    tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - KEPT_TABLES)
    with transaction.atomic(), connection.cursor() as cursor:
        # Append-only tables refuse a deletion, and the order of foreign keys is nobody's concern here.
        cursor.execute("SET LOCAL session_replication_role = replica")
        # Whoever still writes is waited for, as a truncation would.
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(" UNION ALL ".join(f"(SELECT '{table}' FROM {table} LIMIT 1)" for table in tables))
        for (table,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {table}")


def make_scratch_folder() -> Path:
    """Return a new folder that the server's user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
    folder.chmod(0o755)
    return folder


def _remove_leftovers() -> None:
    """End the servers of sessions that were killed: nobody holds their lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        server = EmbeddedServer(folder)
        with suppress(FileNotFoundError):  # another session is removing it right now
            # A folder without the file is one that another session is making right now.
            if folder.stat().st_uid == os.geteuid() and (folder / "pg.users").exists() and not server.is_used():
                server.destroy()


@pytest.fixture
def scratch_folder() -> Iterator[Path]:
    """A folder for data of its own, embedded servers included; `tmp_path` is closed to the server's user."""
    folder = make_scratch_folder()
    yield folder
    for users in list(folder.rglob("pg.users")):
        EmbeddedServer(users.parent).destroy()
    shutil.rmtree(folder)


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """The address of the test database, for processes of their own: they see what the test has committed."""
    return write_database_url(connection.settings_dict)


@pytest.fixture
def full_matrix(request: pytest.FixtureRequest) -> bool:
    """Whether every crash point was asked for."""
    return bool(request.config.getoption("--full-matrix"))


@pytest.fixture
def manage(database_url: str, tmp_path: Path) -> Manage:
    """Run `manage.py` as a process of its own against the test database, with a data folder of its own."""

    def run(
        *arguments: str,
        env: dict[str, str] | None = None,
        text: str = "",
        timeout: float = 60.0,
        program: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, sys.executable, "-W", "error", str(PROJECT / "manage.py"), *arguments],
            cwd=PROJECT,
            env=os.environ | {"DATABASE_URL": database_url, "LONGWATCH_DATA": str(tmp_path / "data")} | (env or {}),
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
