"""Writer of notices: who is to be told of which card, by which channel, and how that went."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from runs import sql
from runs.journal import append, require_transaction
from runs.sanitise import clean_text

# So long a burst is gathered into one message.
GATHER_S = 2.0
CLAIM_S = 120.0
MOST_AT_ONCE = 50
TRIES = 8
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Due:
    """A card that people are to be told of now."""

    notice: int
    event: str
    tries: int
    approval: int
    kind: str
    title: str
    agent: str
    run: int
    groups: list[str]
    expires_at: datetime | None


def plan(channels: Collection[str]) -> int:
    """Plan what people have to be told and were not: a card is new, was escalated, or is about to expire."""
    require_transaction()
    return sql.execute(_PLAN, {"channels": list(channels), "gather": GATHER_S})


def spare() -> int:
    """What was decided before anybody was told needs no telling."""
    require_transaction()
    return sql.execute(
        "UPDATE runs_notice n SET state = 'spared', closed_at = lw_clock() FROM runs_approval a"
        " WHERE a.id = n.approval_id AND n.state = 'due' AND (a.state <> 'pending' OR a.effective_at IS NOT NULL)"
    )


def take(channel: str) -> list[Due]:
    """Take what is due on a channel, all of it once the oldest is due; each try is counted before it is made."""
    require_transaction()
    rows = sql.fetch_all(_TAKE, {"channel": channel, "claim": CLAIM_S, "most": MOST_AT_ONCE})
    return [sql.fill(Due, (*row[:8], json.loads(row[8]), row[9])) for row in sorted(rows, key=lambda row: row[0])]


def note_sent(notices: Sequence[int]) -> None:
    require_transaction()
    sql.execute(
        "UPDATE runs_notice SET state = 'sent', closed_at = lw_clock(), claimed_until = NULL, error = ''"
        " WHERE id = ANY(%s) AND state = 'due'",
        [list(notices)],
    )


def note_failed(notices: Sequence[Due], channel: str, error: str) -> None:
    """Try again later, longer apart each time; after the last try the channel's failure stays on the page."""
    require_transaction()
    for each in notices:
        pause_s = min(FIRST_PAUSE_S * 2.0 ** max(each.tries - 1, 0), LONGEST_PAUSE_S)
        sql.execute(
            "UPDATE runs_notice SET state = CASE WHEN tries >= %s THEN 'failed' ELSE 'due' END,"
            " closed_at = CASE WHEN tries >= %s THEN lw_clock() END, claimed_until = NULL, error = %s,"
            " due_at = lw_clock() + make_interval(secs => %s) WHERE id = %s AND state = 'due'",
            [TRIES, TRIES, clean_text(error)[:1000], pause_s, each.notice],
        )
        if each.tries >= TRIES:
            append("notice.failed", run=None, after={"approval": each.approval, "channel": channel}, why=error)


_PLAN = """
    INSERT INTO runs_notice (approval_id, event, channel, state, tries, created_at, due_at, error)
    SELECT a.id, e.event, c.channel, 'due', 0, lw_now(), lw_now() + make_interval(secs => %(gather)s), ''
    FROM runs_approval a
    CROSS JOIN LATERAL (
        SELECT CASE WHEN EXISTS (SELECT FROM runs_approval o WHERE o.step_id = a.step_id AND o.kind = a.kind
            AND o.id < a.id AND o.state = 'expired' AND o.on_expiry = 'escalate') THEN 'escalated' ELSE 'new' END
        UNION ALL
        SELECT 'expiring' WHERE a.expires_at
            <= lw_now() + least(interval '15 min', (a.expires_at - a.created_at) / 4)
    ) e(event)
    CROSS JOIN unnest(%(channels)s::text[]) c(channel)
    WHERE a.state = 'pending' AND a.effective_at IS NULL
    ON CONFLICT ON CONSTRAINT notice_once DO NOTHING
"""

# In the order of Due.
_TAKE = """
    WITH mine AS (
        SELECT n.id FROM runs_notice n
        WHERE n.state = 'due' AND n.channel = %(channel)s
          AND (n.claimed_until IS NULL OR n.claimed_until < clock_timestamp())
          AND (n.tries = 0 OR n.due_at <= lw_now())
          AND EXISTS (SELECT FROM runs_notice o WHERE o.state = 'due' AND o.channel = n.channel AND o.due_at <= lw_now())
        ORDER BY n.id LIMIT %(most)s FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE runs_notice n SET tries = tries + 1,
            claimed_until = clock_timestamp() + make_interval(secs => %(claim)s)
        FROM mine WHERE n.id = mine.id RETURNING n.id, n.event, n.tries, n.approval_id
    )
    SELECT t.id, t.event, t.tries, a.id, a.kind, a.title, r.agent, r.id, a.groups::text, a.expires_at
    FROM taken t JOIN runs_approval a ON a.id = t.approval_id JOIN runs_run r ON r.id = a.run_id
"""
