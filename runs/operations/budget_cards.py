"""The answers to a card of the kind budget: grant, finish, stop."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from django.contrib.auth.models import AbstractBaseUser

from runs import access, approvals, budgets, course, lifecycle, sql, steps
from runs.access import Action
from runs.agents import Json
from runs.approvals import Said
from runs.errors import Malformed, say_dimension, write_amount
from runs.journal import person
from runs.models import Approval, Budget, Key, Run, Step
from runs.operations.amounts import check_amount, read_money, read_whole
from runs.states import KEY_OPEN, ApprovalState, StepKind, StepState, Verdict, WaitingFor


def decide_budget(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    if said.verdict == Verdict.FINISH:
        _let_finish(run, card, said, by)
        return
    evidence: dict[str, Json] = card.evidence if isinstance(card.evidence, dict) else {}
    # What is short may be the budget of a run above: its lock comes after that of its child.
    short = int(str(evidence.get("run", run.pk)))
    granted = run if short == run.pk else lifecycle.lock(short)
    access.require(by, Action.DECIDE, granted.agent)
    limits = _read_grant(granted, said.grant or {}, evidence)
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    course.wake_run(run, WaitingFor.BUDGET, why=f"granted by {by.get_username()}", actor=person(by))
    budgets.set_limits(granted.pk, limits, actor=person(by), why=said.comment or f"granted on approval {card.pk}")


def _read_grant(
    granted: Run, grant: Mapping[str, str], evidence: Mapping[str, Json]
) -> dict[str, Decimal | int | float | None]:
    """The new limits that a grant makes. A card that only asks about a step's share may be granted nothing more.

    Raises:
        Malformed: it says nothing, or not what the card asks for, or so little that the step would ask again at once.
    """
    asked_for = str(evidence.get("dimension") or "")
    given = {name: amount for name, amount in grant.items() if name in budgets.GRANTABLE}
    if asked_for and given and asked_for not in given:
        raise Malformed(
            f"This card asks for {say_dimension(asked_for)}, not for {', '.join(map(say_dimension, given))}.",
            remedy=f"Say how much more {say_dimension(asked_for)}.",
        )
    by_share = "asked_above_percent" in evidence
    if not given and not by_share:
        raise Malformed('A grant says how much: {"usd": "1.00"}.')
    budget = granted.budget
    limits: dict[str, Decimal | int | float | None] = {}
    for name, amount in given.items():
        old = budget.working_limit_s if name == "working_s" else getattr(budget, f"{name}_limit")
        if old is None:
            limits[name] = None
        elif name == "usd":
            limits[name] = Decimal(old) + Decimal(read_money(amount) or "0")
        else:
            limits[name] = old + read_whole(name, amount)
        check_amount(name, limits[name])
    if asked_for and not by_share:
        _require_enough(budget, asked_for, limits.get(asked_for), evidence)
    return limits


def _require_enough(
    budget: Budget, dimension: str, limit: Decimal | int | float | None, evidence: Mapping[str, Json]
) -> None:
    if limit is None:
        return
    if dimension == "working_s":
        old, needed = Decimal(budget.working_limit_s or 0), Decimal(1)
        used = Decimal(budgets.worked_s(budget.pk)).quantize(Decimal("0.1"))
    else:
        try:
            needed = Decimal(str(evidence.get("needed")).replace(",", ""))
        except InvalidOperation:
            return
        old = Decimal(getattr(budget, f"{dimension}_limit"))
        used = Decimal(getattr(budget, f"{dimension}_spent") + getattr(budget, f"{dimension}_reserved"))
    if used + needed > Decimal(limit):
        raise Malformed(
            f"That is not enough for the next step: run {budget.pk} would ask again at once.",
            remedy=f"Grant at least {write_amount(dimension, used + needed - old)}.",
        )


def _let_finish(run: Run, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """The run thinks once more, is told so, and ends. Its last steps are paid for by raising what is short by just that."""
    for above in sql.fetch_all("SELECT agent FROM runs_run WHERE id = ANY (lw_chain(%s))", [run.pk]):
        access.require(by, Action.DECIDE, above[0])
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    why = f"it finishes with what it has, by {by.get_username()}"
    budgets.ask_finish(run.pk, actor=person(by), why=said.comment or why)
    for step in steps.open_steps(run):
        if step.state not in (StepState.PLANNED, StepState.WAITING):
            continue
        locked = steps.lock(step.pk)
        if step.kind in (StepKind.THINK, StepKind.FINISH):
            if locked.state == StepState.WAITING:
                steps.wake(locked, why=why, actor=person(by))
        elif not Key.objects.filter(step=step, state__in=KEY_OPEN).exists():
            approvals.void_all(run.pk, step=step.pk, why=why)
            steps.close(locked, StepState.VOID, error=why, actor=person(by))
