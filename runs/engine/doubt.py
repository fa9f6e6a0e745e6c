"""A key that is taken and has no result: look it up, do it again, or let a person say what happened."""

from dataclasses import dataclass

from runs import approvals, facts, keys, steps
from runs.agents import Effect, Json, Tool, get_agent
from runs.engine import awaiting
from runs.engine.hand import later
from runs.engine.waits import ask_about_failure
from runs.errors import WrongState
from runs.models import Approval, Attempt, FactUse, Key, Run, Step
from runs.states import (
    MAY_HAVE_ACTED,
    RUN_FINAL,
    STEP_FINAL,
    ApprovalKind,
    ApprovalState,
    AttemptOutcome,
    KeyState,
    StepKind,
    StepState,
    WaitingFor,
)
from runs.steps import Past


@dataclass(frozen=True, kw_only=True)
class Redo:
    """The call may be taken again with the same key."""


def resolve(run: Run, step: Step, tool: Tool, key: Key) -> Redo | None:
    """Decide what becomes of a locked step's taken key, before any fact is re-read. None: it waits now.

    The effect itself may have changed the facts it rests on; so the key comes first.
    """
    past = steps.judge_past(key=key.pk)
    if past.open:
        steps.wait(step, WaitingFor.RETRY, note="an earlier try is still under way", wake_at=later(1.0))
        return None
    if not past.may_have_acted:
        return Redo()
    if past.may_still_act_for_s > 0:
        steps.wait(
            step,
            WaitingFor.RETRY,
            note="an earlier try is not confirmed dead and may still act",
            wake_at=later(past.may_still_act_for_s + 0.05),
            and_then="its outcome is settled by what the tool allows",
        )
        return None
    match tool.effect:
        case Effect.READ | Effect.INTERNAL | Effect.IDEMPOTENT:
            return Redo()
        case Effect.KEYED if _may_repeat(run, step, tool, key):
            return Redo()
        case Effect.KEYED | Effect.CHECKABLE if tool.reconciler is not None:
            look_up(run, step, tool, key, past)
        case _:
            put_in_doubt(run, step, key)
    return None


def _may_repeat(run: Run, step: Step, tool: Tool, key: Key) -> bool:
    """A keyed call is sent again while its facts are the ones it was taken on, and its approval stands."""
    last = Attempt.objects.filter(key=key).order_by("-pk").first()
    if last is None or last.outcome == AttemptOutcome.REFUSED:
        # A refusal proves only that its own try did nothing.
        return False
    if steps.count_failures(step) >= max(tool.attempts, step.tries_granted):
        return False
    used = {
        u.fact.name: u.version for u in FactUse.objects.filter(attempt=_first_that_acted(key)).select_related("fact")
    }
    now = facts.judge(run.pk, used)
    if set(now) != set(used) or any(not f.usable or f.version != used[f.name] for f in now.values()):
        return False
    if not step.gated:
        return True
    approval = approvals.in_effect(step)
    return (
        approval is not None
        and approval.contract == tool.contract
        and ((left := approvals.seconds_left(approval)) is None or left > 0)
        and approval.digest == approvals.bind(run=run, step=step, contract=tool.contract, arguments=step.arguments)
    )


def _first_that_acted(key: Key) -> Attempt | None:
    return Attempt.objects.filter(key=key, outcome__in=MAY_HAVE_ACTED, began_at__isnull=False).order_by("pk").first()


def look_up(run: Run, step: Step, tool: Tool, key: Key, past: Past) -> None:
    """Plan a look-up at the receiver; the step waits for it."""
    if past.visible_in_s > 0:
        steps.wait(
            step,
            WaitingFor.RETRY,
            note="an earlier try may not be visible at the receiver yet",
            wake_at=later(past.visible_in_s + 0.05),
            and_then="it is looked up",
        )
        return
    planned = steps.plan(run, ask_receiver(key, tool))
    steps.wait(
        step,
        WaitingFor.RETRY,
        note=f"it is looked up at the receiver whether it happened (step {planned.number})",
        on=keys.waited_on(key),
        wake_at=None,
    )


def ask_receiver(key: Key, tool: Tool) -> steps.Asked:
    """The step that looks a key up."""
    return steps.Asked(
        kind=StepKind.RECONCILE, tool=tool.name, arguments=dict(key.arguments), contract=tool.contract, subject=key.pk
    )


def put_in_doubt(run: Run, step: Step, key: Key, *, evidence: Json = None) -> Approval:
    """Nobody can know but a person: the step and its key are in doubt, with what is known on the card."""
    keys.close(key, KeyState.IN_DOUBT, how="", evidence=evidence)
    note = f"it is not known whether {key.tool} happened"
    if step.state in (StepState.PLANNED, StepState.WAITING, StepState.TAKEN):
        steps.wait(step, WaitingFor.VERDICT, note=note, on="an approver", state=StepState.IN_DOUBT)
    elif step.state != StepState.IN_DOUBT and step.state not in STEP_FINAL:
        raise WrongState(f"Step {step.number}", step.state, StepState.IN_DOUBT)
    return approvals.ask(
        run,
        ApprovalKind.VERDICT,
        title=f"Did {key.tool} happen?",
        why=note,
        step=step,
        key=key,
        because=step.because,
        arguments=dict(key.arguments),
        contract=step.contract,
        evidence={"tries": tries_told(key), "looked_up": evidence, "key": key.header},
    )


def tries_told(key: Key) -> list[Json]:
    """Each try of a key as a card tells it."""
    return [
        {
            "attempt": a.number,
            "outcome": a.outcome,
            "taken_at": a.taken_at.isoformat(),
            "began_at": a.began_at.isoformat() if a.began_at else None,
            "worker": str(a.holder),
            "error": a.error,
            "signal": a.exit_signal,
        }
        for a in Attempt.objects.filter(key=key).order_by("pk")
    ]


def settle_found(
    run: Run, step: Step, key: Key, found: str, result: Json, evidence: Json, *, waits: bool = False
) -> list[str]:
    """What a look-up found settles the locked key and its step. Returns the locks that became free.

    found: happened, did_not_happen or unsure. waits: the result is what the step is to wait for.
    """
    if key.state != KeyState.TAKEN:
        return []
    open_step = step.state in (StepState.PLANNED, StepState.WAITING)
    match found:
        case "happened":
            steps.settle_doubt(key.pk, AttemptOutcome.PROVED, why="found at the receiver")
            freed = keys.close(key, KeyState.DONE, how="reconciled", result=result, evidence=evidence)
            if open_step or step.state == StepState.VOID:
                awaiting.conclude(run, step, result, waits=waits, since=key.taken_at, why="found at the receiver")
            return freed
        case "did_not_happen":
            steps.settle_doubt(key.pk, AttemptOutcome.DISPROVED, why="not found at the receiver")
            if open_step:
                keys.note_evidence(key, evidence)
                give_back_approval(run, step)
                _do_again(run, step, key)
                return []
            return keys.close(key, KeyState.FAILED, how="reconciled", evidence=evidence)
        case _:
            put_in_doubt(run, step, key, evidence=evidence)
            return []


def _do_again(run: Run, step: Step, key: Key) -> None:
    """Let a call that did not happen be made again; one that came to nothing too often becomes a card."""
    tool = get_agent(run.agent).tool(key.tool)
    failures = steps.count_failures(step)
    if tool is not None and failures >= max(tool.attempts, step.tries_granted):
        last = Attempt.objects.filter(key=key).order_by("pk").last()
        ask_about_failure(
            run, step, f"it failed {failures} times, each time without effect", last.error if last else ""
        )
    elif step.state == StepState.WAITING:
        steps.wake(step, why="not found at the receiver: it is done again")


def give_back_approval(run: Run, step: Step) -> None:
    """The approval that a call had used up is in effect again: the call certainly did not happen."""
    approval = approvals.in_effect(step)
    if approval is None or approval.state != ApprovalState.CONSUMED or step.keeps_wait:
        return
    approvals.give_back(approval)
    if run.state in RUN_FINAL:
        approvals.void(approval, why=f"run {run.state}")
