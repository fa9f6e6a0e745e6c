"""Why something is not moving, on whom it waits, until when, and what happens then: in words."""

from dataclasses import dataclass
from datetime import datetime

from console.display.figures import write_ago, write_moment
from console.display.outside import show
from runs.queries.runs import AND_THEN
from runs.states import WAITS_ON_PEOPLE, ApprovalKind, WaitingFor

SOON_S = 900
"""What ends within a quarter of an hour is said in the colour that asks for a person."""


@dataclass(frozen=True, kw_only=True)
class Until:
    """A moment ahead: in words for a list, and apart for a card. `soon` when it is close, `past` when it is behind."""

    at: datetime
    moment: str
    left: str
    soon: bool
    past: bool

    @property
    def expires(self) -> str:
        return "its time is over" if self.past else f"expires {self.left}"


def say_until(at: datetime, now: datetime) -> Until:
    left = (at - now).total_seconds()
    return Until(
        at=at,
        moment=write_moment(at, now),
        left=f"in {write_ago(now, at)}" if left > 0 else "over",
        soon=left < SOON_S,
        past=left <= 0,
    )


def say_on_expiry(on_expiry: str, kind: str) -> str:
    """What becomes of a card that nobody decides in time."""
    if on_expiry == "reject":
        return "it expires undecided, nothing runs, and the agent plans again"
    if on_expiry == "escalate":
        return "others are asked; nothing runs until someone decides"
    if kind == ApprovalKind.APPROVAL:
        return "you are asked again; nothing runs until someone decides"
    return "it is asked again; nothing happens until someone decides"


def say_whom(on: str, waiting_for: str) -> str:
    """On whom something waits."""
    if waiting_for in _WHOM:
        return _WHOM[waiting_for]
    if waiting_for == WaitingFor.CREDENTIAL and on:
        return f"whoever renews {show(on)}"
    if on.startswith("allowance."):
        return "who shares the allowance, or may raise it"
    return show(on) or ("a person" if waiting_for in WAITS_ON_PEOPLE else "nobody")


_WHOM: dict[str, str] = {
    WaitingFor.TIMER: "the clock",
    WaitingFor.RETRY: "nobody",
    WaitingFor.VERDICT: "a person who can find out",
}


def say_and_then(*, and_then: str, on_expiry: str, kind: str, waiting_for: str) -> str:
    """on_expiry: of a card that has a time limit. One without ends by no time: what the step itself waits for counts."""
    if on_expiry:
        return say_on_expiry(on_expiry, kind)
    if and_then:
        return show(and_then)
    if kind:
        return "nothing: it waits until someone decides"
    return AND_THEN.get(waiting_for, "it goes on by itself")
