"""What the briefing says as of now: facts with age and state, the work, the budget, the time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from runs import sql, steps
from runs.engine.briefing_log import CLOSED_ITEMS_SHOWN, Item, Steps
from runs.engine.briefing_text import load, shorten, size
from runs.models.budget import DIMENSIONS
from runs.states import StepKind, StepState, WorkState

_LEAST_VALUE_BYTES = 200
_OPEN = str(WorkState.OPEN)


@dataclass(frozen=True, kw_only=True)
class Head:
    """The run itself, its last settled think, and the moment as of which everything is told."""

    id: int
    uid: str
    agent: str
    goal: str
    constraints: list[str]
    inputs: dict[str, Any]
    created_at: datetime
    deadline_at: datetime | None
    expires_at: datetime | None
    last_thought_at: datetime | None
    at: datetime
    told_at: datetime | None  # when the last settled think was told what it knew
    seq: int  # of the run's journal
    kept: tuple[str, str] | None  # what is kept of its fold, and by which rules
    holds: frozenset[str]  # which of `HOLDINGS` the run has any of; the others need not be asked for
    budget: Sequence[Any] | None  # its own line of `_BUDGETS`, where none is above it


def ask_head(run: int, at: datetime | None = None) -> sql.Answer:
    return sql.ask(_HEAD, {"run": run, "at": at})


def read_head(asked: sql.Answer) -> Head:
    """Raises: LookupError."""
    row = asked.row()
    held, (alone, *budget) = row[15 : 15 + len(HOLDINGS)], row[15 + len(HOLDINGS) :]
    constraints, inputs = load(row[4]), load(row[5])
    return Head(
        id=row[0],
        uid=str(row[1]),
        agent=row[2],
        goal=row[3],
        constraints=[str(each) for each in constraints],
        inputs=inputs if isinstance(inputs, dict) else {},
        created_at=row[6],
        deadline_at=row[7],
        expires_at=row[8],
        last_thought_at=row[9],
        at=row[10],
        told_at=row[11],
        seq=row[12],
        kept=None if row[13] is None else (row[13], row[14]),
        holds=frozenset(name for name, has in zip(HOLDINGS, held, strict=True) if has),
        budget=budget if alone else None,
    )


def read_items(run: int, steps: Steps) -> list[Item]:
    """The work items that are not folded, and those folded ones that <work> still shows."""
    kept, numbers = steps.kept, steps.numbers
    rows = sql.fetch_all(_ITEMS, {"run": run, "known": kept.last_item, "ids": sql.array(kept.items)})
    return [
        Item(
            ident,
            ref,
            title,
            state,
            outcome,
            opened := numbers.get(opened_by, 0),
            # Closed by a person rather than by a step: as of the beginning, so that it may fold.
            numbers.get(closed_by, None if state == _OPEN else opened),
        )
        for ident, ref, title, state, outcome, opened_by, closed_by in rows
    ]


def write_work(items: Sequence[Item], left_out: int = 0) -> list[dict[str, Any]]:
    """All open items, verbatim, and the ones closed last. left_out: how many were closed earlier and are not among them."""
    ended = sorted((i for i in items if i.state != _OPEN), key=lambda i: i.closed or 0)
    recent = {i.ref for i in ended[-CLOSED_ITEMS_SHOWN:]}
    lines: list[dict[str, Any]] = []
    for item in items:
        if item.state == _OPEN:
            lines.append({"item": item.ref, "title": item.title, "state": item.state})
        elif item.ref in recent:
            lines.append({"item": item.ref, "title": item.title, "state": item.state, "outcome": item.outcome})
    if earlier := len(ended) - len(recent) + left_out:
        lines.append({"and": earlier, "state": "closed or dropped earlier"})
    return lines


def read_facts(run: int, at: datetime, *, share: int) -> list[dict[str, Any]]:
    """Each fact as it stands at that moment. Values are whole unless all facts together pass the share (bytes)."""
    rows = sql.fetch_all(_FACTS, {"run": run, "at": at})
    lines: list[dict[str, Any]] = []
    for name, value, age_s, max_age_s, state, from_step, source, changed, checked, parents in rows:
        line: dict[str, Any] = {
            "fact": name,
            "value": load(value) if value is not None else None,
            "age_s": _whole(age_s),
            "max_age_s": _plain_number(max_age_s),
            "state": state,
            "from_step": from_step,
            "source": source,
        }
        if changed:
            line["version"] = changed
        if checked:
            line["checks_failed"] = checked
        if parents:
            line["derived_from"] = load(parents)
        lines.append(line)
    return _fit(lines, share)


def read_budget(head: Head) -> dict[str, Any]:
    """What the run may still use: `left` is the least that it or a run above it has left."""
    rows = [head.budget] if head.budget is not None else sql.fetch_all(_BUDGETS, {"run": head.id})
    if not rows:
        return {}
    told: dict[str, Any] = {}
    for place, dimension in enumerate(DIMENSIONS):
        write = _money if dimension == "usd" else _count
        left = [
            limit - spent - reserved
            for row in rows
            for limit, spent, reserved in [row[3 * place : 3 * place + 3]]
            if limit is not None
        ]
        limit, spent, reserved = rows[0][3 * place : 3 * place + 3]
        told[dimension] = {"limit": write(limit), "spent": write(spent), "reserved": write(reserved)}
        if left:
            told[dimension]["left"] = write(max(min(left), 0))
    working_limit_s, working_s = rows[0][15:17]
    if working_limit_s is not None:
        told["working_s"] = {"limit": _whole(working_limit_s), "spent": _whole(working_s)}
    return told


def write_now(head: Head) -> dict[str, Any]:
    """The time in the run's zone, and how long the run was away."""
    zone = ZoneInfo(settings.RUN_ZONE)
    away_s = None if head.last_thought_at is None else max((head.at - head.last_thought_at).total_seconds(), 0.0)
    now: dict[str, Any] = {
        "time": _time(head.at, zone),
        "zone": settings.RUN_ZONE,
        "day": f"{head.at.astimezone(zone):%A}",
        "away_s": _whole(away_s),
        "started": _time(head.created_at, zone),
    }
    ends = [moment for moment in (head.deadline_at, head.expires_at) if moment is not None]
    if ends:
        now["ends_at_latest"] = _time(min(ends), zone)
    return now


def _fit(lines: list[dict[str, Any]], share: int) -> list[dict[str, Any]]:
    """Shorten the largest values, all to one size, until the facts fit; the smallest stay whole. `recall` has the rest."""
    if not lines or size(lines) - 1 <= share:
        return lines
    sizes = sorted(size(line["value"]) for line in lines)
    frame = sum(size(line) + 1 for line in lines) - sum(sizes)
    left = share - frame
    most = _LEAST_VALUE_BYTES
    for place, each in enumerate(sizes):
        most = max(left // (len(sizes) - place), _LEAST_VALUE_BYTES)
        if each > most:
            break
        left -= each
    return _leave_out([line | {"value": shorten(line["value"], most)} for line in lines], share)


def _leave_out(lines: list[dict[str, Any]], share: int) -> list[dict[str, Any]]:
    """Of more facts than can be told at all: those that were verified last, and how many there are besides."""
    sizes = [size(line) + 1 for line in lines]
    if sum(sizes) <= share:
        return lines
    left, kept = share - 120, set()
    for place in sorted(range(len(lines)), key=lambda p: (lines[p]["age_s"] is None, lines[p]["age_s"], p)):
        left -= sizes[place]
        if left < 0:
            break
        kept.add(place)
    shown = [line for place, line in enumerate(lines) if place in kept]
    return [*shown, {"and": len(lines) - len(shown), "note": "older facts, not shown: recall searches them by name"}]


def _whole(seconds: float | Decimal | None) -> int | None:
    return None if seconds is None else int(seconds)


def _plain_number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _money(amount: Decimal | int | None) -> str | None:
    """Dollars with at least two decimals, exact."""
    if amount is None:
        return None
    text = f"{Decimal(amount):.10f}".rstrip("0")
    whole, _, cents = text.partition(".")
    return f"{whole}.{cents:0<2}"


def _count(amount: int | None) -> int | None:
    return amount


def _time(moment: datetime, zone: ZoneInfo) -> str:
    text = moment.astimezone(zone).isoformat(timespec="seconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") and zone.key == "UTC" else text


HOLDINGS = {
    "finished": f"FROM runs_step d WHERE d.run_id = r.id AND d.state NOT IN ({steps.OPEN})",
    "items": "FROM runs_workitem w WHERE w.run_id = r.id",
    "facts": "FROM runs_fact f WHERE f.run_id = r.id",
    "amendments": "FROM runs_amendment m WHERE m.run_id = r.id",
    "cards": "FROM runs_approval p WHERE p.run_id = r.id",
    "children": "FROM runs_run c WHERE c.parent_id = r.id",
    "finishing": "FROM runs_budget b WHERE b.run_id = r.id AND b.finish_asked_at IS NOT NULL",
}

_BUDGET = ", ".join(f"b.{d}_limit, b.{d}_spent, b.{d}_reserved" for d in DIMENSIONS) + ", b.working_limit_s"

_HEAD = f"""
    SELECT r.id, r.uid, r.agent, r.goal, r.constraints::text, r.inputs::text, r.created_at, r.deadline_at,
           r.expires_at, r.last_thought_at, coalesce(%(at)s::timestamptz, lw_now()), coalesce(
               (SELECT max(a.taken_at) FROM runs_attempt a WHERE a.step_id = t.id), t.began_at, t.created_at),
           r.journal_seq, k.rules, k.state,
           {", ".join(f"EXISTS (SELECT {rest})" for rest in HOLDINGS.values())},
           b.run_id IS NOT NULL AND r.parent_id IS NULL, {_BUDGET}, r.working_s
    FROM runs_run r LEFT JOIN runs_budget b ON b.run_id = r.id LEFT JOIN runs_keptfold k ON k.run_id = r.id LEFT JOIN LATERAL (
        SELECT s.id, s.began_at, s.created_at FROM runs_step s
        WHERE s.run_id = r.id AND s.kind = '{StepKind.THINK}' AND s.state = '{StepState.DONE}'
        ORDER BY s.number DESC LIMIT 1
    ) t ON true
    WHERE r.id = %(run)s
"""

_ITEM = "SELECT id, ref, title, state, outcome, opened_by_id, closed_by_id FROM runs_workitem"
_ITEMS = f"""
    {_ITEM} WHERE id = ANY(%(ids)s::bigint[])
    UNION ALL {_ITEM} WHERE run_id = %(run)s AND id > %(known)s ORDER BY id
"""

_FACTS = """
    SELECT f.name, f.value::text, extract(epoch FROM %(at)s::timestamptz - f.verified_at)::float8, f.max_age_s,
           lw_fact_state(f.observed_at, f.verified_at, f.max_age_s, f.check_failed_at, f.contradicted_at,
                         %(at)s::timestamptz),
           s.number, coalesce(nullif(f.source_tool, ''), CASE WHEN f.source ? 'person' THEN 'person' ELSE 'agent' END),
           CASE WHEN f.version > 1 THEN f.version END, nullif(f.check_tries, 0),
           CASE WHEN f.derived_from <> '[]' THEN f.derived_from::text END
    FROM runs_fact f LEFT JOIN runs_step s ON s.id = f.source_step_id
    WHERE f.run_id = %(run)s ORDER BY f.name COLLATE "C"
"""

_BUDGETS = f"""
    WITH RECURSIVE line AS (
        SELECT id, parent_id, working_s, 0 AS up FROM runs_run WHERE id = %(run)s
        UNION ALL SELECT p.id, p.parent_id, p.working_s, line.up + 1 FROM runs_run p JOIN line ON p.id = line.parent_id
    )
    SELECT {_BUDGET}, line.working_s
    -- One by one: how long a line is, is guessed too high, and all budgets would be read for it.
    FROM line, LATERAL (SELECT * FROM runs_budget WHERE run_id = line.id OFFSET 0) b ORDER BY line.up
"""
