"""Settling must not be lost to a database that is away for a moment: it is tried again until it is written.

Every settlement is idempotent by its attempt, so one whose answer was lost is simply written again.
"""

import logging
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, OperationalError, connection

log = logging.getLogger(__name__)

_FIRST_S = 0.05
_MOST_S = 2.0


def persist(write: Callable[[], None]) -> None:
    """Run `write`, again and again while the database cannot be reached, or ended its connection or transaction."""
    pause = _FIRST_S
    while True:
        try:
            write()
            return
        except (OperationalError, InterfaceError) as error:
            log.warning("The database did not take a settlement (%s); it is tried again", str(error).strip())
            forget_connection()
            time.sleep(pause)
            pause = min(pause * 2, _MOST_S)


def forget_connection() -> None:
    """Drop a connection that may be broken, so that the next statement makes a new one."""
    try:
        connection.close()
    except DatabaseError:
        connection.connection = None
