"""How a value stands in the briefing: JSON that cannot close a block, hide anything, or grow without end."""

import json
import re
from collections.abc import Container, Iterable
from typing import Any

from pydantic_core import from_json, to_json

from runs.agents import Json

type Span = tuple[int, int]  # the first and the last one of numbers that follow each other

# What a reader cannot see, or what turns the text around it: C1 controls, format and bidi characters, fillers, variation
# selectors, tags, line separators, lone surrogates. In JSON outside of strings none of them occurs.
_UNSEEN = re.compile(
    "[<>&\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def dump(value: object) -> str:
    """One line of JSON, the same for the same value: no space, no `<`, `>`, `&`, nothing invisible as itself."""
    try:
        text = to_json(value).decode()
    except ValueError:  # a lone surrogate
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isascii():
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\x7f", "\\u007f")
    return _UNSEEN.sub(_escape, text)


def load(text: str) -> Any:
    """Read what the database wrote as JSON."""
    return from_json(text)


def size(value: object) -> int:
    """Bytes that a value takes in the briefing."""
    return len(dump(value).encode())


def tokens(length: int) -> int:
    """About how many tokens so many bytes are."""
    return -(-length // 4)


def shorten_text(text: str, most: int) -> str:
    """The beginning of a text that takes at most `most` bytes as JSON, with a mark where it was cut."""
    if len(text) * 12 <= most or size(text) <= most:
        return text
    low, high = 0, min(len(text), most)
    while low < high:  # bytes grow with characters: halve until it fits
        middle = (low + high + 1) // 2
        if size(text[:middle]) + 3 <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low] + "…"


def shorten(value: Json, most: int, *, bytes_full: int | None = None) -> Json:
    """A value that takes at most about `most` bytes: itself, or its beginning as text that says it is shortened.

    What the step already keeps shortened keeps its artifact reference. bytes_full: its full size, where `value` is
    itself only the beginning of the JSON text.
    """
    if bytes_full is None:
        if size(value) <= most:
            return value
        if isinstance(value, dict) and "artifact" in value and isinstance(value.get("text"), str):
            return {**value, "text": shorten_text(str(value["text"]), max(most - 250, 50))}
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        bytes_full = len(text.encode("utf-8", "surrogatepass"))
    else:
        text = str(value)
    return {"shortened": True, "text": shorten_text(text, max(most - 60, 50)), "bytes": bytes_full}


def shorten_strings(value: Json, most: int) -> Json:
    """A small structure (arguments) whose long texts are cut, each to at most `most` bytes."""
    if isinstance(value, str):
        return shorten_text(value, most)
    if isinstance(value, list):
        return [shorten_strings(each, most) for each in value]
    if isinstance(value, dict):
        return {name: shorten_strings(each, most) for name, each in value.items()}
    return value


def join(spans: Iterable[Span], passed: Container[int] = ()) -> list[Span]:
    """Ascending spans, those that touch made one. A span may pass over the numbers in `passed`."""
    joined: list[Span] = []
    expected = 0
    for first, last in spans:
        while expected in passed:
            expected += 1
        if joined and first == expected:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
        expected = last + 1
    return joined


def ranges(spans: Iterable[Span]) -> str:
    """Spans as text: 3-9,12,15-20."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
