"""Things that go wrong on purpose: a book of faults, filled over POST /faults.

    {"kind": "rate_limit", "match": {"text": "batch b7", "model": "claude-sonnet-5-5"}, "times": 2, "retry_after": 3}

`match` chooses calls: `text` stands somewhere in the request, `model` is its model; without it every call matches.
`times` (default 1, null: until deleted) counts the calls hit. The first fault in the book that matches is played.

    rate_limit   429. retry_after: seconds, an HTTP date as text, or null for none; as_date: true writes the
                 seconds as a date; error_code: a spend limit, such as enforced_spend_limit_reached
    overloaded   529, or an `error` event in the stream. retry_after; after
    error        any status of the API, or an `error` event in the stream. status, type, message, error_code, after
    cut_stream   the connection breaks off. after (default 5)
    stall        silence in the middle, then the rest. seconds; after (default: half of the events)
    slow         the reply takes that long. seconds
    max_tokens   the reply is cut in the middle of its last tool_use
    refusal      the reply breaks off with stop_reason refusal, after its first tool_use. category
    bad_usage    the reply is good, its usage is not. usage: missing, null, negative or text

`after` is a number of events of the stream. Without it, overloaded and error answer instead of the stream.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count

from runs.examples.model.values import Json, JsonObject, as_integer, as_number, as_object, as_text
from runs.examples.model.wire import Rejected, Request

KINDS = frozenset(
    {"rate_limit", "overloaded", "error", "cut_stream", "stall", "slow", "max_tokens", "refusal", "bad_usage"}
)
BAD_USAGES = frozenset({"missing", "null", "negative", "text"})
FIELDS = frozenset(
    {"kind", "match", "times", "retry_after", "as_date", "error_code", "after", "status", "type", "message", "seconds"}
    | {"category", "usage"}
)


class WrongFault(ValueError):
    """A fault cannot be played as it is written."""


@dataclass(kw_only=True, slots=True)
class Fault:
    """One fault, with the calls it is still waiting for."""

    id: int
    kind: str
    text: str = ""
    model: str = ""
    times: int | None = 1
    hits: int = 0
    retry_after: Json = None
    as_date: bool = False
    error_code: str | None = None
    after: int | None = None
    status: int = 500
    type: str | None = None
    message: str = ""
    seconds: float = 0.0
    category: str | None = None
    usage: str = "missing"
    spent: bool = field(default=False)

    def matches(self, request: Request) -> bool:
        """Say whether this call is to be hit."""
        if self.spent or (self.model and self.model != request.model.name):
            return False
        # The briefing is JSON inside text inside JSON: a quotation mark stands there with one or two backslashes.
        told = "\n".join([*request.system, request.asked])
        return any(self.text in text for text in (request.raw, told, told.replace('\\"', '"')))

    def to_error(self) -> Rejected | None:
        """Return the error that this fault answers with, if it is one that answers with an error."""
        match self.kind:
            case "rate_limit":
                message = self.message or "This request would exceed your rate limit. (rehearsed)"
                return Rejected(429, message, error_code=self.error_code, headers=self._retry_header())
            case "overloaded":
                return Rejected(529, self.message or "Overloaded", headers=self._retry_header())
            case "error":
                message = self.message or "A rehearsed error."
                return Rejected(
                    self.status, message, type=self.type, error_code=self.error_code, headers=self._retry_header()
                )
        return None

    def _retry_header(self) -> dict[str, str]:
        if self.retry_after is None:
            return {}
        seconds = as_number(self.retry_after)
        if self.as_date and seconds is not None:
            # An HTTP date has whole seconds: rounded up, so that waiting for it is never too short.
            at = datetime.now(UTC) + timedelta(seconds=seconds + 0.999)
            return {"retry-after": format_datetime(at.replace(microsecond=0), usegmt=True)}
        return {"retry-after": as_text(self.retry_after)}

    def to_json(self) -> JsonObject:
        """Return the fault as GET /faults shows it."""
        left = None if self.times is None else self.times - self.hits
        return {
            "id": self.id,
            "kind": self.kind,
            "text": self.text,
            "model": self.model,
            "hits": self.hits,
            "left": left,
        }


class FaultBook:
    """The faults waiting for their calls, in the order in which they were added."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._ids = count(1)

    def add(self, body: Json) -> Fault:
        """Add one fault. Raises: WrongFault saying what is wrong with it."""
        if not isinstance(body, dict):
            raise WrongFault("a fault is a JSON object")
        unknown = sorted(body.keys() - FIELDS)
        if unknown:
            raise WrongFault(f"a fault has no field {unknown[0]!r}; it has {', '.join(sorted(FIELDS))}")
        kind = as_text(body.get("kind"))
        if kind not in KINDS:
            raise WrongFault(f"kind is one of {', '.join(sorted(KINDS))}")
        match = as_object(body.get("match"))
        times = as_integer(body.get("times", 1))
        if (times is None and body.get("times", 1) is not None) or (times is not None and times < 1):
            raise WrongFault("times is a whole number from 1, or null for until deleted")
        status = as_integer(body.get("status", 500))
        if status is None or not 400 <= status <= 599:
            raise WrongFault("status is from 400 to 599")
        usage = as_text(body.get("usage", "missing"))
        if usage not in BAD_USAGES:
            raise WrongFault(f"usage is one of {', '.join(sorted(BAD_USAGES))}")
        seconds = as_number(body.get("seconds", 0))
        if seconds is None or seconds < 0 or (kind in ("stall", "slow") and "seconds" not in body):
            raise WrongFault("seconds is a number from 0, required for stall and slow")
        after = as_integer(body.get("after"))
        if body.get("after") is not None and (after is None or after < 0):
            raise WrongFault("after is a number of events from 0")
        fault = Fault(
            id=next(self._ids),
            kind=kind,
            text=as_text(match.get("text")),
            model=as_text(match.get("model")),
            times=times,
            retry_after=body.get("retry_after"),
            as_date=body.get("as_date") is True,
            error_code=as_text(body.get("error_code")) or None,
            after=after,
            status=status,
            type=as_text(body.get("type")) or None,
            message=as_text(body.get("message")),
            seconds=seconds,
            category=as_text(body.get("category")) or None,
            usage=usage,
        )
        self._faults.append(fault)
        return fault

    def take(self, request: Request) -> Fault | None:
        """Return the first fault that is waiting for this call, and count the hit."""
        for fault in self._faults:
            if fault.matches(request):
                fault.hits += 1
                fault.spent = fault.times is not None and fault.hits >= fault.times
                return fault
        return None

    def clear(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def to_json(self) -> list[Json]:
        """Return all faults, spent ones too."""
        return [fault.to_json() for fault in self._faults]
