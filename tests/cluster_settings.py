"""Settings of a cluster whose work is `tests.cluster_work`, for tests of the processes alone."""

from console.settings import *  # noqa: F403

WORK_FUNCTION = "tests.cluster_work.work"
SWEEP_FUNCTION = "tests.cluster_work.sweep"
