"""The installation's secret key, made once and kept with its data."""

import os
import secrets
import tempfile
from pathlib import Path

from console.env import BadVariable


def read_or_make_secret_key(folder: Path) -> str:
    """Return the key kept in `folder`, made by the first process that asks.

    Raises:
        BadVariable: the folder cannot be written or the file read.
    """
    path = folder / "secret_key"
    try:
        return _read_key(path) or _make_key(path)
    except OSError as error:
        raise BadVariable(
            name="LONGWATCH_SECRET_KEY",
            value=None,
            rule=f"is not set, and no key can be kept in {path} ({error.strerror})",
            remedy="Set LONGWATCH_SECRET_KEY to 50 random characters, or make the folder writable (LONGWATCH_DATA).",
        ) from error


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _make_key(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():  # empty: a machine died before the bytes reached the disk
        path.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="secret_key.", delete=False) as draft:
        draft.write(secrets.token_urlsafe(48))
        draft.flush()
        os.fsync(draft.fileno())
    try:
        # A link, not a rename: of two processes that start together, the second must take the first one's key.
        os.link(draft.name, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft.name)
    return _read_key(path)
