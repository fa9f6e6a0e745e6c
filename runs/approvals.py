"""Writer of approvals and decisions: everything that asks a person.

A decision is a one-shot claim, bound to what was shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser

from runs import notify, sql
from runs.agents import Json, digest
from runs.errors import AlreadyDecided, AnotherVersion, Malformed, WrongState
from runs.journal import RUNTIME, Actor, append, person, require_transaction
from runs.models import Approval, Decision, Key, Run, Step
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
    actor: Actor = RUNTIME,
) -> Approval:
    """Put a card in the inbox. valid_for_s: seconds until it expires; None is never."""
    require_transaction()
    allowed = list(verdicts) or list(VERDICTS[kind])
    bound = bind(run=run, step=step, contract=contract, arguments=arguments) if step and arguments is not None else ""
    ident = sql.fetch_row(
        "INSERT INTO runs_approval (run_id, step_id, key_id, fact_id, kind, state, version, title, why, because, tool,"
        " contract, arguments, digest, facts, options, evidence, verdicts, verdict, created_at, expires_at, on_expiry,"
        " closed_because) VALUES (%s, %s, %s, %s, %s, 'pending', 1, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, '',"
        " lw_clock(), lw_clock() + make_interval(secs => %s), %s, '') RETURNING id",
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


def decide(approval: Approval, said: Said, *, by: AbstractBaseUser, to: ApprovalState) -> Decision:
    """Decide a locked card, once.

    Raises: AlreadyDecided, AnotherVersion, Malformed (a verdict that this card does not allow).
    """
    if approval.state != ApprovalState.PENDING:
        raise _already(approval)
    if said.version is not None and said.version != approval.version:
        raise AnotherVersion(approval.pk, said.version, approval.version)
    if said.verdict not in approval.verdicts:
        raise Malformed(
            f"{said.verdict!r} is no verdict of approval {approval.pk}.",
            remedy=f"It allows: {', '.join(approval.verdicts)}.",
        )
    ident = sql.fetch_row(
        'INSERT INTO runs_decision (approval_id, by_id, verdict, version, arguments, answer, result, "grant", comment,'
        " at, effective_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, lw_clock(), lw_clock()) RETURNING id",
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
        ],
    )[0]
    _move(approval, to, verdict=said.verdict)
    append(
        "approval.decided",
        actor=person(by),
        run=approval.run_id,
        step=approval.step_id,
        before={"state": ApprovalState.PENDING},
        after={"approval": approval.pk, "state": to, "verdict": said.verdict},
        why=said.comment or said.answer,
    )
    return Decision.objects.get(pk=ident)


def note_refused_decision(approval: Approval, said: Said, *, by: AbstractBaseUser, why: str) -> None:
    """Journal a decision that came too late: it changed nothing."""
    append(
        "approval.decision_refused",
        actor=person(by),
        run=approval.run_id,
        step=approval.step_id,
        after={"approval": approval.pk, "verdict": said.verdict},
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
    append("approval.consumed", run=approval.run_id, step=approval.step_id, after={"approval": approval.pk})


def give_back(approval: Approval) -> None:
    """Its attempt certainly did nothing: it is in effect again."""
    _move(approval, ApprovalState.APPROVED)
    append("approval.given_back", run=approval.run_id, step=approval.step_id, after={"approval": approval.pk})


def void(approval: Approval, *, why: str) -> None:
    _move(approval, ApprovalState.VOID, why=why)
    append("approval.voided", run=approval.run_id, step=approval.step_id, after={"approval": approval.pk}, why=why)


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


def expire(approval: Approval) -> None:
    _move(approval, ApprovalState.EXPIRED, why="nobody decided in time")
    append("approval.expired", run=approval.run_id, step=approval.step_id, after={"approval": approval.pk})


def due_to_expire(run: int) -> list[Approval]:
    """Cards of a locked run whose time has passed, locked."""
    require_transaction()
    return list(
        Approval.objects.select_for_update(of=("self",), no_key=True)
        .filter(run_id=run, state__in=[ApprovalState.PENDING, ApprovalState.APPROVED])
        .extra(where=["runs_approval.expires_at <= lw_clock()"])
        .order_by("pk")
    )


def seconds_left(approval: Approval) -> float | None:
    value = sql.fetch_row(
        "SELECT extract(epoch FROM expires_at - lw_clock()) FROM runs_approval WHERE id = %s", [approval.pk]
    )[0]
    return None if value is None else float(value)


def _already(approval: Approval) -> AlreadyDecided:
    last = Decision.objects.filter(approval=approval).select_related("by").order_by("pk").last()
    at: datetime | None = last.at if last else approval.closed_at
    return AlreadyDecided(
        approval.pk, approval.state, last.by.get_username() if last else "", f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
    )


def _move(approval: Approval, to: ApprovalState, *, verdict: str = "", why: str = "") -> None:
    require_transaction()
    if to not in APPROVAL_MOVES[ApprovalState(approval.state)]:
        raise WrongState(f"Approval {approval.pk}", approval.state, to)
    if (
        sql.execute(
            "UPDATE runs_approval SET state = %s, version = version + 1, verdict = coalesce(nullif(%s, ''), verdict),"
            " closed_at = lw_clock(), closed_because = %s WHERE id = %s AND state = %s",
            [to, verdict, clean_text(why), approval.pk, approval.state],
        )
        == 0
    ):
        raise _already(approval)
    approval.state = to
    approval.version += 1
    notify.screen("approvals")
