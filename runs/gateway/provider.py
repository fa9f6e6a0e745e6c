"""One model call through the official SDK: streamed, and ended by its reply or by the one reason why there is none.

The SDK never tries twice (`max_retries=0`): every attempt has its own entry in the ledger. The events are read raw, so
that a usage which is malformed reaches the ledger as it came, instead of breaking off a reply that is whole.
"""

import email.utils
import hashlib
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import anthropic
import httpx2
from anthropic import AsyncAnthropic, AsyncStream

from runs.agents import Json
from runs.engine.briefing_request import Request
from runs.engine.failpoints import reach
from runs.engine.think import Called
from runs.usage import merge_stream

CONNECT_S = 10.0
COUNT_S = 15.0
SILENCE_S = 120.0
"""Without a byte for this long a stream is given up; the API sends pings much more often."""

# A limit on spending comes as 429 like a limit on the rate, but no waiting lifts it.
_SPENT = frozenset(
    {
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "organization_on_hold",
        "org_member_limit_exceeded",
    }
)
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Reason(Enum):
    """Why a call brought no reply."""

    # The provider's limit, its overload, or nobody there: later, for all calls of this credential and model.
    LIMITED = auto()
    SPENT = auto()  # the provider's limit on spending: not before somebody does something about it
    CREDENTIAL = auto()  # the credential is not accepted
    REFUSED = auto()  # the request itself is wrong; the same again would be refused again
    FAILED = auto()  # the provider failed: again
    BROKEN = auto()  # the stream broke off


class NoReply(Exception):
    """A call ended without a whole reply. unspent: it is certain that nothing was used. retry_after_s: as given."""

    def __init__(self, reason: Reason, message: str, *, unspent: bool, retry_after_s: float | None = None) -> None:
        self.reason, self.message, self.unspent, self.retry_after_s = reason, message, unspent, retry_after_s
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Credential:
    """Whose calls these are. `name` stands in the database and tells the key from others without telling the key."""

    key: str = field(repr=False)
    base_url: str | None = None

    @property
    def name(self) -> str:
        place = "anthropic" if self.base_url is None else self.base_url[-80:]
        return f"{place}#{hashlib.sha256(self.key.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole reply as it came."""

    text: str
    calls: tuple[Called, ...]
    stop_reason: str
    model: str
    usage: Json


@dataclass(kw_only=True)
class Stream:
    """What has come of a call so far; whoever cuts it can still see what is known of its cost."""

    sent_at: float | None = None
    first_byte_at: float | None = None
    start_usage: Json = None
    last_usage: Json = None
    model: str = ""
    _blocks: dict[int, "_Block"] = field(default_factory=dict)
    _stop_reason: str = ""
    _whole: bool = False

    @property
    def usage(self) -> Json:
        return merge_stream(self.start_usage, self.last_usage)

    def take(self, event: Json) -> None:
        """Take one event of the stream. What is unknown is passed over, as the API's versioning rules ask."""
        if not isinstance(event, dict):
            return
        match event.get("type"):
            case "message_start":
                message = _object(event.get("message"))
                self.start_usage = message.get("usage")
                self.model = str(message.get("model") or "")
            case "content_block_start":
                self._blocks[_index(event)] = _Block(start=_object(event.get("content_block")))
            case "content_block_delta":
                if block := self._blocks.get(_index(event)):
                    block.add(_object(event.get("delta")))
            case "message_delta":
                self._stop_reason = str(_object(event.get("delta")).get("stop_reason") or self._stop_reason)
                self.last_usage = event.get("usage")
            case "message_stop":
                self._whole = True
            case "error":
                raise _read_stream_error(_object(event.get("error")))

    def finish(self) -> Answer:
        """The reply, once the stream has ended. Raises: NoReply when it ended before its last event."""
        if not self._whole:
            raise NoReply(Reason.BROKEN, "the stream ended before the reply was whole", unspent=False)
        blocks = [block for _, block in sorted(self._blocks.items())]
        return Answer(
            text="\n\n".join(block.text for block in blocks if block.kind == "text" and block.text),
            calls=tuple(block.to_call() for block in blocks if block.kind == "tool_use"),
            stop_reason=self._stop_reason,
            model=self.model,
            usage=self.usage,
        )


class Provider:
    """The SDK's client for one credential."""

    def __init__(self, credential: Credential) -> None:
        self._client = AsyncAnthropic(
            api_key=credential.key,
            base_url=credential.base_url,
            max_retries=0,
            timeout=anthropic.Timeout(SILENCE_S, connect=CONNECT_S),
        )

    async def call(self, request: Request, stream: Stream) -> Answer:
        """Send a request and read its reply to the end. Cancelling closes the HTTP stream at once. Raises: NoReply."""
        stream.sent_at = time.monotonic()
        try:
            async with self._client.messages.with_streaming_response.create(**_arguments(request)) as response:
                async for event in AsyncStream.raw_events(response.http_response):
                    if stream.first_byte_at is None:
                        stream.first_byte_at = time.monotonic()
                        reach("think.streaming")
                    if event.data:
                        stream.take(_parse(event.data))
        except anthropic.APIStatusError as error:
            raise _read_status_error(error) from error
        except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
            raise _read_connection_error(error) from error
        return stream.finish()

    async def count(self, request: Request) -> int | None:
        """Tokens of the prompt as the provider counts them, which costs nothing; None when it does not say."""
        arguments = {name: value for name, value in _arguments(request).items() if name not in ("max_tokens", "stream")}
        try:
            counted = await self._client.messages.count_tokens(**arguments, timeout=COUNT_S)
        except anthropic.APIError:
            return None
        return counted.input_tokens if counted.input_tokens > 0 else None

    async def close(self) -> None:
        await self._client.close()


def measure(request: Request) -> int:
    """Bytes of a request: a token is at least one byte of what is sent, so there are not more tokens than that."""
    return len(json.dumps(_arguments(request), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _arguments(request: Request) -> dict[str, Any]:
    return {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "system": request.system,
        "tools": request.tools,
        "messages": request.messages,
        "stream": True,
    }


@dataclass(kw_only=True)
class _Block:
    start: Mapping[str, Json]
    _pieces: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.start.get("type") or "")

    @property
    def text(self) -> str:
        return str(self.start.get("text") or "") + "".join(self._pieces)

    def add(self, delta: Mapping[str, Json]) -> None:
        match delta.get("type"):
            case "text_delta":
                self._pieces.append(str(delta.get("text") or ""))
            case "input_json_delta":
                self._pieces.append(str(delta.get("partial_json") or ""))

    def to_call(self) -> Called:
        raw = "".join(self._pieces)
        given: Json = self.start.get("input") or {}
        if raw:
            given = _parse(raw)
        arguments = given if isinstance(given, dict) else None
        return Called(
            id=str(self.start.get("id") or ""), name=str(self.start.get("name") or ""), arguments=arguments, raw=raw
        )


def _parse(text: str) -> Json:
    try:
        parsed: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _index(event: Mapping[str, Json]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else -1


def _read_status_error(error: anthropic.APIStatusError) -> NoReply:
    told = error.api_message or error.message
    message = f"the provider answered {error.status_code}" + (f" ({error.error_code})" if error.error_code else "")
    return _judge(
        error.status_code,
        f"{message}: {told[:500]}",
        code=error.error_code,
        retry_after_s=_read_retry_after(error.response.headers),
        began=False,
    )


def _read_stream_error(error: Mapping[str, Json]) -> NoReply:
    kind = str(error.get("type") or "")
    code = _object(error.get("details")).get("error_code")
    message = f"the provider broke off its reply ({kind}): {str(error.get('message') or '')[:500]}"
    return _judge(_STATUS_OF_TYPE.get(kind, 500), message, code=code if isinstance(code, str) else None, began=True)


def _judge(status: int, message: str, *, code: str | None, retry_after_s: float | None = None, began: bool) -> NoReply:
    """What an error says about this call and the next one. began: a reply had begun, so it may be paid for."""
    if code in _SPENT or status == 402:
        return NoReply(Reason.SPENT, message, unspent=not began)
    if status in (429, 529, 503):
        return NoReply(Reason.LIMITED, message, unspent=not began, retry_after_s=retry_after_s)
    if status in (401, 403):
        return NoReply(Reason.CREDENTIAL, message, unspent=not began)
    if status in (408, 409, 499) or status >= 500:
        # It failed somewhere behind the door: what it had done by then is not told.
        return NoReply(Reason.FAILED, message, unspent=False, retry_after_s=retry_after_s)
    return NoReply(Reason.REFUSED, message, unspent=not began)


def _read_connection_error(error: BaseException) -> NoReply:
    cause = error.__cause__ if isinstance(error, anthropic.APIConnectionError) and error.__cause__ else error
    told = f"{type(cause).__name__}: {cause}".rstrip(": ")
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.UnsupportedProtocol):
        # Not this run's fault: every call waits until it can be reached again.
        return NoReply(Reason.LIMITED, f"the provider cannot be reached ({told})", unspent=True)
    return NoReply(Reason.BROKEN, f"the connection to the provider was lost ({told})", unspent=False)


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds as the provider gave them: milliseconds, seconds, or a date by its own clock."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    given = headers.get("retry-after", "")
    if (seconds := _number(given)) is not None:
        return seconds
    until = email.utils.parsedate_tz(given)
    if until is None:
        return None
    sent = email.utils.parsedate_tz(headers.get("date", ""))
    now = email.utils.mktime_tz(sent) if sent else time.time()
    return max(email.utils.mktime_tz(until) - now, 0.0)


def _number(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        value = float(text or "")
        return max(value, 0.0) if math.isfinite(value) else None
    return None


def asks_cache(request: Request) -> bool:
    """Whether a part of the request is marked for the provider's prompt cache."""
    return bool(_marks(request))


def asks_long_cache(request: Request) -> bool:
    """Whether a part of it is to be cached for an hour, at its own rate."""
    return any(_object(mark).get("ttl") == "1h" for mark in _marks(request))


def _marks(request: Request) -> list[Json]:
    blocks = [*request.system, *request.tools]
    for message in request.messages:
        content = message.get("content")
        blocks += [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return [block["cache_control"] for block in blocks if block.get("cache_control")]
