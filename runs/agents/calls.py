"""What a tool is given, what it may raise, and what it may return besides JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any, Protocol

from runs.agents.mistakes import BadTool
from runs.agents.values import Json


class Refused(Exception):
    """Raised by a tool: the receiver refused, and it is certain that nothing happened."""


class Unknown(Exception):
    """Raised by a tool: the effect may have happened. Any other exception of an effectful tool means the same."""


class CredentialExpired(Exception):
    """Raised by a tool: its credential was not accepted (401), and nothing happened. 403 is a refusal, not this."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A secret as it is now. `more`: what else stands beside it, such as a refresh token. Never printed."""

    name: str
    value: str = field(repr=False)
    expires_at: datetime | None = None
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Call(Protocol):
    """What a tool is given as its first argument."""

    @property
    def key(self) -> str:
        """The idempotency key: at most 255 characters, the same for every try of one intended effect.

        Of a call without an effect, which has no such key: a name that no other try of any call has.
        """

    @property
    def run(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def timeout(self) -> float:
        """Seconds that this call has left."""

    def secret(self, name: str = "") -> str:
        """A credential, looked up now (no name: the tool's own). Use it and forget it; never return it.

        Raises: CredentialExpired, when there is none or its time is over.
        """

    def stop_requested(self) -> bool:
        """True once the run was stopped or switched off; a pause lets the call finish. Looks at most every 0.2 s."""

    def heartbeat(self, progress: Json = None) -> None:
        """Tell people how far a long call is."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A large output; stored once by its hash, referred to everywhere."""

    body: bytes
    media_type: str = "application/octet-stream"
    preview: str = ""


EVENT_CHARS = 200
"""The most that the name and the key of an event may have."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Returned by a tool that started something outside: the call is over and is not made again, its step goes on later.

    event: it goes on when an event of this name and this key is delivered (`POST /events`). Its result is then
    `{"event", "payload", "delivered_at", "waited_s"}`.
    key: what this one wait and the event have in common, and nothing else: `call.key`, if the receiver was given that to
    send back (the default), or what the receiver calls the thing that it was asked for, such as its job id. Each event
    ends one wait, of several with this name and key the oldest. Only events that have come since the call was taken
    count, those among them that came before it returned too.
    until: the moment at which it goes on without the event, with `{"event", "timed_out": true, "waited_until",
    "waited_s"}`. Without an event, the step waits for this moment alone: `{"waited_until"}`.
    reason: what for, in words for people.

    Raises: BadTool, where nothing is named that could come, a name is too long, or `until` is no moment with a zone.
    """

    event: str = ""
    key: str = ""
    until: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.event and self.until is None:
            raise BadTool("A Wait names neither an event nor a moment.", remedy="Give event=…, until=… or both.")
        if max(len(str(self.event)), len(str(self.key))) > EVENT_CHARS:
            raise BadTool(f"The name and the key of an event have at most {EVENT_CHARS} characters.")
        if self.until is not None and (self.until.utcoffset() is None or not MINYEAR < self.until.year < MAXYEAR):
            raise BadTool(
                f"until={self.until} has no time zone, or never comes.",
                remedy="Write datetime.now(UTC) + timedelta(…).",
            )


@dataclass(frozen=True, kw_only=True)
class Happened:
    """Returned by a reconcile function: the effect is there, with its result, or with what it is to wait for."""

    result: Json | Wait


@dataclass(frozen=True, kw_only=True)
class DidNotHappen:
    """Returned by a reconcile function: the effect is certainly not there."""

    evidence: Json = None


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """Returned by a reconcile function: it cannot tell. The step goes in doubt."""

    evidence: Json = None


type Found = Happened | DidNotHappen | Unsure
