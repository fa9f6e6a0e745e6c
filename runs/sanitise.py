"""One function before every JSON and text column: whatever comes from outside can be stored, and marks what it replaced."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from uuid import UUID

from pydantic import BaseModel

from runs.agents import Json

MAX_DEPTH = 200
# Of something that may have no end.
MAX_ITEMS = 100_000
# jsonb holds any number, but gives it back in another form than it was written: an integer beyond 2**53 is not exact
# for most readers, and a float of 1e16 and more comes back as an integer. Both are kept as text, so that a value has
# one digest before and after it was stored.
_SAFE_INTEGER = 2**53
_SAFE_FLOAT = 1e16


def clean_text(text: str) -> str:
    """Replace what PostgreSQL refuses (NUL, lone surrogates) by U+FFFD; paired surrogates become their character."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: object) -> Json:
    """Any Python value as JSON that PostgreSQL stores and gives back equal. Never raises: an effect may be behind it."""
    try:
        return _clean(value, ())
    except Exception as error:
        return f"… cannot be shown: {_name(value)} ({_name(error)})"


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A value that is no JSON. path: where it stands, as in `orders[3].paid`; what, kept_as: its type before and after."""

    path: str
    what: str
    kept_as: str


def find_replaced(value: object, kept: Json) -> list[Replaced]:
    """What `clean_json` made something else of when it made `kept` of `value`: the first of each type. Never raises."""
    found: dict[str, Replaced] = {}
    try:
        if value != kept:  # quick, and mostly all there is to do
            _compare(value, kept, "", found)
    except Exception as error:
        found[""] = Replaced(path="", what=_name(value), kept_as=f"{_name(kept)} ({_name(error)})")
    return [*found.values()]


def _compare(value: object, kept: Json, path: str, found: dict[str, Replaced]) -> None:
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping) and isinstance(kept, dict):
        for (key, item), (name, kept_item) in zip(value.items(), kept.items(), strict=True):
            _compare(key, name, f"{path} (a key)".lstrip(), found)
            _compare(item, kept_item, f"{path}.{name}".lstrip("."), found)
    elif isinstance(kept, list):
        # What is gone through once only, or is in no order, has no places.
        if isinstance(value, Sequence):
            for place, (item, kept_item) in enumerate(zip(value, kept, strict=True)):
                _compare(item, kept_item, f"{path}[{place}]", found)
    elif not isinstance(value, (str, type(kept))):
        found.setdefault(_name(value), Replaced(path=path, what=_name(value), kept_as=_name(kept)))


def _clean(value: object, above: tuple[int, ...]) -> Json:
    """`above`: the ids of the containers around it."""
    # Most of all, and quickly.
    if type(value) is str:
        return clean_text(value)
    if value is None or type(value) is bool:
        return value
    if type(value) is int and -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
        return value
    if type(value) is dict and len(above) < MAX_DEPTH and id(value) not in above:
        return _mapping(value, (*above, id(value)))
    match value:
        case Enum():
            return _clean(value.value, above)
        case str():
            return clean_text(value)
        case int():
            return int(value) if abs(value) <= _SAFE_INTEGER else _digits(value)
        case float():
            # Adding 0 leaves no negative zero, which jsonb does not know.
            return float(value) + 0.0 if abs(value) < _SAFE_FLOAT and math.isfinite(value) else str(float(value))
        case Decimal() | UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(value))
        case BaseModel():
            return _clean(dict(value), above)
    if is_dataclass(value) and not isinstance(value, type):
        return _clean({f.name: getattr(value, f.name) for f in fields(value)}, above)
    if not isinstance(value, Iterable) or isinstance(value, type):
        return clean_text(repr(value))
    if id(value) in above:
        return f"… holds itself: {_name(value)}"
    if len(above) >= MAX_DEPTH:
        return f"… nested deeper than {MAX_DEPTH}: {_name(value)}"
    return _container(value, (*above, id(value)))


def _container(value: Iterable[object], above: tuple[int, ...]) -> Json:
    if isinstance(value, Mapping):
        return _mapping(value, above)
    if isinstance(value, (set, frozenset)):
        return [_clean(item, above) for item in sorted(value, key=repr)]
    if isinstance(value, Sized):
        return [_clean(item, above) for item in value]
    items = [_clean(item, above) for item in islice(value, MAX_ITEMS + 1)]
    return items if len(items) <= MAX_ITEMS else [*items[:MAX_ITEMS], f"… and more than {MAX_ITEMS} items"]


def _mapping(value: Mapping[object, object], above: tuple[int, ...]) -> dict[str, Json]:
    """Keys that become equal (by cleaning, or by their type) are kept apart by a mark."""
    out: dict[str, Json] = {}
    for key, item in value.items():
        name = clean_text(key) if isinstance(key, str) else str(_clean(key, above))
        while name in out:
            name += "\u2032"
        out[name] = _clean(item, above)
    return out


def _digits(value: int) -> str:
    try:
        return str(int(value))
    except ValueError:  # more digits than Python writes out
        return hex(value)


def _bytes(value: bytes) -> Json:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = "\x00"
    return {"base64": base64.b64encode(value).decode("ascii")} if "\x00" in text else text


def _name(value: object) -> str:
    return clean_text(type(value).__name__)
