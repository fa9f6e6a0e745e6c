"""Deciding a card: once, by whoever may, with what it says done in the same transaction."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, agents, approvals, course, facts, lifecycle, steps, voting
from runs.access import Action
from runs.approvals import Said
from runs.errors import AlreadyDecided, Conflict, Forbidden, LongwatchError, Malformed
from runs.journal import person
from runs.models import Approval, Run, Step
from runs.operations.verdicts import DECIDERS, ask_again_what_happened, read_edit, rebind
from runs.operations.wakes import wake_after_decision, wake_after_end
from runs.states import EXPLAIN, STEP_OPEN, ApprovalKind, ApprovalState, RunState, StepKind, Verdict


def decide(approval: int, said: Said, *, by: AbstractBaseUser, hold_s: float = 0.0) -> Approval:
    """Decide a card: once, and only as it was shown. hold_s: seconds for which it can be undone before it takes effect.

    Raises: NotFound, Forbidden, AlreadyDecided, AnotherVersion, Conflict, Malformed, BadArguments.
    """
    card = access.get_approval(by, approval)
    access.require(by, Action.DECIDE, card.run.agent)
    late: AlreadyDecided | None = None
    freed: list[str] = []
    stopped: list[Run] = []
    with transaction.atomic(durable=True):
        stops = said.verdict == Verdict.STOP
        tree = lifecycle.lock_with_descendants(card.run_id) if stops else [lifecycle.lock(card.run_id)]
        run = tree[-1]
        if course.expire_cards(run):
            # What has expired by the clock cannot be decided any more, though no sweep has come by.
            course.rest(run)
        step = steps.lock(card.step_id) if card.step_id else None
        card = approvals.lock(approval)
        if said.verdict == Verdict.UNDO:
            approvals.undo(card, said, by=by)
        elif card.state != ApprovalState.PENDING or card.effective_at is not None:
            try:
                approvals.check(card, said)
            except AlreadyDecided as refusal:
                approvals.note_refused_decision(card, said, by=by, why=refusal.message)
                late = refusal
        else:
            voting.require_decider(card, run, said, by=by)
            if stops:
                approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
                why = said.comment or f"decided on approval {card.pk}"
                freed = course.end(tree, RunState.STOPPED, reason=why, actor=person(by))
                stopped = tree
                ask_again_what_happened(run, step, card)
            elif said.verdict == Verdict.EXPLAIN:
                _ask_for_more(run, step, card, said, by)
            elif not voting.is_enough(card, said, by=by):
                _vote(run, step, card, said, by)
            elif hold_s > 0:
                _try_out(run, step, card, said, by)
                approvals.hold(card, said, by=by, hold_s=hold_s)
            else:
                DECIDERS[ApprovalKind(card.kind)](run, step, card, said, by)
                course.rest(run, actor=person(by))
    if late is not None:
        raise late
    wake_after_decision(card)
    if stopped:
        wake_after_end(stopped, freed)
    card.refresh_from_db()
    return card


def apply_held_decision(approval: int) -> None:
    """Let a decision take effect whose hold is over. One that cannot any more leaves its card to be decided again."""
    found = Approval.objects.get(pk=approval)
    with transaction.atomic(durable=True):
        run = lifecycle.lock(found.run_id)
        step = steps.lock(found.step_id) if found.step_id else None
        card = approvals.lock(approval)
        if card.state != ApprovalState.PENDING or not approvals.is_due(card):
            return
        made = approvals.held_decision(card)
        said = Said(
            verdict=Verdict(made.verdict),
            arguments=made.arguments,
            answer=made.answer,
            result=made.result,
            grant=made.grant,
            comment=made.comment,
        )
        try:
            with transaction.atomic():
                DECIDERS[ApprovalKind(card.kind)](run, step, card, said, made.by)
                course.rest(run, actor=person(made.by))
        except LongwatchError as refusal:
            approvals.drop_held(approvals.lock(approval), why=refusal.message)
            return
    wake_after_decision(card)


def approve_batch(cards: Sequence[tuple[int, int]], *, comment: str, by: AbstractBaseUser) -> list[tuple[int, str]]:
    """Approve several cards of low risk with fresh facts: (approval, why it was not approved, or "") for each.

    cards: (approval, version as it was shown). Each is a transaction of its own, and stands or falls alone.
    """
    told: list[tuple[int, str]] = []
    for approval, version in cards:
        try:
            card = access.get_approval(by, approval)
            if why := why_not_in_batch(card):
                raise Conflict(why)
            decide(approval, Said(verdict=Verdict.APPROVE, version=version, comment=comment), by=by)
            told.append((approval, ""))
        except LongwatchError as refusal:
            told.append((approval, refusal.message))
    return told


def why_not_in_batch(card: Approval) -> str:
    """Why a card has to be looked at alone; "" when it need not: low risk, and every fact fresh and as it was shown."""
    tool = agents.find_tool(card.run.agent, card.tool)
    if card.kind != ApprovalKind.APPROVAL or card.state != ApprovalState.PENDING or card.effective_at is not None:
        return "only calls that wait for their approval are approved together"
    if tool is None or tool.irreversible or tool.effect is agents.Effect.ONCE:
        return "what cannot be undone is approved alone"
    if card.needed > 1:
        return "it takes more than one person"
    if card.changes or card.replaces_id is not None:
        return "it has changed since it was asked before"
    now = facts.judge(card.run_id, [str(shown["name"]) for shown in card.facts])
    for shown in card.facts:
        fact = now.get(str(shown["name"]))
        if fact is None or not fact.usable or fact.digest != shown["digest"]:
            return f"{shown['name']} is not fresh, or not what was shown"
    return ""


def claim_approval(approval: int, *, by: AbstractBaseUser) -> Approval:
    """Say that one is at a card, or take it over. Raises: NotFound, Forbidden, AlreadyDecided."""
    return _on_card(approval, lambda card: approvals.claim(card, by=by), by=by)


def release_approval(approval: int, *, by: AbstractBaseUser) -> Approval:
    """Give a claimed card back to everyone. Raises: NotFound, Forbidden, AlreadyDecided, Conflict."""
    return _on_card(approval, lambda card: approvals.release_claim(card, by=by), by=by)


def _on_card(approval: int, act: Callable[[Approval], None], *, by: AbstractBaseUser) -> Approval:
    card = access.get_approval(by, approval)
    access.require(by, Action.DECIDE, card.run.agent)
    if not voting.is_asked(by, card.groups):
        raise Forbidden(f"This card is for {', '.join(card.groups)}.")
    with transaction.atomic(durable=True):
        lifecycle.lock(card.run_id)
        act(approvals.lock(approval))
    card.refresh_from_db()
    return card


class _Tried(Exception):
    """Ends a trial: all that it did is rolled back."""


def _try_out(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """Refuse now what could not take effect later. What a trial leaves in these objects is read anew afterwards."""
    try:
        with transaction.atomic():
            DECIDERS[ApprovalKind(card.kind)](run, step, card, said, by)
            raise _Tried
    except _Tried:
        for changed in (run, step, card):
            if changed is not None:
                changed.refresh_from_db()


def _vote(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """One of several people has said yes, or has changed the call: then all begin anew, with what it is now."""
    if said.verdict == Verdict.EDIT:
        assert step is not None
        tool, edited = read_edit(run, step, said)
        approvals.vote(card, replace(said, arguments=edited), by=by)
        rebind(run, step, card, tool, edited)
    else:
        approvals.vote(card, said, by=by)


def _ask_for_more(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """The agent explains in a think step of its own, which can do nothing else; the call goes on waiting."""
    if not (said.comment.strip() or said.answer.strip()):
        raise Malformed("Asking for more needs a question.", remedy="Say what you want to know.")
    assert step is not None
    approvals.ask_agent(card, said, by=by)
    asked = Step.objects.filter(run=run, kind=StepKind.THINK, reply_to=step, state__in=STEP_OPEN)
    if not asked.exists():
        steps.plan(run, steps.Asked(kind=StepKind.THINK, tool=EXPLAIN, reply_to=step.pk), actor=person(by))
    course.rest(run, actor=person(by))
