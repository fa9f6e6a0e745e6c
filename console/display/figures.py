"""Durations, moments, money and counts as people read them. Pure: the moment of reading is always given."""

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

MINUTE, HOUR, DAY = 60, 3600, 86400


def write_duration(seconds: float) -> str:
    """Two units at most: 40 s, 41 min, 3 h 04 min, 1 d 18 h."""
    whole = int(max(seconds, 0.0))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        hours, minutes = whole // HOUR, whole % HOUR // MINUTE
        return f"{hours} h {minutes:02} min" if minutes else f"{hours} h"
    days, hours = whole // DAY, whole % DAY // HOUR
    return f"{days} d {hours} h" if hours else f"{days} d"


def write_limit(seconds: float) -> str:
    """A limit somebody set: exact, so that 90 s is not called 1 min."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)} {unit}"
    return write_took(seconds)


def write_limit_field(seconds: float) -> str:
    """A limit as it is typed: 2d, 4h, 90m, 45s."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def write_took(seconds: float) -> str:
    """How long a piece of work took: 0.8 s, 38 s, 6 min 50 s, then as a duration."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < MINUTE:
        return f"{int(seconds)} s"
    if seconds < HOUR:
        minutes, rest = divmod(int(seconds), MINUTE)
        return f"{minutes} min {rest:02} s" if rest else f"{minutes} min"
    return write_duration(seconds)


def write_clock(seconds: float) -> str:
    """To the second, so that figures add up before the reader's eyes: 42 h 08 min 28 s."""
    whole = int(max(seconds, 0.0))
    hours, minutes, rest = whole // HOUR, whole % HOUR // MINUTE, whole % MINUTE
    if hours:
        return f"{hours} h {minutes:02} min {rest:02} s"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def write_ago(at: datetime, now: datetime) -> str:
    return write_duration((now - at).total_seconds())


def write_moment(at: datetime, now: datetime) -> str:
    """03:21:40 today, Mon 30 Nov 08:00 within half a year, else with its year. UTC."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    if abs((at - now).days) < 180:
        return f"{at:%a} {at.day} {at:%b %H:%M}"
    return f"{at.day} {at:%b %Y %H:%M}"


def write_day(at: datetime, now: datetime) -> str:
    """Above what happened on it: Today, Sunday 29 November. UTC."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    today = "Today, " if at.date() == now.date() else ""
    return f"{today}{at:%A} {at.day} {at:%B}" + (f" {at.year}" if at.year != now.year else "")


def write_full(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def write_usd(amount: Decimal) -> str:
    """Cents; below one cent as many places as it takes to see that it is not nothing."""
    if amount < 0:
        return f"-{write_usd(-amount)}"
    if 0 < amount < Decimal("0.01"):
        small = amount.quantize(Decimal("0.0001"), rounding=ROUND_HALF_UP)
        return f"${small:f}" if small else "<$0.0001"
    return f"${amount.quantize(Decimal('0.01'), rounding=ROUND_HALF_UP):,f}"


def write_booked(amount: Decimal) -> str:
    """An amount of a ledger, where cents are not enough: $0.0312; nothing is $0.00."""
    if not amount:
        return "$0.00"
    sign = "-" if amount < 0 else ""
    return f"{sign}${abs(amount).quantize(Decimal('0.0001'), rounding=ROUND_HALF_UP):,f}"


def write_count(number: int) -> str:
    return f"{number:,}"


def plural(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(part: float | Decimal, whole: float | Decimal) -> float:
    """Of a whole, from 0 to 100, with two places: for the width of a mark in a drawing."""
    return round(min(max(float(part) / float(whole), 0.0), 1.0) * 100, 2) if whole else 0.0
