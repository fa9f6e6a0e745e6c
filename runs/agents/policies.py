"""Which calls need a person: functions of the arguments that give the reason, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

type Policy = Callable[[Mapping[str, Any]], str | None]


def above(argument: str, limit: int | str | Decimal) -> Policy:
    """Gate a call whose `argument` is above `limit`; the reason says both."""
    threshold = Decimal(limit)

    def policy(arguments: Mapping[str, Any]) -> str | None:
        value = Decimal(str(arguments[argument]))
        return f"{argument} {value} is above {threshold}" if value > threshold else None

    return policy


def always(arguments: Mapping[str, Any]) -> str | None:
    return "this tool always needs a person"


def never(arguments: Mapping[str, Any]) -> str | None:
    return None


def judge_policy(policy: Callable[[], object]) -> str | None:
    """The reason that a policy gives, or None. It fails closed: whatever it does but say None gates the call."""
    try:
        reason = policy()
    except (Exception, SystemExit) as error:
        return f"its approval policy failed: {type(error).__name__}: {error}"
    return None if reason is None else str(reason) or "its approval policy says so"
