"""What each verdict on a card does, by the kind of card. The run, the step and the card are locked."""

from dataclasses import replace
from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser

from runs import agents, approvals, clock, course, credentials, facts, keys, steps
from runs.agents import Json, get_agent
from runs.approvals import Said
from runs.errors import Conflict, Malformed
from runs.journal import person
from runs.models import Approval, Run, Step
from runs.operations.budget_cards import decide_budget
from runs.operations.facts import correct
from runs.states import ApprovalKind, ApprovalState, AttemptOutcome, KeyState, StepState, Verdict, WaitingFor


def read_edit(run: Run, step: Step, said: Said) -> tuple[agents.Tool, dict[str, Json]]:
    tool = get_agent(run.agent).tool(step.tool)
    if tool is None or said.arguments is None:
        raise Malformed("An edit needs arguments, for a tool that is still there.")
    edited = tool.normalise(said.arguments)
    _refuse_what_was_done(run, step, tool, edited)
    return tool, edited


def rebind(run: Run, step: Step, card: Approval, tool: agents.Tool, edited: dict[str, Json]) -> None:
    steps.set_arguments(step, edited, tool.contract)
    approvals.rebind(card, run=run, step=step, arguments=edited, contract=tool.contract)


def _decide_approval(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    match said.verdict:
        case Verdict.APPROVE:
            approvals.decide(card, said, by=by, to=ApprovalState.APPROVED)
            steps.wake(step, why=f"approved by {by.get_username()}", actor=person(by))
        case Verdict.EDIT:
            tool, edited = read_edit(run, step, said)
            approvals.decide(card, replace(said, arguments=edited), by=by, to=ApprovalState.APPROVED)
            rebind(run, step, card, tool, edited)
            steps.wake(step, why=f"approved with changes by {by.get_username()}", actor=person(by))
        case Verdict.REJECT:
            approvals.decide(card, said, by=by, to=ApprovalState.REJECTED)
            why = said.comment or said.answer or "no reason given"
            steps.close(step, StepState.REJECTED, error=why, actor=person(by))
            course.close_if_nothing_happened(keys.open_key_of(step))
        case Verdict.RESPOND:
            if not said.answer.strip():
                raise Malformed("Responding needs an answer.")
            approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
            steps.close(
                step,
                StepState.REJECTED,
                error="answered instead of run",
                result={"answer": said.answer},
                actor=person(by),
            )
            course.close_if_nothing_happened(keys.open_key_of(step))
        case _:
            raise Malformed(f"{said.verdict} is not a verdict of an approval.")


def _refuse_what_was_done(run: Run, step: Step, tool: agents.Tool, edited: dict[str, Json]) -> None:
    """An edit must not make of a call one that another step has made: its key would not tell."""
    same = keys.find(run, tool, edited)
    if same is None or same.key.state == KeyState.FAILED or same.key.step_id == step.pk or step.again:
        return
    raise Conflict(
        f"Step {same.key.step.number} has made exactly this call ({same.key.state}).",
        remedy="Reject this one, or change it to something else.",
    )


def ask_again_what_happened(run: Run, step: Step | None, card: Approval) -> None:
    """Stopping the run does not say whether the effect happened: that stays a question, and the locks stay held."""
    if card.kind != ApprovalKind.VERDICT or card.key is None or card.key.state != KeyState.IN_DOUBT:
        return
    approvals.ask(
        run,
        ApprovalKind.VERDICT,
        title=card.title,
        why=f"{card.why}; its run was stopped",
        step=step,
        key=card.key,
        because=card.because,
        contract=card.contract,
        arguments=card.arguments,
        evidence=card.evidence,
        verdicts=(Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN),
    )


def _decide_question(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    if not said.answer.strip():
        raise Malformed("A question needs an answer.")
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    steps.close(step, StepState.DONE, result={"answer": said.answer}, actor=person(by))


def _decide_verdict(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    assert card.key_id is not None
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    key = keys.lock(card.key_id)
    why = f"{by.get_username()}: {said.verdict}"
    if said.verdict == Verdict.HAPPENED:
        steps.settle_doubt(key.pk, AttemptOutcome.PROVED, why=why)
        keys.close(key, KeyState.DONE, how="verdict", result=said.result, actor=person(by))
        if step.state in (StepState.IN_DOUBT, StepState.VOID):
            steps.close(step, StepState.DONE, result=said.result, actor=person(by), why=why)
    else:
        steps.settle_doubt(key.pk, AttemptOutcome.DISPROVED, why=why)
        if step.state == StepState.IN_DOUBT and run.ended_at is None:
            # The same generation reopens: a receiver that knows the key still protects from a late arrival.
            keys.close(key, KeyState.TAKEN, how="", actor=person(by))
            steps.wake(step, why=why, actor=person(by))
        else:
            keys.close(key, KeyState.FAILED, how="verdict", actor=person(by))
            if step.state in (StepState.IN_DOUBT, StepState.VOID):
                steps.close(step, StepState.FAILED, error=why, actor=person(by))


def _decide_failure(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    if said.verdict == Verdict.RETRY:
        steps.grant_tries(step, 3)
        steps.wake(step, why=f"retried by {by.get_username()}", actor=person(by))
    else:
        steps.close(step, StepState.FAILED, error=said.answer or said.comment or step.error, actor=person(by))
        # One that may have acted is asked about by the sweep.
        course.close_if_nothing_happened(keys.open_key_of(step))


def _decide_fact(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert card.fact is not None
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    facts.lock([card.fact.pk])
    if said.verdict == Verdict.CONFIRM:
        facts.confirm(card.fact, actor=person(by))
        course.wake_run(run, WaitingFor.FACT, why=f"{card.fact.name} was confirmed", actor=person(by))
    else:
        correct(run, card.fact, said.result, by)


def _decide_escalation(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    allowed = said.verdict == Verdict.APPROVE
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED if allowed else ApprovalState.REJECTED)
    if allowed:
        answer: Json = {"approved": True, "comment": said.comment}
        steps.close(step, StepState.DONE, result=answer, actor=person(by), why=said.comment)
    else:
        steps.close(step, StepState.REJECTED, error=said.comment or "no reason given", actor=person(by))


def _decide_credential(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    name = card.credential
    if name:
        expires_at = read_expiry(said.result)
        credentials.note_renewed(name, expires_at=expires_at, actor=person(by), why=said.comment)
    why = f"{name or 'the credential'} was renewed"
    course.wake_run(run, WaitingFor.CREDENTIAL, name or None, why=why, actor=person(by))


def read_expiry(result: Json) -> datetime | None:
    """{"expires_at": "2026-11-30T08:00:00Z"}: until when the new one is good, if that is known. Raises: Malformed."""
    text = result.get("expires_at") if isinstance(result, dict) else None
    if not text:
        return None
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not 2000 <= at.year <= 9000:
        raise Malformed(f"{str(text)[:40]!r} is no moment.", remedy="Write it as 2026-11-30T08:00:00Z.")
    if at <= clock.now():
        raise Malformed("That moment has passed already.", remedy="Say until when the new one is good, or nothing.")
    return at


DECIDERS = {
    ApprovalKind.APPROVAL: _decide_approval,
    ApprovalKind.QUESTION: _decide_question,
    ApprovalKind.VERDICT: _decide_verdict,
    ApprovalKind.FAILURE: _decide_failure,
    ApprovalKind.BUDGET: decide_budget,
    ApprovalKind.FACT: _decide_fact,
    ApprovalKind.CREDENTIAL: _decide_credential,
    ApprovalKind.ESCALATION: _decide_escalation,
}
