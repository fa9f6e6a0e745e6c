"""`manage.py resumerun ID --reason TEXT`."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from runs import operations
from runs.management.command import OperatorCommand, plain, read_run
from runs.sanitise import clean_text


class Command(OperatorCommand):
    help = "Let a paused run go on."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("run", type=int)
        parser.add_argument("--reason", type=clean_text, required=True)

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        operations.resume_run(options["run"], reason=options["reason"], by=user)
        run = read_run(user, options["run"])
        if as_json:
            self.answer(run)
        else:
            self.say(f"Run {run.id} is resumed. It is {run.state}: {plain(run.why)}")
