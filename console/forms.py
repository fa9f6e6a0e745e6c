"""Forms of the console."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.core.exceptions import ValidationError

from runs.operations import LONGEST_S
from runs.queries.paging import BIGGEST

TRIES = 5
PAUSE_S = 600
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class DurationField(forms.CharField):
    """As people write it, 2d 12h or 90m, read into seconds; nothing where it may be left empty."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=40, **kwargs)

    def clean(self, value: Any) -> float | None:
        text = super().clean(value)
        if not text:
            return None
        rest, parts = _DURATION.sub("", text).strip(), _DURATION.findall(text)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if rest or not 0 < seconds <= LONGEST_S:
            raise ValidationError("Write a duration, as 2d, 12h or 90m.")
        return seconds


class LimitsForm(forms.Form):
    """What a run may use, in each dimension that a budget has. Empty is for whoever uses it to read."""

    usd = forms.DecimalField(required=False, min_value=Decimal(0), max_digits=20, decimal_places=10)
    tokens = forms.IntegerField(required=False, min_value=0, max_value=BIGGEST)
    calls = forms.IntegerField(required=False, min_value=0, max_value=BIGGEST)
    effects = forms.IntegerField(required=False, min_value=0, max_value=BIGGEST)
    steps = forms.IntegerField(required=False, min_value=1, max_value=BIGGEST)
    working = DurationField(required=False)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field as the page shows it: what was typed, and what is wrong with it."""

    value: str
    errors: list[str]


def show_fields(form: forms.Form) -> Mapping[str, Field]:
    return {
        name: Field(value=_write(form[name].value()), errors=[str(error) for error in form.errors.get(name, [])])
        for name in form.fields
    }


@dataclass(frozen=True, kw_only=True)
class LimitField(Field):
    name: str
    label: str
    type: str
    mode: str
    placeholder: str


def show_limit_fields(form: forms.Form) -> list[LimitField]:
    """The limits that a form has, in the order in which people think of them."""
    fields = show_fields(form)
    return [
        LimitField(
            name=name,
            label=label,
            type="datetime-local" if name == "deadline" else "text",
            mode=mode,
            placeholder=placeholder,
            value=fields[name].value,
            errors=fields[name].errors,
        )
        for name, label, mode, placeholder in _LIMITS
        if name in fields
    ]


_LIMITS = (
    ("usd", "Money, USD", "decimal", "2.00"),
    ("tokens", "Tokens", "numeric", ""),
    ("calls", "Model calls", "numeric", ""),
    ("effects", "Effects", "numeric", ""),
    ("steps", "Steps", "numeric", ""),
    ("working", "Working time", "text", "4h"),
    ("max_age", "Max age", "text", "2d"),
    ("deadline", "Deadline, UTC", "text", ""),
)


def _write(value: object) -> str:
    return "" if value is None else f"{value:%Y-%m-%dT%H:%M}" if isinstance(value, datetime) else str(value)


class SignInForm(AuthenticationForm):
    """After five wrong passwords a name waits ten minutes, whoever tries; a link still signs in."""

    def clean(self) -> dict[str, Any]:
        place = self._place()
        if cache.get(place, 0) >= TRIES:
            raise ValidationError("Too many tries with this name. It waits 10 min.", code="too_many")
        try:
            cleaned = super().clean()
        except ValidationError:
            cache.add(place, 0, PAUSE_S)
            left = TRIES - cache.incr(place)
            said = f"After {left} more {'try' if left == 1 else 'tries'} this name waits 10 min."
            raise ValidationError(
                f"Name and password don’t match. {said if left > 0 else 'This name waits 10 min now.'}",
                code="invalid_login",
            ) from None
        cache.delete(place)
        return cleaned

    def _place(self) -> str:
        name = str(self.data.get("username", ""))
        return f"sign-in:{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()}"
