"""The journal of everything: each act of a person and each move, by person, run, action and time, newest first."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db.models import F, Q, QuerySet

from runs.agents import Json
from runs.models import JournalEntry
from runs.queries.paging import EVERY_AGENT, Page, Window, cut

# Acts that belong to no run and concern everyone who sees anything; the others are for who sees every agent.
_FOR_ALL = "switch."


@dataclass(frozen=True, kw_only=True)
class JournalFilter:
    """What the journal is narrowed to; empty means all. `people`: only what a person did. `until` is not included."""

    person: str = ""
    run: int | None = None
    action: str = ""
    since: datetime | None = None
    until: datetime | None = None
    people: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    id: int
    at: datetime
    kind: str
    actor: str
    run: int | None
    agent: str
    step: int | None
    before: Json
    after: Json
    why: str


def list_entries(wanted: JournalFilter, window: Window, *, agents: Collection[str]) -> Page[Entry]:
    """In one query. An entry's id is given out before its transaction ends: a newest page may gain lines above others."""
    rows = _narrow(wanted, agents)
    if window.after is not None:
        rows = rows.filter(pk__lt=window.after)
    columns = rows.order_by("-pk").annotate(
        number=F("step__number"), of_agent=F("run__agent"), name=F("actor"), of_run=F("run")
    )
    found = list(
        columns.values("pk", "at", "kind", "name", "of_run", "of_agent", "number", "before", "after", "why")[
            : window.limit + 1
        ]
    )
    return cut(
        found,
        window,
        place=lambda row: int(row["pk"]),
        show=lambda row: Entry(
            id=row["pk"],
            at=row["at"],
            kind=row["kind"],
            actor=row["name"],
            run=row["of_run"],
            agent=row["of_agent"] or "",
            step=row["number"],
            before=row["before"],
            after=row["after"],
            why=row["why"],
        ),
    )


def _narrow(wanted: JournalFilter, agents: Collection[str]) -> QuerySet[JournalEntry]:
    rows = JournalEntry.objects.all()
    if EVERY_AGENT not in agents:
        rows = rows.filter(Q(run__agent__in=list(agents)) | Q(run__isnull=True, kind__startswith=_FOR_ALL))
    if wanted.people:
        rows = rows.filter(user__isnull=False)
    if wanted.person:
        # By number, as in the index: by name, the entries of whoever has few or none would be looked for among all.
        rows = rows.filter(user__in=list(User.objects.filter(username=wanted.person).values_list("pk", flat=True)))
    if wanted.run is not None:
        rows = rows.filter(run=wanted.run)
    if wanted.action:
        rows = rows.filter(kind__startswith=wanted.action)
    if wanted.since is not None:
        rows = rows.filter(at__gte=wanted.since)
    if wanted.until is not None:
        rows = rows.filter(at__lt=wanted.until)
    return rows
