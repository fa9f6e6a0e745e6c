"""Stopping a run stops its tree, and nothing else (cases C2 and C4): no child appears under a stopped parent."""

from collections.abc import Sequence

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import budgets, course, lifecycle, operations, sql, steps, switches
from runs.agents import get_agent
from runs.approvals import Said
from runs.errors import AlreadyDecided, RunEnded
from runs.journal import AGENT, RUNTIME
from runs.models import Approval, Attempt, JournalEntry, Run, Step
from runs.states import ApprovalState, AttemptOutcome, RunState, StepState, Verdict
from tests.writers import (
    Thread,
    ask,
    claim,
    errors,
    person,
    plan_act,
    start,
    start_child,
    take,
    together,
    until_blocked,
)

__all__ = ["person"]


def states(*runs: Run) -> list[str]:
    found = dict(Run.objects.filter(pk__in=[r.pk for r in runs]).values_list("pk", "state"))
    return [str(found[r.pk]) for r in runs]


@pytest.mark.django_db
def test_a_stop_ends_every_descendant_in_one_transaction_with_the_reason_of_each(person: User) -> None:
    parent = start(person)
    child = start_child(parent)
    grandchild = start_child(child)
    operations.stop_run(parent.pk, reason="wrong batch", by=person)
    assert states(parent, child, grandchild) == ["stopped"] * 3
    assert list(Run.objects.order_by("pk").values_list("end_reason", flat=True)) == [
        "wrong batch",
        f"its run {parent.pk} ended (stopped)",
        f"its run {parent.pk} ended (stopped)",
    ]
    assert len(set(JournalEntry.objects.filter(kind="run.stopped").values_list("xid", flat=True))) == 1


@pytest.mark.django_db
def test_cards_of_a_stopped_tree_are_void_and_cannot_be_approved(person: User) -> None:
    parent = start(person)
    child = start_child(parent)
    tool = get_agent("scripted").tool("pay_keyed")
    assert tool is not None
    card = ask(child, plan_act(child, tool, order="7", amount="500"))
    operations.stop_run(parent.pk, reason="no", by=person)
    card.refresh_from_db()
    assert (card.state, card.closed_because) == (ApprovalState.VOID, "run stopped")
    with pytest.raises(AlreadyDecided, match="already void"):
        operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=person)
    assert not Step.objects.filter(run=child).exclude(state=StepState.VOID).exists()


@pytest.mark.django_db
def test_a_descendant_that_ended_before_stays_as_it_ended(person: User) -> None:
    parent = start(person)
    child = start_child(parent)
    with transaction.atomic():
        course.end(lifecycle.lock_with_descendants(child.pk), RunState.FAILED, reason="it could not")
    operations.stop_run(parent.pk, reason="enough", by=person)
    assert states(parent, child) == ["stopped", "failed"]
    with pytest.raises(RunEnded):
        operations.stop_run(parent.pk, reason="again", by=person)


@pytest.mark.django_db
@pytest.mark.parametrize("to", [RunState.FAILED, RunState.EXPIRED, RunState.SUCCEEDED])
def test_every_other_end_stops_the_descendants_too(person: User, to: RunState) -> None:
    parent = start(person)
    child = start_child(parent)
    claim(parent)
    with transaction.atomic():
        course.end(lifecycle.lock_with_descendants(parent.pk), to, reason="it is over")
    assert states(parent, child) == [str(to), "stopped"]


@pytest.mark.django_db
def test_no_child_is_made_under_a_run_that_has_ended(person: User) -> None:
    parent = start(person)
    operations.stop_run(parent.pk, reason="enough", by=person)
    with pytest.raises(RunEnded):
        start_child(parent)
    assert Run.objects.count() == 1


@pytest.mark.django_db
def test_a_child_knows_its_root_and_depth_and_is_numbered_above_its_parent(person: User) -> None:
    parent = start(person)
    child = start_child(parent)
    grandchild = start_child(child)
    assert [(r.root_id, r.depth, r.parent_id) for r in (parent, child, grandchild)] == [
        (parent.pk, 0, None),
        (parent.pk, 1, parent.pk),
        (parent.pk, 2, child.pk),
    ]
    assert parent.pk < child.pk < grandchild.pk
    assert grandchild.origin == grandchild.uid


@pytest.mark.django_db
def test_a_taken_step_of_a_stopped_run_keeps_its_attempt_until_it_settles_and_only_then_is_drained(
    person: User,
) -> None:
    run = start(person)
    claim(run)
    tool = get_agent("scripted").tool("read_order")
    assert tool is not None
    attempt = take(run, plan_act(run, tool, order="7"), tool, reserve=True)
    operations.stop_run(run.pk, reason="enough", by=person)
    run.refresh_from_db()
    assert (run.state, run.drained_at, Attempt.objects.get(pk=attempt.pk).outcome) == ("stopped", None, "open")
    with transaction.atomic():
        lifecycle.lock(run.pk)
        step = steps.lock(attempt.step_id)
        steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.DONE, late=True)
        steps.close(step, StepState.DONE, result=1)
        budgets.settle(attempt.pk, budgets.Amounts(steps=1))
        lifecycle.mark_drained(run.pk)
    run.refresh_from_db()
    assert run.drained_at is not None
    assert (run.state, run.budget.steps_spent, run.budget.steps_reserved) == ("stopped", 1, 0)


@pytest.mark.django_db(transaction=True)
class TestC2AChildBeingMadeWhenTheStopComes:
    def test_a_child_being_created_when_the_stop_comes_is_stopped_with_it(self, person: User) -> None:
        parent = start(person)
        with transaction.atomic():
            operations.create_child(
                lifecycle.lock(parent.pk), agent=get_agent("scripted"), goal="help", inputs={}, usd=None, actor=AGENT
            )
            stopping = Thread(lambda: operations.stop_run(parent.pk, reason="now", by=person))
            until_blocked()
        stopping.finish()
        assert states(*Run.objects.all()) == ["stopped", "stopped"]

    def test_a_child_that_comes_after_the_stop_is_not_created(self, person: User) -> None:
        parent = start(person)
        with transaction.atomic():
            course.end(lifecycle.lock_with_descendants(parent.pk), RunState.STOPPED, reason="now", actor=RUNTIME)
            creating = Thread(lambda: start_child(parent))
            until_blocked()
        with pytest.raises(RunEnded):
            creating.finish()
        assert Run.objects.count() == 1

    def test_a_grandchild_being_created_when_the_top_is_stopped_is_stopped_with_it(self, person: User) -> None:
        top = start(person)
        child = start_child(top)
        with transaction.atomic():
            operations.create_child(
                lifecycle.lock(child.pk), agent=get_agent("scripted"), goal="help", inputs={}, usd=None, actor=AGENT
            )
            stopping = Thread(lambda: operations.stop_run(top.pk, reason="now", by=person))
            until_blocked()
        stopping.finish()
        assert set(Run.objects.values_list("state", flat=True)) == {"stopped"}
        assert Run.objects.count() == 3

    def test_two_stops_of_a_tree_that_just_grew_do_not_wait_for_each_other(self, person: User) -> None:
        """The first waits for the parent before the child is there; the second finds the child first."""
        parent = start(person)
        with transaction.atomic():
            child = operations.create_child(
                lifecycle.lock(parent.pk), agent=get_agent("scripted"), goal="help", inputs={}, usd=None, actor=AGENT
            )
            first = Thread(lambda: operations.stop_run(parent.pk, reason="first", by=person))
            until_blocked()
        results: list[object] = []
        second = Thread(lambda: operations.stop_run(parent.pk, reason="second", by=person))
        for thread in (first, second):
            try:
                results.append(thread.finish())
            except RunEnded as ended:
                results.append(ended)
        assert sum(isinstance(result, Run) for result in results) == 1, results
        assert states(parent, child) == ["stopped", "stopped"]

    def test_stops_and_spawns_over_one_tree_end_it_whole_without_a_deadlock(self, person: User) -> None:
        top = start(person)
        tree = [top, *(start_child(top) for _ in range(3))]

        def spawn() -> Sequence[Run]:
            made: list[Run] = []
            for parent in tree * 4:
                try:
                    made.append(start_child(parent))
                except RunEnded:
                    break
            return made

        def stop() -> Run:
            return operations.stop_run(top.pk, reason="all of it", by=person)

        results = together(spawn, spawn, spawn, stop, stop)
        assert all(isinstance(error, RunEnded) for error in errors(results)), errors(results)
        assert set(Run.objects.values_list("state", flat=True)) == {"stopped"}


@pytest.mark.django_db
class TestC4NothingElseStops:
    """What is stopped or held is what was named."""

    def make(self, person: User) -> list[Run]:
        return [start(person, agent=agent) for agent in ("scripted", "refund-desk") for _ in range(3)]

    def test_stopping_one_run_leaves_every_other_of_its_agent(self, person: User) -> None:
        runs = self.make(person)
        operations.stop_run(runs[1].pk, reason="this one", by=person)
        assert states(*runs) == ["queued", "stopped", "queued", "queued", "queued", "queued"]

    @pytest.mark.parametrize(
        ("scope", "held"),
        [("all", 6), ("agent:refund-desk", 3), ("agent:scripted", 3), ("tool:refund", 0)],
    )
    def test_a_switch_holds_its_scope_and_ends_nothing(self, person: User, scope: str, held: int) -> None:
        runs = self.make(person)
        operations.engage_switch(scope, reason="look first", by=person)
        assert [switches.in_scope(run.pk) is not None for run in runs].count(True) == held
        assert states(*runs) == ["queued"] * 6

    def test_a_switch_for_a_tool_holds_its_calls_in_every_run_and_no_other_call(self, person: User) -> None:
        run = start(person, agent="refund-desk")
        operations.engage_switch("tool:refund", reason="look first", by=person)
        assert switches.in_scope(run.pk) is None
        assert switches.in_scope(run.pk, "refund") == ("tool:refund", "look first")
        assert switches.in_scope(run.pk, "refund_all") is None
        assert Approval.objects.count() == 0
        assert sql.fetch_row("SELECT count(*) FROM runs_switch")[0] == 1
