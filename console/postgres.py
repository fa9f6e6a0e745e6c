"""The embedded PostgreSQL: one server per data folder, shared by every process that names the folder.

Each process that uses the server holds a shared lock on `pg.users`; the kernel drops it however the
process ends, so kill -9 leaves no count behind. The last one to leave stops the server:

    up                    takes it over (`keep=True`) and stops it when it ends
    any other command     attaches, or starts it for as long as somebody uses it
    a process of `up`     gets DATABASE_URL and knows nothing of this

Where `up` itself was killed, its processes may still be at work, so a command that only attached leaves
the server running. The next `up` takes it over.
"""

import atexit
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from console.databases import EMBEDDED_NAME, EMBEDDED_USER, write_database_url
from console.postgres_home import SOCKET_NAME, CannotHouseServer, Home, find_home
from console.rotating import is_large, rotate

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # recovery after a crash may have much to replay
STOP_TIMEOUT_S = 30.0

SERVER_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class ServerDidNotStart(CannotHouseServer):
    """PostgreSQL began and ended again, or never became ready."""

    def __init__(self, *, log: Path, tail: str) -> None:
        super().__init__(
            problem=f"it did not become ready. The end of {log}: {tail or '(empty)'}",
            remedy="Mend what the log names, then start again.",
        )


@dataclass(frozen=True, kw_only=True)
class _Postmaster:
    """What postmaster.pid says."""

    pid: int
    ready: bool


class EmbeddedServer:
    """A hold on the server of one data folder: `acquire` it, use `url`, `release` it."""

    def __init__(self, data_dir: Path, *, settings: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._settings = SERVER_SETTINGS | (settings or {})
        self._keep = False
        self._users_fd: int | None = None
        self._owner_pid = 0
        self._home: Home | None = None

    @property
    def home(self) -> Home:
        if self._home is None:
            self._home = find_home(self.data_dir)
        return self._home

    @property
    def host(self) -> str:
        """The folder of the server's socket, which is what libpq calls its host."""
        return str(self.home.socket_folder)

    @property
    def url(self) -> str:
        """The address for DATABASE_URL. It stays the same when the server is started again."""
        return write_database_url(
            {"NAME": EMBEDDED_NAME, "USER": EMBEDDED_USER, "PASSWORD": "", "HOST": self.host, "PORT": ""}
        )

    @property
    def pid(self) -> int | None:
        """The running server's process id."""
        found = _read_postmaster(self.home)
        return found.pid if found else None

    def acquire(self, *, keep: bool = False) -> "EmbeddedServer":
        """Attach to the running server or start it, and hold it until `release` or the end of this process.

        Raises:
            CannotHouseServer: it cannot be set up or does not start.
        """
        with self._lock():
            if self._users_fd is None or self._owner_pid != os.getpid():
                self._users_fd = os.open(self.data_dir / "pg.users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._owner_pid = os.getpid()
                atexit.register(self.release)
            fcntl.flock(self._users_fd, fcntl.LOCK_SH)
            started = self._start_unless_running()
            self._keep = self._keep or keep
            if self._keep:
                self._write_mark("kept")
            elif started:
                self._write_mark("passing")
        return self

    def ensure_running(self) -> None:
        """Start the server again where it died, and bound its log. Cheap enough to call before every connection."""
        if self._users_fd is None or self._owner_pid != os.getpid():
            self.acquire()
            return
        found = _read_postmaster(self.home)
        if found is None or not found.ready or is_large(self.home.log):
            with self._lock():
                self._start_unless_running()

    def release(self) -> None:
        """Let go; the last one to leave stops the server."""
        if self._users_fd is None:
            return
        fd, self._users_fd = self._users_fd, None
        if self._owner_pid != os.getpid():  # a fork: the hold is its parent's
            return
        atexit.unregister(self.release)
        try:
            if not self.data_dir.exists():  # a throwaway server, destroyed by another
                return
            with self._lock():
                if not _is_last(fd):
                    if self._keep:
                        self._write_mark("passing")
                elif self._keep or self._read_mark() == "passing":
                    self._stop()
        finally:
            os.close(fd)

    def is_used(self) -> bool:
        """Say whether anyone holds the server, this process included."""
        with self._lock():
            return self._is_held()

    def stop_if_unused(self) -> None:
        """Stop the server that nobody holds: for whoever outlives a killed `up`."""
        with self._lock():
            if not self._is_held():
                self._stop()

    def destroy(self) -> None:
        """Stop the server and remove its data. For throwaway servers."""
        home = self.home
        with self._lock():
            self._stop()
        self._keep = False
        self.release()
        for folder in {home.folder, home.socket_folder, _draft_of(home)}:
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def _is_held(self) -> bool:
        fd = os.open(self.data_dir / "pg.users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return not _is_last(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Start, stop, take and leave one at a time, over all processes."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.data_dir / "pg.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotHouseServer(
                problem=f"{error.filename} cannot be used ({error.strerror})",
                remedy="Run as the user whose data they are, or set LONGWATCH_DATA to a folder of your own.",
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write_mark(self, mark: str) -> None:
        (self.data_dir / "pg.users").write_text(mark, encoding="ascii")

    def _read_mark(self) -> str:
        return (self.data_dir / "pg.users").read_text(encoding="ascii")

    def _start_unless_running(self) -> bool:
        home = self.home
        # Not by the server's own settings: they take a process more, and bound no size.
        rotate(home.log)
        found = _read_postmaster(home)
        if found is not None:
            self._wait_until_ready()
            return False
        if not (home.folder / "PG_VERSION").exists():
            self._init_cluster()
        _clear_remains(home)
        if home.socket_folder != home.folder:
            home.make_folder(home.socket_folder)
        # The shell goes away at once, so the server is nobody's child and no signal of a terminal reaches it.
        settings = self._settings | {"cluster_name": home.cluster_name, "unix_socket_directories": self.host}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        program = str(home.programs / "postgres")
        script = '"$@" </dev/null >>"$0" 2>&1 &'
        home.run(["/bin/sh", "-c", script, str(home.log), program, "-D", str(home.folder), *flags])
        self._wait_until_ready()
        return True

    def _init_cluster(self) -> None:
        """Make a new cluster beside its place and move it there whole: a crash in between leaves no half of one."""
        home = self.home
        draft = _draft_of(home)
        if draft.exists():
            shutil.rmtree(draft)
        if home.folder.exists() and any(home.folder.iterdir()):
            raise CannotHouseServer(
                problem=f"{home.folder} holds something that is not a PostgreSQL cluster",
                remedy="Move it away, or set LONGWATCH_DATA to another folder.",
            )
        home.make_folder(draft)
        initdb = [
            str(home.programs / "initdb"),
            f"--pgdata={draft}",
            f"--username={EMBEDDED_USER}",
            "--auth=trust",  # whoever may enter the socket's folder may connect, and that is its user and root
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-instructions",
            *(["--no-sync"] if self._settings["fsync"] == "off" else []),
        ]
        single = [str(home.programs / "postgres"), "--single", "-D", str(draft), "postgres"]
        for arguments, text in ((initdb, ""), (single, f"CREATE DATABASE {EMBEDDED_NAME};\n")):
            done = home.run(arguments, text=text)
            if done.returncode != 0:
                raise CannotHouseServer(
                    problem=f"{Path(arguments[0]).name} failed: {done.stderr.strip()[-1000:]}",
                    remedy="Mend what it names, then start again.",
                )
        if home.folder.exists():
            home.folder.rmdir()
        draft.rename(home.folder)

    def _wait_until_ready(self) -> None:
        home = self.home
        looked_at, gone = time.monotonic(), 0
        give_up_at = looked_at + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            found = _read_postmaster(home)
            if found is not None and found.ready:
                return
            if time.monotonic() - looked_at > 0.5:
                looked_at = time.monotonic()
                gone = 0 if _find_processes(home) else gone + 1
            # Twice, because the shell may not have come to start it.
            if gone > 1:
                break
            time.sleep(0.01)
        tail = home.log.read_text(errors="replace")[-1500:].strip() if home.log.exists() else ""
        raise ServerDidNotStart(log=home.log, tail=tail)

    def _stop(self) -> None:
        home = self.home
        found = _read_postmaster(home)
        if found is None:
            return
        # Fast, then immediate: see "Shutting Down the Server" in PostgreSQL's manual.
        for number, patience_s in ((signal.SIGINT, STOP_TIMEOUT_S), (signal.SIGQUIT, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, number)
            if _wait_for(lambda: not _find_processes(home), patience_s):
                return
        _end_processes(home)


def _draft_of(home: Home) -> Path:
    return home.folder.with_name(f"{home.folder.name}.new")


def _is_last(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_postmaster(home: Home) -> _Postmaster | None:
    """Return the living server, going by its own process and not by a number that another may have by now."""
    try:
        lines = (home.folder / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        pid = int(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    if not _belongs_to(home, pid):
        return None
    # Line 8 of the file is the postmaster's state.
    return _Postmaster(pid=pid, ready=len(lines) >= 8 and lines[7].strip() == "ready")


def _find_processes(home: Home) -> Sequence[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _belongs_to(home, int(entry.name))
    ]


def _belongs_to(home: Home, pid: int) -> bool:
    # The command line, because /proc/PID/cwd of another user's process is closed even to a container's root.
    # A dead process that nobody reaped has none, so it does not count.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    name = home.cluster_name.encode()
    if words[0].startswith(b"postgres: "):
        return words[0].startswith(b"postgres: " + name + b": ")
    return words[0].endswith(b"/postgres") and b"cluster_name=" + name in words


def _clear_remains(home: Home) -> None:
    """End what a killed server left behind, and its lock files: they name a stranger by now, or one dead but unreaped,
    and PostgreSQL would believe in both."""
    _end_processes(home)
    for path in (home.folder / "postmaster.pid", home.socket_folder / f"{SOCKET_NAME}.lock"):
        path.unlink(missing_ok=True)


def _end_processes(home: Home) -> None:
    for pid in _find_processes(home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not _wait_for(lambda: not _find_processes(home), 10.0):
        raise CannotHouseServer(
            problem=f"processes of a server on {home.folder} do not end",
            remedy="End them by hand (their names begin with postgres).",
        )


def _wait_for(condition: Callable[[], bool], patience_s: float) -> bool:
    give_up_at = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.02)
    return True


_of_this_process: dict[Path, EmbeddedServer] = {}


def embedded_server(data_dir: Path) -> EmbeddedServer:
    """Return this process's one hold on the server of a data folder."""
    return _of_this_process.setdefault(data_dir.absolute(), EmbeddedServer(data_dir))
