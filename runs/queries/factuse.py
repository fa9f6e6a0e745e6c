"""What a run's facts were used for: the last act that rested on each, and the open steps that will. Two queries."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from runs import sql


@dataclass(frozen=True, kw_only=True)
class FactUses:
    """`acts`: how many acts rested on it; `last_step`, `last_age_s`: the newest of them. `open_steps`: waiting on it."""

    acts: int
    last_step: int | None
    last_age_s: float | None
    open_steps: list[int]


NOT_USED = FactUses(acts=0, last_step=None, last_age_s=None, open_steps=[])


def read_fact_uses(run: int, facts: Sequence[tuple[int, str]]) -> dict[int, FactUses]:
    """By fact id. facts: (id, name) of those that are shown."""
    if not facts:
        return {}
    last = {row[0]: row[1:] for row in sql.fetch_all(_LAST, [[ident for ident, _ in facts]])}
    waiting: dict[str, list[int]] = defaultdict(list)
    for number, name in sql.fetch_all(_OPEN, {"run": run, "names": [name for _, name in facts]}):
        waiting[name].append(number)
    return {
        ident: FactUses(
            acts=last[ident][0] if ident in last else 0,
            last_step=last[ident][1] if ident in last else None,
            last_age_s=last[ident][2] if ident in last else None,
            open_steps=waiting[name],
        )
        for ident, name in facts
    }


_LAST = """
    SELECT u.fact_id, count(*), (array_agg(s.number ORDER BY u.id DESC))[1], (array_agg(u.age_s ORDER BY u.id DESC))[1]
    FROM runs_factuse u JOIN runs_attempt a ON a.id = u.attempt_id JOIN runs_step s ON s.id = a.step_id
    WHERE u.fact_id = ANY(%s) GROUP BY u.fact_id
"""
_OPEN = """
    SELECT s.number, name FROM runs_step s, jsonb_array_elements_text(s.rests_on) name
    WHERE s.run_id = %(run)s AND s.state IN ('planned', 'waiting', 'taken', 'in_doubt') AND name = ANY(%(names)s)
    ORDER BY s.number
"""
