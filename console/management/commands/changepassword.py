"""`manage.py changepassword NAME`: Django's own, which asks twice on the terminal; without one it reads what is piped in."""

import getpass
import os
import sys

from django.contrib.auth.management.commands import changepassword
from django.core.management.base import CommandError

from runs.management.usage import OneLineUsage


class Command(OneLineUsage, changepassword.Command):
    def _get_pass(self, prompt: str = "Password: ") -> str:
        on_terminal = _has_terminal()
        try:
            password = getpass.getpass(prompt) if on_terminal else sys.stdin.readline().rstrip("\n")
        except EOFError:
            password = ""
        if not password:
            raise CommandError(
                "No password was typed: it stays as it was."
                if on_terminal
                else "There is no terminal to ask for the password. Run this in one (ssh -t, docker exec -it),"
                " or pipe the password into it, twice, each in a line."
            )
        return password


def _has_terminal() -> bool:
    """Where Django would ask: the terminal of this session, whatever standard input is."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin.isatty()
    return True
