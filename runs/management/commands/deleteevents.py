"""`manage.py deleteevents --older-than 90d`: delete events from outside that nobody waited for."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from runs import operations
from runs.management.command import OperatorCommand, read_duration


class Command(OperatorCommand):
    help = "Delete events that ended no wait. Those that an open run may still ask for are kept."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", type=read_duration, required=True, metavar="90d", help="since they came")

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        deleted = operations.delete_events(older_than_s=options["older_than"], by=user)
        if as_json:
            self.answer({"deleted": deleted})
        else:
            self.say(f"{deleted} events that nobody waited for are deleted.")
