"""One function before every JSON and text column: whatever comes from outside can be stored, and marks what it replaced."""

import base64
import math
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

from runs.agents import Json

MAX_DEPTH = 64
# PostgreSQL's jsonb holds any number, but most readers do not: beyond this an integer is kept as text.
_SAFE_INTEGER = 2**53


def clean_text(text: str) -> str:
    """Replace what PostgreSQL refuses (NUL, lone surrogates) by U+FFFD; paired surrogates become their character."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: object, depth: int = 0) -> Json:
    """Any Python value as JSON that PostgreSQL stores and gives back equal."""
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(value)
        case Enum():
            return clean_json(value.value, depth)
        case int():
            return value if abs(value) <= _SAFE_INTEGER else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal() | UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(value))
    if depth >= MAX_DEPTH:
        return clean_text(f"… nested deeper than {MAX_DEPTH}: {type(value).__name__}")
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, Iterable):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [clean_json(item, depth + 1) for item in items]
    return clean_text(repr(value))


def _bytes(value: bytes) -> Json:
    try:
        return clean_text(value.decode("utf-8"))
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def _mapping(value: Mapping[object, object], depth: int) -> dict[str, Json]:
    """Keys that become equal (by cleaning, or by their type) are kept apart by a mark."""
    out: dict[str, Json] = {}
    for key, item in value.items():
        name = clean_text(key) if isinstance(key, str) else clean_text(str(clean_json(key)))
        while name in out or (name != (plain := unicodedata.normalize("NFC", name)) and plain in out):
            name += "\u2032"
        out[name] = clean_json(item, depth + 1)
    return out
