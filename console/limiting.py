"""The form that sets the limits of a run: as they stand, and as a person wants them."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms

from console.display.figures import write_limit_field
from console.forms import DurationField, LimitsForm
from runs.operations import Ends
from runs.queries.shapes import Limits, RunDetail, write_money

type Amount = Decimal | int | float | None


class RunLimitsForm(LimitsForm):
    """Empty is no limit. `version`: of the budget that was seen. A duration that reads as it did stays as it is."""

    version = forms.IntegerField(min_value=1, max_value=2**31 - 1)
    max_age = DurationField(required=False)
    deadline = forms.DateTimeField(required=False)

    def read_limits(self, now: Limits) -> dict[str, Amount]:
        """What a valid form asks for."""
        said: Mapping[str, Any] = self.cleaned_data
        wanted: dict[str, Amount] = {name: said[name] for name in ("usd", "tokens", "calls", "effects", "steps")}
        return wanted | {"working_s": self._read_duration("working", now.working_s)}

    def read_ends(self, run: RunDetail) -> Ends:
        """When the run is to end. A deadline that reads as it did stays as it is, to the last second."""
        deadline = self.cleaned_data["deadline"]
        if run.deadline_at is not None and deadline == run.deadline_at.replace(second=0, microsecond=0):
            deadline = run.deadline_at
        return Ends(max_age_s=self._read_duration("max_age", _max_age_s(run)), deadline_at=deadline)

    def _read_duration(self, name: str, now: float | None) -> float | None:
        same = now is not None and self.data.get(name, "").strip() == write_limit_field(now)
        asked: float | None = self.cleaned_data[name]
        return now if same else asked

    def read_version(self) -> int:
        return int(self.cleaned_data["version"])


def write_limits(run: RunDetail) -> dict[str, object]:
    """The fields of the form as they stand."""
    limits = run.budget.limits
    return {
        "usd": None if limits.usd is None else write_money(limits.usd),
        "tokens": limits.tokens,
        "calls": limits.calls,
        "effects": limits.effects,
        "steps": limits.steps,
        "working": None if limits.working_s is None else write_limit_field(limits.working_s),
        "max_age": None if (max_age_s := _max_age_s(run)) is None else write_limit_field(max_age_s),
        "deadline": run.deadline_at,
    }


def _max_age_s(run: RunDetail) -> float | None:
    return round((run.expires_at - run.created_at).total_seconds(), 3) if run.expires_at else None
