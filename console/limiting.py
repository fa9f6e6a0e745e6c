"""The form that sets the limits of a run: as they stand, and as a person wants them."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms

from console.display.figures import write_limit_field
from console.forms import LimitsForm
from runs.queries.shapes import BudgetView, Limits, write_money

type Amount = Decimal | int | float | None


class RunLimitsForm(LimitsForm):
    """Empty is no limit. `version`: of the budget that was seen."""

    version = forms.IntegerField(min_value=1, max_value=2**31 - 1)

    def read_limits(self, now: Limits) -> dict[str, Amount]:
        """What a valid form asks for. A working time that reads as it did stays as it is, to the last fraction."""
        said: Mapping[str, Any] = self.cleaned_data
        wanted: dict[str, Amount] = {name: said[name] for name in ("usd", "tokens", "calls", "effects", "steps")}
        same = now.working_s is not None and self.data.get("working", "").strip() == write_limit_field(now.working_s)
        return wanted | {"working_s": now.working_s if same else said["working"]}

    def read_version(self) -> int:
        return int(self.cleaned_data["version"])


def write_limits(budget: BudgetView) -> dict[str, object]:
    """The fields of the form as the budget stands."""
    limits = budget.limits
    return {
        "usd": None if limits.usd is None else write_money(limits.usd),
        "tokens": limits.tokens,
        "calls": limits.calls,
        "effects": limits.effects,
        "steps": limits.steps,
        "working": None if limits.working_s is None else write_limit_field(limits.working_s),
    }
