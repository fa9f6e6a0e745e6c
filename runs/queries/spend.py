"""What was spent: when, by which agent and model, for which outcome, by which runs; and how full each allowance is.

Six queries whatever the length of the ledger. An entry counts once, on the budget of the run whose step it was; those on
the budgets above it are the same money again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from runs import sql
from runs.queries.paging import EVERY_AGENT

CONSUMERS = 6
SHORT_SHOWN = 20
ALLOWANCES_SHOWN = 50


class Span(StrEnum):
    """How far back is looked. The shortest is told by the hour, the others by the day (UTC)."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"

    @property
    def unit(self) -> str:
        return "hour" if self is Span.DAY else "day"

    @property
    def length(self) -> int:
        return {Span.DAY: 24, Span.WEEK: 7, Span.MONTH: 30}[self]


@dataclass(frozen=True, kw_only=True)
class Used:
    """What one agent used of one model in one hour or day. `estimated`: the part of `usd` whose truth may still come."""

    since: datetime
    agent: str
    model: str
    usd: Decimal
    estimated: Decimal
    tokens: int
    calls: int


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A run by what its own steps used in the span; `usd_with_below`: in all, with the runs that it started."""

    run: int
    agent: str
    goal: str
    state: str
    usd: Decimal
    tokens: int
    usd_with_below: Decimal
    usd_limit: Decimal | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The runs of an agent that people started and that ended this way in the span, with what they cost in all."""

    agent: str
    state: str
    verified: str
    runs: int
    usd: Decimal


@dataclass(frozen=True, kw_only=True)
class AllowanceNow:
    """An allowance in the hour, day or month that runs now."""

    id: int
    scope: str
    dimension: str
    period: str
    starts_at: datetime
    ends_at: datetime
    soft: Decimal | None
    hard: Decimal
    spent: Decimal
    reserved: Decimal
    overrun: Decimal


@dataclass(frozen=True, kw_only=True)
class ShortRun:
    """A run that asks a person for more; the card that does."""

    run: int
    agent: str
    card: int
    title: str
    expires_at: datetime | None
    usd_spent: Decimal
    usd_reserved: Decimal
    usd_limit: Decimal | None


@dataclass(frozen=True, kw_only=True)
class Spend:
    """`starts`: when each hour or day of the span begins, the oldest first."""

    now: datetime
    starts: list[datetime]
    used: list[Used]
    consumers: list[Consumer]
    outcomes: list[Outcome]
    allowances: list[AllowanceNow]
    short: list[ShortRun]


def read_spend(span: Span, *, agents: Collection[str], agent: str = "") -> Spend:
    """agent: this one only, of those that the reader may see; allowances and waiting runs are told of all of them."""
    now, starts = _read_starts(span)
    seen = {"all": EVERY_AGENT in agents, "agents": list(agents)}
    given: dict[str, Any] = seen | {
        "agent": agent,
        "unit": span.unit,
        "since": starts[0],
        "consumers": CONSUMERS,
    }
    return Spend(
        now=now,
        starts=starts,
        used=[sql.fill(Used, row) for row in sql.fetch_all(USED, given)],
        consumers=[sql.fill(Consumer, row) for row in sql.fetch_all(TOP, given)],
        outcomes=[sql.fill(Outcome, row) for row in sql.fetch_all(OUTCOMES, given)],
        allowances=read_allowances(agents=agents),
        short=[sql.fill(ShortRun, row) for row in sql.fetch_all(SHORT, seen | {"shown": SHORT_SHOWN})],
    )


def read_allowances(*, agents: Collection[str]) -> list[AllowanceNow]:
    """What a reader sees of the periods that run now, in one query; what many agents share is for who sees every agent."""
    scopes = [f"agent:{name}" for name in agents]
    given = {"all": EVERY_AGENT in agents, "scopes": scopes, "shown": ALLOWANCES_SHOWN}
    return [sql.fill(AllowanceNow, row) for row in sql.fetch_all(ALLOWANCES, given)]


def _read_starts(span: Span) -> tuple[datetime, list[datetime]]:
    now, last = sql.fetch_row("SELECT lw_clock(), date_trunc(%s, lw_clock(), 'UTC')", [span.unit])
    step = timedelta(hours=1) if span.unit == "hour" else timedelta(days=1)
    return now, [last - step * back for back in reversed(range(span.length))]


_SEEN = "(%(all)s OR r.agent = ANY(%(agents)s))"
_ASKED = f"{_SEEN} AND (%(agent)s = '' OR r.agent = %(agent)s)"
# The condition of the index ledger_spent, which has all that is asked for here.
_OWN = "e.budget_id = e.run_id AND e.kind IN ('settle', 'correct') AND (e.usd <> 0 OR e.tokens <> 0)"
# Asked of estimates alone, which are few; the truth about one is found by its attempt.
_OPEN_ESTIMATE = """CASE WHEN e.estimated THEN NOT EXISTS (
    SELECT FROM runs_ledgerentry t WHERE t.attempt_id = e.attempt_id AND t.budget_id = e.run_id
        AND t.kind = 'correct' AND NOT t.estimated) ELSE false END"""

# In the order of Used. Summed by run first: the agent of a run is then looked up once.
USED = f"""
    SELECT u.since, r.agent, u.model, sum(u.usd), sum(u.estimated), sum(u.tokens)::bigint, sum(u.calls)::bigint
    FROM (SELECT e.run_id, e.model, date_trunc(%(unit)s, e.at, 'UTC') AS since, sum(e.usd) AS usd,
            coalesce(sum(e.usd) FILTER (WHERE {_OPEN_ESTIMATE}), 0) AS estimated,
            sum(e.tokens) AS tokens, sum(e.calls) AS calls
        FROM runs_ledgerentry e WHERE {_OWN} AND e.at >= %(since)s GROUP BY 1, 2, 3) u
    JOIN runs_run r ON r.id = u.run_id WHERE {_ASKED} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
# In the order of Consumer.
TOP = f"""
    SELECT r.id, r.agent, left(r.goal, 300), r.state, u.usd, u.tokens, b.usd_spent, b.usd_limit
    FROM (SELECT e.run_id, sum(e.usd) AS usd, sum(e.tokens)::bigint AS tokens
        FROM runs_ledgerentry e WHERE {_OWN} AND e.at >= %(since)s GROUP BY 1) u
    JOIN runs_run r ON r.id = u.run_id JOIN runs_budget b ON b.run_id = r.id
    WHERE {_ASKED} ORDER BY u.usd DESC, u.tokens DESC, r.id DESC LIMIT %(consumers)s
"""
# In the order of Outcome.
OUTCOMES = f"""
    SELECT r.agent, r.state, r.verified, count(*), sum(b.usd_spent)
    FROM runs_run r JOIN runs_budget b ON b.run_id = r.id
    WHERE r.parent_id IS NULL AND r.ended_at >= %(since)s AND {_ASKED} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
# In the order of AllowanceNow.
ALLOWANCES = """
    SELECT a.id, a.scope, a.dimension, a.period, p.starts_at, p.ends_at, a.soft, a.hard,
        coalesce(w.spent, 0), coalesce(w.reserved, 0), coalesce(w.overrun, 0)
    FROM runs_allowance a CROSS JOIN LATERAL lw_period(a.period, a.zone, lw_now()) p
    LEFT JOIN runs_allowancewindow w ON w.allowance_id = a.id AND w.starts_at = p.starts_at
    WHERE a.ended_at IS NULL AND a.dimension <> 'runs' AND (%(all)s OR a.scope = ANY(%(scopes)s))
    ORDER BY a.scope <> 'all', a.scope, a.dimension, a.period LIMIT %(shown)s
"""
# In the order of ShortRun.
SHORT = f"""
    SELECT r.id, r.agent, a.id, left(a.title, 300), a.expires_at, b.usd_spent, b.usd_reserved, b.usd_limit
    FROM runs_approval a JOIN runs_run r ON r.id = a.run_id JOIN runs_budget b ON b.run_id = r.id
    WHERE a.state = 'pending' AND a.kind = 'budget' AND a.effective_at IS NULL AND {_SEEN}
    ORDER BY a.expires_at, a.id LIMIT %(shown)s
"""
