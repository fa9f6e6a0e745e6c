"""Cards that a reader has put off: kept in the session, since it is theirs alone and changes nothing for anybody else."""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.contrib.sessions.backends.base import SessionBase

from runs.queries.inbox import InboxLine

MINUTES = (15, 60, 480)
# What expires so soon is shown, whatever was said of it before.
SOON = timedelta(minutes=15)
_KEPT = 200
_KEY = "later"


def put_off(session: SessionBase, card: int, *, now: datetime, minutes: int) -> None:
    """Leave a card out of the list for so many minutes; 0 brings it back."""
    known = {number: until for number, until in _read(session).items() if until > now and number != card}
    if minutes:
        known[card] = now + timedelta(minutes=minutes)
    session[_KEY] = {str(number): until.isoformat() for number, until in list(known.items())[-_KEPT:]}


def list_put_off(session: SessionBase, now: datetime) -> list[int]:
    """What the reader has put off by now, whatever has become of it."""
    return [number for number, until in _read(session).items() if until > now]


def read_put_off(session: SessionBase, lines: Collection[InboxLine], now: datetime) -> dict[int, datetime]:
    """Which of these cards are left out now, and until when."""
    known = _read(session)
    soon = {line.id for line in lines if line.expires_at is not None and line.expires_at <= now + SOON}
    return {
        line.id: known[line.id] for line in lines if line.id in known and known[line.id] > now and line.id not in soon
    }


def _read(session: SessionBase) -> dict[int, datetime]:
    return {int(number): datetime.fromisoformat(until) for number, until in session.get(_KEY, {}).items()}
