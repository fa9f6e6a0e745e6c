"""For tests of the writer modules: several connections at once, and steps as the engine would leave them."""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import approvals, budgets, clock, facts, keys, lifecycle, operations, sql, steps
from runs.agents import Tool
from runs.models import Approval, Attempt, Fact, Run, Step
from runs.operations import Start
from runs.states import ApprovalKind, StepKind, WaitingFor
from tests.waiting import wait_until

__all__ = ["person"]

# Whoever waits longer than this for a lock waits for ever.
PATIENCE_S = 20.0


@pytest.fixture
def person(db: None) -> User:
    return User.objects.create_superuser("ana")


def start(by: User, *, agent: str = "scripted", **given: Any) -> Run:
    run, _ = operations.start_run(Start(agent=agent, goal=given.pop("goal", "follow the script"), **given), by=by)
    return run


def start_child(parent: Run, **given: Any) -> Run:
    """A child, as `spawn` makes it."""
    from runs.agents import get_agent
    from runs.journal import AGENT

    with transaction.atomic():
        return operations.create_child(
            lifecycle.lock(parent.pk),
            agent=get_agent("scripted"),
            goal="help",
            inputs={},
            usd=given.get("usd"),
            actor=AGENT,
        )


def claim(run: Run) -> lifecycle.Claim:
    """Claim this run, whatever else is due."""
    with transaction.atomic():
        sql.execute("UPDATE runs_run SET priority = 9, due_at = lw_clock() WHERE id = %s", [run.pk])
        claimed = lifecycle.claim(uuid.uuid4(), lease_s=60.0)
        sql.execute("UPDATE runs_run SET priority = 0 WHERE id = %s", [run.pk])
    assert isinstance(claimed, lifecycle.Claim)
    assert claimed.run == run.pk
    run.refresh_from_db()
    return claimed


def plan_act(run: Run, tool: Tool, *, again: str = "", rests_on: tuple[str, ...] = (), **arguments: Any) -> Step:
    with transaction.atomic():
        return steps.plan(
            lifecycle.lock(run.pk),
            steps.Asked(
                kind=StepKind.ACT,
                tool=tool.name,
                arguments=tool.normalise(arguments),
                contract=tool.contract,
                again=again,
                rests_on=rests_on,
            ),
        )


def take(run: Run, step: Step, tool: Tool, *, approval: int | None = None, reserve: bool = False) -> Attempt:
    """Take a planned call: key, attempt, and its reservation."""
    with transaction.atomic():
        lifecycle.lock(run.pk)
        locked = steps.lock(step.pk)
        key = keys.take(run, locked, tool, approval=approval) if tool.acts else None
        attempt = open_attempt(locked, key=key.pk if key else None, approval=approval)
        if reserve:
            budgets.reserve(run.pk, budgets.Amounts(steps=1), attempt=attempt.pk)
        return attempt


def open_attempt(step: Step, *, key: int | None = None, approval: int | None = None, lease_s: float = 60.0) -> Attempt:
    return steps.open_attempt(
        step,
        epoch=0,
        holder=uuid.uuid4(),
        performer=uuid.uuid4(),
        lease_s=lease_s,
        begin_within_s=lease_s,
        timeout_s=30.0,
        key=key,
        approval=approval,
    )


def record(
    run: Run, name: str = "order.1", value: Any = 1, *, age_s: float = 0.0, max_age_s: float = 100.0, **given: Any
) -> Fact:
    source = given.pop("source", {"tool": "read_order", "arguments": {}, "pointer": ""})
    with transaction.atomic():
        return facts.record(
            lifecycle.lock(run.pk),
            name=name,
            value=value,
            source=source,
            observed_at=clock.now() - timedelta(seconds=age_s),
            max_age_s=max_age_s,
            **given,
        )


def ask(run: Run, step: Step, *, kind: ApprovalKind = ApprovalKind.APPROVAL, **given: Any) -> Approval:
    """A card for a planned step, which waits for it."""
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.lock(step.pk)
        card = approvals.ask(
            locked, kind, title="May it?", step=step, contract=step.contract, arguments=dict(step.arguments), **given
        )
        steps.wait(step, WaitingFor(kind.value), note="asks a person", on="an approver")
        return card


@contextmanager
def shifted(by: timedelta) -> Iterator[None]:
    """Move the business clock, and back."""
    clock.shift(by)
    try:
        yield
    finally:
        clock.shift(-by)


class Thread(threading.Thread):
    """A function on a connection of its own; `finish` gives what it returned or raises what it raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            sql.execute(f"SET lock_timeout = '{PATIENCE_S:.0f}s'")
            self.value = self._function()
        except BaseException as error:  # handed to whoever waits
            self.error = error
        finally:
            connection.close()

    def finish(self) -> Any:
        self.join(PATIENCE_S + 10)
        assert not self.is_alive(), "it still waits"
        if self.error is not None:
            raise self.error
        return self.value


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Run all at once; what each returned, or the error that it raised."""
    barrier = threading.Barrier(len(functions))

    def after_all_are_there(function: Callable[[], Any]) -> Callable[[], Any]:
        def wait_and_run() -> Any:
            connection.ensure_connection()
            barrier.wait(PATIENCE_S)
            return function()

        return wait_and_run

    threads = [Thread(after_all_are_there(function)) for function in functions]
    for thread in threads:
        thread.join(PATIENCE_S + 10)
        assert not thread.is_alive(), "it still waits"
    return [thread.error if thread.error is not None else thread.value for thread in threads]


def until_blocked(count: int = 1) -> None:
    """Wait until so many connections wait for a lock."""

    def blocked() -> bool:
        sql.fetch_row("SELECT 1 FROM pg_stat_clear_snapshot()")  # kept for a whole transaction otherwise
        (waiting,) = sql.fetch_row(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(waiting >= count)

    wait_until(blocked, what=f"{count} connections that wait for a lock")


def errors(results: Sequence[Any]) -> list[BaseException]:
    return [result for result in results if isinstance(result, BaseException)]
