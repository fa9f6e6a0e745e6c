"""Kill switches with what they met under way: still running, or acknowledged by having ended."""

from collections.abc import Collection
from typing import Any

from django.db.models import Q, QuerySet

from runs.models import Attempt, Run, Switch
from runs.queries.paging import EVERY_AGENT, Page, Window, cut, in_range
from runs.queries.runs import read_in_flight
from runs.queries.shapes import Acknowledged, SwitchCard
from runs.states import AttemptOutcome

# Whoever wants more of a switch's history reads the journal.
_MOST_SHOWN = 200


def find_switch(number: int, *, agents: Collection[str]) -> SwitchCard | None:
    if not in_range(number):
        return None
    switch = _visible(_select(Switch.objects.filter(pk=number)), agents).first()
    return _show(switch) if switch else None


def list_switches(window: Window, *, agents: Collection[str], engaged: bool | None = None) -> Page[SwitchCard]:
    """Switches, newest first; engaged ones are few, and each takes three queries of its own."""
    rows = _visible(_select(Switch.objects.order_by("-pk")), agents)
    if engaged is not None:
        rows = rows.filter(released_at__isnull=engaged)
    if window.after is not None:
        rows = rows.filter(pk__lt=window.after)
    return cut(list(rows[: window.limit + 1]), window, place=lambda switch: switch.pk, show=_show)


def list_engaged(*, agents: Collection[str], limit: int) -> list[Switch]:
    """The engaged switches that concern a reader, oldest first, without what they met under way: one query."""
    rows = _visible(_select(Switch.objects.filter(released_at__isnull=True).order_by("pk")), agents)
    return list(rows[:limit])


def _select(rows: QuerySet[Switch]) -> QuerySet[Switch]:
    return rows.select_related("engaged_by", "released_by")


def _visible(rows: QuerySet[Switch], agents: Collection[str]) -> QuerySet[Switch]:
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
    in_scope = _attempts_in(switch.scope)
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
    )


_COLUMNS = ("run_id", "step__number", "step__tool", "number", "holder", "outcome", "ended_at")


def _attempts_in(scope: str) -> QuerySet[Attempt]:
    kind, _, name = scope.partition(":")
    match kind:
        case "agent":
            return Attempt.objects.filter(run__agent=name)
        case "tool":
            return Attempt.objects.filter(step__tool=name)
        case "run":
            return Attempt.objects.filter(run__in=_tree(int(name)))
    return Attempt.objects.all()


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
