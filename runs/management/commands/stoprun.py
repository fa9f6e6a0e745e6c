"""`manage.py stoprun ID --reason TEXT`."""

from runs import operations
from runs.management.command import RunCommand


class Command(RunCommand):
    help = "Stop a run and its descendants."
    operation = staticmethod(operations.stop_run)
    done = "stopped"
