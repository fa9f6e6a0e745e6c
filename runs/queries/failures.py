"""What went wrong in a run: the tries that did not do what they were for, newest first. One query."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models.functions import Left

from runs.models import Attempt
from runs.queries.paging import Page, Window, cut
from runs.states import AttemptOutcome

_FINE = (AttemptOutcome.OPEN, AttemptOutcome.DONE, AttemptOutcome.PROVED, AttemptOutcome.NOT_BEGUN)
_TEXT = 4_000
_OWN = ("run_id", "number", "outcome", "exit_status", "exit_signal", "late", "taken_at", "ended_at")
_COLUMNS = (*_OWN, "step__number", "step__kind", "step__tool", "step__state")


@dataclass(frozen=True, kw_only=True)
class FailureRow:
    """A try: `step_state` says what became of its step in the end."""

    id: int
    step: int
    kind: str
    tool: str
    step_state: str
    attempt: int
    outcome: str
    error: str
    exit_status: int | None
    exit_signal: int | None
    late: bool
    taken_at: datetime
    ended_at: datetime | None


def list_failures(run: int, window: Window) -> Page[FailureRow]:
    rows = Attempt.objects.filter(run=run).exclude(outcome__in=_FINE).select_related("step").order_by("-pk")
    if window.after is not None:
        rows = rows.filter(pk__lt=window.after)
    found = rows.only(*_COLUMNS).annotate(wrong=Left("error", _TEXT))[: window.limit + 1]
    return cut(list(found), window, place=lambda made: made.pk, show=_show)


def _show(made: Attempt) -> FailureRow:
    return FailureRow(
        id=made.pk,
        step=made.step.number,
        kind=made.step.kind,
        tool=made.step.tool,
        step_state=made.step.state,
        attempt=made.number,
        outcome=made.outcome,
        error=made.wrong,  # type: ignore[attr-defined]  # annotated
        exit_status=made.exit_status,
        exit_signal=made.exit_signal,
        late=made.late,
        taken_at=made.taken_at,
        ended_at=made.ended_at,
    )
