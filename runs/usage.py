"""What a provider counted, in one form. Normalised here and nowhere else, so that no class of tokens is paid twice.

Anthropic's `input_tokens` excludes what was read from or written to the cache; OpenAI's counts, and those of
genai-prices, include it. What is malformed is replaced by its bound, never by zero, and named in `flaws`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runs.agents import Json


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Disjoint classes of tokens, but `thinking`, which is a part of `output` and only shown."""

    uncached: int = 0
    cache_read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    output: int = 0
    thinking: int = 0
    web_searches: int = 0
    flaws: tuple[str, ...] = ()

    @property
    def prompt(self) -> int:
        """All that went in: what a tier by prompt size is chosen by."""
        return self.uncached + self.cache_read + self.write_5m + self.write_1h

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The most that a call can have used: what a count that cannot be read is replaced by.

    long_cache: the request asked for an hour's cache, so a write whose life is not told may be one of those.
    """

    prompt: int
    output: int
    long_cache: bool = False


def merge_stream(start: Json, delta: Json) -> Json:
    """The usage of a streamed reply: that of its first event, overwritten by what the last one counts anew.

    Counts of `message_delta` are cumulative, and those that do not apply are left out there. Without a count of the
    output in the last event it is not known: the first event was written before there was any.
    """
    first = dict(start) if isinstance(start, Mapping) else {}
    last = {name: value for name, value in delta.items() if value is not None} if isinstance(delta, Mapping) else {}
    if not first and not last:
        return None
    merged: dict[str, Json] = {**first, **last}
    if "output_tokens" not in last:
        merged["output_tokens"] = None
    return merged


def normalise(raw: Json, bounds: Bounds) -> Tokens:
    """Read a usage record of either style: Anthropic's (exclusive) or OpenAI's (inclusive)."""
    if not isinstance(raw, Mapping):
        return Tokens(uncached=bounds.prompt, output=bounds.output, flaws=("no usage was sent",))
    reader = _Reader(raw)
    details = raw.get("prompt_tokens_details", raw.get("input_tokens_details"))
    if "prompt_tokens" in raw or isinstance(details, Mapping):
        return _inclusive(reader, raw, details, bounds)
    return _exclusive(reader, raw, bounds)


def _exclusive(reader: "_Reader", raw: Mapping[str, Json], bounds: Bounds) -> Tokens:
    uncached = reader.find("input_tokens")
    read = reader.find("cache_read_input_tokens", default=0)
    written = reader.find("cache_creation_input_tokens", default=0)
    # What is not known shares what the prompt's bound leaves; the dearest class of them gets it.
    left = max(bounds.prompt - sum(known for known in (uncached, read, written) if known is not None), 0)
    if written is None:
        written, left = left, 0
    if uncached is None:
        uncached, left = left, 0
    if read is None:
        read = left
    lives = _Reader(raw.get("cache_creation"), reader.flaws, inside="cache_creation.")
    write_5m = lives.find("ephemeral_5m_input_tokens", default=0) or 0
    write_1h = lives.find("ephemeral_1h_input_tokens", default=0) or 0
    untold = written - write_5m - write_1h
    if untold < 0:
        # The parts are what is priced; a total below them is the wrong one of the two.
        if written:
            reader.flaws.append("cache_creation counts more than cache_creation_input_tokens")
    elif bounds.long_cache:
        write_1h += untold
    else:
        write_5m += untold
    return _finish(reader, raw, bounds, uncached=uncached, read=read, write_5m=write_5m, write_1h=write_1h)


def _inclusive(reader: "_Reader", raw: Mapping[str, Json], details: Json, bounds: Bounds) -> Tokens:
    name = "prompt_tokens" if "prompt_tokens" in raw else "input_tokens"
    prompt = reader.find(name)
    prompt = bounds.prompt if prompt is None else prompt
    read = _Reader(details, reader.flaws).find("cached_tokens", default=0) or 0
    if read > prompt:
        reader.flaws.append(f"cached_tokens is {read}, more than {name} ({prompt})")
        read = prompt
    return _finish(reader, raw, bounds, uncached=prompt - read, read=read, write_5m=0, write_1h=0)


def _finish(
    reader: "_Reader",
    raw: Mapping[str, Json],
    bounds: Bounds,
    *,
    uncached: int,
    read: int,
    write_5m: int,
    write_1h: int,
) -> Tokens:
    output = reader.find("completion_tokens" if "completion_tokens" in raw else "output_tokens")
    output = bounds.output if output is None else output
    thinking = _Reader(raw.get("output_tokens_details"), reader.flaws).find("thinking_tokens", default=0) or 0
    searches = _Reader(raw.get("server_tool_use"), reader.flaws).find("web_search_requests", default=0) or 0
    return Tokens(
        uncached=uncached,
        cache_read=read,
        write_5m=write_5m,
        write_1h=write_1h,
        output=output,
        thinking=min(thinking, output),
        web_searches=searches,
        flaws=tuple(reader.flaws),
    )


# No call has so many of anything; a count above it is malformed like one below nothing.
_MOST = 10**9


class _Reader:
    def __init__(self, raw: Json, flaws: list[str] | None = None, *, inside: str = "") -> None:
        self._raw = raw if isinstance(raw, Mapping) else {}
        self._inside = inside
        self.flaws = [] if flaws is None else flaws

    def find(self, name: str, *, default: int | None = None) -> int | None:
        """A whole number from 0; `default` where there is none; None, and a flaw, where something else stands."""
        value = self._raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
            return value
        if value is None and default is not None:
            return default
        told = "missing" if value is None else repr(value)[:40]
        self.flaws.append(f"{self._inside}{name} is {told}")
        return None
