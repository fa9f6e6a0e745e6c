"""The rehearsal server: a plain ASGI app that answers /v1 like the Messages API, and a few control routes.

    POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models, GET /v1/models/{id}      as the API
    POST /faults (see faults.py) · GET /faults · DELETE /faults
    GET /calls?after=ID · DELETE /calls       what was received, as it was received and how it ended
    POST /clock {"advance": seconds}              moves the clock of the prompt cache
    GET /health

It sees nothing but the request; nothing of Longwatch is imported but what stands in runs/examples/.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote

from runs.examples.model.briefing import read_briefing
from runs.examples.model.catalogue import NAMES, find_model
from runs.examples.model.faults import Fault, FaultBook, WrongFault
from runs.examples.model.players import play
from runs.examples.model.reply import (
    Reply,
    cut_last_call,
    encode_event,
    limit_reply,
    refuse_reply,
    spoil_usage,
    write_events,
    write_message,
    write_reply,
    write_usage,
)
from runs.examples.model.usage import InputUsage, PromptCache, divide_prompt
from runs.examples.model.values import Json, JsonObject, as_number, as_object
from runs.examples.model.wire import MAX_BODY_BYTES, Rejected, Request, new_id, read_request

type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
type Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PING_EVERY_S = 5.0
CALLS_KEPT = 20_000


@dataclass(kw_only=True, slots=True)
class CallRecord:
    """One call of POST /v1/messages as the receiver saw it."""

    id: int
    request_id: str
    time: float
    model: str = ""
    goal: str = ""
    user: str = ""
    stream: bool = False
    status: int = 0
    fault: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    stop_reason: str | None = None
    tools_called: list[str] = field(default_factory=list)
    bytes_sent: int = 0
    events_sent: int = 0
    client_gone: bool = False
    """The client went away before the end."""
    open: bool = True
    ended: float | None = None


class Gone(Exception):
    """The client has closed the connection."""


class Wire:
    """One HTTP exchange: what was asked, and whether the client is still there."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = parse_qs(scope.get("query_string", b"").decode())
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.request_id = new_id("req")
        self.bytes_sent = 0
        self._receive = receive
        self._send = send
        self._gone = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    async def read_body(self) -> bytes:
        """Return the body. Raises: Rejected with 413, Gone."""
        announced = self.headers.get("content-length", "")
        too_large = announced.isdigit() and int(announced) > MAX_BODY_BYTES
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            # The rest is read all the same: a client that is still sending would not see the answer.
            if len(body) <= MAX_BODY_BYTES:
                body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if too_large or len(body) > MAX_BODY_BYTES:
            raise Rejected(413, "Request exceeds the maximum allowed number of bytes.")
        self._watch = asyncio.create_task(self._watch_client())
        return bytes(body)

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not for a client that has left. Raises: Gone."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), seconds)
        if self._gone.is_set():
            raise Gone

    async def start(self, status: int, content_type: str, headers: dict[str, str] | None = None) -> None:
        """Send the status and the headers."""
        shown = {"content-type": content_type, "request-id": self.request_id, **(headers or {})}
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in shown.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body. Raises: Gone."""
        if self._gone.is_set():
            raise Gone
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self.bytes_sent += len(data)

    async def answer(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        """Send a whole JSON answer."""
        data = json.dumps(body, ensure_ascii=False).encode()
        await self.start(status, "application/json", {"content-length": str(len(data)), **(headers or {})})
        await self.write(data, more=False)

    def close(self) -> None:
        """Stop watching the client."""
        if self._watch is not None:
            self._watch.cancel()


class RehearsalModel:
    """The server's state: pace, faults, cache, calls."""

    def __init__(self, *, pace_s: float = 0.0, api_key: str | None = None) -> None:
        self.pace_s = pace_s
        self.api_key = api_key
        self.faults = FaultBook()
        self.cache = PromptCache()
        self.calls: deque[CallRecord] = deque(maxlen=CALLS_KEPT)
        self._ids = count(1)
        self._shift_s = 0.0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection event (ASGI 3)."""
        if scope["type"] != "http":
            return
        wire = Wire(scope, receive, send)
        try:
            await self._route(wire)
        except Rejected as error:
            with suppress(Gone):
                await wire.answer(error.status, error.to_json(wire.request_id), error.headers)
        except Gone:
            pass
        finally:
            wire.close()

    async def _route(self, wire: Wire) -> None:
        parts = [unquote(part) for part in wire.path.strip("/").split("/")]
        match wire.method, parts:
            case "POST", ["v1", "messages"]:
                await self._create_message(wire)
            case "POST", ["v1", "messages", "count_tokens"]:
                await self._count_tokens(wire)
            case "GET", ["v1", "models"]:
                self._authenticate(wire)
                models: list[Json] = [model.to_json() for name in NAMES if (model := find_model(name))]
                page: JsonObject = {"data": models, "has_more": False, "first_id": NAMES[0], "last_id": NAMES[-1]}
                await wire.answer(200, page)
            case "GET", ["v1", "models", name]:
                self._authenticate(wire)
                found = find_model(name)
                if found is None:
                    raise Rejected(404, f"model: {name}")
                await wire.answer(200, found.to_json())
            case _, ["v1", *_]:
                raise Rejected(404, "Not found")
            case _:
                await self._control(wire, parts)

    def _authenticate(self, wire: Wire) -> str:
        if not wire.headers.get("anthropic-version"):
            raise Rejected(400, "anthropic-version: header is required")
        key: str = wire.headers.get("x-api-key") or wire.headers.get("authorization", "").removeprefix("Bearer ")
        if self.api_key is not None and key != self.api_key:
            raise Rejected(401, "invalid x-api-key" if key else "x-api-key header is required")
        return key

    def _now(self) -> float:
        return time.monotonic() + self._shift_s

    async def _count_tokens(self, wire: Wire) -> None:
        self._authenticate(wire)
        request = read_request(await wire.read_body(), counting=True)
        await wire.answer(200, {"input_tokens": sum(block.tokens for block in divide_prompt(request.body))})

    async def _create_message(self, wire: Wire) -> None:
        record = CallRecord(id=next(self._ids), request_id=wire.request_id, time=time.time())
        self.calls.append(record)
        try:
            key = self._authenticate(wire)
            request = read_request(await wire.read_body())
            record.model, record.user, record.stream = request.model.name, request.user, request.stream
            await self._reply(wire, request, key, record)
        except Rejected as error:
            record.status = error.status
            raise
        except Gone:
            record.client_gone = True
            raise
        finally:
            record.bytes_sent = wire.bytes_sent
            record.open = False
            record.ended = time.time()

    async def _reply(self, wire: Wire, request: Request, key: str, record: CallRecord) -> None:
        blocks = divide_prompt(request.body)
        tokens = sum(block.tokens for block in blocks)
        if tokens > request.model.max_input_tokens:
            raise Rejected(400, f"prompt is too long: {tokens} tokens > {request.model.max_input_tokens} maximum")
        fault = self.faults.take(request)
        record.fault = fault.kind if fault else ""
        error = fault.to_error() if fault else None
        if error is not None and (fault is None or fault.after is None or not request.stream):
            raise error
        briefing = read_briefing(request)
        record.goal = briefing.goal if briefing else ""
        said = play(briefing)
        reply = limit_reply(
            write_reply(said, model=request.model.name, thinking=request.wants_thinking), request.max_tokens
        )
        if fault is not None and fault.kind == "max_tokens":
            reply = cut_last_call(reply)
        elif fault is not None and fault.kind == "refusal":
            reply = refuse_reply(reply, fault.category)
        usage = self.cache.account(key=key, model=request.model.name, blocks=blocks, now=self._now())
        record.input_tokens, record.cache_read_tokens = usage.total, usage.read
        record.tools_called = [part.tool for part in reply.parts if part.type == "tool_use"]
        record.status = 200
        if request.stream:
            await self._stream(wire, reply, usage, fault, record)
        else:
            await self._send_whole(wire, reply, usage, fault, record)

    def _length_s(self, fault: Fault | None) -> float:
        return fault.seconds if fault is not None and fault.kind == "slow" else self.pace_s

    async def _send_whole(
        self, wire: Wire, reply: Reply, usage: InputUsage, fault: Fault | None, record: CallRecord
    ) -> None:
        await wire.pause(self._length_s(fault) + (fault.seconds if fault and fault.kind == "stall" else 0))
        counts: Json = write_usage(usage, reply, output_tokens=reply.output_tokens)
        if fault is not None and fault.kind == "bad_usage":
            counts = spoil_usage(as_object(counts), fault.usage)
        body = write_message(reply, counts)
        if fault is not None and fault.kind == "cut_stream":
            data = json.dumps(body).encode()
            await wire.start(200, "application/json", {"content-length": str(len(data))})
            await wire.write(data[: len(data) // 2])
            return  # without the rest: the server then closes the connection
        await wire.answer(200, body)
        record.stop_reason, record.output_tokens = reply.stop_reason, reply.output_tokens

    async def _stream(
        self, wire: Wire, reply: Reply, usage: InputUsage, fault: Fault | None, record: CallRecord
    ) -> None:
        spoiled = fault.usage if fault is not None and fault.kind == "bad_usage" else None
        events = list(write_events(reply, usage, spoiled))
        pieces = sum(event["type"] == "content_block_delta" for event in events)
        gap_s = self._length_s(fault) / max(1, pieces)
        after = len(events) + 1 if fault is None else _break_at(fault, len(events))
        await wire.start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
        for position, event in enumerate(events):
            if fault is not None and position == after:
                if fault.kind == "stall":
                    await wire.pause(fault.seconds)
                else:
                    error = fault.to_error()
                    if error is not None:
                        await wire.write(encode_event(error.to_json(wire.request_id)), more=False)
                    return  # without the rest: the server then closes the connection
            if event["type"] == "content_block_delta":
                await self._wait_with_pings(wire, gap_s)
            # The end of the body goes with the last event: a client may leave as soon as it has that.
            await wire.write(encode_event(event), more=position + 1 < len(events))
            record.events_sent = position + 1
            record.bytes_sent = wire.bytes_sent
        record.stop_reason, record.output_tokens = reply.stop_reason, reply.output_tokens

    async def _wait_with_pings(self, wire: Wire, seconds: float) -> None:
        while seconds > PING_EVERY_S:
            await wire.pause(PING_EVERY_S)
            await wire.write(encode_event({"type": "ping"}))
            seconds -= PING_EVERY_S
        await wire.pause(seconds)

    async def _control(self, wire: Wire, parts: list[str]) -> None:
        body = await wire.read_body()
        match wire.method, parts:
            case "GET", ["health"]:
                await wire.answer(200, {"ok": True})
            case "POST", ["faults"]:
                try:
                    fault = self.faults.add(json.loads(body))
                except ValueError as error:
                    known = isinstance(error, WrongFault)
                    await wire.answer(400, {"error": str(error) if known else "the body is not JSON"})
                    return
                await wire.answer(201, fault.to_json())
            case "GET", ["faults"]:
                await wire.answer(200, {"faults": self.faults.to_json()})
            case "DELETE", ["faults"]:
                self.faults.clear()
                await wire.answer(200, {"faults": []})
            case "GET", ["calls"]:
                after = int((wire.query.get("after") or ["0"])[0] or 0)
                shown: list[Json] = [asdict(call) for call in self.calls if call.id > after]
                await wire.answer(200, {"calls": shown, "count": len(shown)})
            case "DELETE", ["calls"]:
                self.calls.clear()
                await wire.answer(200, {"calls": [], "count": 0})
            case "POST", ["clock"]:
                seconds = as_number(as_object(json.loads(body or b"{}")).get("advance"))
                self._shift_s += seconds or 0.0
                await wire.answer(200, {"shifted_s": self._shift_s})
            case _:
                await wire.answer(404, {"error": f"no route {wire.method} {wire.path}"})


def _break_at(fault: Fault, events: int) -> int:
    """Return the position of the event before which the fault strikes."""
    match fault.kind:
        case "cut_stream":
            return fault.after if fault.after is not None else 5
        case "stall":
            return fault.after if fault.after is not None else events // 2
        case "overloaded" | "error" | "rate_limit" if fault.after is not None:
            return fault.after
    return events + 1
