"""What a slice holds while it works: the claim, the worker, its tool process, and how long."""

import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError

from runs import clock, lifecycle, sql, steps
from runs.engine.persist import forget_connection
from runs.engine.toolhost import Tick, ToolHost
from runs.lifecycle import Claim

SLICE_S = 1.0


@dataclass(kw_only=True)
class Hand:
    """One claimed run in the hands of one worker."""

    claim: Claim
    worker: uuid.UUID
    tools: ToolHost
    until: float = field(default_factory=lambda: time.monotonic() + SLICE_S)
    _renewed: float = field(default_factory=time.monotonic)

    @property
    def used_up(self) -> bool:
        return time.monotonic() >= self.until

    def ready_tools(self) -> uuid.UUID:
        """The id of a living tool process; the run is held as long as it takes to start one."""
        return self.tools.ready(meanwhile=self._keep_run)

    def _keep_run(self) -> None:
        try:
            if time.monotonic() - self._renewed >= settings.LEASE_S / 3:
                lifecycle.renew(self.claim, lease_s=settings.LEASE_S)
                self._renewed = time.monotonic()
        except DatabaseError:
            forget_connection()

    def tick(self, attempt: int, *behind: int) -> Tick:
        """Renew the leases in time, and look whether the call in hand has to stop.

        behind: what was taken together with it and comes after it. A database that does not answer says nothing: the call
        goes on, and its settlement waits for the database.
        """
        try:
            if time.monotonic() - self._renewed >= settings.LEASE_S / 3:
                lifecycle.renew(self.claim, lease_s=settings.LEASE_S)
                # These alone: an attempt that was taken by a commit whose answer was lost has to run out.
                for each in (attempt, *behind):
                    steps.renew_attempt(each, lease_s=settings.LEASE_S)
                self._renewed = time.monotonic()
            return Tick(stop=not steps.may_go_on(attempt))
        except DatabaseError:
            forget_connection()
            return Tick()


def later(seconds: float) -> datetime:
    """The business clock's moment in so many seconds."""
    return clock.now() + timedelta(seconds=seconds)


def backoff(first_s: float, tries: int, *, most_s: float = 3600.0) -> float:
    """Seconds until the next try: doubled each time, with the database's jitter of ±25 %."""
    (jitter,) = sql.fetch_row("SELECT 0.75 + random() * 0.5")
    return min(first_s * 2.0 ** max(tries - 1, 0), most_s) * float(jitter)
