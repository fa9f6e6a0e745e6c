"""Limits, prices, allowances and rates, as people set them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, allowances, budgets, course, lifecycle, limits, prices
from runs.access import Action
from runs.journal import person
from runs.models import Allowance, Approval, Price, ProviderLimit, Run, Step
from runs.operations.amounts import check_amount
from runs.operations.reasons import require_reason
from runs.operations.scopes import require_on_run
from runs.operations.wakes import close_budget_cards, wake_for_allowance, wake_for_budget, wake_tree_for_budget
from runs.states import ApprovalKind, ApprovalState, StepState, WaitingFor


@dataclass(frozen=True, kw_only=True)
class Ends:
    """When a run ends whatever it is doing: so many seconds after its start, and at a moment. None: no such limit."""

    max_age_s: float | None
    deadline_at: datetime | None


def set_budget(
    run: int,
    wanted: Mapping[str, Decimal | int | float | None],
    *,
    reason: str,
    by: AbstractBaseUser,
    version: int | None = None,
    ends: Ends | None = None,
) -> Run:
    """Set new limits, and when it ends at the latest; a run in its tree that waits for budget goes on by itself.

    Raises: NotFound, Forbidden, LimitTooLow, Conflict (a stale form), Malformed, RunEnded.
    """
    require_on_run(by, Action.BUDGET, run)
    require_reason(reason, "Changing a limit")
    for name, amount in wanted.items():
        check_amount(name, amount)
    if ends is not None:
        check_amount("max_age_s", ends.max_age_s)
    with transaction.atomic(durable=True):
        locked = lifecycle.lock(run)
        moved = ends is not None and lifecycle.set_ends(
            locked, max_age_s=ends.max_age_s, deadline_at=ends.deadline_at, actor=person(by), why=reason
        )
        close_budget_cards(locked, why="the limit was changed")
        course.wake_run(locked, WaitingFor.BUDGET, why="the limit was changed", actor=person(by))
        # Budgets last: every run below waits for this one.
        budgets.set_limits(run, wanted, actor=person(by), why=reason, version=version, renew=moved)
    wake_tree_for_budget(run, why=f"a limit of run {run} was changed")
    locked.refresh_from_db()
    return locked


def set_price(new: prices.NewPrice, *, by: AbstractBaseUser) -> Price:
    """Set a price: what was used without one is priced, and what waited for it goes on.

    Raises: Forbidden, Malformed, Conflict.
    """
    access.require(by, Action.MONEY)
    with transaction.atomic(durable=True):
        made = prices.set_price(new, actor=person(by))
    for found in prices.recost():
        with transaction.atomic(durable=True):
            budgets.settle(
                found.attempt,
                budgets.Amounts(usd=found.usd, tokens=found.tokens, calls=1, steps=1),
                pricing=budgets.Pricing(model=found.model, usage=found.usage, price=found.price),
                note=f"priced when the price of {made.model} was set",
            )
    cards = Approval.objects.filter(
        kind=ApprovalKind.BUDGET, state=ApprovalState.PENDING, evidence__has_key="model", run__ended_at__isnull=True
    )
    for run in cards.values_list("run_id", flat=True).distinct():
        wake_for_budget(run, why=f"the price of {made.model} was set", actor=person(by))
    return made


def withdraw_price(price: int, *, reason: str, by: AbstractBaseUser) -> None:
    """What was priced with it stays as it is. Raises: Forbidden, Malformed, Conflict."""
    access.require(by, Action.MONEY)
    require_reason(reason, "Withdrawing a price")
    with transaction.atomic(durable=True):
        prices.withdraw(price, actor=person(by), why=reason)


def create_allowance(terms: allowances.Terms, *, reason: str, by: AbstractBaseUser) -> Allowance:
    """Raises: Forbidden, Malformed, Conflict."""
    access.require(by, Action.MONEY)
    require_reason(reason, "An allowance")
    with transaction.atomic(durable=True):
        return allowances.create(terms, actor=person(by), why=reason)


def change_allowance(
    allowance: int,
    *,
    soft: Decimal | None,
    hard: Decimal,
    reason: str,
    by: AbstractBaseUser,
    version: int | None = None,
) -> Allowance:
    """What waits for it goes on by itself. Raises: Forbidden, Malformed, LimitTooLow, Conflict (a stale form)."""
    access.require(by, Action.MONEY)
    require_reason(reason, "Changing an allowance")
    with transaction.atomic(durable=True):
        changed = allowances.change(allowance, soft=soft, hard=hard, actor=person(by), why=reason, version=version)
    wake_for_allowance(allowance, why="the allowance was changed")
    return changed


def end_allowance(allowance: int, *, reason: str, by: AbstractBaseUser) -> None:
    """Raises: Forbidden, Conflict."""
    access.require(by, Action.MONEY)
    with transaction.atomic(durable=True):
        allowances.end(allowance, actor=person(by), why=reason)
    wake_for_allowance(allowance, why="the allowance has ended")


def set_rate(
    limit: int, calls_per_minute: int | None, *, reason: str, by: AbstractBaseUser, version: int | None = None
) -> ProviderLimit:
    """Set how often a credential may call; it counts from the next call on. Raises: Forbidden, Malformed, Conflict."""
    access.require(by, Action.MONEY)
    require_reason(reason, "Changing a rate")
    with transaction.atomic(durable=True):
        changed = limits.set_rate(limit, calls_per_minute, actor=person(by), why=reason, version=version)
    waiting = Step.objects.filter(state=StepState.WAITING, waiting_for=WaitingFor.PROVIDER)
    for run in waiting.values_list("run_id", flat=True).distinct():
        with transaction.atomic(durable=True):
            course.wake_run(lifecycle.lock(run), WaitingFor.PROVIDER, why="the rate of its credential was changed")
    return changed
