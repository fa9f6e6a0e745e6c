"""Read settings from the environment, each with a type; refuse a bad one by name, rule and remedy.

`os.environ` is read here and nowhere else in the product. Every helper takes the variable's name and
returns a typed value or the default; an empty variable counts as not set, because that is what
`NAME= bin/up` and an unset line in a compose file mean.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ImproperlyConfigured


class BadVariable(ImproperlyConfigured):
    """An environment variable has a value that cannot be used."""

    def __init__(self, *, name: str, value: str | None, rule: str, remedy: str) -> None:
        shown = "" if value is None else f" is {value!r}, but it"
        super().__init__(f"{name}{shown} {rule}. {remedy}")
        self.name = name
        self.rule = rule
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Typed reading of one set of environment variables."""

    variables: Mapping[str, str]

    def read_text(self, name: str, default: str = "") -> str:
        return self.variables.get(name, "").strip() or default

    def read_optional(self, name: str) -> str | None:
        """Return the variable, or None where it is not set. For secrets: its value is never shown."""
        return self.read_text(name) or None

    def read_all(self, prefix: str) -> dict[str, str]:
        """Every variable with this prefix, by the rest of its name in small letters. For secrets: never shown."""
        return {
            name.removeprefix(prefix).lower(): value.strip()
            for name, value in self.variables.items()
            if name.startswith(prefix) and value.strip()
        }

    def read_flag(self, name: str, default: bool) -> bool:
        raw = self.read_text(name).lower()
        if not raw:
            return default
        if raw in {"1", "true", "yes", "on"}:
            return True
        if raw in {"0", "false", "no", "off"}:
            return False
        raise BadVariable(name=name, value=raw, rule="must be yes or no", remedy=f"Set {name}=1 or {name}=0.")

    def read_whole(self, name: str, default: int, *, least: int, most: int) -> int:
        raw = self.read_text(name)
        if not raw:
            return default
        try:
            value = int(raw)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise BadVariable(
                name=name,
                value=raw,
                rule=f"must be a whole number from {least} to {most}",
                remedy=f"Leave {name} out to use {default}.",
            )
        return value

    def read_seconds(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a duration in seconds."""
        raw = self.read_text(name)
        if not raw:
            return default
        try:
            value = float(raw)
        except ValueError:
            value = float("nan")
        # Written so that NaN, which compares false with everything, is refused.
        if not least <= value <= most:
            raise BadVariable(
                name=name,
                value=raw,
                rule=f"must be a number of seconds from {least:g} to {most:g}",
                remedy=f"Leave {name} out to use {default:g}.",
            )
        return value

    def read_names(self, name: str, default: Sequence[str] = ()) -> list[str]:
        """Return a comma-separated list, without empty items."""
        raw = self.read_text(name)
        if not raw:
            return list(default)
        return [item.strip() for item in raw.split(",") if item.strip()]

    def read_apps(self, name: str) -> list[str]:
        """Return the Django apps of a comma-separated list: each a package that is there, or a configuration in one."""
        apps = self.read_names(name)
        for app in apps:
            module, _, last = app.rpartition(".")
            if not _is_importable(module if last[:1].isupper() else app):
                raise BadVariable(
                    name=name,
                    value=self.read_text(name),
                    rule=f"names {app!r}, which is no package that Python finds",
                    remedy=f"Put the folder that holds it into PYTHONPATH, or leave it out of {name}.",
                )
        return apps

    def read_url(self, name: str, default: str) -> str:
        """Return an http or https address without a trailing slash."""
        value = self.read_optional_url(name)
        return default.rstrip("/") if value is None else value

    def read_optional_url(self, name: str) -> str | None:
        raw = self.read_text(name)
        if not raw:
            return None
        try:
            parts = urlsplit(raw)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise BadVariable(
                name=name,
                value=raw,
                rule="must be a full http or https address",
                remedy=f"Write it with its scheme and host, as in {name}=https://agents.example.com.",
            )
        return raw.rstrip("/")

    def read_optional_mail_url(self, name: str) -> str | None:
        """Return where mail is handed over: smtp, smtps, or smtp+tls (STARTTLS). For secrets: it is never shown."""
        raw = self.read_text(name)
        if not raw:
            return None
        try:
            parts = urlsplit(raw)
            usable = parts.scheme in {"smtp", "smtps", "smtp+tls"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise BadVariable(
                name=name,
                value=None,
                rule="must be the address of a mail server",
                remedy=f"Write it as {name}=smtp+tls://user:password@mail.example.com:587.",
            )
        return raw

    def read_folder(self, name: str, default: Path) -> Path:
        """Return an absolute folder path; it need not exist yet."""
        raw = self.read_text(name)
        path = Path(raw).expanduser() if raw else default
        path = path.absolute()
        if path.exists() and not path.is_dir():
            raise BadVariable(
                name=name,
                value=str(path),
                rule="must be a folder",
                remedy="Name another path, or move the file that is there out of the way.",
            )
        return path

    def read_zone(self, name: str, default: str) -> str:
        """Return the name of an IANA time zone."""
        raw = self.read_text(name, default)
        try:
            ZoneInfo(raw)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise BadVariable(
                name=name,
                value=raw,
                rule="must be a time zone of the IANA list",
                remedy=f"Use a name such as Europe/Berlin, or leave {name} out to use {default}.",
            ) from error
        return raw


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


process_environment = Environment(variables=os.environ)
