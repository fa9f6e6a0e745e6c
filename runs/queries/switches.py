"""Kill switches with what they met under way: still running, or acknowledged by having ended."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Model, Q, QuerySet

from runs import sql
from runs.models import Approval, Attempt, Run, Step, Switch
from runs.queries.paging import EVERY_AGENT, Page, Window, cut, in_range
from runs.queries.runs import read_in_flight
from runs.queries.scope import reaches
from runs.queries.shapes import Acknowledged, Participant, SwitchCard
from runs.states import RUN_OPEN, STEP_OPEN, ApprovalKind, ApprovalState, AttemptOutcome


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Runs that have not ended by agent, and by the tool that one of their open steps calls; effects under way now."""

    agents: dict[str, int]
    tools: dict[str, int]
    effects_in_flight: int

    @property
    def runs(self) -> int:
        return sum(self.agents.values())


# Whoever wants more of a switch's history reads the journal.
_MOST_SHOWN = 200


def find_switch(number: int, *, agents: Collection[str]) -> SwitchCard | None:
    if not in_range(number):
        return None
    switch = visible_switches(_select(Switch.objects.filter(pk=number)), agents).first()
    return _show(switch) if switch else None


def list_switches(window: Window, *, agents: Collection[str], engaged: bool | None = None) -> Page[SwitchCard]:
    """Switches, newest first; engaged ones are few, and each takes a few queries of its own."""
    rows = visible_switches(_select(Switch.objects.order_by("-pk")), agents)
    if engaged is not None:
        rows = rows.filter(released_at__isnull=engaged)
    if window.after is not None:
        rows = rows.filter(pk__lt=window.after)
    return cut(list(rows[: window.limit + 1]), window, place=lambda switch: switch.pk, show=_show)


def list_engaged(*, agents: Collection[str], limit: int) -> list[Switch]:
    """The engaged switches that concern a reader, oldest first, without what they met under way: one query."""
    rows = visible_switches(_select(Switch.objects.filter(released_at__isnull=True).order_by("pk")), agents)
    return list(rows[:limit])


def _select(rows: QuerySet[Switch]) -> QuerySet[Switch]:
    return rows.select_related("engaged_by", "released_by")


def visible_switches(rows: QuerySet[Switch], agents: Collection[str]) -> QuerySet[Switch]:
    """A switch for everything or for a tool concerns everyone who sees any agent at all."""
    if EVERY_AGENT in agents:
        return rows
    if not agents:
        return rows.none()
    own_runs = [f"run:{n}" for n in _scoped_runs(agents)]
    own = Q(scope__in=[f"agent:{name}" for name in agents] + own_runs)
    return rows.filter(Q(scope="all") | Q(scope__startswith="tool:") | own)


def _scoped_runs(agents: Collection[str]) -> list[int]:
    scopes = Switch.objects.filter(scope__startswith="run:").values_list("scope", flat=True).distinct()
    numbers = [int(scope.removeprefix("run:")) for scope in scopes]
    return list(Run.objects.filter(pk__in=numbers, agent__in=list(agents)).values_list("pk", flat=True))


def _show(switch: Switch) -> SwitchCard:
    in_scope = _in_scope(Attempt.objects.all(), switch.scope, tool="step__tool")
    in_flight = read_in_flight(in_scope) if switch.released_at is None else []
    until = Q(ended_at__gte=switch.engaged_at)
    if switch.released_at is not None:
        until &= Q(ended_at__lte=switch.released_at)
    ended = in_scope.filter(until, taken_at__lte=switch.engaged_at).exclude(outcome=AttemptOutcome.OPEN)
    rows = ended.select_related("step").order_by("ended_at").only(*_COLUMNS)[:_MOST_SHOWN]
    acknowledged = [_show_ended(attempt) for attempt in rows]
    met = [flight for flight in in_flight if flight.taken_at <= switch.engaged_at]
    drained_at = None if met else max([switch.engaged_at, *(ack.at for ack in acknowledged)])
    return SwitchCard(
        id=switch.pk,
        scope=switch.scope,
        reason=switch.reason,
        engaged_by=switch.engaged_by.get_username() if switch.engaged_by else "",
        engaged_at=switch.engaged_at,
        drained_at=drained_at,
        released_by=switch.released_by.get_username() if switch.released_by else "",
        released_at=switch.released_at,
        release_reason=switch.release_reason,
        in_flight=in_flight,
        acknowledged=acknowledged,
        participants=_list_participants(switch),
        held=open_runs_in(switch.scope).count() if switch.released_at is None else 0,
        doubts=_list_doubts(switch),
    )


def count_reach() -> Reach:
    """What a switch would hold if it were engaged now, in three queries."""
    # By their states: that is what the indexes of open ones go by.
    runs, steps = Run.objects.filter(state__in=RUN_OPEN), Step.objects.filter(state__in=STEP_OPEN)
    agents = dict(runs.values_list("agent").annotate(n=Count("pk")))
    tools = dict(steps.exclude(tool="").values_list("tool").annotate(n=Count("run", distinct=True)))
    acting = Attempt.objects.filter(outcome=AttemptOutcome.OPEN, began_at__isnull=False, key__isnull=False)
    return Reach(agents=agents, tools=tools, effects_in_flight=acting.count())


def _list_participants(switch: Switch) -> list[Participant]:
    given = {"id": switch.pk, "before": DEAD_BEFORE_S, "shown": _MOST_SHOWN, "scope": switch.scope}
    rows = sql.fetch_all(_PARTICIPANTS, given)
    return [sql.fill(Participant, row) for row in rows]


def open_runs_in(scope: str) -> QuerySet[Run]:
    """The runs in a scope that have not ended: of a tool, those that have an open call of it."""
    runs = Run.objects.filter(state__in=RUN_OPEN)
    kind, _, name = scope.partition(":")
    match kind:
        case "agent":
            return runs.filter(agent=name)
        case "tool":
            return runs.filter(pk__in=Step.objects.filter(tool=name, state__in=STEP_OPEN).values("run"))
        case "run":
            return runs.filter(pk__in=_tree(int(name)))
    return runs


def _list_doubts(switch: Switch) -> list[int]:
    cards = Approval.objects.filter(kind=ApprovalKind.VERDICT, state=ApprovalState.PENDING)
    found = _in_scope(cards, switch.scope, tool="tool")
    return list(found.order_by("pk").values_list("pk", flat=True)[:_MOST_SHOWN])


# Whoever was not seen for so long before the switch is taken for gone: it is shown only if it still holds something.
DEAD_BEFORE_S = 120.0

# In the order of Participant. Workers stand for themselves only when they hold something: idle ones can take nothing,
# and the cluster that keeps them says that it has looked.
_PARTICIPANTS = f"""
    WITH held AS (
        SELECT a.holder, count(*) AS n, bool_or(a.lease_until > clock_timestamp()) AS alive,
            max(a.begin_by + make_interval(secs => a.timeout_s)) AS until
        FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id JOIN runs_step st ON st.id = a.step_id
        JOIN runs_switch s ON s.id = %(id)s
        WHERE a.outcome = 'open' AND s.released_at IS NULL AND {reaches("%(scope)s", "st.tool")} GROUP BY a.holder
    )
    SELECT p.id, p.kind, p.host, p.pid,
        CASE WHEN p.ended_at IS NOT NULL THEN 'ended' WHEN k.at IS NOT NULL THEN 'acknowledged'
             WHEN h.alive THEN 'in_flight' ELSE 'not_confirmed' END,
        coalesce(p.ended_at, k.at), p.seen_at, coalesce(h.n, 0)::int, h.until
    FROM runs_switch s
    JOIN runs_process p ON p.started_at <= coalesce(s.released_at, 'infinity')
        AND (p.ended_at IS NULL OR p.ended_at > s.engaged_at)
    LEFT JOIN runs_switchack k ON k.switch_id = s.id AND k.process_id = p.id
    LEFT JOIN held h ON h.holder = p.id
    WHERE s.id = %(id)s AND (h.n > 0 OR k.at IS NOT NULL
        OR (p.kind IN ('cluster', 'gateway') AND p.seen_at > s.engaged_at - make_interval(secs => %(before)s)))
    ORDER BY (p.ended_at IS NULL AND k.at IS NULL) DESC, p.kind, p.host, p.pid LIMIT %(shown)s
"""


_COLUMNS = ("run_id", "step__number", "step__tool", "number", "holder", "outcome", "ended_at")


def _in_scope[M: Model](rows: QuerySet[M], scope: str, *, tool: str) -> QuerySet[M]:
    """The rows of runs that a scope reaches. tool: where the tool of a row stands."""
    kind, _, name = scope.partition(":")
    match kind:
        case "agent":
            return rows.filter(run__agent=name)
        case "tool":
            return rows.filter(**{tool: name})
        case "run":
            return rows.filter(run__in=_tree(int(name)))
    return rows


def _tree(run: int) -> list[int]:
    """A run and its descendants: of its whole tree, those whose line of parents passes it."""
    root = Run.objects.filter(pk=run).values("root")[:1]
    parents = dict(Run.objects.filter(root__in=root).values_list("pk", "parent"))
    below = {run}
    for number in sorted(parents):  # a parent's number is below its child's
        if parents[number] in below:
            below.add(number)
    return sorted(below)


def _show_ended(attempt: Any) -> Acknowledged:
    return Acknowledged(
        run=attempt.run_id,
        step=attempt.step.number,
        tool=attempt.step.tool,
        attempt=attempt.number,
        holder=attempt.holder,
        outcome=attempt.outcome,
        at=attempt.ended_at,
    )
