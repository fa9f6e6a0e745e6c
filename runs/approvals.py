"""Writer of approvals and decisions: everything that asks a person.

A decision is a one-shot claim, bound to what was shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from django.contrib.auth.models import AbstractBaseUser

from runs import clock, notify, sql
from runs.agents import Json, digest
from runs.errors import AlreadyDecided, AnotherVersion, Conflict, Malformed, WrongState
from runs.journal import RUNTIME, Actor, append, person, require_transaction
from runs.models import Approval, Decision, Key, Run, Step
from runs.queries.inbox import CLAIM_S
from runs.sanitise import clean_json, clean_text
from runs.states import APPROVAL_MOVES, VERDICTS, ApprovalKind, ApprovalState, Verdict


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a person decides. `version`: of the card that they saw; None only from the command line."""

    verdict: Verdict
    version: int | None = None
    arguments: dict[str, Json] | None = None
    answer: str = ""
    result: Json = None
    grant: dict[str, str] | None = None
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """The void card that a new one asks again, and what is different: [{"what", "name", "old", "new"}]."""

    approval: int
    changes: list[Json]


def bind(*, run: Run, step: Step, contract: str, arguments: dict[str, Json]) -> str:
    """SHA-256 (hex) of exactly what an approval allows: this call, with these final arguments, by this contract.

    Arguments count as they are stored, so that it is the same before and after.
    """
    final = clean_json(arguments)
    return digest(
        {"run": str(run.uid), "step": step.number, "tool": step.tool, "contract": contract, "arguments": final}
    )


def ask(
    run: Run,
    kind: ApprovalKind,
    *,
    title: str,
    why: str = "",
    step: Step | None = None,
    key: Key | None = None,
    fact: int | None = None,
    because: str = "",
    contract: str = "",
    arguments: dict[str, Json] | None = None,
    facts: list[dict[str, Json]] | None = None,
    options: Iterable[str] = (),
    evidence: Json = None,
    valid_for_s: float | None = None,
    on_expiry: str = "hold",
    verdicts: Iterable[Verdict] = (),
    needed: int = 1,
    groups: Iterable[str] = (),
    escalate_to: Iterable[str] = (),
    replaces: Replaced | None = None,
    actor: Actor = RUNTIME,
) -> Approval:
    """Put a card in the inbox. valid_for_s: seconds until it expires; None is never.

    needed: how many different people have to approve. groups: who may decide, beyond the right; none: everyone with it.
    """
    require_transaction()
    allowed = list(verdicts) or list(VERDICTS[kind])
    bound = bind(run=run, step=step, contract=contract, arguments=arguments) if step and arguments is not None else ""
    ident = sql.fetch_row(
        "INSERT INTO runs_approval (run_id, step_id, key_id, fact_id, kind, state, version, title, why, because, tool,"
        " contract, arguments, digest, facts, options, evidence, verdicts, verdict, created_at, expires_at, on_expiry,"
        " needed, groups, escalate_to, replaces_id, changes, explained, closed_because)"
        " VALUES (%s, %s, %s, %s, %s, 'pending', 1, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, '',"
        " lw_clock(), lw_clock() + make_interval(secs => %s), %s, %s, %s, %s, %s, %s, '[]', '') RETURNING id",
        [
            run.pk,
            step.pk if step else None,
            key.pk if key else None,
            fact,
            kind,
            clean_text(title),
            clean_text(why),
            clean_text(because),
            step.tool if step else "",
            contract,
            sql.jsonb(arguments),
            bound,
            sql.jsonb(facts or []),
            sql.jsonb(list(options)),
            sql.jsonb(evidence),
            sql.jsonb([str(v) for v in allowed]),
            valid_for_s,
            on_expiry,
            needed,
            sql.jsonb(list(groups)),
            sql.jsonb(list(escalate_to)),
            replaces.approval if replaces else None,
            sql.jsonb(list(replaces.changes) if replaces else []),
        ],
    )[0]
    append(
        "approval.asked",
        actor=actor,
        run=run.pk,
        step=step.pk if step else None,
        after={"approval": ident, "kind": kind},
        why=why or title,
    )
    notify.screen("approvals")
    return Approval.objects.get(pk=ident)


def lock(approval: int) -> Approval:
    """Lock a card; its run and step are locked already (lock order)."""
    require_transaction()
    return Approval.objects.select_for_update(of=("self",), no_key=True).get(pk=approval)


def check(approval: Approval, said: Said) -> None:
    """Whether a locked card can be decided so.

    Raises: AlreadyDecided, AnotherVersion, Malformed (a verdict that this card does not allow).
    """
    _require_undecided(approval)
    if said.version is not None and said.version != approval.version:
        raise AnotherVersion(approval.pk, said.version, approval.version)
    if said.verdict not in approval.verdicts:
        raise Malformed(
            f"Approval {approval.pk} cannot be decided with {said.verdict}.",
            remedy=f"It allows: {', '.join(approval.verdicts)}.",
        )


def decide(approval: Approval, said: Said, *, by: AbstractBaseUser, to: ApprovalState) -> None:
    """Decide a locked card, once; or let the decision that was held take effect.

    Raises: AlreadyDecided, AnotherVersion, Malformed (a verdict that this card does not allow).
    """
    held = approval.effective_at is not None
    if not held:
        check(approval, said)
        _write_decision(approval, said, by=by, hold_s=0.0)
    _move(approval, to, verdict=said.verdict)
    _tell(
        approval,
        "approval.took_effect" if held else "approval.decided",
        actor=person(by),
        before={"state": ApprovalState.PENDING},
        after={"state": to, "verdict": said.verdict},
        why=said.comment or said.answer,
    )


def hold(approval: Approval, said: Said, *, by: AbstractBaseUser, hold_s: float) -> None:
    """Decide a locked card, once, with effect after `hold_s` seconds; until then it can be undone."""
    check(approval, said)
    _write_decision(approval, said, by=by, hold_s=hold_s)
    _touch(approval, "effective_at = lw_clock() + make_interval(secs => %s)", [hold_s])
    _tell(
        approval,
        "approval.decided",
        actor=person(by),
        before={"state": ApprovalState.PENDING},
        after={"verdict": said.verdict, "takes_effect_in_s": hold_s},
        why=said.comment or said.answer,
    )


def undo(approval: Approval, said: Said, *, by: AbstractBaseUser) -> None:
    """Take a held decision back: only by whoever made it, and only before it takes effect.

    Raises: Conflict, AnotherVersion.
    """
    if approval.effective_at is None:
        raise Conflict("There is nothing to undo: no decision on this card is still to take effect.")
    if said.version is not None and said.version != approval.version:
        raise AnotherVersion(approval.pk, said.version, approval.version)
    last = held_decision(approval)
    if last.by_id != by.pk:
        raise Conflict(f"{last.by.get_username()} decided this, and only they can undo it.")
    if is_due(approval):
        raise Conflict("It is too late to undo this: it takes effect now.")
    _write_decision(approval, said, by=by, hold_s=0.0)
    _touch(approval, "effective_at = NULL", [])
    append(
        "approval.undone",
        actor=person(by),
        run=approval.run_id,
        step=approval.step_id,
        before={"approval": approval.pk, "verdict": last.verdict},
        why=said.comment,
    )


def drop_held(approval: Approval, *, why: str) -> None:
    """A held decision that cannot take effect any more leaves its card to be decided again."""
    last = held_decision(approval)
    _touch(approval, "effective_at = NULL", [])
    _tell(
        approval,
        "approval.decision_refused",
        actor=person(last.by),
        after={"verdict": last.verdict},
        why=why,
    )


def held_decision(approval: Approval) -> Decision:
    """The decision that is to take effect: the newest one."""
    return Decision.objects.filter(approval=approval).select_related("by").latest("pk")


def is_due(approval: Approval) -> bool:
    """Whether the hold of a locked card's decision is over."""
    (due,) = sql.fetch_row(
        "SELECT coalesce(effective_at <= lw_clock(), false) FROM runs_approval WHERE id = %s", [approval.pk]
    )
    return bool(due)


def vote(approval: Approval, said: Said, *, by: AbstractBaseUser) -> None:
    """Keep what one of several people said; the card stays open for the others, as another version."""
    check(approval, said)
    _write_decision(approval, said, by=by, hold_s=0.0)
    _touch(approval, "claimed_by_id = NULL, claimed_at = NULL", [])
    _tell(
        approval,
        "approval.voted",
        actor=person(by),
        after={"verdict": said.verdict, "needed": approval.needed},
        why=said.comment,
    )


def ask_agent(approval: Approval, said: Said, *, by: AbstractBaseUser) -> None:
    """Ask the agent for more about a locked card; the gate stays."""
    check(approval, said)
    _write_decision(approval, said, by=by, hold_s=0.0)
    asked: Json = {
        "question": clean_text(said.comment or said.answer),
        "by": by.get_username(),
        "at": clock.now().isoformat(timespec="seconds"),
        "text": None,
        "answered_at": None,
    }
    _explain(approval, [*approval.explained, asked])
    _tell(
        approval,
        "approval.asked_for_more",
        actor=person(by),
        why=said.comment or said.answer,
    )


def explain(approval: Approval, text: str, *, actor: Actor) -> None:
    """What the agent said when it was asked for more: it answers every question that is open on a locked card."""
    now = clock.now().isoformat(timespec="seconds")
    answered = [
        each if each["text"] is not None else {**each, "text": clean_text(text), "answered_at": now}
        for each in approval.explained
    ]
    _explain(approval, answered)
    _tell(
        approval,
        "approval.explained",
        actor=actor,
        why=text,
    )


def claim(approval: Approval, *, by: AbstractBaseUser) -> None:
    """Let others see that someone is at a locked card; whoever had it before loses it. It lapses by itself."""
    _require_undecided(approval)
    before = approval.claimed_by.get_username() if approval.claimed_by else None
    sql.execute(
        "UPDATE runs_approval SET claimed_by_id = %s, claimed_at = lw_clock() WHERE id = %s", [by.pk, approval.pk]
    )
    _tell(
        approval,
        "approval.claimed",
        actor=person(by),
        before={"by": before} if before else None,
    )
    notify.screen("approvals")


def release_claim(approval: Approval, *, by: AbstractBaseUser) -> None:
    """Raises: Conflict when it is not theirs."""
    _require_undecided(approval)
    if approval.claimed_by_id != by.pk:
        raise Conflict("This card is not yours to give back.")
    sql.execute("UPDATE runs_approval SET claimed_by_id = NULL, claimed_at = NULL WHERE id = %s", [approval.pk])
    _tell(
        approval,
        "approval.claim_released",
        actor=person(by),
    )
    notify.screen("approvals")


def claimed_by_another(approval: Approval, by: AbstractBaseUser) -> str:
    """Who else is at a card just now; "" when nobody is."""
    row = sql.fetch_one(
        "SELECT u.username FROM runs_approval a JOIN auth_user u ON u.id = a.claimed_by_id WHERE a.id = %s"
        " AND a.claimed_by_id <> %s AND a.claimed_at > lw_clock() - make_interval(secs => %s)",
        [approval.pk, by.pk, CLAIM_S],
    )
    return str(row[0]) if row else ""


def note_refused_decision(approval: Approval, said: Said, *, by: AbstractBaseUser, why: str) -> None:
    """Journal a decision that came too late: it changed nothing."""
    _tell(
        approval,
        "approval.decision_refused",
        actor=person(by),
        after={"verdict": said.verdict},
        why=why,
    )


def rebind(approval: Approval, *, run: Run, step: Step, arguments: dict[str, Json], contract: str) -> None:
    """An edit: the card now allows exactly the edited call."""
    bound = bind(run=run, step=step, contract=contract, arguments=arguments)
    sql.execute(
        "UPDATE runs_approval SET arguments = %s, digest = %s, contract = %s WHERE id = %s",
        [sql.jsonb(arguments), bound, contract, approval.pk],
    )
    approval.arguments, approval.digest, approval.contract = clean_json(arguments), bound, contract


def in_effect(step: Step) -> Approval | None:
    """The approval that allows this step's call, or did when it was taken; locked."""
    require_transaction()
    return (
        Approval.objects.select_for_update(of=("self",), no_key=True)
        .filter(step=step, kind=ApprovalKind.APPROVAL, state__in=[ApprovalState.APPROVED, ApprovalState.CONSUMED])
        .first()
    )


def consume(approval: Approval) -> None:
    """Use an approval, within take. Raises: WrongState when it is not in effect."""
    _move(approval, ApprovalState.CONSUMED)
    _tell(approval, "approval.consumed")


def give_back(approval: Approval) -> None:
    """Its attempt certainly did nothing: it is in effect again."""
    _move(approval, ApprovalState.APPROVED)
    _tell(approval, "approval.given_back")


def void(approval: Approval, *, why: str) -> None:
    _move(approval, ApprovalState.VOID, why=why)
    _tell(approval, "approval.voided", why=why)


def void_all(run: int, *, why: str, step: int | None = None) -> int:
    """Void every card of a run (or of a step) that is pending or approved."""
    require_transaction()
    cards = Approval.objects.select_for_update(of=("self",), no_key=True).filter(
        run_id=run, state__in=[ApprovalState.PENDING, ApprovalState.APPROVED]
    )
    if step is not None:
        cards = cards.filter(step_id=step)
    voided = 0
    for card in cards.order_by("pk"):
        void(card, why=why)
        voided += 1
    return voided


def void_about_fact(fact: int, *, why: str) -> None:
    """Close the open questions about a fact: they are answered otherwise."""
    require_transaction()
    cards = Approval.objects.select_for_update(of=("self",), no_key=True).filter(
        fact_id=fact, kind=ApprovalKind.FACT, state=ApprovalState.PENDING
    )
    for card in cards.order_by("pk"):
        void(card, why=why)


def expire(approval: Approval) -> None:
    _move(approval, ApprovalState.EXPIRED, why="nobody decided in time")
    _tell(approval, "approval.expired")


def due_to_expire(run: int) -> list[Approval]:
    """Cards of a locked run whose time has passed, locked."""
    require_transaction()
    return list(
        Approval.objects.select_for_update(of=("self",), no_key=True)
        # What is decided and held was decided in time.
        .filter(run_id=run, state__in=[ApprovalState.PENDING, ApprovalState.APPROVED], effective_at__isnull=True)
        .extra(where=["runs_approval.expires_at <= lw_clock()"])
        .order_by("pk")
    )


def seconds_left(approval: Approval) -> float | None:
    value = sql.fetch_row(
        "SELECT extract(epoch FROM expires_at - lw_clock()) FROM runs_approval WHERE id = %s", [approval.pk]
    )[0]
    return None if value is None else float(value)


def _tell(
    approval: Approval,
    kind: str,
    *,
    actor: Actor = RUNTIME,
    before: Json = None,
    after: Mapping[str, Json] = MappingProxyType({}),
    why: str = "",
) -> None:
    """Journal something about a card."""
    append(
        kind,
        actor=actor,
        run=approval.run_id,
        step=approval.step_id,
        before=before,
        after={"approval": approval.pk, **after},
        why=why,
    )


def _write_decision(approval: Approval, said: Said, *, by: AbstractBaseUser, hold_s: float) -> None:
    sql.execute(
        'INSERT INTO runs_decision (approval_id, by_id, verdict, version, arguments, answer, result, "grant", comment,'
        " at, effective_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, lw_clock(),"
        " lw_clock() + make_interval(secs => %s))",
        [
            approval.pk,
            by.pk,
            said.verdict,
            approval.version,
            sql.jsonb(said.arguments),
            clean_text(said.answer),
            sql.jsonb(said.result),
            sql.jsonb(said.grant),
            clean_text(said.comment),
            hold_s,
        ],
    )


def _touch(approval: Approval, what: str, values: list[object]) -> None:
    """Change a locked, pending card; whoever saw it before saw another version."""
    require_transaction()
    row = sql.fetch_one(
        f"UPDATE runs_approval SET {what}, version = version + 1 WHERE id = %s AND state = 'pending'"
        " RETURNING version, effective_at",
        [*values, approval.pk],
    )
    if row is None:
        raise _already(approval)
    approval.version, approval.effective_at = row
    notify.screen("approvals")


def _explain(approval: Approval, explained: list[Json]) -> None:
    _touch(approval, "explained = %s", [sql.jsonb(explained)])
    approval.explained = explained


def _require_undecided(approval: Approval) -> None:
    if approval.state != ApprovalState.PENDING or approval.effective_at is not None:
        raise _already(approval)


def _already(approval: Approval) -> AlreadyDecided:
    last = Decision.objects.filter(approval=approval).select_related("by").order_by("pk").last()
    at: datetime | None = last.at if last else approval.closed_at
    state = f"decided ({last.verdict})" if last and approval.state == ApprovalState.PENDING else approval.state
    return AlreadyDecided(
        approval.pk, state, last.by.get_username() if last else "", f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
    )


def _move(approval: Approval, to: ApprovalState, *, verdict: str = "", why: str = "") -> None:
    require_transaction()
    if to not in APPROVAL_MOVES[ApprovalState(approval.state)]:
        raise WrongState(f"Approval {approval.pk}", approval.state, to)
    if (
        sql.execute(
            "UPDATE runs_approval SET state = %s, version = version + 1, verdict = coalesce(nullif(%s, ''), verdict),"
            " effective_at = NULL, closed_at = lw_clock(), closed_because = %s WHERE id = %s AND state = %s",
            [to, verdict, clean_text(why), approval.pk, approval.state],
        )
        == 0
    ):
        raise _already(approval)
    approval.state, approval.effective_at = to, None
    approval.version += 1
    notify.screen("approvals")
