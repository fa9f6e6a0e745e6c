"""Locks are taken in one order, written once (architecture.md): two connections that would deadlock if it broke.

switch lock · runs, child before parent · the rows of those runs · cross-run locks · budgets, leaf to root.
"""

import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import budgets, course, lifecycle, locks, operations, sql, steps, switches
from runs.agents import get_agent
from runs.approvals import Said
from runs.budgets import Amounts
from runs.errors import AlreadyDecided, LimitTooLow, LongwatchError, OverBudget
from runs.journal import RUNTIME
from runs.models import Attempt, Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState, Verdict
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.situations import ask_budget
from tests.writers import (
    Thread,
    ask,
    claim,
    errors,
    open_attempt,
    person,
    plan_act,
    shifted,
    start,
    start_child,
    take,
    together,
    until_blocked,
)

__all__ = ["engine", "person", "shop_process", "workers"]
pytestmark = pytest.mark.django_db(transaction=True)

# The place of a first lock in its transaction. Rows of a run (steps, cards, facts, keys) are guarded by the run's own.
RANKS = {"switch": 0, "run": 1, "row": 2, "lock": 3, "budget": 4}
ROWS = ("step", "attempt", "approval", "fact", "key")


def ranks_of(statement: str) -> list[str]:
    """Which kinds of locks a statement takes, in its order, as far as order matters for them."""
    if "pg_advisory_xact_lock" in statement:
        return ["lock" if "hashtext" in statement else "switch"]  # of an event's name and key, or of the switches
    if "INTO runs_lock" in statement:
        return ["lock"]
    aliases = {alias: name for name, alias in re.findall(r"""(?:FROM|JOIN) "?runs_(\w+)"? (\w)\b""", statement)}
    if several := re.search(r"FOR NO KEY UPDATE OF (\w(?:, \w)+)", statement):
        names = [aliases[alias] for alias in several.group(1).split(", ")]
    else:
        locked = "FOR NO KEY UPDATE" in statement or statement.startswith("UPDATE")
        table = re.search(r"""(?:FROM|UPDATE) "?runs_(\w+)"?""", statement)
        names = [table.group(1)] if table and locked else []
    return ["row" if name in ROWS else name for name in names if name in ROWS or name in RANKS]


@contextmanager
def watched() -> Iterator[list[list[str]]]:
    """The locks of each transaction on this connection, in the order in which it took them."""
    transactions: list[list[str]] = []
    marks: list[Any] = []

    def watch(execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any) -> Any:
        ranks = ranks_of(statement)
        if ranks and connection.in_atomic_block:
            # Django begins a new list of hooks with each transaction.
            if not marks or marks[-1] is not connection.run_on_commit:
                marks.append(connection.run_on_commit)
                transactions.append([])
            transactions[-1] += ranks
        return execute(statement, params, many, context)

    with connection.execute_wrapper(watch):
        yield transactions


def broken(transactions: Sequence[list[str]]) -> list[list[str]]:
    """The transactions that took a kind of lock for the first time after one of a later place."""
    found = []
    for taken in transactions:
        firsts = [RANKS[kind] for kind in dict.fromkeys(taken)]
        if firsts != sorted(firsts):
            found.append(list(dict.fromkeys(taken)))
    return found


def test_whatever_a_worker_and_a_person_do_the_locks_come_in_their_order(engine: Engine) -> None:
    order = engine.order("900.00")
    with watched() as transactions:
        run = engine.start(
            *engine.read(order),
            [call("pay_keyed", order=order, amount="20.00"), call("pay_once", order=order, amount="3.00")],
            [call("spawn", agent="scripted", goal="help"), call("pay_checkable", order=order, amount="4.00")],
            [call("pay_keyed", order=order, amount="420.00")],
            [call("ask", question="Shall it end?")],
            [call("pay_keyed", order=order, amount="430.00")],
        )
        engine.go(run)
        operations.decide(engine.card(run).pk, Said(verdict=Verdict.APPROVE), by=engine.person)
        engine.go(run)
        operations.decide(engine.card(run, "question").pk, Said(verdict=Verdict.RESPOND, answer="no"), by=engine.person)
        engine.go(run)
        operations.decide(
            engine.card(run).pk,
            Said(verdict=Verdict.EDIT, arguments={"order": order, "amount": "40.00"}),
            by=engine.person,
        )
        operations.set_budget(run.pk, {"usd": Decimal("2.00")}, reason="worth it", by=engine.person)
        operations.decide(
            ask_budget(engine.start(agent="refund-desk")).pk,
            Said(verdict=Verdict.GRANT, grant={"usd": "1.00"}),
            by=engine.person,
        )
        switch = operations.engage_switch("tool:pay_once", reason="look first", by=engine.person)
        operations.release_switch(switch.pk, reason="it is fine", by=engine.person)
        engine.go(run)
        assert run.state == "succeeded"
        operations.stop_run(engine.start().pk, reason="enough", by=engine.person)
        with shifted(timedelta(days=41)):
            assert sum(done.runs for done in operations.delete_runs(older_than_s=40 * 86_400.0, by=engine.person)) == 3
    assert broken(transactions) == []
    seen = {kind for taken in transactions for kind in taken}
    assert seen == set(RANKS), "the test has seen every kind of lock"


def test_a_wrong_order_would_be_seen() -> None:
    assert broken([["switch", "run", "row", "run", "budget"]]) == []
    assert broken([["run", "switch"], ["budget", "lock"], ["row", "run"]]) == [
        ["run", "switch"], ["budget", "lock"], ["row", "run"]
    ]  # fmt: skip


def reserve(run: Run, usd: str = "0.01") -> int:
    with transaction.atomic():
        attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.CHECK, tool="read_order")))
        budgets.reserve(run.pk, Amounts(usd=Decimal(usd), steps=1), attempt=attempt.pk)
        return attempt.pk


def test_a_childs_commit_does_not_wait_for_its_parents_lock_although_a_key_refers_to_it(person: User) -> None:
    """The child holds the parent's budget, the parent's own transaction its run: each would wait for the other."""
    parent = start(person)
    child = start_child(parent)
    with transaction.atomic():
        lifecycle.lock(child.pk)
        attempt = open_attempt(
            steps.plan(lifecycle.lock(child.pk), steps.Asked(kind=StepKind.CHECK, tool="read_order"))
        )
        budgets.reserve(child.pk, Amounts(usd=Decimal("0.01")), attempt=attempt.pk)
        above = Thread(lambda: reserve(parent))
        until_blocked()
        # Here the child commits, and PostgreSQL checks its references to the parent, whom the other holds.
    assert above.finish() > 0


def test_who_waits_for_a_budget_stands_in_its_queue_and_not_before_its_row(person: User) -> None:
    """Whoever waits for a row is woken by every change of it; from the queue only whoever is next."""
    parent = start(person, usd="50.00")
    children = [start_child(parent, usd="10.00") for _ in range(4)]
    with transaction.atomic():
        budgets.require_room(children[0].pk, Amounts(usd=Decimal("0.01")))
        waiting = [Thread(partial(reserve, run)) for run in children[1:]]
        waiting.append(Thread(lambda: operations.set_budget(parent.pk, {"usd": Decimal(60)}, reason="more", by=person)))
        until_blocked(len(waiting))
        kinds = sql.fetch_all(
            "SELECT l.locktype FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE NOT l.granted AND a.datname = current_database()"
        )
    assert kinds == [("advisory",)] * len(waiting)
    for thread in waiting:
        thread.finish()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: budgets.set_limits(run, {"usd": Decimal(60)}, actor=RUNTIME, why="more"),
        lambda run: budgets.ask_finish(run, actor=RUNTIME, why="enough"),
        lambda run: budgets.cover(run, Amounts(usd=Decimal(60)), why="it finishes"),
        lambda run: budgets.tell_threshold(run),
    ],
    ids=["set_limits", "ask_finish", "cover", "tell_threshold"],
)
def test_who_changes_a_budget_and_then_reserves_has_its_turn_already(
    person: User, change: Callable[[int], object]
) -> None:
    """Else it would hold the row for which the first in the queue waits, and wait for the queue."""
    parent = start(person, usd="50.00")
    child = start_child(parent, usd="10.00")
    with transaction.atomic():
        lifecycle.lock(parent.pk)
        change(parent.pk)
        below = Thread(lambda: reserve(child))
        until_blocked()
        budgets.require_room(parent.pk, Amounts(usd=Decimal("0.01")))
    assert below.finish() > 0


def test_two_children_and_their_parent_reserve_settle_and_are_granted_more_without_a_deadlock(person: User) -> None:
    parent = start(person, usd="50.00")
    children = [start_child(parent, usd="50.00") for _ in range(2)]

    def spend(run: Run) -> int:
        for _ in range(15):
            attempt = reserve(run)
            with transaction.atomic():
                step = Attempt.objects.get(pk=attempt)
                lifecycle.lock(run.pk)
                steps.lock(step.step_id)
                steps.close_attempt(steps.lock_attempt(attempt), AttemptOutcome.DONE)
                budgets.settle(attempt, Amounts(usd=Decimal("0.01"), steps=1))
        return 1

    def grant() -> int:
        for n in range(15):
            operations.set_budget(parent.pk, {"usd": Decimal(50 + n)}, reason="more", by=person)
        return 1

    results = together(*(lambda r=r: spend(r) for r in (parent, *children)), grant)
    assert results == [1, 1, 1, 1]
    assert budgets.mismatches() == []


def test_a_take_with_a_cross_run_lock_and_a_budget_meets_another_that_wants_both(person: User) -> None:
    parent = start(person, usd="50.00")
    runs = [start_child(parent, usd="50.00") for _ in range(3)]
    tool = get_agent("scripted").tool("pay_once")
    assert tool is not None

    def act(run: Run) -> int:
        made = 0
        for n in range(8):
            step = plan_act(run, tool, order=str(n), amount="5")
            try:
                with transaction.atomic():
                    switches.lock_shared()
                    lifecycle.lock(run.pk)
                    attempt = take(run, steps.lock(step.pk), tool)
                    assert attempt.key_id is not None
                    locks.take(["order.1", f"order.{n}"], key=attempt.key_id, run=run.pk)
                    budgets.reserve(run.pk, Amounts(usd=Decimal("0.01")), attempt=attempt.pk)
                with transaction.atomic():
                    lifecycle.lock(run.pk)
                    steps.lock(step.pk)
                    steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.DONE)
                    budgets.settle(attempt.pk, Amounts(usd=Decimal("0.01")))
                    locks.release(attempt.key_id)
                made += 1
            except locks.Blocked:
                continue
        return made

    results = together(*(lambda r=r: act(r) for r in runs))
    assert errors(results) == []
    assert sum(results) > 0


def test_everything_a_person_can_do_to_a_tree_at_once_ends_in_answers_and_never_in_a_deadlock(person: User) -> None:
    tool = get_agent("scripted").tool("pay_keyed")
    assert tool is not None
    top = start(person, usd="50.00")
    tree = [top, start_child(top), start_child(top)]
    tree.append(start_child(tree[1]))
    cards = [ask(run, plan_act(run, tool, order=str(run.pk), amount="500")) for run in tree]
    with transaction.atomic():
        for run in sorted(tree, key=lambda r: -r.pk):
            course.rest(lifecycle.lock(run.pk))

    def decide() -> None:
        for card in cards:
            try:
                operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=person)
            except AlreadyDecided:
                continue

    def limit() -> None:
        chance = random.Random(3)
        for run in tree * 3:
            try:
                operations.set_budget(run.pk, {"usd": Decimal(chance.randrange(10, 90))}, reason="so", by=person)
            except LimitTooLow:
                continue

    def hold() -> None:
        for run in tree:
            switch = operations.engage_switch(f"run:{run.pk}", reason="look first", by=person)
            operations.release_switch(switch.pk, reason="it is fine", by=person)

    def spend() -> None:
        for run in tree * 3:
            try:
                reserve(run)
            except OverBudget:
                continue

    def stop() -> None:
        until_any_decided()
        operations.stop_run(top.pk, reason="enough", by=person)

    def until_any_decided() -> None:
        for run in reversed(tree):
            with transaction.atomic():
                lifecycle.lock(run.pk)

    results = together(decide, decide, limit, hold, spend, stop)
    assert all(isinstance(error, LongwatchError) for error in errors(results)), errors(results)
    assert set(Run.objects.values_list("state", flat=True)) == {"stopped"}
    assert budgets.mismatches() == []


def test_a_claim_passes_over_what_another_holds(person: User) -> None:
    first, second = start(person), start(person)
    with transaction.atomic():
        lifecycle.lock(first.pk)
        passed = Thread(lambda: claim(second)).finish()
    assert passed.run == second.pk
    assert claim(first).run == first.pk


def test_the_last_look_waits_for_whoever_closes_the_attempt_and_then_gives_up(person: User) -> None:
    run = start(person)
    tool = get_agent("scripted").tool("pay_once")
    assert tool is not None
    attempt = take(run, plan_act(run, tool, order="7", amount="5"), tool)

    def look() -> bool:
        with transaction.atomic():
            return steps.begin(attempt.pk)

    with transaction.atomic():
        lifecycle.lock(run.pk)
        step = steps.lock(attempt.step_id)
        steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.LOST)
        steps.wake(step)
        looking = Thread(look)
        until_blocked()
    assert looking.finish() is False
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.began_at) == (AttemptOutcome.LOST, None)
    assert Step.objects.get(pk=attempt.step_id).state == StepState.PLANNED


def test_a_run_that_becomes_free_between_the_claim_and_the_look_at_what_is_held_is_claimed(
    person: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = start(person), []

    def missing_it_once(statement: str, params: Any = ()) -> Any:
        asked.append(statement)
        return None if len(asked) == 1 else sql.fetch_one(statement, params)

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "sql", SimpleNamespace(**vars(sql) | {"fetch_one": missing_it_once}))
        with transaction.atomic():
            claimed = lifecycle.claim(uuid.uuid4(), lease_s=60.0)
    assert isinstance(claimed, lifecycle.Claim)
    run.refresh_from_db()
    assert (claimed.run, run.held_since, run.state) == (run.pk, None, RunState.RUNNING)
