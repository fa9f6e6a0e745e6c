"""`manage.py cluster`: worker processes that advance runs, under watch."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils.module_loading import import_string

from runs import processes
from runs.arguments import whole
from runs.management.usage import OneLineUsage
from runs.watch import ClusterWatch, Limits

SWEEP_FUNCTION = "runs.engine.sweep.sweep"


class Command(OneLineUsage):
    help = "Advance runs on this machine until SIGTERM, which finishes the steps in hand."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--workers", type=whole(1, 64), default=settings.WORKERS, help="worker processes")
        # How the watch starts the cluster that it watches.
        parser.add_argument("--board-fd", type=int, help="internal")
        parser.add_argument("--lifeline-fd", type=int, help="internal")

    def handle(self, *, workers: int, board_fd: int | None, lifeline_fd: int | None, **options: Any) -> None:
        if board_fd is None or lifeline_fd is None:
            # What waits for a lease that is not renewed cannot be quicker than the lease.
            limits = Limits(due=max(3.0, settings.LEASE_S), worker=settings.GRACE_S + max(5.0, settings.LEASE_S))
            ClusterWatch(workers=workers, sweep=_sweep, limits=limits).run()
            return
        from runs.cluster import run_cluster

        processes.spare_collector()  # its workers are forked from it
        raise SystemExit(run_cluster(workers=workers, board_fd=board_fd, lifeline_fd=lifeline_fd))


def _sweep() -> float:
    again_s: float = import_string(getattr(settings, "SWEEP_FUNCTION", SWEEP_FUNCTION))()
    return again_s
