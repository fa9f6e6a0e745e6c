"""A command that says in one line what is wrong with its arguments. It imports little: processes that start often use it."""

from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandParser


class OneLineParser(CommandParser):
    """Says what is wrong with the arguments in one line, as every other refusal."""

    def error(self, message: str) -> NoReturn:
        if not getattr(self, "called_from_command_line", False):
            super().error(message)
        self.exit(2, f"{one_line(message).rstrip('.')}. See {self.prog} --help.\n")


class OneLineUsage(BaseCommand):
    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = OneLineParser
        return parser


def plain_text(text: str) -> str:
    """Text for a terminal: characters that could move its cursor or hide a line are written out."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if c not in "\n\t" else " " for c in text)


def one_line(text: str) -> str:
    return plain_text(" ".join(text.split()))
