"""What a run's page shows beside the run itself: its open cards, its open work, what of its spend is only estimated."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from runs import sql
from runs.states import AGEING

SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class OpenCard:
    id: int
    step: int | None
    kind: str
    title: str
    why: str
    created_at: datetime
    expires_at: datetime | None
    on_expiry: str


@dataclass(frozen=True, kw_only=True)
class Amended:
    """What an operator added to the goal. `by`: empty where that was no person."""

    text: str
    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class RunExtras:
    """`holder`: the process that holds the run now, as `kind on host`; empty for none. `acted_by`: who ended or paused it, as
    the journal names them; empty for none.

    `unpriced`: calls served by a model without a price, whose cost is not known yet.
    `facts_move_s`: in how many seconds a fact of the run is called otherwise, by its age alone; None when none will be.
    """

    now: datetime
    amendments: list[Amended]
    cards: list[OpenCard]
    open_work: list[tuple[str, str]]
    estimated_usd: Decimal
    estimated_tokens: int
    unpriced: int
    failures: int
    holder: str
    facts_move_s: float | None
    acted_by: str


def read_run_extras(run: int) -> RunExtras:
    """In four queries."""
    cards = [sql.fill(OpenCard, row) for row in _rows(_CARDS, run)]
    work = _rows(_WORK, run)
    now, usd, tokens, unpriced, failures, holder, facts_move_s, acted_by = sql.fetch_row(_FIGURES, {"run": run})
    return RunExtras(
        now=now,
        amendments=[sql.fill(Amended, row) for row in _rows(_AMENDMENTS, run)],
        cards=cards,
        open_work=[(ref, title) for ref, title in work],
        estimated_usd=usd,
        estimated_tokens=tokens,
        unpriced=unpriced,
        failures=failures,
        holder=holder or "",
        facts_move_s=facts_move_s,
        acted_by=acted_by or "",
    )


def _rows(statement: str, run: int) -> list[tuple[Any, ...]]:
    return sql.fetch_all(statement, {"run": run, "shown": SHOWN})


# In the order of Amended; the newest ones, oldest first.
_AMENDMENTS = """
    SELECT * FROM (
        SELECT m.text, coalesce(u.username, ''), m.at
        FROM runs_amendment m LEFT JOIN auth_user u ON u.id = m.by_id
        WHERE m.run_id = %(run)s ORDER BY m.id DESC LIMIT %(shown)s
    ) newest ORDER BY at
"""
# In the order of OpenCard.
_CARDS = """
    SELECT a.id, s.number, a.kind, a.title, a.why, a.created_at, a.expires_at, a.on_expiry
    FROM runs_approval a LEFT JOIN runs_step s ON s.id = a.step_id
    WHERE a.run_id = %(run)s AND a.state = 'pending' ORDER BY a.expires_at NULLS LAST, a.id LIMIT %(shown)s
"""
_WORK = "SELECT ref, title FROM runs_workitem WHERE run_id = %(run)s AND state = 'open' ORDER BY id LIMIT %(shown)s"
# Whose truth has not come yet.
_ESTIMATED = """
    e.budget_id = %(run)s AND e.estimated AND NOT EXISTS (
        SELECT FROM runs_ledgerentry t
        WHERE t.budget_id = e.budget_id AND t.attempt_id = e.attempt_id AND t.kind = 'correct' AND NOT t.estimated
    )
"""
# Who ended or paused the run `r`. Read backwards, as little follows that entry.
ACTED_BY = """
    SELECT j.actor FROM runs_journalentry j
    WHERE (r.ended_at IS NOT NULL OR r.paused_at IS NOT NULL) AND j.run_id = r.id
        AND j.kind = CASE WHEN r.ended_at IS NOT NULL THEN 'run.' || r.state ELSE 'run.paused' END
    ORDER BY j.seq DESC LIMIT 1
"""
_FIGURES = f"""
    SELECT lw_clock(),
        (SELECT coalesce(sum(e.usd), 0) FROM runs_ledgerentry e WHERE {_ESTIMATED}),
        (SELECT coalesce(sum(e.tokens), 0)::bigint FROM runs_ledgerentry e WHERE {_ESTIMATED}),
        (SELECT count(*) FROM runs_ledgerentry e WHERE e.unpriced AND {_ESTIMATED}),
        (SELECT count(DISTINCT step_id) FROM runs_attempt
            WHERE run_id = %(run)s AND outcome NOT IN ('open', 'done', 'not_begun', 'proved')),
        (SELECT p.kind || ' on ' || p.host FROM runs_process p JOIN runs_run r ON r.holder = p.id WHERE r.id = %(run)s),
        (SELECT min(share * max_age_s - extract(epoch FROM lw_clock() - verified_at))::float8
            FROM runs_fact, unnest(ARRAY[{AGEING}, 1.0]::float8[]) share
            WHERE run_id = %(run)s AND contradicted_at IS NULL AND verified_at <= lw_clock() AND isfinite(verified_at)
                AND share * max_age_s > extract(epoch FROM lw_clock() - verified_at)),
        (SELECT ({ACTED_BY}) FROM runs_run r WHERE r.id = %(run)s)
"""
