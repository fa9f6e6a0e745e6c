"""The channels by which people are told of cards: which of them fail just now."""

from dataclasses import dataclass
from datetime import datetime

from runs import sql


@dataclass(frozen=True, kw_only=True)
class FailingChannel:
    """`waiting`: cards of which nobody could be told by it since it last worked."""

    channel: str
    since: datetime
    waiting: int
    error: str


def list_failing_channels() -> list[FailingChannel]:
    """In one query over what is due or failed in the last day."""
    rows = sql.fetch_all(_FAILING)
    return [FailingChannel(channel=row[0], since=row[1], waiting=row[2], error=row[3]) for row in rows]


_FAILING = """
    SELECT n.channel, min(n.created_at), count(*), (array_agg(n.error ORDER BY n.id DESC))[1]
    FROM runs_notice n
    WHERE n.error <> '' AND n.state IN ('due', 'failed') AND n.created_at > lw_now() - interval '1 day'
      AND NOT EXISTS (SELECT FROM runs_notice s WHERE s.channel = n.channel AND s.state = 'sent'
          AND s.closed_at > coalesce(n.closed_at, n.due_at))
    GROUP BY n.channel ORDER BY n.channel
"""
