"""Whom a change wakes: other runs, each in a transaction of its own after the one that changed something."""

from collections.abc import Sequence

from django.db import transaction

from runs import allowances, approvals, course, keys, lifecycle, locks, sql
from runs.agents import find_tool
from runs.journal import RUNTIME, Actor
from runs.models import Approval, Key, Run
from runs.states import ApprovalKind, ApprovalState, KeyState, Verdict, WaitingFor


def close_budget_cards(run: Run, *, why: str) -> None:
    cards = Approval.objects.select_for_update(of=("self",), no_key=True).filter(
        run=run, kind=ApprovalKind.BUDGET, state=ApprovalState.PENDING
    )
    for card in cards:
        approvals.void(card, why=why)


def wake_waiters(waiting_for: WaitingFor, on: str, *, why: str, most: int | None = None) -> None:
    """Wake the runs that wait for this, the oldest first, each in a transaction of its own."""
    for run in sorted(course.wake_waiting(waiting_for, on))[:most]:
        with transaction.atomic(durable=True):
            course.wake_run(lifecycle.lock(run), waiting_for, on, why=why)


def wake_for_budget(run: int, *, why: str, actor: Actor = RUNTIME) -> None:
    with transaction.atomic(durable=True):
        locked = lifecycle.lock(run)
        close_budget_cards(locked, why=why)
        course.wake_run(locked, WaitingFor.BUDGET, why=why, actor=actor)


def wake_for_allowance(allowance: int, *, why: str, most: int | None = None) -> None:
    wake_waiters(WaitingFor.CAPACITY, allowances.topic(allowance), why=why, most=most)


def wake_tree_for_budget(run: int, *, why: str) -> None:
    """Wake the other runs of its tree that wait for a budget, and close their cards about it."""
    others = Run.objects.filter(
        root_id=Run.objects.values_list("root_id", flat=True).get(pk=run), ended_at__isnull=True
    )
    for number in others.filter(waiting_for=WaitingFor.BUDGET).exclude(pk=run).values_list("pk", flat=True):
        wake_for_budget(number, why=why)


def wake_after_end(tree: list[Run], freed: Sequence[str], counting: sql.Answer | None = None) -> None:
    """Wake the step of each parent that waits for its child, and the runs that wait longest for the places.

    counting: the allowances of runs, where they were asked for already (`allowances.ask_of_runs`).
    """
    wake_lock_waiters(freed)
    of_runs = allowances.list_of_runs() if counting is None else [number for (number,) in counting.all()]
    for run in tree:
        if run.parent_id is not None:
            wake_waiters(WaitingFor.CHILD, str(run.pk), why=f"run {run.pk} ended")
        for allowance in of_runs:
            wake_for_allowance(allowance, why=f"run {run.pk} ended", most=1)


def wake_lock_waiters(names: Sequence[str]) -> None:
    """Wake the runs that wait for these locks."""
    for name in names:
        wake_waiters(WaitingFor.LOCK, name, why=f"{name} is free")


def wake_after_decision(card: Approval) -> None:
    if card.step_id is not None:
        for key in Key.objects.filter(step_id=card.step_id, state__in=[KeyState.DONE, KeyState.FAILED]):
            wake_lock_waiters([*_lock_names(key), keys.waited_on(key)])
    card.refresh_from_db(fields=["verdict"])
    if card.kind == ApprovalKind.CREDENTIAL and card.verdict == Verdict.RENEWED:
        wake_waiters(WaitingFor.CREDENTIAL, card.credential, why=f"{card.credential} was renewed")
    if card.kind == ApprovalKind.BUDGET:
        wake_tree_for_budget(card.run_id, why=f"a limit was raised on approval {card.pk}")


def _lock_names(key: Key) -> list[str]:
    tool = find_tool(key.run.agent, key.tool)
    return [locks.fit(name) for name in tool.bound_locks(key.arguments)] if tool else []
