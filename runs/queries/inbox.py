"""The inbox: what waits for a person, what expires first on top; and what belongs beside one card."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db.models import F, QuerySet

from runs import sql
from runs.agents import Json
from runs.models import Approval, Attempt, Decision, Fact, Step
from runs.queries.clock import Now
from runs.queries.credentials import Waiter
from runs.queries.factstate import FACT_UNUSABLE
from runs.queries.lists import select_facts
from runs.queries.paging import EVERY_AGENT, Page, Window, cut, within
from runs.states import ApprovalKind, ApprovalState, StepState, Verdict, WaitingFor

# Whoever claimed a card and went away keeps nobody from it for longer.
CLAIM_S = 900.0
INBOX_SHOWN = 100
EARLIER_SHOWN = 5
NEEDING_SHOWN = 200
# Earlier decisions are looked for among the newest cards: nobody decides by what was said years ago.
EARLIER_AMONG = 5_000


@dataclass(frozen=True, kw_only=True)
class InboxLine:
    """A card in the list. `stale`, `changed`: of the facts that it shows, as they stand now; `stale_in_s`: when one more is."""

    id: int
    kind: str
    state: str
    title: str
    agent: str
    run: int
    tool: str
    created_at: datetime
    expires_at: datetime | None
    closed_at: datetime | None
    verdict: str
    claimed_by: str
    replaces: int | None
    stale: int
    changed: int
    stale_in_s: float | None


@dataclass(frozen=True, kw_only=True)
class FactNow:
    """A fact that a card shows, as it stands now."""

    id: int
    name: str
    value: Json
    version: int
    source_tool: str
    age_s: float | None
    max_age_s: float
    state: str
    check_failed_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A decision on another card of the same tool."""

    approval: int
    title: str
    verdict: str
    by: str
    comment: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Try:
    """A try of the call that is in doubt, as it stands now."""

    number: int
    outcome: str
    taken_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    error: str
    exit_signal: int | None


@dataclass(frozen=True, kw_only=True)
class Behind:
    """What waits as long as a card does: its run, which has to end by a moment, other open steps, and runs above it."""

    must_end_at: datetime | None
    steps: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class CardExtras:
    """`subject`: the fact that a card of kind fact is about. `key`: what the receiver was sent as its key."""

    needing: list[Waiter]
    now: datetime
    run_ended: bool
    facts: dict[str, FactNow]
    subject: FactNow | None
    earlier: list[Earlier]
    tries: list[Try]
    key: str
    behind: Behind


def list_pending(
    *,
    agents: Collection[str],
    kinds: Collection[str] = (),
    limit: int = INBOX_SHOWN,
    of: User | None = None,
    apart: Collection[int] = (),
) -> list[InboxLine]:
    """What waits for a decision, what expires first on top, in one query.

    of: only what is this person's by name: asked of a group of theirs, claimed by them, or of a run that they started.
    apart: cards that are listed wherever they stand, beside the first `limit` others.
    """
    given = _given(agents) | {"kinds": list(kinds) or list(ApprovalKind), "of": of.pk if of else None}
    given |= {"limit": limit, "apart": list(apart)}
    return [sql.fill(InboxLine, row) for row in sql.fetch_all(_PENDING, given)]


def list_decided(window: Window, *, agents: Collection[str]) -> Page[InboxLine]:
    """What was decided, expired or became void, the newest card first, in one query."""
    given = _given(agents) | {"limit": window.limit + 1, "before": window.after}
    rows = [sql.fill(InboxLine, row) for row in sql.fetch_all(_DECIDED, given)]
    return cut(rows, window, place=lambda line: line.id, show=lambda line: line)


def read_card_extras(card: int, *, agents: Collection[str]) -> CardExtras:
    """What stands beside one card, in at most six queries."""
    found = Approval.objects.select_related("run", "key").annotate(now=Now()).get(pk=card)
    names = [str(shown.get("name")) for shown in found.facts]
    facts = {fact.name: fact for fact in _read_facts(Fact.objects.filter(run=found.run_id, name__in=names))}
    subject = _read_facts(Fact.objects.filter(pk=found.fact_id)) if found.fact_id else []
    return CardExtras(
        needing=_read_needing(found, agents) if found.kind == ApprovalKind.CREDENTIAL else [],
        now=found.now,
        run_ended=found.run.ended_at is not None,
        facts=facts,
        subject=subject[0] if subject else None,
        earlier=_read_earlier(found, agents) if found.tool else [],
        tries=_read_tries(found),
        key=found.key.header if found.key else "",
        behind=_read_behind(found),
    )


def _read_behind(card: Approval) -> Behind:
    row = sql.fetch_row(_BEHIND, {"run": card.run_id, "step": card.step_id})
    return Behind(must_end_at=row[0], steps=row[1], runs=row[2])


def _read_needing(card: Approval, agents: Collection[str]) -> list[Waiter]:
    """Every run that waits for the credential of a card, as far as the reader sees them."""
    waiting = Step.objects.filter(
        state=StepState.WAITING, waiting_for=WaitingFor.CREDENTIAL, waiting_on=card.credential
    )
    rows = within(waiting, agents, "run__agent").order_by("run", "number")
    return [
        Waiter(run=run, agent=agent, step=step, tool=tool)
        for run, agent, step, tool in rows.values_list("run", "run__agent", "number", "tool")[:NEEDING_SHOWN]
    ]


def _read_facts(rows: QuerySet[Fact]) -> list[FactNow]:
    return [
        FactNow(
            id=fact.pk,
            name=fact.name,
            value=fact.value,
            version=fact.version,
            source_tool=fact.source_tool,
            age_s=max((fact.now - fact.verified_at).total_seconds(), 0.0) if fact.verified_at else None,
            max_age_s=fact.max_age_s,
            state=fact.state,
            check_failed_at=fact.check_failed_at,
        )
        for fact in select_facts(rows)
    ]


def _read_earlier(card: Approval, agents: Collection[str]) -> list[Earlier]:
    rows = Decision.objects.filter(
        approval__tool=card.tool, approval__kind=card.kind, approval__gt=card.pk - EARLIER_AMONG
    ).exclude(approval=card.pk)
    rows = rows.exclude(verdict=Verdict.EXPLAIN)
    rows = within(rows, agents, "approval__run__agent").order_by("-pk")
    columns = rows.annotate(title=F("approval__title"), name=F("by__username"))[:EARLIER_SHOWN]
    return [
        Earlier(
            approval=row["approval"],
            title=row["title"],
            verdict=row["verdict"],
            by=row["name"],
            comment=row["comment"] or row["answer"],
            at=row["at"],
        )
        for row in columns.values("approval", "title", "verdict", "name", "comment", "answer", "at")
    ]


def _read_tries(card: Approval) -> list[Try]:
    """Of the key that is in doubt, or of the step that keeps failing."""
    if card.key_id is not None:
        rows = Attempt.objects.filter(key=card.key_id)
    elif card.kind == ApprovalKind.FAILURE and card.step_id is not None:
        rows = Attempt.objects.filter(step=card.step_id)
    else:
        return []
    columns = rows.order_by("-pk").only(*Try.__dataclass_fields__)[:EARLIER_SHOWN]
    return [
        Try(
            number=made.number,
            outcome=made.outcome,
            taken_at=made.taken_at,
            began_at=made.began_at,
            ended_at=made.ended_at,
            error=made.error,
            exit_signal=made.exit_signal,
        )
        for made in reversed(columns)
    ]


def _given(agents: Collection[str]) -> dict[str, object]:
    return {
        "all": EVERY_AGENT in agents,
        "agents": list(agents),
        "pending": ApprovalState.PENDING.value,
        "claim": CLAIM_S,
    }


_BEHIND = """
    SELECT least(r.deadline_at, r.expires_at),
        (SELECT count(*) FROM runs_step s WHERE s.run_id = r.id AND s.ended_at IS NULL
            AND s.id IS DISTINCT FROM %(step)s),
        r.depth
    FROM runs_run r WHERE r.id = %(run)s
"""
_ASKED = """SELECT a.* FROM runs_approval a JOIN runs_run r ON r.id = a.run_id
        WHERE a.state = 'pending' AND a.effective_at IS NULL AND a.kind = ANY(%(kinds)s)
            AND (%(all)s OR r.agent = ANY(%(agents)s))
            AND (%(of)s::int IS NULL OR r.started_by_id = %(of)s
                OR (a.claimed_by_id = %(of)s AND a.claimed_at > lw_now() - make_interval(secs => %(claim)s))
                OR EXISTS (SELECT FROM auth_user_groups m JOIN auth_group g ON g.id = m.group_id
                    WHERE m.user_id = %(of)s AND a.groups ? g.name))"""
# In the order of InboxLine.
_PENDING = f"""
    SELECT a.id, a.kind, a.state, a.title, r.agent, a.run_id, a.tool, a.created_at, a.expires_at, a.closed_at,
        a.verdict,
        coalesce((SELECT u.username FROM auth_user u WHERE u.id = a.claimed_by_id
            AND a.claimed_at > lw_now() - make_interval(secs => %(claim)s)), ''),
        a.replaces_id, n.stale, n.changed, n.stale_in_s
    FROM ((
        {_ASKED} AND a.id <> ALL(%(apart)s::bigint[]) ORDER BY a.expires_at, a.id LIMIT %(limit)s
    ) UNION ALL (
        {_ASKED} AND a.id = ANY(%(apart)s::bigint[])
    )) a
    JOIN runs_run r ON r.id = a.run_id
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE {FACT_UNUSABLE}) AS stale,
            count(*) FILTER (WHERE f.version <> (shown ->> 'version')::int) AS changed,
            (min(f.max_age_s - extract(epoch FROM lw_now() - f.verified_at))
                FILTER (WHERE NOT {FACT_UNUSABLE}))::float8 AS stale_in_s
        FROM jsonb_array_elements(a.facts) shown
        JOIN runs_fact f ON f.run_id = a.run_id AND f.name = shown ->> 'name') n
    ORDER BY a.expires_at, a.id
"""
_DECIDED = """
    SELECT a.id, a.kind, a.state, a.title, r.agent, a.run_id, a.tool, a.created_at, a.expires_at, a.closed_at,
        a.verdict, '', a.replaces_id, 0, 0, NULL::float8
    FROM runs_approval a JOIN runs_run r ON r.id = a.run_id
    WHERE (a.state <> %(pending)s OR a.effective_at IS NOT NULL) AND (%(all)s OR r.agent = ANY(%(agents)s))
        AND (%(before)s::bigint IS NULL OR a.id < %(before)s)
    ORDER BY a.id DESC LIMIT %(limit)s
"""
