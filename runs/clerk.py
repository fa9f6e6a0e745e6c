"""Write down how processes ended, however long the database is away: that record confirms a death to the engine."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django.db import connection

from runs import processes
from runs.supervise import Exit

log = logging.getLogger(__name__)

AGAIN_S = 0.5


class Clerk:
    """Records exits in order, in a thread of its own, so that whoever buries processes never waits for a database."""

    def __init__(self) -> None:
        self._exits: queue.SimpleQueue[Exit | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="clerk", daemon=True)
        self._thread.start()

    def record(self, ended: Exit) -> None:
        self._exits.put(ended)

    def close(self, *, timeout_s: float) -> None:
        """Write what is not written yet, and give up after `timeout_s`."""
        self._exits.put(None)
        self._thread.join(timeout_s)
        self._closing.set()

    def _work(self) -> None:
        while (ended := self._exits.get()) is not None:
            duty = Duty(what="An exit cannot be recorded yet", call=partial(_record, ended))
            while not duty.do_if_due():
                if self._closing.wait(AGAIN_S):
                    return
        connection.close()


def _record(ended: Exit) -> None:
    processes.record_exit(
        boot=processes.boot_id(),
        pid=ended.pid,
        started=ended.start_ticks,
        status=ended.status,
        signal=ended.signal,
        maxrss=ended.maxrss_bytes,
    )


@dataclass(kw_only=True)
class Duty:
    """Something that is done every now and then, and fails as long as the database is away: said once per outage."""

    what: str
    call: Callable[[], object]
    every_s: float = 0.0
    _due_at: float = 0.0
    _well: bool = True

    def do_if_due(self) -> bool:
        """Do it if it is time; False when it failed."""
        if time.monotonic() < self._due_at:
            return True
        began = time.monotonic()
        try:
            self.call()
        except Exception as error:
            self._due_at = began + min(self.every_s, AGAIN_S)
            if self._well:
                log.warning("%s: %s", self.what, str(error).strip() or type(error).__name__, exc_info=error)
            self._well = False
            connection.close()
            return False
        # The call may have said when it is due again.
        self._due_at = began + self.every_s
        self._well = True
        return True
