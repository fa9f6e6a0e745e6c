"""Named points between the phases of the protocol. They do nothing unless a test names one.

`LONGWATCH_FAIL_POINT` is a list of `POINT=ACTION@FILE`, comma separated. A point acts once per FILE: it removes the
file and then kills (`kill`) or freezes (`stop`) its own process, or raises (`raise`). Without a FILE it always acts.
`{call}` in the name of a FILE stands for the run and the tool (`12.refund`), so that one call of many can be met.
"""

import os
import signal
from contextlib import suppress

from django.conf import settings


class FailPointReached(RuntimeError):
    """Raised by the action `raise`."""


def reach(point: str, *, run: int = 0, tool: str = "") -> None:
    """Say that the protocol is at `point` now, with a call of this tool."""
    if not settings.FAIL_POINT:
        return
    for rule in settings.FAIL_POINT.split(","):
        name, _, rest = rule.partition("=")
        action, _, file = rest.partition("@")
        if name == point and (not file or _consumed(file.replace("{call}", f"{run}.{tool}"))):
            _act(action, point)


def _consumed(file: str) -> bool:
    with suppress(FileNotFoundError):
        os.unlink(file)
        return True
    return False


def _act(action: str, point: str) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise FailPointReached(point)
        case _:
            raise ValueError(f"LONGWATCH_FAIL_POINT: {action!r} is no action; use kill, stop or raise.")
