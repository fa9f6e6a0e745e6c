"""Mistakes in an agent, and in a call of its tools, told so that its author or the model can mend them."""

from __future__ import annotations

import math

from runs.errors import LongwatchError


class BadArguments(LongwatchError):
    code, status = "bad_arguments", 400


class BadTool(LongwatchError):
    code = "bad_tool"


class BadAgents(LongwatchError):
    """An app's agents cannot be loaded: a mistake in its code, which no request can do anything about."""

    code, status = "bad_agents", 503

    def __init__(self, module: str, error: Exception) -> None:
        said = " ".join(str(error).split()) or type(error).__name__
        named = said if isinstance(error, LongwatchError) else f"{type(error).__name__}: {said.rstrip('.')}."
        super().__init__(
            f"The agents in {module} cannot be loaded: {named}",
            remedy="Mend it and start Longwatch again; bin/manage check tells when it is right.",
        )


def read_seconds(whose: str, what: str, given: object, *, or_none: bool = False) -> float:
    """A duration above 0; with or_none, or 0. Raises: BadTool."""
    if isinstance(given, int | float) and math.isfinite(given) and (given > 0 or (or_none and given == 0)):
        return float(given)
    least = "from 0" if or_none else "above 0"
    raise BadTool(
        f"{whose}: {what} is {given!r}; it must be a number of seconds {least}.",
        remedy="seconds(30), minutes(15), hours(2) and days(1) give one.",
    )
