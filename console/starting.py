"""The form that starts a run: what a person typed, read into what a start takes, with what is wrong beside its field."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, cast

from django import forms

from console.forms import DurationField, LimitsForm
from runs.agents import Json
from runs.operations import GOAL_CHARS, Start
from runs.sanitise import clean_text


class StartForm(LimitsForm):
    """Limits that are left empty are the agent's own."""

    agent = forms.ChoiceField()
    goal = forms.CharField(max_length=GOAL_CHARS, strip=True)
    inputs = forms.CharField(required=False, max_length=100_000)
    constraints = forms.CharField(required=False, max_length=100_000)
    max_age = DurationField(required=False)
    deadline = forms.DateTimeField(required=False)
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
            calls=said["calls"],
            effects=said["effects"],
            steps=said["steps"],
            working_s=said["working"],
            max_age_s=said["max_age"],
            deadline_at=said["deadline"],
        )

    @property
    def idempotency_key(self) -> str:
        key = self.cleaned_data.get("key")
        return f"form:{key}" if key else ""


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
