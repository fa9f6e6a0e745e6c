"""Where secrets come from: a folder of mounted files, else the environment. Looked up at each use, stored nowhere.

A file, or a variable, holds the secret itself, or JSON: {"value", "expires_at", …}; what else stands in it is for whoever
refreshes it. What was read here is blanked out in everything that leaves the process (`redact`).
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings

from runs.agents import MODEL_CREDENTIAL, Secret
from runs.errors import LongwatchError

_SHORTEST = 6  # shorter values are too common in ordinary text to be blanked out
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_MOST_KNOWN = 100
_used: dict[str, str] = {}  # by what it was, also after it was renewed: the name of each secret that was used here


class NoSecret(LongwatchError):
    code = "no_secret"


class Source(Protocol):
    """The provider port."""

    def read(self, name: str) -> str | None:
        """The text of a secret, as it is now; None: it is not kept here."""

    def write(self, name: str, text: str) -> bool:
        """Keep a refreshed secret. False: it cannot be kept here."""

    def place(self, name: str) -> str:
        """Where a secret lies, in words for people, without reading it; empty: not here."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Mounted files, one per secret. A file that is replaced counts from the next call on."""

    path: Path

    def read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text().strip() or None
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
            return None

    def write(self, name: str, text: str) -> bool:
        draft = self.path / f".{name}.{os.getpid()}"
        try:
            draft.touch(mode=0o600)
            draft.write_text(text)
            draft.replace(self.path / name)
        except OSError:
            draft.unlink(missing_ok=True)
            return False
        return True

    def place(self, name: str) -> str:
        return f"the file {name}" if (self.path / name).is_file() else ""


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The environment of this process: it does not change, so nothing can be renewed without a restart."""

    values: Mapping[str, str] = field(repr=False)

    def read(self, name: str) -> str | None:
        return self.values.get(_variable(name))

    def write(self, name: str, text: str) -> bool:
        return False

    def place(self, name: str) -> str:
        return f"LONGWATCH_CREDENTIAL_{_variable(name).upper()}" if _variable(name) in self.values else ""


def sources() -> list[Source]:
    folder = [Folder(path=settings.SECRETS_DIR)] if settings.SECRETS_DIR else []
    return [*folder, Variables(values=settings.SECRETS)]


def read(name: str) -> Secret:
    """Raises: NoSecret."""
    if not _NAME.fullmatch(name):
        raise NoSecret(f"{name!r} is no name of a credential.", remedy="Use small letters, digits, dots and dashes.")
    for source in sources():
        if (text := source.read(name)) is not None:
            secret = _parse(name, text)
            _remember(secret)
            return secret
    raise NoSecret(f"There is no credential {name}.", remedy=f"Mount a file {name}, or set its variable (see README).")


def find_place(name: str) -> str:
    """Where a secret lies as this process sees it, in words for people, without reading it; empty: nowhere."""
    if name == MODEL_CREDENTIAL:
        return "ANTHROPIC_API_KEY" if settings.ANTHROPIC_API_KEY else ""
    places = (source.place(name) for source in sources()) if _NAME.fullmatch(name) else ()
    return next((place for place in places if place), "")


def keep(secret: Secret) -> bool:
    """Keep a refreshed secret where the old one was. False: it cannot be kept there."""
    told: dict[str, Any] = {**secret.more, "value": secret.value}
    if secret.expires_at is not None:
        told["expires_at"] = secret.expires_at.isoformat()
    for source in sources():
        if source.read(secret.name) is not None:
            _remember(secret)
            return source.write(secret.name, json.dumps(told))
    return False


def redact[T](value: T) -> T:
    """The same value, with every secret that this process knows blanked out, in whatever depth it stands."""
    known = {secret: name for secret, name in _known().items() if len(secret) >= _SHORTEST}
    return _blank(value, known) if known else value


def _variable(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name)


def _blank(value: Any, known: Mapping[str, str]) -> Any:
    match value:
        case str():
            for secret, name in known.items():
                value = value.replace(secret, f"[{name}]")
            return value
        case bytes():
            for secret, name in known.items():
                value = value.replace(secret.encode(), f"[{name}]".encode())
            return value
        case dict():
            return {_blank(k, known): _blank(v, known) for k, v in value.items()}
        case list():
            return [_blank(item, known) for item in value]
    return value


def _known() -> dict[str, str]:
    known = {_parse(name, text).value: name for name, text in settings.SECRETS.items()}
    if settings.ANTHROPIC_API_KEY:
        known[settings.ANTHROPIC_API_KEY] = MODEL_CREDENTIAL
    return known | _used


def _remember(secret: Secret) -> None:
    _used.pop(secret.value, None)
    _used[secret.value] = secret.name
    while len(_used) > _MOST_KNOWN:
        del _used[next(iter(_used))]


def _parse(name: str, text: str) -> Secret:
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("value"), str):
        return Secret(name=name, value=text)
    more = {key: each for key, each in told.items() if key not in ("value", "expires_at")}
    return Secret(name=name, value=told["value"], expires_at=_moment(told.get("expires_at")), more=more)


def _moment(text: object) -> datetime | None:
    """Without a date that can be read, its receiver says when it is over."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
