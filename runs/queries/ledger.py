"""The ledger of everything, newest first: what each try reserved, used or gave back, and how limits changed."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, QuerySet

from runs.agents import Json
from runs.models import LedgerEntry
from runs.queries.paging import Page, Window, cut, within


@dataclass(frozen=True, kw_only=True)
class LedgerFilter:
    """What the ledger is narrowed to; empty means all. `until` is not included."""

    run: int | None = None
    agent: str = ""
    kind: str = ""
    model: str = ""
    since: datetime | None = None
    until: datetime | None = None
    estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class Booked:
    """An entry on the budget of the run whose step it was: those on the budgets above it repeat it."""

    id: int
    at: datetime
    kind: str
    run: int
    agent: str
    step: int | None
    attempt: int | None
    usd: Decimal
    tokens: int
    calls: int
    effects: int
    steps: int
    estimated: bool
    unpriced: bool
    model: str
    usage: Json
    price: Json
    note: str


def list_booked(wanted: LedgerFilter, window: Window, *, agents: Collection[str]) -> Page[Booked]:
    """In one query."""
    rows = _narrow(wanted, agents)
    if window.after is not None:
        rows = rows.filter(pk__lt=window.after)
    found = rows.order_by("-pk").annotate(
        agent=F("run__agent"), step_number=F("attempt__step__number"), attempt_number=F("attempt__number")
    )
    return cut(list(found[: window.limit + 1]), window, place=lambda entry: entry.pk, show=_show)


def _show(entry: Any) -> Booked:
    return Booked(
        id=entry.pk,
        at=entry.at,
        kind=entry.kind,
        run=entry.run_id,
        agent=entry.agent,
        step=entry.step_number,
        attempt=entry.attempt_number,
        usd=entry.usd,
        tokens=entry.tokens,
        calls=entry.calls,
        effects=entry.effects,
        steps=entry.steps,
        estimated=entry.estimated,
        unpriced=entry.unpriced,
        model=entry.model,
        usage=entry.usage,
        price=entry.price,
        note=entry.note,
    )


def _narrow(wanted: LedgerFilter, agents: Collection[str]) -> QuerySet[LedgerEntry]:
    rows = within(LedgerEntry.objects.filter(budget=F("run")), agents, "run__agent")
    if wanted.run is not None:
        rows = rows.filter(run=wanted.run)
    if wanted.agent:
        rows = rows.filter(run__agent=wanted.agent)
    if wanted.kind:
        rows = rows.filter(kind=wanted.kind)
    if wanted.model:
        rows = rows.filter(model=wanted.model)
    if wanted.estimated:
        rows = rows.filter(estimated=True)
    if wanted.since is not None:
        rows = rows.filter(at__gte=wanted.since)
    if wanted.until is not None:
        rows = rows.filter(at__lt=wanted.until)
    return rows
