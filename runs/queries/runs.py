"""Runs: one with all that says why it is where it is, and the list with its filters."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Left

from runs import sql
from runs.errors import Malformed
from runs.models import Approval, Attempt, Budget, Run, Step
from runs.models.budget import DIMENSIONS
from runs.queries.clock import Now
from runs.queries.factstate import FACT_UNUSABLE
from runs.queries.paging import BIGGEST, Page, Window, cut, in_range, within
from runs.queries.scope import reaches
from runs.queries.shapes import (
    Amounts,
    BudgetView,
    Clocks,
    Counts,
    Descendant,
    Hold,
    InFlight,
    Limits,
    Pause,
    RunDetail,
    RunRow,
    Spent,
    Wait,
)
from runs.states import (
    RUN_FINAL,
    WAITS_ON_PEOPLE,
    ApprovalState,
    AttemptOutcome,
    RunState,
    StepState,
    WaitingFor,
)

GOAL_IN_LIST = 300
DESCENDANTS_SHOWN = 100
# A search by text reads no more than the newest runs: whoever looks for an older one names it or its agent.
SEARCHED = 100_000
_BODIES = ("goal", "constraints", "inputs", "outcome")
_CLOCKS = ("working_s", "queued_s", "world_s", "people_s", "held_s")


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """What a list of runs is narrowed to; empty means all. `q`: a number, a uid, or words of the goal or the reason."""

    states: Collection[str] = ()
    agents: Collection[str] = ()
    waiting_for: Collection[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: int | None = None
    q: str = ""

    def __post_init__(self) -> None:
        for name, given, known in (
            ("state", self.states, list(RunState)),
            ("waiting_for", self.waiting_for, list(WaitingFor)),
        ):
            if unknown := sorted(set(given) - set(known)):
                raise Malformed(f"{unknown[0]!r} is no {name}.", remedy=f"Known: {', '.join(known)}.")


def find_run(number: int, *, agents: Collection[str]) -> RunDetail | None:
    """A run with its waits, tries under way, holds, counts and descendants, in seven queries."""
    if not in_range(number):
        return None
    run = _select(within(Run.objects.filter(pk=number), agents)).first()
    if run is None:
        return None
    waits, in_flight = _read_waits(run.pk), read_in_flight(Attempt.objects.filter(run=run.pk))
    held = _read_holds(run)
    row = _show(run, run.goal)
    return RunDetail(
        **{name: getattr(row, name) for name in RunRow.__dataclass_fields__ if name != "why"},
        why=_say_why(run, waits, in_flight, held),
        constraints=run.constraints,
        inputs=run.inputs,
        outcome=run.outcome,
        end_reason=run.end_reason,
        drained_at=run.drained_at,
        in_flight=in_flight,
        waits=waits,
        held=held,
        counts=_read_counts(run.pk),
        descendants=_read_descendants(run.pk),
    )


def list_runs(wanted: RunFilter, window: Window, *, agents: Collection[str]) -> Page[RunRow]:
    """Runs, newest first, without their bodies, in one query."""
    rows = _narrow(wanted, agents)
    if window.after is not None:
        rows = rows.filter(pk__lt=window.after)
    found = list(_without_bodies(rows)[: window.limit + 1])
    return cut(found, window, place=lambda run: run.pk, show=_show_row)


def read_runs(numbers: Sequence[int], *, agents: Collection[str]) -> list[RunRow]:
    """These runs in this order, without their bodies, in one query."""
    rows = _without_bodies(within(Run.objects.filter(pk__in=[n for n in numbers if in_range(n)]), agents))
    found = {run.pk: run for run in rows}
    return [_show_row(found[number]) for number in numbers if number in found]


def find_by_name(text: str, *, agents: Collection[str]) -> int | None:
    """The number of the run that a text names by its number or its uid; None when it names none, or none to be seen."""
    if (named := _read_name(text.strip())) is None:
        return None
    return within(Run.objects.filter(named), agents).values_list("pk", flat=True).first()


def list_numbers(wanted: RunFilter, limit: int, *, agents: Collection[str]) -> list[int]:
    """Only the numbers of the newest runs that a filter finds."""
    return list(_narrow(wanted, agents).values_list("pk", flat=True)[:limit])


def read_in_flight(attempts: QuerySet[Attempt]) -> list[InFlight]:
    """The tries among these that are under way, oldest first, in one query.

    A tool process does one call after another, in the order in which they were taken (see `runs.engine.reads`).
    """
    first: dict[uuid.UUID, Attempt] = {}

    def find_ahead(attempt: Attempt) -> int | None:
        if not attempt.step.tool or attempt.began_at is not None:
            return None
        ahead = first.setdefault(attempt.performer, attempt)
        return None if ahead is attempt else ahead.step.number

    rows = attempts.filter(outcome=AttemptOutcome.OPEN).select_related("step").order_by("pk")
    return [
        InFlight(
            run=attempt.run_id,
            step=attempt.step.number,
            kind=attempt.step.kind,
            tool=attempt.step.tool,
            attempt=attempt.number,
            taken_at=attempt.taken_at,
            began_at=attempt.began_at,
            begin_by=attempt.begin_by,
            timeout_s=attempt.timeout_s,
            lease_until=attempt.lease_until,
            holder=attempt.holder,
            progress=attempt.progress,
            acts=attempt.key_id is not None,
            behind=find_ahead(attempt),
        )
        for attempt in rows.defer("step__result", "step__arguments", "step__asked")
    ]


def read_clocks(run: Run, now: datetime) -> Clocks:
    """The clocks with the time since the last move, which the row does not have yet (as `lifecycle.ADD_CLOCKS` adds it)."""
    passed = max((now - run.clock_mark).total_seconds(), 0.0)
    if run.state in RUN_FINAL:
        running = ""
    elif run.held_since is not None:
        running = "held_s"
    elif run.state == RunState.QUEUED:
        running = "queued_s"
    elif run.state == RunState.WAITING:
        running = "people_s" if run.waiting_for in WAITS_ON_PEOPLE else "world_s"
    else:
        running = "working_s"
    read = {n: round(getattr(run, n) + (passed if n == running else 0.0), 3) for n in _CLOCKS}
    return Clocks(**read, running=running)


def _narrow(wanted: RunFilter, agents: Collection[str]) -> QuerySet[Run]:
    rows = within(Run.objects.order_by("-pk"), agents)
    if wanted.states:
        rows = rows.filter(state__in=list(wanted.states))
    if wanted.agents:
        rows = rows.filter(agent__in=list(wanted.agents))
    if wanted.waiting_for:
        rows = rows.filter(waiting_for__in=list(wanted.waiting_for))
    if wanted.labels:
        rows = rows.filter(labels__contains=dict(wanted.labels))
    if wanted.parent is not None:
        rows = rows.filter(parent=wanted.parent)
    if wanted.q.strip():
        rows = rows.filter(_read_search(wanted.q.strip()))
    return rows


def _without_bodies(rows: QuerySet[Run]) -> QuerySet[Run]:
    return _select(rows).defer(*_BODIES).annotate(goal_start=Left("goal", GOAL_IN_LIST))


def _show_row(run: Run) -> RunRow:
    goal: str = run.goal_start  # type: ignore[attr-defined]  # annotated
    return _show(run, goal)


def _select(rows: QuerySet[Run]) -> QuerySet[Run]:
    return rows.select_related("budget", "started_by").annotate(now=Now())


def _read_name(text: str) -> Q | None:
    if text.isascii() and text.isdecimal() and len(text) <= 19:
        return Q(pk=min(int(text), BIGGEST))
    try:
        return Q(uid=uuid.UUID(text))
    except ValueError:
        return None


def _read_search(text: str) -> Q:
    if (named := _read_name(text)) is not None:
        return named
    newest = Run.objects.order_by("-pk").values(first=F("pk") - Value(SEARCHED))[:1]
    words = Q(goal__icontains=text) | Q(why__icontains=text) | Q(end_reason__icontains=text) | Q(agent__icontains=text)
    return Q(pk__gt=newest) & words


def _show(run: Run, goal: str) -> RunRow:
    clocks = read_clocks(run, run.now)  # type: ignore[attr-defined]
    return RunRow(
        id=run.pk,
        uid=run.uid,
        agent=run.agent,
        goal=goal,
        labels=run.labels,
        state=run.state,
        waiting_for=run.waiting_for,
        why=_say_why(run, [], [], []),
        due_at=run.due_at,
        deadline_at=run.deadline_at,
        expires_at=run.expires_at,
        epoch=run.epoch,
        parent=run.parent_id,
        root=run.root_id,
        depth=run.depth,
        started_by=run.started_by.get_username() if run.started_by else "",
        created_at=run.created_at,
        changed_at=run.changed_at,
        ended_at=run.ended_at,
        paused=Pause(at=run.paused_at, reason=run.pause_reason) if run.paused_at else None,
        clocks=clocks,
        budget=_show_budget(getattr(run, "budget", None), clocks),
        verified=run.verified,
        links=_links(run.pk),
    )


def _show_budget(budget: Budget | None, clocks: Clocks) -> BudgetView:
    if budget is None:
        budget = Budget(usd_spent=Decimal(0), usd_reserved=Decimal(0), usd_overrun=Decimal(0))

    def part(name: str) -> dict[str, Decimal | int]:
        return {dimension: getattr(budget, f"{dimension}_{name}") for dimension in DIMENSIONS}

    return BudgetView(
        version=budget.version,
        limits=Limits(**part("limit"), working_s=budget.working_limit_s),  # type: ignore[arg-type]
        spent=Spent(**part("spent"), working_s=clocks.working_s),  # type: ignore[arg-type]
        reserved=Amounts(**part("reserved")),  # type: ignore[arg-type]
        overrun=Amounts(**part("overrun")),  # type: ignore[arg-type]
        unlimited_because=budget.unlimited_because,
    )


def _read_descendants(run: int) -> list[Descendant]:
    rows = sql.fetch_all(_DESCENDANTS, {"run": run, "shown": DESCENDANTS_SHOWN})
    return [sql.fill(Descendant, row) for row in rows]


# In the order of Descendant; what is still under way first.
_DESCENDANTS = """
    WITH RECURSIVE down AS (
        SELECT id FROM runs_run WHERE parent_id = %(run)s
        UNION ALL SELECT c.id FROM runs_run c JOIN down ON c.parent_id = down.id
    )
    SELECT r.id, r.parent_id, r.agent, r.state, n.under_way
    FROM runs_run r JOIN down ON down.id = r.id CROSS JOIN LATERAL (
        SELECT count(*) AS under_way FROM runs_attempt a WHERE a.run_id = r.id AND a.outcome = 'open') n
    ORDER BY n.under_way > 0 DESC, r.ended_at IS NOT NULL, r.id LIMIT %(shown)s
"""


def _say_why(run: Run, waits: list[Wait], in_flight: list[InFlight], held: list[Hold]) -> str:
    """One sentence: why it is not moving, or what it is doing (G7)."""
    if run.state in RUN_FINAL:
        ending = f" {len(in_flight)} of its calls are still under way." if in_flight else ""
        return f"{run.end_reason or run.state}{ending}"
    if run.paused_at is not None:
        return f"Paused: {run.pause_reason}"
    if held:
        return f"Held by the switch {held[0].by}: {held[0].reason}"
    if run.held_since is not None and run.held_by:
        return f"Held by {run.held_by}"
    if run.state == RunState.WAITING:
        return run.why
    if in_flight:
        at_work = [flight for flight in in_flight if flight.behind is None]
        steps = ", ".join(f"step {i.step}" + (f" ({i.tool})" if i.tool else f" ({i.kind})") for i in at_work)
        behind = len(in_flight) - len(at_work)
        return f"Under way: {steps}." + (f" Taken, and next: {behind} more." if behind else "")
    if run.state == RunState.THINKING:
        return "The next step is a model call; it waits for the gateway to make it."
    if run.state == RunState.QUEUED:
        return "It can go on, and waits for a free worker."
    return "A worker advances it."


def _read_waits(run: int) -> list[Wait]:
    pending = Approval.objects.filter(run=run, state=ApprovalState.PENDING, step__isnull=False)
    cards = {card.step_id: card for card in pending.only("step", "expires_at", "on_expiry", "kind")}
    steps = Step.objects.filter(run=run, state__in=[StepState.WAITING, StepState.IN_DOUBT]).order_by("number")
    columns = steps.values_list(
        "pk", "number", "tool", "waiting_for", "waiting_on", "wait_note", "wake_at", "and_then", named=True
    )
    return [
        Wait(
            step=step.number,
            tool=step.tool,
            waiting_for=step.waiting_for,
            on=step.waiting_on,
            note=step.wait_note,
            until=step.wake_at or (cards[step.pk].expires_at if step.pk in cards else None),
            and_then=step.and_then or say_what_then(step.waiting_for, cards.get(step.pk)),
            approval=cards[step.pk].pk if step.pk in cards else None,
        )
        for step in columns
    ]


def say_what_then(waiting_for: str, card: Approval | None) -> str:
    """What happens at the end of a wait, where the step itself does not say it."""
    if card is None:
        return AND_THEN.get(waiting_for, "")
    if card.expires_at is None:
        return "nothing: it waits until someone decides"
    if card.on_expiry == "hold":
        return "it is asked again"
    if card.on_expiry == "escalate":
        return "others are asked, without an end"
    return "the call is not made, and the agent is told that nobody decided"


# How a wait without a card ends, where the step itself does not say it.
AND_THEN: dict[str, str] = {
    WaitingFor.TIMER: "it goes on by itself",
    WaitingFor.EVENT: "it goes on when the event arrives",
    WaitingFor.CHILD: "it goes on when that run has ended",
    WaitingFor.LOCK: "it goes on when the other run is done with it",
    WaitingFor.RETRY: "it is tried again",
    WaitingFor.PROVIDER: "the model is asked again",
    WaitingFor.CAPACITY: "it goes on when there is a free place",
}


def _read_holds(run: Run) -> list[Hold]:
    """The engaged switches in whose scope an unfinished run stands. One of a tool holds only the calls of that tool."""
    if run.state in RUN_FINAL:
        return []
    rows = sql.fetch_all(
        "SELECT s.scope, s.reason FROM runs_run r, runs_switch s"
        f" WHERE r.id = %s AND s.released_at IS NULL AND {reaches('s.scope', "''")} ORDER BY s.id",
        [run.pk],
    )
    return [Hold(by=scope, reason=reason, since=run.held_since) for scope, reason in rows]


def _read_counts(run: int) -> Counts:
    return sql.fill(Counts, sql.fetch_row(_COUNTS, {"run": run}))


# In the order of Counts.
_COUNTS = f"""
    SELECT s.steps, s.open, s.failed, f.facts, f.stale, k.keys, k.in_doubt,
        (SELECT count(*) FROM runs_approval WHERE run_id = %(run)s AND state = 'pending'),
        w.open, w.work,
        (SELECT count(*) FROM runs_run WHERE parent_id = %(run)s),
        (SELECT journal_seq FROM runs_run WHERE id = %(run)s)
    FROM (SELECT count(*) AS steps, count(*) FILTER (WHERE ended_at IS NULL) AS open,
              count(*) FILTER (WHERE state = 'failed') AS failed FROM runs_step WHERE run_id = %(run)s) s,
        (SELECT count(*) AS facts, count(*) FILTER (WHERE {FACT_UNUSABLE}) AS stale
              FROM runs_fact f WHERE run_id = %(run)s) f,
        (SELECT count(*) AS keys, count(*) FILTER (WHERE state = 'in_doubt') AS in_doubt
              FROM runs_key WHERE run_id = %(run)s) k,
        (SELECT count(*) FILTER (WHERE state = 'open') AS open, count(*) AS work
              FROM runs_workitem WHERE run_id = %(run)s) w
"""


def _links(run: int) -> dict[str, str]:
    here = f"/api/v1/runs/{run}"
    parts = ("steps", "facts", "keys", "ledger", "approvals", "work", "journal", "briefing")
    return {"self": here, "page": f"/runs/{run}"} | {part: f"{here}/{part}" for part in parts}
