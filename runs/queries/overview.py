"""The first page: what needs a person, how each agent is doing, and what finished lately. A fixed number of queries."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from runs import sql
from runs.queries.counts import NEWEST
from runs.queries.paging import EVERY_AGENT
from runs.queries.runlines import RunLine, read_run_lines
from runs.queries.spend import AllowanceNow, read_allowances
from runs.states import RUN_FINAL, RUN_OPEN, WAITS_ON_PEOPLE

LATELY = 8
OVERDUE_S = 60
ABOVE = Decimal("0.9")


@dataclass(frozen=True, kw_only=True)
class Need:
    """The pending cards of one kind: how many, the oldest, and the one that expires first."""

    kind: str
    count: int
    oldest_at: datetime
    soonest_at: datetime | None
    first: int
    title: str
    agent: str
    run: int


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Runs that share a trouble: how many, and the newest of them."""

    count: int
    run: int | None
    agent: str
    words: str
    at: datetime | None


@dataclass(frozen=True, kw_only=True)
class AgentLine:
    """An agent's open runs. `spent`, `reserved`: of its open runs; `moved_at`: when one of its runs moved last."""

    agent: str
    at_work: int
    queued: int
    on_people: int
    on_the_world: int
    held: int
    failed: int
    in_doubt: int
    spent: Decimal
    reserved: Decimal
    moved_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    now: datetime
    needs: list[Need]
    failed: Trouble
    near_limit: Trouble
    allowances: list[AllowanceNow]
    overdue: Trouble
    agents: list[AgentLine]
    lately: list[RunLine]
    last_decision_at: datetime | None
    last_decision_by: str


def read_overview(*, agents: Collection[str]) -> Overview:
    given: dict[str, Any] = {
        "all": EVERY_AGENT in agents,
        "agents": list(agents),
        "open": sorted(RUN_OPEN),
        "final": sorted(RUN_FINAL),
        "people": sorted(WAITS_ON_PEOPLE),
        "newest": NEWEST,
        "lately": LATELY,
        "overdue": OVERDUE_S,
        "above": ABOVE,
    }
    rows = sql.fetch_all(_NEEDS, given)
    lately = [number for (number,) in sql.fetch_all(_LATELY, given)]
    now, decided_at, decided_by = sql.fetch_row(_NOW, given)
    return Overview(
        now=now,
        needs=[sql.fill(Need, row) for row in rows],
        failed=_trouble(_FAILED, given),
        near_limit=_trouble(_NEAR_LIMIT, given),
        allowances=read_allowances(agents=agents),
        overdue=_trouble(_OVERDUE, given),
        agents=[sql.fill(AgentLine, row) for row in sql.fetch_all(_AGENTS, given)],
        lately=read_run_lines(lately, agents=agents),
        last_decision_at=decided_at,
        last_decision_by=decided_by or "",
    )


def _trouble(statement: str, given: dict[str, Any]) -> Trouble:
    row = sql.fetch_one(statement, given)
    if row is None:
        return Trouble(count=0, run=None, agent="", words="", at=None)
    return sql.fill(Trouble, row)


_SEEN = "(%(all)s OR r.agent = ANY(%(agents)s))"

# In the order of Need.
_NEEDS = f"""
    SELECT DISTINCT ON (a.kind) a.kind, count(*) OVER kind, min(a.created_at) OVER kind,
        min(a.expires_at) OVER kind, a.id, left(a.title, 300), r.agent, r.id
    FROM runs_approval a JOIN runs_run r ON r.id = a.run_id WHERE a.state = 'pending' AND {_SEEN}
    WINDOW kind AS (PARTITION BY a.kind)
    ORDER BY a.kind, a.expires_at, a.id
"""
# These three in the order of Trouble.
_FAILED = f"""
    SELECT count(*) OVER (), r.id, r.agent, left(r.end_reason, 300), r.ended_at FROM runs_run r
    WHERE r.id > (SELECT coalesce(max(id), 0) FROM runs_run) - %(newest)s AND r.state = 'failed'
        AND r.ended_at > lw_now() - interval '1 day' AND {_SEEN}
    ORDER BY r.ended_at DESC LIMIT 1
"""
_NEAR_LIMIT = f"""
    SELECT count(*) OVER (), r.id, r.agent,
        'run ' || r.id || ' has used or reserved ' || round(used * 100) || ' %% of its ' || dimension, r.created_at
    FROM runs_run r JOIN runs_budget b ON b.run_id = r.id
    CROSS JOIN LATERAL (SELECT dimension, used FROM (VALUES
            ('money', (b.usd_spent + b.usd_reserved) / nullif(b.usd_limit, 0)),
            ('tokens', (b.tokens_spent + b.tokens_reserved)::numeric / nullif(b.tokens_limit, 0)),
            ('steps', (b.steps_spent + b.steps_reserved)::numeric / nullif(b.steps_limit, 0))) AS part(dimension, used)
        WHERE used IS NOT NULL ORDER BY used DESC LIMIT 1) nearest
    WHERE r.state = ANY(%(open)s) AND nearest.used >= %(above)s AND {_SEEN}
    ORDER BY nearest.used DESC, r.id LIMIT 1
"""
_OVERDUE = f"""
    SELECT count(*) OVER (), r.id, r.agent, '', r.due_at FROM runs_run r
    WHERE r.state IN ('queued', 'thinking') AND r.due_at < lw_now() - make_interval(secs => %(overdue)s)
        AND r.paused_at IS NULL AND r.held_since IS NULL AND {_SEEN}
    ORDER BY r.due_at LIMIT 1
"""
# In the order of AgentLine.
_AGENTS = f"""
    SELECT r.agent, count(*) FILTER (WHERE r.state IN ('running', 'thinking')),
        count(*) FILTER (WHERE r.state = 'queued'),
        count(*) FILTER (WHERE r.state = 'waiting' AND r.waiting_for = ANY(%(people)s)),
        count(*) FILTER (WHERE r.state = 'waiting' AND NOT r.waiting_for = ANY(%(people)s)),
        count(*) FILTER (WHERE r.paused_at IS NOT NULL OR r.held_since IS NOT NULL),
        (SELECT count(*) FROM runs_run e WHERE e.agent = r.agent AND e.state = 'failed'
            AND e.id > (SELECT coalesce(max(id), 0) FROM runs_run) - %(newest)s
            AND e.ended_at > lw_now() - interval '1 day'),
        count(*) FILTER (WHERE r.waiting_for = 'verdict'),
        coalesce(sum(b.usd_spent), 0), coalesce(sum(b.usd_reserved), 0), max(r.changed_at)
    FROM runs_run r LEFT JOIN runs_budget b ON b.run_id = r.id
    WHERE r.state = ANY(%(open)s) AND {_SEEN} GROUP BY r.agent ORDER BY r.agent
"""
_LATELY = f"""
    SELECT r.id FROM runs_run r
    WHERE r.id > (SELECT coalesce(max(id), 0) FROM runs_run) - %(newest)s AND r.state = ANY(%(final)s) AND {_SEEN}
    ORDER BY r.ended_at DESC LIMIT %(lately)s
"""
_NOW = f"""
    SELECT lw_clock(), d.at, d.username FROM (SELECT 1) one LEFT JOIN LATERAL (
        SELECT d.at, u.username FROM runs_decision d JOIN auth_user u ON u.id = d.by_id
        JOIN runs_approval a ON a.id = d.approval_id JOIN runs_run r ON r.id = a.run_id
        WHERE {_SEEN} ORDER BY d.id DESC LIMIT 1) d ON true
"""
