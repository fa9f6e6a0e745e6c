"""Faults that the shop can be told to play, and which requests they meet.

A fault applies to every request that matches, as many times as it was given (`times`, empty: always) and with
the chance it was given (`chance`). One request meets at most one fault of each kind, the oldest.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

type FaultKind = Literal[
    "slow",  # waits `seconds` before it acts, and acts even if the caller has gone
    "slow_after",  # acts, then waits `seconds` before it answers
    "fail",  # answers `status` without acting; `retry_after` becomes a header
    "act_and_fail",  # acts, then answers `status`
    "act_and_drop",  # acts, then closes the connection without an answer
    "drop_before",  # closes the connection without acting
    "hang",  # never acts and never answers, until the caller goes
    "ignore_keys",  # treats every request as new, whatever its Idempotency-Key
    "late_reads",  # look-ups show refunds and closed requests only after `seconds`
    "garble",  # acts, then answers bytes that are no JSON
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind.__value__)
TIMED: frozenset[FaultKind] = frozenset({"slow", "slow_after", "late_reads"})


class BadFault(ValueError):
    """The fault asked for cannot be played; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a fault is matched against."""

    method: str
    path: str
    order: str | None
    batch: str | None
    key: str | None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault as it stands. `number` is its id, 0 before it is stored."""

    kind: FaultKind
    number: int = 0
    times: int | None = None
    chance: float = 1.0
    seconds: float = 0.0
    status: int = 500
    retry_after: float | None = None
    match: Mapping[str, str] = field(default_factory=dict)

    def meets(self, target: Target) -> bool:
        """Tell whether the request is one of those this fault is for."""
        tests: dict[str, Callable[[str], bool]] = {
            "method": lambda want: target.method == want.upper(),
            "path": target.path.startswith,
            "path_regex": lambda want: re.search(want, target.path) is not None,
            "order": lambda want: target.order == want,
            "batch": lambda want: target.batch == want,
            "key": lambda want: target.key == want,
        }
        return all(tests[name](want) for name, want in self.match.items())

    def as_json(self) -> dict[str, object]:
        """What GET /faults shows; `times` is how often it will still be played."""
        shown: dict[str, object] = {"fault": self.number, "kind": self.kind, "match": dict(self.match)}
        shown |= {"times": self.times, "chance": self.chance}
        if self.kind in TIMED:
            shown["seconds"] = self.seconds
        if self.kind in ("fail", "act_and_fail"):
            shown |= {"status": self.status, "retry_after": self.retry_after}
        return shown


def read_fault(body: Mapping[str, object]) -> Fault:
    """Read a fault as POST /faults gets it.

    Raises:
        BadFault: for an unknown kind, a match that nothing can be compared with, or numbers out of range.
    """
    kind = next((known for known in KINDS if known == body.get("kind")), None)
    if kind is None:
        raise BadFault(f"kind is one of {', '.join(KINDS)}")
    match = body.get("match", {})
    if not isinstance(match, dict) or not all(isinstance(value, str) for value in match.values()):
        raise BadFault("match is an object of strings")
    if unknown := set(match) - {"method", "path", "path_regex", "order", "batch", "key"}:
        raise BadFault(f"match knows method, path, path_regex, order, batch and key, not {', '.join(sorted(unknown))}")
    try:
        re.compile(match.get("path_regex", ""))
    except re.error as wrong:
        raise BadFault(f"path_regex: {wrong}") from wrong
    times = body.get("times")
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 1):
        raise BadFault("times is a whole number from 1, or null for always")
    status = body.get("status", 500)
    if not isinstance(status, int) or not 400 <= status <= 599:
        raise BadFault("status is between 400 and 599")
    if kind in TIMED and "seconds" not in body:
        raise BadFault(f"{kind} needs seconds")
    chance = read_number(body, "chance", 1.0)
    if not 0 < chance <= 1:
        raise BadFault("chance is above 0 and at most 1")
    return Fault(
        kind=kind,
        match=match,
        times=times,
        chance=chance,
        seconds=read_number(body, "seconds", 0.0),
        status=status,
        retry_after=None if body.get("retry_after") is None else read_number(body, "retry_after", 0.0),
    )


def read_number(body: Mapping[str, object], name: str, otherwise: float) -> float:
    """Read a number that is not negative."""
    value = body.get(name, otherwise)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise BadFault(f"{name} is a number from 0")
    return float(value)


def choose_faults(standing: list[Fault], target: Target) -> list[Fault]:
    """Say which of the standing faults this request meets: the oldest of each kind, if its chance comes up."""
    chosen: dict[FaultKind, Fault] = {}
    for fault in standing:
        if fault.kind not in chosen and fault.meets(target) and (fault.chance >= 1 or random.random() < fault.chance):
            chosen[fault.kind] = fault
    return list(chosen.values())
