"""Cells of a CSV, so that no spreadsheet takes one for a formula."""

from datetime import UTC, datetime

# A cell that begins with one of these is a formula to a spreadsheet (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_text(text: str) -> str:
    """Text from wherever. Figures of our own need none of this, and could not be summed after it."""
    return "'" + text if text.startswith(_FORMULA) else text


def write_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_number(number: object) -> str:
    return "" if number is None else str(number)
