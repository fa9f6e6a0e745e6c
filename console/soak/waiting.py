"""Wait for what has to come, and say by name what did not."""

import time
from collections.abc import Callable


class Overdue(AssertionError):
    """What was waited for did not come in time."""


def wait_until[T](condition: Callable[[], T], *, what: str, timeout_s: float = 20.0, poll_s: float = 0.02) -> T:
    """Return the first truthy value of `condition`.

    Raises:
        Overdue: nothing truthy came in time; the message says what was waited for.
    """
    give_up_at = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= give_up_at:
            raise Overdue(f"waited {timeout_s:g} s for: {what}; last seen: {value!r}")
        time.sleep(poll_s)
