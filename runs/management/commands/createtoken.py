"""`manage.py createtoken NAME --role ROLE`: an API token, shown once."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from runs import access, operations
from runs.access import Action, Role
from runs.journal import person
from runs.management.command import OperatorCommand
from runs.sanitise import clean_text


class Command(OperatorCommand):
    help = "Make an API token. It is shown once; only its hash is kept."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=clean_text)
        roles = [str(role) for role in (Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.SERVICE)]
        parser.add_argument("--role", choices=roles, required=True)

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        access.require(user, Action.ACCESS)
        access.make_roles()
        token = operations.create_token(options["name"], Role(options["role"]), by=person(user))
        if as_json:
            self.answer({"token": token})
        else:
            self.say(token)
            self.stderr.write("It is not shown again: keep it.")
