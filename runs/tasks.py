"""What a worker does with a token: look at the run table and advance what is due."""

import logging
import time
from collections.abc import Callable
from typing import Protocol, cast

from django.conf import settings
from django.utils.module_loading import import_string

from runs import cluster

log = logging.getLogger(__name__)

WORK_FUNCTION = "runs.engine.worker.work"
FRUITFUL_S = 0.02
"""A function that does not say what it did has done something when it took this long."""


class WorkFunction(Protocol):
    """Claims due runs and advances them, one slice each, until nothing is due or about a second has passed.

    Once `draining` says true it finishes the steps in hand, claims nothing more and returns. It returns how many runs
    it advanced, so that a due run which nobody can claim is not tried again and again without a pause.
    """

    def __call__(self, *, draining: Callable[[], bool]) -> int | None: ...


def advance() -> None:
    """Run one round of work in this worker. Executed by django-q2; every argument would age in its queue."""
    work = cast(WorkFunction, import_string(getattr(settings, "WORK_FUNCTION", WORK_FUNCTION)))
    began = time.monotonic()
    try:
        advanced = work(draining=cluster.is_draining)
    except Exception:
        # Nothing above this can do more about it: django-q2 would store it in a table that nobody reads.
        log.exception("A round of work failed")
        return
    if advanced or (advanced is None and time.monotonic() - began >= FRUITFUL_S):
        cluster.mark_fruitful()
