"""What agents are written in: JSON, and durations in seconds."""

from __future__ import annotations

import hashlib
import json

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None


def seconds(n: float) -> float:
    return float(n)


def minutes(n: float) -> float:
    return n * 60.0


def hours(n: float) -> float:
    return n * 3600.0


def days(n: float) -> float:
    return n * 86400.0


def digest(value: object) -> str:
    """SHA-256 (hex) of canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
