"""Settlement belongs to the attempt: it is done once, whatever has become of the run, and a late reply is not thrown away."""

import uuid
from dataclasses import replace
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs import budgets, operations, sql
from runs.engine.sweep import reap_attempt, sweep_once
from runs.engine.think import MOST_CALLS, Called
from runs.gateway import claims, outcomes
from runs.gateway.claims import Taken
from runs.gateway.provider import Answer, Credential
from runs.models import Approval, JournalEntry, Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState
from tests.gateway_tools import Desk, desk, model_process, model_server

__all__ = ["desk", "model_process", "model_server"]

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER = Answer(
    text="So be it.",
    calls=(Called(id="toolu_1", name="give", arguments={"value": 7}),),
    stop_reason="tool_use",
    model="claude-sonnet-5-5",
    usage={"input_tokens": 1000, "output_tokens": 100},
)
COST = Decimal("0.003")


def take(gateway: uuid.UUID | None = None) -> Taken:
    """Take the call of the run that is due, and pass the last look."""
    taken = claims.take_call(gateway or uuid.uuid4(), Credential(key="test"))
    assert isinstance(taken, Taken)
    assert claims.begin(taken.attempt)
    return taken


def test_a_call_is_on_the_disk_before_anybody_has_its_number(desk: Desk) -> None:
    """A server that dies gives the number of a try that it forgot to another one."""
    desk.start()
    with CaptureQueriesContext(connection) as asked:
        assert isinstance(claims.take_call(uuid.uuid4(), Credential(key="test")), Taken)
    assert any("pg_logical_emit_message" in query["sql"] for query in asked.captured_queries)


def lose_lease(taken: Taken) -> None:
    sql.execute("UPDATE runs_attempt SET lease_until = clock_timestamp() WHERE id = %s", [taken.attempt])
    while not sweep_once():
        pass


def test_a_settlement_that_is_repeated_changes_nothing(desk: Desk) -> None:
    run = desk.start()
    taken = take()
    for _ in range(3):
        outcomes.settle(taken, ANSWER, {})
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1
    assert len(desk.ledger(run, "settle")) == 1
    assert desk.budget(run).usd_spent == COST == desk.think_step(run).usd
    assert budgets.mismatches() == []


def test_of_a_reply_with_too_many_calls_the_last_ones_are_left_out_and_say_so(desk: Desk) -> None:
    run = desk.start()
    call = ANSWER.calls[0]
    outcomes.settle(take(), replace(ANSWER, calls=(call,) * (MOST_CALLS + 2)), {})
    asked = Step.objects.filter(run=run).exclude(kind=StepKind.THINK).order_by("place")
    assert [step.state for step in asked] == [StepState.PLANNED] * MOST_CALLS + [StepState.REFUSED] * 2
    assert asked[MOST_CALLS].error.startswith(f"A reply may make at most {MOST_CALLS} calls")


def test_a_late_reply_counts_while_nothing_has_taken_its_place(desk: Desk) -> None:
    run = desk.start()
    taken = take()
    lose_lease(taken)
    (attempt,) = desk.attempts(run)
    assert (attempt.outcome, desk.think_step(run).state) == (AttemptOutcome.LOST, StepState.PLANNED)
    assert desk.ledger(run, "settle")[0].estimated
    outcomes.settle(taken, ANSWER, {})
    run.refresh_from_db()
    (attempt,) = desk.attempts(run)
    assert (attempt.outcome, attempt.late, run.state) == (AttemptOutcome.DONE, True, RunState.QUEUED)
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1


def test_a_late_reply_changes_nothing_once_another_try_was_taken(desk: Desk) -> None:
    run = desk.start()
    first = take()
    lose_lease(first)
    second = take()
    outcomes.settle(first, ANSWER, {})
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 0
    outcomes.settle(second, ANSWER, {})
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1
    assert [(a.outcome, a.late) for a in desk.attempts(run)] == [
        (AttemptOutcome.DONE, True),
        (AttemptOutcome.DONE, False),
    ]
    assert budgets.mismatches() == []


def test_a_reply_that_arrives_after_a_stop_is_paid_for_as_it_was_and_does_nothing(desk: Desk) -> None:
    run = desk.start()
    taken = take()
    operations.stop_run(run.pk, reason="enough", by=desk.person)
    run.refresh_from_db()
    assert run.drained_at is None
    outcomes.settle(taken, ANSWER, {})
    run.refresh_from_db()
    assert (run.state, run.drained_at is not None) == (RunState.STOPPED, True)
    (attempt,) = desk.attempts(run)
    assert (attempt.outcome, attempt.late) == (AttemptOutcome.DONE, True)
    (settle,) = desk.ledger(run, "settle")
    assert (settle.usd, settle.estimated) == (COST, False)
    assert desk.think_step(run).state == StepState.VOID
    assert Step.objects.filter(run=run).count() == 1


def test_a_lease_that_was_renewed_in_time_is_not_taken_away(desk: Desk) -> None:
    run = desk.start()
    taken = take()
    reap_attempt(taken.attempt)
    assert desk.attempts(run)[0].outcome == AttemptOutcome.OPEN


def test_a_run_whose_request_cannot_even_be_written_waits_for_a_person_and_holds_up_nobody(desk: Desk) -> None:
    broken = desk.start("broken")
    run = desk.start()
    desk.gateway()
    desk.until(broken, state="waiting", waiting_for="failure")
    desk.until(run, state="queued")
    assert "could not be prepared" in Approval.objects.get(run=broken).title
    assert desk.attempts(broken) == []


def test_two_gateways_share_the_work_and_take_nothing_twice(desk: Desk) -> None:
    runs = [desk.start() for _ in range(12)]
    desk.gateway()
    desk.gateway()
    for run in runs:
        desk.until(run, state="queued")
    assert len(desk.sent()) == 12
    assert all(len(desk.attempts(run)) == 1 for run in runs)


def test_what_happened_to_a_call_stands_in_the_journal_of_its_run(desk: Desk) -> None:
    run = desk.start()
    outcomes.settle(take(), ANSWER, {})
    kinds = list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("kind", flat=True))
    assert kinds[-5:] == ["step.taken", "attempt.done", "step.done", "step.planned", "run.moved"]
    assert Run.objects.get(pk=run.pk).last_thought_at is not None
