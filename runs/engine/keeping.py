"""What an agent's function returned, as JSON; its author is told of what is none, once for each function and type."""

import logging

from runs.agents import Json
from runs.sanitise import clean_json, find_replaced

log = logging.getLogger(__name__)

_PATH_CHARS = 100
_told: set[tuple[str, str]] = set()


def keep(value: object, *, whose: str) -> Json:
    """The value as it is stored. whose: the function, as in `refund of refund-desk`."""
    kept = clean_json(value)
    for replaced in find_replaced(value, kept):
        if (whose, replaced.what) not in _told:
            _told.add((whose, replaced.what))
            log.warning(
                "%s returned what is no JSON: a value of type %s%s, stored as %s. This is said once.",
                whose,
                replaced.what,
                f" at {_clip(replaced.path)}" if replaced.path else "",
                replaced.kept_as,
            )
    return kept


def _clip(path: str) -> str:
    return path if len(path) <= _PATH_CHARS else f"{path[:_PATH_CHARS]}…"
