"""The answer side of the Messages API: what a player says, as a message and as the events of a stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from runs.examples.model.usage import InputUsage, count_text
from runs.examples.model.values import Json, JsonObject
from runs.examples.model.wire import new_id

PIECE_CHARS = 24
TOOL_USE_TOKENS = 12  # what a tool_use block costs besides its JSON
CLOSING_TOKENS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A tool call that a player wants to make."""

    tool: str
    arguments: JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a player answers: a short text and any number of calls, made in parallel."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One content block. `text` is what is streamed: words, reasoning, or the JSON of a call (perhaps cut off)."""

    type: str
    text: str
    id: str = ""
    tool: str = ""

    @property
    def tokens(self) -> int:
        """Return the output tokens of the block."""
        return count_text(self.text) + (TOOL_USE_TOKENS if self.type == "tool_use" else 0)

    def to_json(self) -> JsonObject:
        """Return the block as it stands in a whole message."""
        match self.type:
            case "tool_use":
                return {"type": "tool_use", "id": self.id, "name": self.tool, "input": _read_input(self.text)}
            case "thinking":
                return {"type": "thinking", "thinking": self.text, "signature": f"rehearsal-{self.id}"}
        return {"type": "text", "text": self.text}

    def cut(self, tokens: int) -> "Part":
        """Return the block cut off in the middle, so that it costs at most that many tokens; empty if none."""
        room = max(0, tokens - (TOOL_USE_TOKENS if self.type == "tool_use" else 0)) * 4
        shown = self.text.encode()[:room].decode("utf-8", "ignore")
        return Part(type=self.type, text=shown, id=self.id, tool=self.tool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A whole reply with its stop reason, ready to be sent either way."""

    id: str
    model: str
    parts: tuple[Part, ...]
    stop_reason: str
    stop_details: JsonObject | None = None

    @property
    def output_tokens(self) -> int:
        """Return the tokens of all that was written; at least one, as the API counts."""
        return sum(part.tokens for part in self.parts) + CLOSING_TOKENS


def write_reply(said: Said, *, model: str, thinking: bool = False) -> Reply:
    """Turn what a player says into content blocks."""
    parts: list[Part] = []
    if thinking:
        parts.append(Part(type="thinking", text="Weighing what the briefing says.", id=new_id("sig")))
    if said.text or not said.calls:
        parts.append(Part(type="text", text=said.text or "I have nothing to add."))
    for call in said.calls:
        text = json.dumps(call.arguments, ensure_ascii=False)
        parts.append(Part(type="tool_use", text=text, id=new_id("toolu"), tool=call.tool))
    reason = "tool_use" if said.calls else "end_turn"
    return Reply(id=new_id("msg"), model=model, parts=tuple(parts), stop_reason=reason)


def limit_reply(reply: Reply, max_tokens: int) -> Reply:
    """Return the reply, cut off with stop reason max_tokens if it is longer than that."""
    if reply.output_tokens <= max_tokens:
        return reply
    left = max_tokens - CLOSING_TOKENS
    kept: list[Part] = []
    for part in reply.parts:
        if part.tokens > left:
            cut = part.cut(left)
            if cut.text:
                kept.append(cut)
            break
        kept.append(part)
        left -= part.tokens
    return Reply(id=reply.id, model=reply.model, parts=tuple(kept), stop_reason="max_tokens")


def cut_last_call(reply: Reply) -> Reply:
    """Return the reply cut off in the middle of its last tool_use (or text, without one), as max_tokens does."""
    calls = [place for place, part in enumerate(reply.parts) if part.type == "tool_use"]
    place = calls[-1] if calls else len(reply.parts) - 1
    part = reply.parts[place]
    half = Part(type=part.type, text=part.text[: max(1, len(part.text) // 2)], id=part.id, tool=part.tool)
    return Reply(id=reply.id, model=reply.model, parts=(*reply.parts[:place], half), stop_reason="max_tokens")


def refuse_reply(reply: Reply, category: str | None) -> Reply:
    """Return the reply broken off by a refusal after its first tool_use: a caller has to execute none of it."""
    kept: list[Part] = []
    for part in reply.parts:
        kept.append(part)
        if part.type == "tool_use":
            break
    details: JsonObject = {"type": "refusal", "category": category, "explanation": "A rehearsed refusal."}
    return Reply(id=reply.id, model=reply.model, parts=tuple(kept), stop_reason="refusal", stop_details=details)


def write_usage(usage: InputUsage, reply: Reply, *, output_tokens: int) -> JsonObject:
    """Return the `usage` of a message."""
    thought = sum(part.tokens for part in reply.parts if part.type == "thinking")
    return {
        **usage.to_json(),
        "output_tokens": output_tokens,
        "output_tokens_details": {"thinking_tokens": min(thought, output_tokens)} if thought else None,
        "server_tool_use": None,
        "service_tier": "standard",
    }


def spoil_usage(usage: JsonObject, how: str) -> Json:
    """Return a usage that no caller may settle by."""
    counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    match how:
        case "null":
            return {name: None if name in counts else value for name, value in usage.items()}
        case "negative":
            return {name: -7 if name in counts else value for name, value in usage.items()}
        case "text":
            return {name: "many" if name in counts else value for name, value in usage.items()}
    return None


def write_message(reply: Reply, usage: Json) -> JsonObject:
    """Return the body of a reply that is not streamed."""
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [part.to_json() for part in reply.parts],
        "stop_reason": reply.stop_reason,
        "stop_sequence": None,
        "stop_details": reply.stop_details,
        "usage": usage,
    }


def write_events(reply: Reply, usage: InputUsage, bad_usage: str | None = None) -> Iterator[JsonObject]:
    """Yield the events of a streamed reply in order; deltas carry a few words each."""
    first = write_usage(usage, reply, output_tokens=1)
    message = write_message(reply, spoil_usage(first, bad_usage) if bad_usage else first)
    yield {
        "type": "message_start",
        "message": {**message, "content": [], "stop_reason": None, "stop_details": None},
    }
    yield {"type": "ping"}
    for index, part in enumerate(reply.parts):
        yield from _write_block(index, part)
    full = write_usage(usage, reply, output_tokens=reply.output_tokens)
    # The final event repeats the input counts: they are cumulative, like the output's.
    shown = {name: value for name, value in full.items() if name not in ("cache_creation", "service_tier")}
    yield {
        "type": "message_delta",
        "delta": {
            "stop_reason": reply.stop_reason,
            "stop_sequence": None,
            "stop_details": reply.stop_details,
        },
        "usage": spoil_usage(shown, bad_usage) if bad_usage else shown,
    }
    yield {"type": "message_stop"}


def _write_block(index: int, part: Part) -> Iterator[JsonObject]:
    empty: JsonObject
    match part.type:
        case "tool_use":
            empty, delta, field = {**part.to_json(), "input": {}}, "input_json_delta", "partial_json"
        case "thinking":
            empty, delta, field = {**part.to_json(), "thinking": "", "signature": ""}, "thinking_delta", "thinking"
        case _:
            empty, delta, field = {"type": "text", "text": ""}, "text_delta", "text"
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    if part.type == "tool_use":
        # The API opens a call with an empty piece.
        yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, field: ""}}
    for start in range(0, len(part.text), PIECE_CHARS):
        piece = part.text[start : start + PIECE_CHARS]
        yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, field: piece}}
    if part.type == "thinking":
        signature = {"type": "signature_delta", "signature": part.to_json()["signature"]}
        yield {"type": "content_block_delta", "index": index, "delta": signature}
    yield {"type": "content_block_stop", "index": index}


def encode_event(event: JsonObject) -> bytes:
    """Return the event as it goes over the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def _read_input(text: str) -> JsonObject:
    try:
        parsed: Json = json.loads(text)
    except ValueError:
        return {}  # cut off: a message that is not streamed shows no half of an argument
    return parsed if isinstance(parsed, dict) else {}
