"""What a django-q2 worker process does: claim what is due and advance it, one slice each."""

import time
import uuid
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError

from runs import notify, processes, switches
from runs.engine import orphans
from runs.engine.advance import advance, claim
from runs.engine.persist import forget_connection
from runs.engine.toolhost import ToolHost
from runs.states import ProcessKind

_ROUND_S = 1.0
_SEEN_EVERY_S = 5.0


class Worker:
    """This process as a worker: its row, and its tool process."""

    def __init__(self) -> None:
        self.ident: uuid.UUID = processes.register(ProcessKind.WORKER)
        self.tools = ToolHost(self.ident)
        self._seen = time.monotonic()

    def claim_and_advance(self) -> bool:
        """Advance one due run. False: none is due."""
        self.show_alive()
        claimed = claim(self.ident, self.tools)
        if isinstance(claimed, tuple):
            advance(*claimed)
        return claimed is not None

    def look_up_orphan(self) -> bool:
        """Look up whether a call happened whose step is over. False: there is none to look up now."""
        return orphans.look_up_one(self.ident, self.tools)

    def show_alive(self) -> None:
        if time.monotonic() - self._seen >= min(_SEEN_EVERY_S, settings.LEASE_S):
            self._seen = time.monotonic()
            self.tools.record_exits()
            processes.saw(self.ident)
            switches.acknowledge(self.ident)


_worker: Worker | None = None


def work(*, draining: Callable[[], bool]) -> int:
    """Advance due runs until none is due, about a second has passed, or the cluster drains; how many."""
    global _worker
    if _worker is None:
        _worker = Worker()
    until = time.monotonic() + _ROUND_S
    advanced = 0
    try:
        while not draining() and (_worker.claim_and_advance() or _worker.look_up_orphan()):
            advanced += 1
            if time.monotonic() >= until:
                break
        notify.flush()
    except DatabaseError:
        # What was in hand is found again by its lease; the next round begins on a new connection.
        forget_connection()
        raise
    return advanced
