"""Wait for what a test is about, and fail by name when it does not come."""

import time
from collections.abc import Callable


def wait_until[T](condition: Callable[[], T], *, what: str, timeout_s: float = 20.0, poll_s: float = 0.02) -> T:
    """Return the first truthy value of `condition`.

    Raises:
        AssertionError: nothing truthy came in time; the message says what was waited for.
    """
    give_up_at = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < give_up_at, f"waited {timeout_s:g} s for: {what}; last seen: {value!r}"
        time.sleep(poll_s)
