"""The newest steps of a run as a timeline needs them: when each was worked on, and when it waited for a person."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Case, F, Func, IntegerField, Q, Value, When
from django.db.models.fields.json import JSONField
from django.db.models.functions import Left

from runs.agents import Json
from runs.models import Approval, Attempt, Step
from runs.states import AttemptOutcome, StepState

STEPS_SHOWN = 200
ATTEMPTS_SHOWN = 1_000
_SMALL = 4_096  # bytes of arguments as stored
_TEXT = 300


@dataclass(frozen=True, kw_only=True)
class Worked:
    number: int
    outcome: str
    taken_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    error: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A card of a step, while it was open."""

    id: int
    kind: str
    created_at: datetime
    closed_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class TimelineStep:
    """`arguments`: null when they are too large for a line."""

    number: int
    kind: str
    tool: str
    state: str
    waiting_for: str
    arguments: Json
    because: str
    fact: str
    error: str
    tries: int
    usd: Decimal
    created_at: datetime
    ended_at: datetime | None
    wake_at: datetime | None
    replay_of: int | None
    attempts: list[Worked]
    cards: list[Asked]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Steps oldest first. `before`: where the page of older steps begins."""

    steps: list[TimelineStep]
    before: int | None


class _StoredSize(Func):
    function = "pg_column_size"
    output_field = IntegerField()


def read_timeline(run: int, *, before: int | None = None, errors: bool = False) -> Timeline:
    """In three queries, at most STEPS_SHOWN steps, however long the run is."""
    rows = Step.objects.filter(run=run)
    if before is not None:
        rows = rows.filter(number__lt=min(before, 2**31 - 1))
    if errors:
        rows = rows.filter(Q(state__in=[StepState.FAILED, StepState.REFUSED, StepState.IN_DOUBT]) | Q(tries__gt=1))
    found = list(_columns(rows.order_by("-number"))[: STEPS_SHOWN + 1])
    more = len(found) > STEPS_SHOWN
    found = found[:STEPS_SHOWN][::-1]
    numbers = [row["id"] for row in found]
    attempts, cards = _read_attempts(numbers), _read_cards(numbers)
    steps = [_show(row, attempts[row["id"]], cards[row["id"]]) for row in found]
    return Timeline(steps=steps, before=steps[0].number if more else None)


def _columns(rows: Any) -> Any:
    small = Case(When(size__lte=_SMALL, then=F("arguments")), default=Value(None), output_field=JSONField())
    return rows.annotate(
        size=_StoredSize("arguments"),
        few=small,
        reason=Left("because", _TEXT),
        wrong=Left("error", _TEXT),
        fact_name=F("fact__name"),
        replayed=F("replay_of__number"),
    ).values(
        *(
            "id",
            "number",
            "kind",
            "tool",
            "state",
            "waiting_for",
            "few",
            "reason",
            "fact_name",
            "wrong",
            "tries",
            "usd",
        ),
        *("created_at", "ended_at", "wake_at", "replayed"),
    )


def _show(row: dict[str, Any], attempts: list[Worked], cards: list[Asked]) -> TimelineStep:
    return TimelineStep(
        number=row["number"],
        kind=row["kind"],
        tool=row["tool"],
        state=row["state"],
        waiting_for=row["waiting_for"],
        arguments=row["few"],
        because=row["reason"],
        fact=row["fact_name"] or "",
        error=row["wrong"],
        tries=row["tries"],
        usd=row["usd"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        wake_at=row["wake_at"],
        replay_of=row["replayed"],
        attempts=attempts,
        cards=cards,
    )


def _read_attempts(steps: Iterable[int]) -> dict[int, list[Worked]]:
    rows = Attempt.objects.filter(step__in=list(steps)).exclude(outcome=AttemptOutcome.NOT_BEGUN, began_at=None)
    columns = (
        rows.annotate(wrong=Left("error", _TEXT))
        .order_by("-pk")
        .values_list("step_id", "number", "outcome", "taken_at", "began_at", "ended_at", "wrong")[:ATTEMPTS_SHOWN]
    )
    found: dict[int, list[Worked]] = defaultdict(list)
    for step, number, outcome, taken_at, began_at, ended_at, error in reversed(columns):
        found[step].append(
            Worked(
                number=number,
                outcome=outcome,
                taken_at=taken_at,
                began_at=began_at,
                ended_at=ended_at,
                error=error,
            )
        )
    return found


def _read_cards(steps: Iterable[int]) -> dict[int, list[Asked]]:
    rows = Approval.objects.filter(step__in=list(steps)).order_by("pk")
    found: dict[int, list[Asked]] = defaultdict(list)
    for step, ident, kind, created_at, closed_at, expires_at in rows.values_list(
        "step_id", "id", "kind", "created_at", "closed_at", "expires_at"
    )[:ATTEMPTS_SHOWN]:
        found[step].append(
            Asked(id=ident, kind=kind, created_at=created_at, closed_at=closed_at, expires_at=expires_at)
        )
    return found
