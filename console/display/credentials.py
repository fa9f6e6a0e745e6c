"""Credentials in words: which are not accepted or end soon, who waits for them, and where a new one has to be put."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from console.display.figures import plural, write_ago
from console.display.journal import write_actor
from console.display.marks import Mark
from console.display.outside import show
from console.display.waits import say_until
from runs.agents import MODEL_CREDENTIAL
from runs.queries.credentials import Credentials, Known, Waiter

_NOT_PLAIN = re.compile(r"[^a-z0-9]")
SOON_S = 7 * 86_400
WAITING_SHOWN = 5
_REFUSED = Mark(word="Not accepted", icon="credential", css="stale loud person")
_OVER = Mark(word="Expired", icon="expired", css="stale loud person")
_SOON = Mark(word="Ends soon", icon="ageing", css="ageing")
_RENEWED = Mark(word="Renewed", icon="fresh", css="done")
_QUIET = Mark(word="In use", icon="credential", css="queued")


@dataclass(frozen=True, kw_only=True)
class WaiterLine:
    words: str
    href: str


@dataclass(frozen=True, kw_only=True)
class CredentialLine:
    """`place`: where the secret lies. `says`: what its receiver said of it. `act_says`: what renewing does."""

    anchor: str
    name: str
    mark: Mark
    place: str
    users: str
    says: str
    expires: str
    expires_at: datetime | None
    renewed_at: datetime | None
    renewed_by: str
    waiters: list[WaiterLine]
    more_waiters: int
    card: int | None
    may_renew: bool
    act_says: list[str]


def show_credentials(
    found: Credentials,
    users: Mapping[str, Iterable[str]],
    places: Mapping[str, str],
    may_renew: Mapping[str, bool],
) -> list[CredentialLine]:
    """users: by name of each credential that the reader may see, who signs in with it. What runs wait for comes first."""
    lines = [
        _show(name, found, list(users[name]), places.get(name, ""), may_renew.get(name, False))
        for name in sorted(users)
    ]
    return sorted(lines, key=lambda line: (not line.waiters, _ORDER.index(line.mark), line.name))


_ORDER = [_REFUSED, _OVER, _SOON, _RENEWED, _QUIET]


def _show(name: str, found: Credentials, users: list[str], place: str, may_renew: bool) -> CredentialLine:
    known, waiting = found.known.get(name), found.waiting.get(name, [])
    until = say_until(known.expires_at, found.now) if known and known.expires_at else None
    refused = known is not None and known.refused_at is not None
    return CredentialLine(
        anchor=_NOT_PLAIN.sub(lambda found: f"-{ord(found[0]):x}-", name),
        name=name,
        mark=_mark(known, found.now),
        place=place,
        users=f"used by {', '.join(map(show, users))}" if users else "named by no agent that is deployed here",
        says=_say_refused(known, found.now) if known is not None and refused else "",
        expires="not known" if until is None else f"{until.moment}, {until.left}",
        expires_at=known.expires_at if known else None,
        renewed_at=known.renewed_at if known else None,
        renewed_by=write_actor(known.renewed_by) if known else "",
        waiters=[_show_waiter(each) for each in waiting[:WAITING_SHOWN]],
        more_waiters=max(len(waiting) - WAITING_SHOWN, 0),
        card=found.cards.get(name),
        may_renew=may_renew,
        act_says=_say_act(name, len(waiting), place),
    )


def _mark(known: Known | None, now: datetime) -> Mark:
    if known is None:
        return _QUIET
    if known.refused_at is not None:
        return _REFUSED
    if known.expires_at is not None:
        left = (known.expires_at - now).total_seconds()
        if left < SOON_S:
            return _SOON if left > 0 else _OVER
    return _RENEWED if known.renewed_at is not None else _QUIET


def _say_refused(known: Known, now: datetime) -> str:
    ago = f"{write_ago(known.refused_at, now)} ago" if known.refused_at else ""
    return f"{show(known.refused_because)} ({ago})"


def _show_waiter(each: Waiter) -> WaiterLine:
    tool = f" ({show(each.tool)})" if each.tool else ""
    return WaiterLine(
        words=f"run {each.run}, step {each.step}{tool}", href=f"/runs/{each.run}?tab=step&step={each.step}"
    )


def _say_act(name: str, waiting: int, place: str) -> list[str]:
    says = []
    if place.startswith("the file"):
        says.append(f"Put the new one into {place} first; it counts from the next call on")
    elif place:
        says.append(f"Put the new one into {place} first, and start the executors again: a variable is read at start")
    elif name == MODEL_CREDENTIAL:
        says.append("The rehearsal model needs none; with a provider it is ANTHROPIC_API_KEY, read at start")
    else:
        says.append("This process does not see where it lies; put the new one there first")
    if waiting:
        again = "tries" if waiting == 1 else "try"
        says.append(f"{plural(waiting, 'step that waits', 'steps that wait')} for it {again} again at once, with that")
    else:
        says.append("Nothing waits for it now; it is noted that there is a new one")
    return says
