"""What the commands share: who acts, how a refusal is said, and text that a terminal cannot be tricked by."""

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from runs import access, queries
from runs.errors import LongwatchError, NotFound
from runs.management.usage import OneLineUsage, one_line, plain_text
from runs.queries import RunDetail
from runs.sanitise import clean_text

SYSTEM_USER = "command-line"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class OperatorCommand(OneLineUsage):
    """A command that reads or does one thing as somebody. Status 0: done; 1: refused, with the reason; 2: wrong usage."""

    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--as", dest="acting", metavar="USER", type=clean_text, help="whom the command acts as")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one line of JSON")
        self.add_own(parser)

    def add_own(self, parser: CommandParser) -> None:
        """Add the arguments of this command alone."""

    def handle(self, *args: Any, acting: str | None, as_json: bool, **options: Any) -> None:
        try:
            self.act(find_user(acting), as_json=as_json, **options)
        except LongwatchError as error:
            raise CommandError(one_line(str(error))) from None
        except ProgrammingError:
            raise CommandError(
                "The database has no tables of Longwatch yet. Run bin/up --prepare-only first."
            ) from None

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        raise NotImplementedError

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Say a refusal in one line, without the name of a Python class in front of it."""
        try:
            said = super().execute(*args, **options)
            sys.stdout.flush()  # a reader that left is noticed here, not when Python ends
            return said
        except CommandError as error:
            if not getattr(self, "_called_from_command_line", False):
                raise
            print(one_line(str(error)), file=sys.stderr)
            sys.exit(error.returncode)
        except BrokenPipeError:
            # Whoever read it has read enough. Nothing may be flushed into it at the end either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OperationalError as error:
            raise OperationalError(one_line(str(error))) from None

    def say(self, line: str = "") -> None:
        self.stdout.write(line)

    def answer(self, value: object) -> None:
        self.stdout.write(json.dumps(queries.as_json(value), ensure_ascii=False))


class RunCommand(OperatorCommand):
    """Does one thing to one run, for a reason, and says how the run stands then."""

    operation: Callable[..., object]  # takes the run's number, reason and by
    done: str  # what the run is then, in one word

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("run", type=int)
        parser.add_argument("--reason", type=clean_text, required=True)

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        self.operation(options["run"], reason=options["reason"], by=user)
        run = read_run(user, options["run"])
        if as_json:
            self.answer(run)
        else:
            self.say(f"Run {run.id} is {self.done}. It is {run.state}: {plain(run.why)}")


def read_run(user: User, number: int) -> RunDetail:
    found = queries.find_run(number, agents=access.visible_agents(user))
    if found is None:
        raise NotFound("run", number)
    return found


def read_duration(text: str) -> float:
    """Seconds of `2d`, `1d12h`, `90m`, `45s`. Raises: ValueError."""
    rest = _DURATION.sub("", text)
    if rest or not text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def read_moment(text: str) -> datetime:
    """An ISO time; without an offset it is one of the runs' zone. Raises: ValueError."""
    moment = datetime.fromisoformat(text)
    if not 2000 <= moment.year <= 9000:
        raise ValueError(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(settings.RUN_ZONE))


def read_json(text: str) -> Any:
    """Raises: ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(text) from None


def read_pair(text: str) -> tuple[str, str]:
    """`key=value`. Raises: ValueError."""
    key, equals, value = clean_text(text).partition("=")
    if not key or not equals:
        raise ValueError(text)
    return key, value


# What argparse calls them when it refuses a value.
read_duration.__name__ = "duration (as in 2d, 90m)"
read_moment.__name__ = "time (as in 2026-12-01T09:00+01:00)"
read_json.__name__ = "JSON"
read_pair.__name__ = "key=value"


def plain(value: object) -> str:
    """Text for a terminal: characters that could move its cursor or hide a line are written out."""
    text = value if isinstance(value, str) else json.dumps(queries.as_json(value), ensure_ascii=False)
    return plain_text(text)


def clip(value: object, width: int) -> str:
    text = plain(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def find_user(name: str | None) -> User:
    if name is None:
        user, _ = User.objects.get_or_create(
            username=SYSTEM_USER, defaults={"is_superuser": True, "password": make_password(None)}
        )
        return user
    found = User.objects.filter(username=name, is_active=True).first()
    if found is None:
        raise CommandError(f"There is no active user {name!r}.")
    return found
