"""Log files that are written to for months: what is older stands beside each of them, once.

Their writers hold them open and append (O_APPEND), some of them longer than whoever started them. So a file that grew
large is copied and emptied, and stays the same file.
"""

import logging
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

LARGEST = 16 * 1024 * 1024
"""In bytes. A log takes about twice as much, and at the very most three times and what is written between two looks."""


def is_large(path: Path) -> bool:
    with suppress(OSError):
        return path.lstat().st_size > LARGEST
    return False


def rotate(path: Path) -> None:
    """Move what a log that grew large holds to `NAME.1`, in place of what was there. One caller at a time.

    A line that is written between the last look at its end and the cut is lost, as with copytruncate of logrotate(8).
    """
    if not is_large(path):
        return
    older = path.with_name(f"{path.name}.1")
    try:
        # Neither is a link that the server's user put there, for root to follow.
        with open(path, "rb+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
            try:
                older.unlink(missing_ok=True)
                with open(older, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as kept:
                    # All of it, but for a flood between two looks.
                    file.seek(max(file.seek(0, os.SEEK_END) - 2 * LARGEST, 0))
                    shutil.copyfileobj(file, kept)
            finally:
                # Also where the copy failed: a full disk stops the database.
                file.truncate(0)
    except OSError as error:
        _warn(path, str(error))


@cache  # it is tried again at every look
def _warn(path: Path, why: str) -> None:
    log.warning("What %s held cannot be kept: %s", path, why)
