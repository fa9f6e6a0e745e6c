"""The form that starts a run: what a person typed, read into what a start takes, with what is wrong beside its field."""

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from django import forms

from runs.agents import Json
from runs.operations import GOAL_CHARS, Start
from runs.sanitise import clean_text

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 10 * 366 * 86_400


class StartForm(forms.Form):
    """Limits that are left empty are the agent's own."""

    agent = forms.ChoiceField()
    goal = forms.CharField(max_length=GOAL_CHARS, strip=True)
    inputs = forms.CharField(required=False, max_length=100_000)
    constraints = forms.CharField(required=False, max_length=100_000)
    usd = forms.DecimalField(required=False, min_value=Decimal(0), max_digits=20, decimal_places=10)
    tokens = forms.IntegerField(required=False, min_value=0, max_value=2**63 - 1)
    steps = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    max_age = forms.CharField(required=False, max_length=40)
    labels = forms.CharField(required=False, max_length=10_000)
    # The same form sent twice starts one run.
    key = forms.UUIDField(required=False)

    def __init__(self, *args: Any, agents: Iterable[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cast(forms.ChoiceField, self.fields["agent"]).choices = [(name, name) for name in agents]

    def clean_goal(self) -> str:
        return clean_text(str(self.cleaned_data["goal"]).replace("\r\n", "\n"))

    def clean_inputs(self) -> dict[str, Json]:
        return dict(_read_pairs(self.cleaned_data["inputs"]))

    def clean_labels(self) -> dict[str, str]:
        return _read_pairs(self.cleaned_data["labels"])

    def clean_constraints(self) -> list[str]:
        return [clean_text(line) for line in _lines(self.cleaned_data["constraints"])]

    def clean_max_age(self) -> float | None:
        text = self.cleaned_data["max_age"].strip()
        if not text:
            return None
        rest, parts = _DURATION.sub("", text).strip(), _DURATION.findall(text)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if rest or not 0 < seconds <= _LONGEST_S:
            raise forms.ValidationError("Write a duration, as 2d, 12h or 90m.")
        return seconds

    def read_start(self) -> Start:
        """What a valid form asks for."""
        said: Mapping[str, Any] = self.cleaned_data
        return Start(
            agent=said["agent"],
            goal=said["goal"],
            constraints=said["constraints"],
            inputs=said["inputs"],
            labels=said["labels"],
            usd=None if said["usd"] is None else format(said["usd"], "f"),
            tokens=said["tokens"],
            steps=said["steps"],
            max_age_s=said["max_age"],
        )

    @property
    def idempotency_key(self) -> str:
        key = self.cleaned_data.get("key")
        return f"form:{key}" if key else ""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field as the page shows it: what was typed, and what is wrong with it."""

    value: str
    errors: list[str]


def show_fields(form: StartForm) -> dict[str, Field]:
    return {
        name: Field(
            value=str(form[name].value() if form[name].value() is not None else ""),
            errors=[str(error) for error in form.errors.get(name, [])],
        )
        for name in form.fields
    }


def new_key() -> str:
    return str(uuid.uuid4())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _read_pairs(text: str) -> dict[str, str]:
    """name=value, one per line, as on the command line."""
    pairs = {}
    for line in _lines(text):
        name, equals, value = clean_text(line).partition("=")
        if not equals or not name.strip():
            raise forms.ValidationError(f"“{line[:80]}” is no name=value.")
        pairs[name.strip()] = value.strip()
    return pairs
