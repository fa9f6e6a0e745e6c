"""`manage.py pauserun ID --reason TEXT`."""

from runs import operations
from runs.management.command import RunCommand


class Command(RunCommand):
    help = "Let the step in hand finish, and take nothing more."
    operation = staticmethod(operations.pause_run)
    done = "paused"
