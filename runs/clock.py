"""The database's clocks. No decision about time is made by this machine's own clock (E4).

Business time (timers, ages, deadlines, expiry) is `lw_now()` in scans and `lw_clock()` where a lock may have been
waited for; tests and the time-lapse demo shift both. Leases and `begin_by` are the database's real `clock_timestamp()`.
"""

import time
from datetime import datetime, timedelta

from runs import sql


def now() -> datetime:
    """The running business clock."""
    return _datetime(sql.fetch_one("SELECT lw_clock()"))


def real_now() -> datetime:
    """The running real clock of the database server."""
    return _datetime(sql.fetch_one("SELECT clock_timestamp()"))


def shift(by: timedelta) -> None:
    """Move the business clock by `by`, for every connection. For tests and the time-lapse demo."""
    sql.execute("UPDATE lw_clock_shift SET shift = shift + %s", [by])


def boottime() -> float:
    """Seconds of this machine since boot, counting while it sleeps or a process is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _datetime(row: tuple[object, ...] | None) -> datetime:
    value = row[0] if row else None
    if not isinstance(value, datetime):
        raise TypeError(f"the database's clock answered {value!r}")
    return value
