"""Cards that ask a person, with the facts behind them as they stand now and what was decided: four queries a page."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from django.conf import settings
from django.db.models import F, OuterRef, QuerySet, Subquery

from runs import sql
from runs.agents import Json
from runs.errors import Malformed
from runs.models import Approval, Decision
from runs.queries.paging import Page, Window, cut, in_range, within
from runs.queries.shapes import ApprovalCard, Changed, DecisionRow, Explained, FactShown
from runs.states import ApprovalState, FactState, Verdict

type Standing = tuple[int, str, float | None, float]
"""Version, state, age in seconds, max age in seconds."""


def find_approval(number: int, *, agents: Collection[str]) -> ApprovalCard | None:
    if not in_range(number):
        return None
    cards = _show_all(_select(within(Approval.objects.filter(pk=number), agents, "run__agent")))
    return cards[0] if cards else None


def list_approvals(
    window: Window,
    *,
    agents: Collection[str],
    states: Collection[str] = (),
    of_agents: Collection[str] = (),
    run: int | None = None,
) -> Page[ApprovalCard]:
    """Cards, oldest first."""
    if unknown := sorted(set(states) - set(ApprovalState)):
        raise Malformed(f"{unknown[0]!r} is no state.", remedy=f"Known: {', '.join(ApprovalState)}.")
    rows = within(Approval.objects.all(), agents, "run__agent")
    if states:
        rows = rows.filter(state__in=list(states))
    if of_agents:
        rows = rows.filter(run__agent__in=list(of_agents))
    if run is not None:
        rows = rows.filter(run=run)
    if window.after is not None:
        rows = rows.filter(pk__gt=window.after)
    cards = _show_all(_select(rows.order_by("pk"))[: window.limit + 1])
    return cut(cards, window, place=lambda card: card.id, show=lambda card: card)


def _select(rows: QuerySet[Approval]) -> Any:
    newest = Approval.objects.filter(replaces=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    return rows.annotate(
        agent=F("run__agent"),
        step_number=F("step__number"),
        claimer=F("claimed_by__username"),
        successor=Subquery(newest),
    )


def _show_all(rows: Any) -> list[ApprovalCard]:
    found = list(rows)
    standing = _read_facts(found)
    decided: dict[int, list[DecisionRow]] = defaultdict(list)
    for decision in Decision.objects.filter(approval__in=found).select_related("by").order_by("pk"):
        decided[decision.approval_id].append(_show_decision(decision))
    return [_show(card, standing, decided[card.pk]) for card in found]


def _read_facts(cards: list[Any]) -> dict[tuple[int, str], Standing]:
    """(card, name) → how each fact that these cards show stands; for a card that is closed, how it stood then."""
    found: dict[tuple[int, str], Standing] = {}
    for statement, closed in ((_STANDS, False), (_STOOD, True)):
        wanted = [
            (card, str(fact.get("name")))
            for card in cards
            if (card.closed_at is not None) is closed
            for fact in card.facts
        ]
        if wanted:
            given = [[card.pk for card, _ in wanted], [name for _, name in wanted]]
            found |= {(card, name): tuple(standing) for card, name, *standing in sql.fetch_all(statement, given)}
    return found


# card, name, version, state, age in seconds, max age in seconds
_WANTED = """unnest(%s::bigint[], %s::text[]) AS wanted(card, name) JOIN runs_approval a ON a.id = wanted.card
    JOIN runs_fact f ON f.run_id = a.run_id AND f.name = wanted.name"""
_STANDS = f"""
    SELECT wanted.card, f.name, f.version, lw_fact_state(f.observed_at, f.verified_at, f.max_age_s, f.check_failed_at,
        f.contradicted_at, lw_now()), extract(epoch FROM lw_now() - f.verified_at)::float8, f.max_age_s
    FROM {_WANTED}
"""
_STOOD = f"""
    SELECT wanted.card, f.name, v.version, lw_fact_state(v.observed_at, v.verified_at, f.max_age_s, NULL, NULL, a.closed_at),
        extract(epoch FROM a.closed_at - v.verified_at)::float8, f.max_age_s
    FROM {_WANTED}
    CROSS JOIN LATERAL (
        SELECT v.version, v.observed_at, greatest(v.observed_at, (
            SELECT max(c.at) FROM runs_factcheck c
            WHERE c.fact_id = f.id AND c.outcome = 'same' AND c.at BETWEEN v.recorded_at AND a.closed_at)) AS verified_at
        FROM runs_factversion v WHERE v.fact_id = f.id AND v.recorded_at <= a.closed_at
        ORDER BY v.version DESC LIMIT 1) v
"""


def _show(
    card: Any,
    standing: dict[tuple[int, str], Standing],
    decisions: list[DecisionRow],
) -> ApprovalCard:
    return ApprovalCard(
        id=card.pk,
        version=card.version,
        run=card.run_id,
        agent=card.agent,
        step=card.step_number,
        kind=card.kind,
        state=card.state,
        title=card.title,
        why=card.why,
        because=card.because,
        tool=card.tool,
        arguments=card.arguments,
        digest=card.digest,
        facts=[_show_fact(shown, standing.get((card.pk, str(shown.get("name"))))) for shown in card.facts],
        options=card.options,
        evidence=card.evidence,
        verdicts=_say_verdicts(card),
        verdict=card.verdict,
        created_at=card.created_at,
        expires_at=card.expires_at,
        on_expiry=card.on_expiry,
        closed_at=card.closed_at,
        closed_because=card.closed_because,
        effective_at=card.effective_at,
        needed=card.needed,
        approved_by=list(
            dict.fromkeys(
                find_voters([(made.verdict, made.by) for made in decisions], own_edits=settings.SELF_APPROVAL)
            )
        ),
        groups=card.groups,
        escalate_to=card.escalate_to,
        claimed_by=card.claimer or "",
        claimed_at=card.claimed_at,
        replaces=card.replaces_id,
        replaced_by=card.successor,
        changes=[Changed(**each) for each in card.changes],
        explained=[Explained(**each) for each in card.explained],
        decisions=decisions,
    )


def _say_verdicts(card: Approval) -> list[str]:
    if card.state != ApprovalState.PENDING:
        return []
    verdicts: list[str] = card.verdicts
    return verdicts if card.effective_at is None else [Verdict.UNDO.value]


def find_voters[P](made: Iterable[tuple[str, P]], *, own_edits: bool) -> list[P]:
    """Who has approved a card as it is now, from what was decided on it, oldest first: (verdict, by whom).

    An edit begins anew, with whoever edited if they may approve that themselves.
    """
    votes: list[P] = []
    for verdict, by in made:
        match verdict:
            case Verdict.EDIT:
                votes = [by] if own_edits else []
            case Verdict.APPROVE:
                votes.append(by)
            case Verdict.UNDO:
                votes = votes[:-1]
    return votes


def _show_fact(shown: dict[str, Any], now: Standing | None) -> FactShown:
    value: Json = shown.get("value")
    if now is None:
        state, age, max_age, changed = FactState.UNKNOWN.value, None, shown.get("max_age_s"), True
    else:
        version, state, age, max_age = now
        changed = version != shown.get("version")
    return FactShown(
        name=str(shown.get("name")),
        value=value,
        version=int(shown.get("version") or 0),
        age_s=None if age is None else round(max(age, 0.0), 1),
        max_age_s=max_age,
        state=state,
        changed=changed,
    )


def _show_decision(decision: Decision) -> DecisionRow:
    return DecisionRow(
        by=decision.by.get_username(),
        verdict=decision.verdict,
        version=decision.version,
        arguments=decision.arguments,
        answer=decision.answer,
        result=decision.result,
        grant=decision.grant,
        comment=decision.comment,
        at=decision.at,
    )
