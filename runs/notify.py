"""Hints that wake someone: after the commit, in a statement of their own. Losing one costs a poll, never a run.

A NOTIFY inside a busy transaction would serialise commits, and one before the commit would wake too early.
"""

import time
from collections.abc import Callable

from django.db import DatabaseError, connection, transaction

from runs import sql

DUE = "longwatch_due"  # a run may be claimed
THINK = "longwatch_think"  # a model call may be made
STOP = "longwatch_stop"  # payload: a run's id, or "*": look at what you have in flight
SCREEN = "longwatch_screen"  # payload: a topic of the console

_COALESCE_S = 0.25
_topics: set[str] = set()
_sent_at = 0.0


def due() -> None:
    _after_commit(DUE, "")


def think() -> None:
    _after_commit(THINK, "")


def stop(run: int | str) -> None:
    _after_commit(STOP, str(run))


def screen(*topics: str) -> None:
    """Tell screens that something changed. Coalesced: at most four times a second per process, topics only."""
    _topics.update(topics)
    _on_commit(lambda: flush(min_gap_s=_COALESCE_S))


def flush(min_gap_s: float = 0.0) -> None:
    """Send the pending screen hints. Loops call this when they rest, so that a coalesced hint is not kept for long."""
    global _topics, _sent_at
    if not _topics or time.monotonic() - _sent_at < min_gap_s or connection.in_atomic_block:
        return
    # In one step: other threads of this process add topics.
    topics, _topics = _topics, set()
    _sent_at = time.monotonic()
    _send([(SCREEN, topic) for topic in sorted(topics)])


def _after_commit(channel: str, payload: str) -> None:
    _on_commit(lambda: _send([(channel, payload)]))


def _on_commit(hint: Callable[[], None]) -> None:
    transaction.on_commit(hint, robust=True)


def _send(hints: list[tuple[str, str]]) -> None:
    try:
        sql.execute(
            "SELECT pg_notify(c, p) FROM unnest(%s::text[], %s::text[]) AS hint(c, p)",
            [[c for c, _ in hints], [p for _, p in hints]],
        )
    except DatabaseError:
        # The commit stands; whoever waits finds it by its poll.
        return
