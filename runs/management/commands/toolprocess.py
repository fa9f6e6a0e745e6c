"""`manage.py toolprocess`: started by a worker, never by a person."""

import uuid
from argparse import ArgumentParser

from django.core.management.base import BaseCommand

from runs.engine import toolprocess


class Command(BaseCommand):
    help = "Perform the calls of one worker. Started by that worker, with one end of a socket pair."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--fd", type=int, required=True)
        parser.add_argument("--parent", type=uuid.UUID, required=True)

    def handle(self, *, fd: int, parent: uuid.UUID, **options: object) -> None:
        toolprocess.serve(fd, parent=parent)
