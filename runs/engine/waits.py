"""Waits that several kinds of steps share."""

from runs import approvals, locks, steps
from runs.agents import Json
from runs.engine.hand import later
from runs.errors import OverBudget
from runs.models import Approval, Budget, Run, Step
from runs.states import ApprovalKind, ApprovalState, Verdict, WaitingFor


def wait_for_lock(step: Step, blocked: locks.Blocked) -> None:
    steps.wait(
        step,
        WaitingFor.LOCK,
        note=f"run {blocked.run} acts on {blocked.name} just now",
        on=blocked.name,
        # Freed by now, or whoever frees it waits for this commit and wakes this step.
        wake_at=later(30 if locks.watch(blocked.name) else 0),
        and_then="it is looked at again",
    )


def wait_for_switch(step: Step, scope: str, reason: str) -> None:
    """A switch holds this tool: the step lies until it is released."""
    steps.wait(
        step,
        WaitingFor.CAPACITY,
        note=f"held by the switch {scope}: {reason}",
        on=f"switch.{scope}",
        wake_at=later(300),
        and_then="it goes on when the switch is released",
    )


def wait_for_contract(step: Step, agent: str) -> None:
    """Code that this step needs is not there: it says so, and looks again."""
    what = (
        f"the tool {step.tool} is not part of {agent} any more" if step.tool else f"there is no agent {agent} any more"
    )
    steps.wait(
        step,
        WaitingFor.CONTRACT,
        note=what,
        on="a deploy",
        wake_at=later(30),
        and_then="it is looked for again",
    )


def wait_for_budget(run: Run, step: Step, short: OverBudget) -> None:
    """Let a locked step wait for budget: for siblings to settle, and nobody is asked; else a card asks for more."""
    if short.by_siblings:
        steps.wait(step, WaitingFor.BUDGET, note=f"{short.message} What is reserved will settle.", wake_at=later(2))
        return
    steps.wait(
        step,
        WaitingFor.BUDGET,
        note=short.message,
        on="an operator",
        wake_at=later(3600),
        and_then="it is looked at again",
    )
    if Approval.objects.filter(step=step, kind=ApprovalKind.BUDGET, state=ApprovalState.PENDING).exists():
        return
    budget = Budget.objects.get(pk=short.run)
    approvals.ask(
        run,
        ApprovalKind.BUDGET,
        title=f"Run {short.run} needs more {short.dimension}",
        why=short.message,
        step=step,
        evidence={
            "run": short.run,
            "dimension": short.dimension,
            "needed": str(short.needed),
            "left": str(short.left),
            "spent": str(getattr(budget, f"{short.dimension}_spent", "")),
            "reserved": str(getattr(budget, f"{short.dimension}_reserved", "")),
        },
        verdicts=(Verdict.GRANT, Verdict.STOP),
    )


def ask_about_failure(run: Run, step: Step, what: str, error: str) -> None:
    """What keeps failing becomes a card instead of days of retries. The locked step waits for it."""
    steps.wait(step, WaitingFor.FAILURE, note=f"{what}: {error}", on="an approver")
    tries: list[Json] = [
        {
            "attempt": a.number,
            "outcome": a.outcome,
            "error": a.error,
            "signal": a.exit_signal,
            "maxrss_bytes": a.maxrss_bytes,
        }
        for a in step.attempts.order_by("number")
    ]
    approvals.ask(
        run,
        ApprovalKind.FAILURE,
        title=f"{step.tool or step.kind}: {what}",
        why=error,
        step=step,
        because=step.because,
        evidence={"tries": tries},
    )
