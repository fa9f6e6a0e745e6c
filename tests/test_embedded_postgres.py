"""One server per data folder: shared while anybody uses it, gone when nobody does, whole after kill -9."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from console.postgres import EmbeddedServer
from console.postgres_home import CannotHouseServer
from console.rotating import LARGEST
from tests.conftest import PROJECT, THROWAWAY, make_scratch_folder
from tests.waiting import wait_until

# Holds the server, says so, and goes on to the end of its input.
HOLDER = """
import sys
from pathlib import Path
from console.postgres import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1])).acquire(keep=sys.argv[2] == "up")
print(server.pid, flush=True)
sys.stdin.read()
"""

type StartHolder = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def made_once() -> Iterator[Path]:
    """A data folder with a stopped server in it, to copy: making a cluster is the slow part."""
    folder = make_scratch_folder()
    server = EmbeddedServer(folder / "data", settings=THROWAWAY).acquire(keep=True)
    server.release()
    yield folder / "data"
    server.destroy()
    folder.rmdir()


@pytest.fixture
def new_data_dir(scratch_folder: Path) -> Path:
    return scratch_folder / "data"


@pytest.fixture
def data_dir(new_data_dir: Path, made_once: Path) -> Path:
    subprocess.run(["cp", "-a", str(made_once), str(new_data_dir)], check=True)
    return new_data_dir


@pytest.fixture
def server(data_dir: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(data_dir, settings=THROWAWAY)
    yield server
    server.release()


@pytest.fixture
def start_holder(request: pytest.FixtureRequest) -> Iterator[StartHolder]:
    """Start a process that holds the server of the data folder; it ends when its input is closed."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str = "command", *, folder: Path | None = None) -> subprocess.Popen[str]:
        folder = folder or request.getfixturevalue("data_dir")
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", HOLDER, str(folder), kind],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_pid(holder: subprocess.Popen[str]) -> int:
    assert holder.stdout is not None
    return int(holder.stdout.readline())


def leave(holder: subprocess.Popen[str]) -> None:
    holder.communicate(timeout=30)
    assert holder.returncode == 0


def kill(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


def run_without_address(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run manage.py as on a machine where nothing is set but the data folder."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *arguments],
        cwd=PROJECT,
        env=environment | {"LONGWATCH_DATA": str(data_dir)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def query(server: EmbeddedServer, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def test_what_needs_no_database_starts_no_server(new_data_dir: Path) -> None:
    done = run_without_address(new_data_dir, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (new_data_dir / "pg").exists()
    assert not (new_data_dir / "pg.lock").exists()


def test_a_command_starts_the_server_for_as_long_as_it_runs(new_data_dir: Path) -> None:
    server = EmbeddedServer(new_data_dir)
    ask = "from django.db import connection as c; c.ensure_connection(); print(c.pg_version, c.connection.info.host)"
    done = run_without_address(new_data_dir, "shell", "--no-imports", "-c", ask)
    assert (done.returncode, done.stderr) == (0, "")
    version, host = done.stdout.split()
    assert int(version) >= 180000
    assert host == server.host
    assert server.pid is None, "the server outlived the only command that used it"


def test_the_last_one_to_leave_stops_it(server: EmbeddedServer, start_holder: StartHolder) -> None:
    first = start_holder()
    pid = read_pid(first)
    second = start_holder()
    assert read_pid(second) == pid
    leave(first)
    assert query(server, "SELECT 1") == [(1,)]
    leave(second)
    assert server.pid is None


def test_two_that_start_together_get_one_server(new_data_dir: Path, start_holder: StartHolder) -> None:
    holders = [start_holder(folder=new_data_dir) for _ in range(3)]
    assert len({read_pid(holder) for holder in holders}) == 1


def test_up_takes_over_a_server_that_a_command_started(server: EmbeddedServer, start_holder: StartHolder) -> None:
    command = start_holder()
    pid = read_pid(command)
    up = start_holder("up")
    assert read_pid(up) == pid
    leave(command)
    assert server.pid == pid
    leave(up)
    assert server.pid is None


def test_a_command_that_outlasts_up_stops_the_server_when_it_ends(
    server: EmbeddedServer, start_holder: StartHolder
) -> None:
    up = start_holder("up")
    read_pid(up)
    command = start_holder()
    read_pid(command)
    leave(up)
    assert query(server, "SELECT 1") == [(1,)]
    leave(command)
    assert server.pid is None


@pytest.mark.processes
def test_a_visitor_does_not_take_the_server_from_the_processes_of_a_killed_up(
    server: EmbeddedServer, start_holder: StartHolder
) -> None:
    up = start_holder("up")
    pid = read_pid(up)
    kill(up)
    leave(start_holder())
    assert server.pid == pid
    server.stop_if_unused()
    assert server.pid is None


def test_a_server_in_use_is_not_stopped_by_who_only_cleans_up(
    server: EmbeddedServer, start_holder: StartHolder
) -> None:
    up = start_holder("up")
    pid = read_pid(up)
    server.stop_if_unused()
    assert server.pid == pid
    leave(up)
    assert server.pid is None


@pytest.mark.processes
def test_everything_killed_at_once_loses_nothing_that_was_committed(data_dir: Path, start_holder: StartHolder) -> None:
    server = EmbeddedServer(data_dir)  # as in production: fsync on
    up = start_holder("up")
    pid = read_pid(up)
    query(server, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    # Its other processes go on for a moment, and this one for long: they still hold the shared memory.
    busy = psycopg.connect(server.url, autocommit=True)
    busy.execute("SELECT count(*) FROM kept")
    sleeper = psycopg.connect(server.url, autocommit=True)
    sleeper.pgconn.send_query(b"DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$")
    up.kill()
    os.kill(pid, signal.SIGKILL)
    up.communicate()

    again = start_holder("up")
    assert read_pid(again) != pid
    assert query(server, "SELECT count(*) FROM kept") == [(1000,)]
    for connection in (busy, sleeper):
        connection.close()
    leave(again)
    assert server.pid is None


@pytest.mark.processes
def test_a_killed_server_comes_back_at_the_same_address(server: EmbeddedServer) -> None:
    server.acquire(keep=True)
    url, pid = server.url, server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.pid is None, what="the end of the killed server")
    server.ensure_running()
    assert server.url == url
    assert query(server, "SELECT 1") == [(1,)]
    server.release()
    assert server.pid is None


@pytest.mark.processes
def test_a_pid_file_that_names_a_stranger_is_not_believed(server: EmbeddedServer) -> None:
    server.acquire(keep=True)
    pid = server.pid
    assert pid is not None
    file = server.home.folder / "postmaster.pid"
    lines = file.read_text().splitlines()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.pid is None, what="the end of the killed server")
    # After a restart of the machine the number may be anybody's: here it is this test's.
    file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    server.ensure_running()
    assert query(server, "SELECT 1") == [(1,)]


@pytest.mark.processes
def test_a_start_that_was_killed_half_way_is_begun_again(new_data_dir: Path) -> None:
    server = EmbeddedServer(new_data_dir, settings=THROWAWAY)
    draft = server.home.folder.with_name("pg.new")
    server.home.make_folder(draft)
    (draft / "PG_VERSION").write_text("18\n")
    server.acquire()
    assert query(server, "SELECT 1") == [(1,)]
    assert not draft.exists()


def test_it_listens_on_its_socket_only_and_waits_for_the_disk(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir).acquire()
    wanted = {
        "listen_addresses": "",
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "TimeZone": "UTC",
        "server_encoding": "UTF8",
    }
    names = ", ".join(f"current_setting('{name}')" for name in wanted)
    assert query(server, f"SELECT {names}") == [tuple(wanted.values())]
    assert server.home.folder.stat().st_mode & 0o077 == 0
    assert server.home.socket_folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "name", ["long" * 40, "with, comma", "with space 'and\" $quote"], ids=["long", "comma", "quotes"]
)
def test_any_folder_name_works(scratch_folder: Path, name: str) -> None:
    server = EmbeddedServer(scratch_folder / name / "data", settings=THROWAWAY).acquire()
    assert query(server, "SELECT 1") == [(1,)]
    assert len(os.fsencode(server.home.socket_folder / ".s.PGSQL.5432")) <= 107
    server.destroy()
    assert not server.home.socket_folder.exists()


def test_the_data_are_where_their_user_can_reach_them(tmp_path: Path) -> None:
    """Root's PostgreSQL runs as another user, who cannot enter every folder (pytest's own belong to root alone)."""
    tmp_path.chmod(0o700)
    server = EmbeddedServer(tmp_path / "data", settings=THROWAWAY)
    home = server.home
    try:
        server.acquire()
        assert home.uid != 0
        assert home.folder.stat().st_uid == home.uid
        assert query(server, "SELECT 1") == [(1,)]
        assert tmp_path.stat().st_mode & 0o077 == 0, "a folder of ours was opened to everyone"
        # The second process finds the same place.
        assert EmbeddedServer(tmp_path / "data").home == home
    finally:
        server.destroy()
    assert not home.folder.exists()


def test_a_folder_with_something_else_in_it_is_left_alone(new_data_dir: Path) -> None:
    server = EmbeddedServer(new_data_dir, settings=THROWAWAY)
    server.home.make_folder(server.home.folder)
    (server.home.folder / "holiday.jpg").touch()
    with pytest.raises(CannotHouseServer, match=r"not a PostgreSQL cluster.*DATABASE_URL"):
        server.acquire()
    assert (server.home.folder / "holiday.jpg").exists()


def test_its_log_is_bounded_while_it_runs(server: EmbeddedServer) -> None:
    server.acquire(keep=True)
    pid, log = server.pid, server.home.log
    os.truncate(log, LARGEST + 1)
    server.ensure_running()
    assert server.pid == pid
    with pytest.raises(psycopg.errors.DivisionByZero):
        query(server, "SELECT 1 / 0")
    wait_until(lambda: b"ERROR:  division by zero" in log.read_bytes(), what="the error in its log")
    assert b"\0" not in log.read_bytes()
    assert log.with_name("log.1").stat().st_size > LARGEST


def test_a_server_that_does_not_start_says_what_its_log_says(data_dir: Path) -> None:
    server = EmbeddedServer(data_dir, settings={"shared_buffers": "lots"})
    with pytest.raises(CannotHouseServer, match="invalid value for parameter"):
        server.acquire()


def test_a_fork_does_not_let_go_for_its_parent(server: EmbeddedServer) -> None:
    server.acquire(keep=True)
    child = subprocess.run([sys.executable, "-c", "pass"], preexec_fn=server.release, check=True, timeout=30)
    assert child.returncode == 0
    assert query(server, "SELECT 1") == [(1,)]
    with suppress(ProcessLookupError):
        server.release()
    assert server.pid is None
