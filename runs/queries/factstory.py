"""One fact: every value that it had, every time it was checked, who used it and how old it was then."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, F, OuterRef, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Length

from runs.agents import Json
from runs.models import Approval, Fact, FactCheck, FactUse, FactVersion
from runs.queries.factlists import VALUE_BYTES, HeldUp, read_held_up
from runs.queries.lists import select_facts
from runs.queries.paging import in_range, within
from runs.states import ApprovalState, Verdict

VERSIONS_SHOWN = 30
CHECKS_SHOWN = 60
USES_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class FactValue:
    """A value that the fact had. `value`: None where it is too large to be listed. `person`: who said it, if one did."""

    version: int
    value: Json
    large: bool
    observed_at: datetime | None
    recorded_at: datetime
    step: int | None
    person: str


@dataclass(frozen=True, kw_only=True)
class CheckMade:
    outcome: str
    detail: str
    step: int | None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class UseMade:
    """By the try of a call (`step`, `outcome`), or by a card when it was asked (`approval`)."""

    version: int
    age_s: float
    at: datetime
    step: int | None
    tool: str
    outcome: str
    approval: int | None


@dataclass(frozen=True, kw_only=True)
class FactStory:
    """`versions`, `checks` and `uses` newest first, the newest of them; `fact` with its `state` and `now`. `source_step`:
    the number of the step that read it last, and when that began. `confirmed_at`: when a person last vouched for it.
    """

    id: int
    run: int
    agent: str
    run_ended: bool
    name: str
    value: Json
    version: int
    source: Json
    source_tool: str
    source_step: int | None
    source_began_at: datetime | None
    confirmed_at: datetime | None
    observed_at: datetime | None
    verified_at: datetime | None
    age_s: float | None
    max_age_s: float
    extended_from_s: float | None
    state: str
    derived_from: list[str]
    check_failed_at: datetime | None
    check_tries: int
    now: datetime
    versions: list[FactValue]
    checks: list[CheckMade]
    uses: list[UseMade]
    holds_up: list[HeldUp]


def find_fact_story(number: int, *, agents: Collection[str]) -> FactStory | None:
    """Five queries, however long the story is."""
    if not in_range(number):
        return None
    rows = within(Fact.objects.filter(pk=number), agents, "run__agent").select_related("run")
    fact = (
        select_facts(rows)
        .annotate(
            step_number=F("source_step__number"),
            step_began_at=Coalesce("source_step__began_at", "source_step__created_at"),
            confirmed_at=Subquery(_CONFIRMED.values("closed_at")[:1]),
        )
        .first()
    )
    if fact is None:
        return None
    return FactStory(
        id=fact.pk,
        run=fact.run_id,
        agent=fact.run.agent,
        run_ended=fact.run.ended_at is not None,
        name=fact.name,
        value=fact.value,
        version=fact.version,
        source=fact.source,
        source_tool=fact.source_tool,
        source_step=fact.step_number,
        source_began_at=fact.step_began_at,
        confirmed_at=fact.confirmed_at,
        observed_at=fact.observed_at,
        verified_at=fact.verified_at,
        age_s=max((fact.now - fact.verified_at).total_seconds(), 0.0) if fact.verified_at else None,
        max_age_s=fact.max_age_s,
        extended_from_s=fact.extended_from_s,
        state=fact.state,
        derived_from=list(fact.derived_from),
        check_failed_at=fact.check_failed_at,
        check_tries=fact.check_tries,
        now=fact.now,
        versions=_read_versions(fact.pk),
        checks=[
            CheckMade(outcome=outcome, detail=detail, step=step, at=at)
            for outcome, detail, step, at in FactCheck.objects.filter(fact=fact.pk)
            .order_by("-pk")
            .values_list("outcome", "detail", "step__number", "at")[:CHECKS_SHOWN]
        ],
        uses=_read_uses(fact.pk),
        holds_up=read_held_up([(fact.pk, fact.run_id, fact.name)]).get(fact.pk, []),
    )


_CONFIRMED = Approval.objects.filter(
    fact=OuterRef("pk"), state=ApprovalState.ANSWERED, verdict=Verdict.CONFIRM
).order_by("-pk")


def _read_versions(fact: int) -> list[FactValue]:
    text = Cast("value", TextField())
    rows = (
        FactVersion.objects.filter(fact=fact)
        .order_by("-version")
        .annotate(
            size=Length(text),
            text=Case(When(size__lte=VALUE_BYTES, then=text), default=Value(None), output_field=TextField()),
        )
        .values("version", "text", "size", "observed_at", "recorded_at", "step__number", "source")[:VERSIONS_SHOWN]
    )
    return [
        FactValue(
            version=row["version"],
            value=json.loads(row["text"]) if row["text"] is not None else None,
            large=row["text"] is None and row["size"] is not None,
            observed_at=row["observed_at"],
            recorded_at=row["recorded_at"],
            step=row["step__number"],
            person=str(row["source"].get("person") or "") if isinstance(row["source"], dict) else "",
        )
        for row in rows
    ]


def _read_uses(fact: int) -> list[UseMade]:
    rows = (
        FactUse.objects.filter(fact=fact)
        .order_by("-pk")
        .annotate(
            step=F("attempt__step__number"),
            tool=F("attempt__step__tool"),
            outcome=F("attempt__outcome"),
            asked_by=F("approval__step__tool"),
        )
        .values_list("version", "age_s", "at", "step", "tool", "outcome", "approval_id", "asked_by")[:USES_SHOWN]
    )
    return [
        UseMade(
            version=version,
            age_s=age_s,
            at=at,
            step=step,
            tool=tool or asked_by or "",
            outcome=outcome or "",
            approval=approval,
        )
        for version, age_s, at, step, tool, outcome, approval, asked_by in rows
    ]
