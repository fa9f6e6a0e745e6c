"""The installation that `up` runs on a data folder, as it said so itself."""

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Running:
    """Where it is, and what it runs on."""

    pid: int
    url: str
    database_url: str
    shop_url: str | None
    rehearsal: bool


def find_running(data_dir: Path) -> Running | None:
    """The installation that runs on a data folder now; None also when it has not started everything yet."""
    try:
        running = Running(**json.loads(running_file(data_dir).read_text()))
        with (data_dir / "up.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return running
    except (OSError, ValueError, TypeError):
        return None
    return None  # it was killed, and left its note behind


def running_file(data_dir: Path) -> Path:
    """Where `up` says what it runs."""
    return data_dir / "up.json"
