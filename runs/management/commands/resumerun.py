"""`manage.py resumerun ID --reason TEXT`."""

from runs import operations
from runs.management.command import RunCommand


class Command(RunCommand):
    help = "Let a paused run go on."
    operation = staticmethod(operations.resume_run)
    done = "resumed"
