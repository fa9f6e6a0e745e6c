"""Waits that several kinds of steps share."""

from collections.abc import Mapping
from decimal import Decimal

from runs import allowances, approvals, budgets, lifecycle, locks, sql, steps
from runs.agents import Json
from runs.engine.hand import later
from runs.errors import OverBudget, say_dimension, write_amount
from runs.models import Approval, Budget, Run, Step
from runs.models.budget import DIMENSIONS
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


def wait_for_budget(run: Run, step: Step, short: OverBudget, *, costs: Mapping[str, Json] | None = None) -> None:
    """Let a locked step wait for budget: for siblings to settle, and nobody is asked; else a card asks a person.

    costs: what the next model call costs, and what going on costs after a pause; told on the card.
    """
    if short.allowance is not None:
        _wait_for_allowance(step, short)
        return
    if short.dimension in DIMENSIONS and budgets.is_finishing(run.pk):
        cover(run, budgets.Amounts(**{short.dimension: short.needed}))  # type: ignore[arg-type]
        steps.wait(step, WaitingFor.RETRY, note="its limit is raised by what its last step takes", wake_at=later(0))
        return
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
    title = (
        f"The next step takes a large share of run {short.run}'s {say_dimension(short.dimension)}"
        if short.percent is not None
        else f"Run {short.run} needs more {say_dimension(short.dimension)}"
    )
    approvals.ask(
        run,
        ApprovalKind.BUDGET,
        title=title,
        why=short.message,
        step=step,
        evidence={**_figures(short), **(costs or {})},
    )


def cover(run: Run, amounts: budgets.Amounts) -> None:
    """Raise what is short for a locked run that was let finish, there and above it, by exactly that."""
    (chain,) = sql.fetch_row("SELECT lw_chain(%s)", [run.pk])
    for above in chain[1:]:
        lifecycle.lock(above)
    budgets.cover(run.pk, amounts, why=f"run {run.pk} finishes with what it has")


def share_was_asked(step: Step) -> bool:
    """Whether a person has let this step take what it takes."""
    return Approval.objects.filter(
        step=step, kind=ApprovalKind.BUDGET, state=ApprovalState.ANSWERED, verdict=Verdict.GRANT
    ).exists()


def _wait_for_allowance(step: Step, short: OverBudget) -> None:
    assert short.allowance is not None
    if short.by_siblings:
        wake_at, note = later(2), f"{short.message} What is reserved will settle."
    else:
        wake_at, note = short.frees_at or later(3600), short.message
    steps.wait(
        step,
        WaitingFor.CAPACITY,
        note=note,
        on=allowances.topic(short.allowance),
        wake_at=wake_at,
        and_then="it is looked at again",
    )


def wait_for_place(step: Step, full: allowances.Full) -> None:
    """As many runs as are allowed are under way: this one begins when one of them ends."""
    steps.wait(
        step,
        WaitingFor.CAPACITY,
        note=f"{full.most} runs of {full.scope} are under way, and more are not allowed at once",
        on=allowances.topic(full.allowance),
        wake_at=later(60),
        and_then="it begins when one of them ends",
    )


def _figures(short: OverBudget) -> dict[str, Json]:
    """What a person decides on: limit, spent, reserved, what the step takes, and how fast it went so far."""
    budget = Budget.objects.get(pk=short.run)
    dimension = short.dimension
    told: dict[str, Json] = {"run": short.run, "dimension": dimension}
    if dimension == "working_s":
        told["limit"] = budget.working_limit_s
        told["spent"] = round(budgets.worked_s(short.run), 1)
        return told
    for name in ("limit", "spent", "reserved"):
        told[name] = _amount(dimension, getattr(budget, f"{dimension}_{name}"))
    told["needed"], told["left"] = _amount(dimension, short.needed), _amount(dimension, short.left)
    if short.percent is not None:
        told["asked_above_percent"] = short.percent
    (hours,) = sql.fetch_row(
        "SELECT extract(epoch FROM lw_clock() - created_at)::float8 / 3600 FROM runs_run WHERE id = %s", [short.run]
    )
    if dimension == "usd" and budget.usd_spent:
        told["usd_per_hour"] = f"{float(budget.usd_spent) / max(hours, 1 / 60):.4f}"
        if budget.calls_spent:
            told["usd_per_model_call"] = f"{budget.usd_spent / budget.calls_spent:.4f}"
    elif budget_spent := int(getattr(budget, f"{dimension}_spent")):
        told[f"{dimension}_per_hour"] = round(budget_spent / max(hours, 1 / 60), 1)
    return told


def _amount(dimension: str, amount: Decimal | int | float | None) -> Json:
    if amount is None:
        return None
    return write_amount(dimension, amount).removesuffix(" USD") if dimension == "usd" else int(amount)


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
