"""Count tokens and keep the prompt cache's books.

A token is about four bytes of what is sent; the count is the same for the same bytes, and the parts add up: the count
of a request is the sum of its blocks, so `count_tokens` equals the three input counts of `usage` together.

The cache works as the API's does: the prompt is tools, then system, then messages, block by block; a `cache_control`
mark stores the prefix that ends with its block, for 5 minutes or an hour from its last use, per API key and model; a
request reads the longest stored prefix that ends at one of its marks or up to 20 blocks before one. A block is equal
only as a whole: text added to the end of a block makes it another block.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from runs.examples.model.values import Json, JsonObject, as_list, as_object, as_text

BYTES_PER_TOKEN = 4
LOOK_BACK_BLOCKS = 20
LIVES_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of the prompt: its tokens, the digest of all up to its end, and the life of a mark on it."""

    tokens: int
    digest: str
    ttl: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputUsage:
    """The input tokens of one call, as the API divides them: fresh + created + read is the whole prompt."""

    fresh: int
    created_5m: int = 0
    created_1h: int = 0
    read: int = 0

    @property
    def total(self) -> int:
        """Return all input tokens."""
        return self.fresh + self.created_5m + self.created_1h + self.read

    def to_json(self) -> JsonObject:
        """Return the input fields of `usage`."""
        return {
            "input_tokens": self.fresh,
            "cache_creation_input_tokens": self.created_5m + self.created_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.created_5m,
                "ephemeral_1h_input_tokens": self.created_1h,
            },
        }


def count_text(text: str) -> int:
    """Return the tokens of a text: its UTF-8 bytes by four, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def divide_prompt(body: JsonObject) -> list[Block]:
    """Return the blocks of a request in the order of the prompt."""
    digest = sha256()
    blocks: list[Block] = []
    for label, content in _walk(body):
        plain = {key: value for key, value in content.items() if key != "cache_control"}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest.update(f"{label}\0{len(text)}\0{text}".encode())
        mark = content.get("cache_control")
        ttl = (as_text(as_object(mark).get("ttl")) or "5m") if mark is not None else None
        shown = as_text(content.get("text")) if content.get("type") == "text" else text
        blocks.append(Block(tokens=max(1, count_text(shown)), digest=digest.hexdigest(), ttl=ttl))
    mark = body.get("cache_control")
    if mark is not None and blocks:
        last = blocks[-1]
        blocks[-1] = Block(tokens=last.tokens, digest=last.digest, ttl=as_text(as_object(mark).get("ttl")) or "5m")
    return blocks


def _walk(body: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    for tool in as_list(body.get("tools")):
        yield "tool", as_object(tool)
    for block in _as_blocks(body.get("system")):
        yield "system", block
    # What changes how messages are read makes them another prefix, but leaves tools and system as they are.
    how = json.dumps([body.get("thinking"), body.get("tool_choice")], sort_keys=True)
    for message in as_list(body.get("messages")):
        for block in _as_blocks(as_object(message).get("content")):
            yield f"{as_object(message).get('role')} {how}", block


def _as_blocks(content: Json) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [as_object(block) for block in as_list(content)]


class PromptCache:
    """Remember which prefixes were stored, until when."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str, str], float] = {}

    def account(self, *, key: str, model: str, blocks: list[Block], now: float) -> InputUsage:
        """Divide a prompt into read, created and fresh tokens, and store what its marks say (now: seconds)."""
        marks = [position for position, block in enumerate(blocks) if block.ttl is not None]
        totals = [0]
        for block in blocks:
            totals.append(totals[-1] + block.tokens)
        if not marks:
            return InputUsage(fresh=totals[-1])
        read_to = self._find_stored(key, model, blocks, marks, now)
        long_to = max((mark + 1 for mark in marks if blocks[mark].ttl == "1h"), default=0)
        created_1h = max(0, totals[long_to] - totals[read_to])
        created_5m = totals[marks[-1] + 1] - totals[max(read_to, long_to)] if marks[-1] + 1 > read_to else 0
        self._store(key, model, blocks, marks, read_to, now)
        return InputUsage(
            fresh=totals[-1] - totals[read_to] - created_1h - created_5m,
            created_5m=created_5m,
            created_1h=created_1h,
            read=totals[read_to],
        )

    def _find_stored(self, key: str, model: str, blocks: list[Block], marks: list[int], now: float) -> int:
        for mark in reversed(marks):
            for position in range(mark, max(-1, mark - LOOK_BACK_BLOCKS - 1), -1):
                if self._until.get((key, model, blocks[position].digest), now) > now:
                    return position + 1
        return 0

    def _store(self, key: str, model: str, blocks: list[Block], marks: list[int], read_to: int, now: float) -> None:
        for mark in marks:
            entry = (key, model, blocks[mark].digest)
            until = now + LIVES_S[blocks[mark].ttl or "5m"]
            self._until[entry] = max(until, self._until.get(entry, until))
        if read_to:
            # Reading renews what was read, even when no mark stands exactly there any more.
            entry = (key, model, blocks[read_to - 1].digest)
            self._until[entry] = max(now + LIVES_S["5m"], self._until.get(entry, now))
        if len(self._until) > 50_000:
            self._until = {entry: until for entry, until in self._until.items() if until > now}
