"""Credentials: what is known of each, never the secret; who waits for it, and the card that asks for it. Four queries."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from runs import clock, sql
from runs.queries.paging import EVERY_AGENT

WAITING_SHOWN = 500


@dataclass(frozen=True, kw_only=True)
class Known:
    """What its receivers and people have said of a credential. None, or empty: nothing yet."""

    name: str
    expires_at: datetime | None
    renewed_at: datetime | None
    renewed_by: str
    refused_at: datetime | None
    refused_because: str


@dataclass(frozen=True, kw_only=True)
class Waiter:
    """An open step that waits for a credential."""

    run: int
    agent: str
    step: int
    tool: str


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """`waiting`: by name, as far as the reader sees the runs. `cards`: by name, the pending card, if the reader sees it."""

    now: datetime
    known: dict[str, Known]
    waiting: dict[str, list[Waiter]]
    cards: dict[str, int]


def read_credentials(*, agents: Collection[str]) -> Credentials:
    """Everything that is known, whoever uses it: the caller keeps the names that its reader may see."""
    given = {"all": EVERY_AGENT in agents, "agents": list(agents), "shown": WAITING_SHOWN}
    waiting: dict[str, list[Waiter]] = defaultdict(list)
    for name, run, agent, step, tool in sql.fetch_all(_WAITING, given):
        waiting[name].append(Waiter(run=run, agent=agent, step=step, tool=tool))
    known = [sql.fill(Known, row) for row in sql.fetch_all(_KNOWN)]
    return Credentials(
        now=clock.now(),
        known={each.name: each for each in known},
        waiting=dict(waiting),
        cards=dict(sql.fetch_all(_CARDS, given)),
    )


# In the order of Known. They are as many as there are names in agents' code.
_KNOWN = """
    SELECT name, expires_at, renewed_at, renewed_by, refused_at, refused_because
    FROM runs_credential ORDER BY name
"""
_WAITING = """
    SELECT s.waiting_on, s.run_id, r.agent, s.number, s.tool FROM runs_step s JOIN runs_run r ON r.id = s.run_id
    WHERE s.state = 'waiting' AND s.waiting_for = 'credential' AND (%(all)s OR r.agent = ANY(%(agents)s))
    ORDER BY s.run_id, s.number LIMIT %(shown)s
"""
_CARDS = """
    SELECT a.evidence ->> 'credential', min(a.id) FROM runs_approval a JOIN runs_run r ON r.id = a.run_id
    WHERE a.state = 'pending' AND a.kind = 'credential' AND a.evidence ? 'credential'
        AND (%(all)s OR r.agent = ANY(%(agents)s)) GROUP BY 1
"""
