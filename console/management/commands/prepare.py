"""`manage.py prepare`: what `up` does to the database before it starts anything on it."""

import json
import secrets
from typing import Any

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandParser
from django.db import connection, transaction

from runs.access import make_roles, make_sign_in_token
from runs.management.usage import OneLineUsage

OPERATOR = "operator"
_LOCK = 0x6C77_7570  # "lwup": two machines may be started on one database at once


class Command(OneLineUsage):
    help = "Bring the database up to date, with the role groups and, where nobody is there yet, the first operator."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json")

    def handle(self, *, as_json: bool, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        try:
            call_command("migrate", interactive=False, verbosity=0)
            self.check(databases=["default"])
            with transaction.atomic():
                make_roles()
                operator, password = _find_or_make_operator()
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
        answer = {
            "operator": operator.username if operator else None,
            "password": password,
            "sign_in_token": make_sign_in_token(operator) if operator else None,
        }
        if as_json:
            self.stdout.write(json.dumps(answer))
        elif password:
            self.stdout.write(f"The first operator is {OPERATOR!r} with the password {password}")
        else:
            self.stdout.write("The database is up to date.")


def _find_or_make_operator() -> tuple[User | None, str | None]:
    """Return the first operator and, where they were made now, their password: it is shown this once."""
    # Commands act as a superuser of their own, who has no password and so cannot sign in.
    can_sign_in = User.objects.exclude(password__startswith=UNUSABLE_PASSWORD_PREFIX)
    if not can_sign_in.filter(is_superuser=True).exists():
        password = secrets.token_urlsafe(12)
        return User.objects.create_superuser(OPERATOR, password=password), password
    return User.objects.filter(username=OPERATOR, is_superuser=True, is_active=True).first(), None
