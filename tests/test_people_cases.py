"""Approvals and switches at their worst: the tool changed (B3, F3), two calls of one reply (B4), a folded log (K3), races."""

import threading
import uuid
from datetime import timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import approvals, budgets, clock, keys, lifecycle, operations, sql, steps
from runs.agents import get_agent
from runs.approvals import Said
from runs.engine import act, briefing
from runs.engine.hand import Hand
from runs.engine.toolhost import ToolHost
from runs.models import Approval, Attempt, JournalEntry, Key, Run, Step, Switch
from runs.states import ApprovalState, AttemptOutcome, KeyState, RunState, StepKind, StepState, Verdict, WaitingFor
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.page_tools import client_of
from tests.people import api_of
from tests.writers import Thread, claim, person, start, together

__all__ = ["engine", "person", "shop_process", "workers"]

pytestmark = pytest.mark.usefixtures("transactional_db")


def above(engine: Engine, *more: list[dict[str, Any]]) -> tuple[str, Run, Approval]:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")], *more)
    engine.go(run)
    return order, run, engine.card(run)


def redeploy(run: Run, card: Approval) -> None:
    """Let the card have been shown for a tool as it was before a deploy."""
    before = "0" * 64
    step = Step.objects.get(pk=card.step_id or 0)
    bound = approvals.bind(run=run, step=step, contract=before, arguments=dict(card.arguments or {}))
    sql.execute("UPDATE runs_step SET contract = %s WHERE id = %s", [before, step.pk])
    sql.execute("UPDATE runs_approval SET contract = %s, digest = %s WHERE id = %s", [before, bound, card.pk])


def test_a_tool_that_changed_while_its_approval_waited_is_asked_again_and_not_called(engine: Engine) -> None:
    order, run, card = above(engine)
    redeploy(run, card)
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    card.refresh_from_db()
    new = engine.card(run)
    assert (card.state, card.closed_because) == (ApprovalState.VOID, "the tool changed")
    assert (new.replaces_id, [change["what"] for change in new.changes]) == (card.pk, ["tool"])
    assert engine.paid(order) == 0
    operations.decide(new.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)


def test_a_deploy_that_changes_nothing_voids_nothing(engine: Engine) -> None:
    order, run, card = above(engine)
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.worker.tools.close()  # as a deploy does: all code is read anew
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)


def test_an_approval_lives_as_long_as_its_policy_and_not_as_its_facts(engine: Engine) -> None:
    order, run, card = above(engine)
    clock.shift(timedelta(hours=3))  # the fact may be a minute old, the approval a day
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    clock.shift(timedelta(hours=3))
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)


def test_of_two_calls_of_one_reply_the_rejected_one_never_runs_and_the_other_runs_once(engine: Engine) -> None:
    """B4, with the retry and the resume that lead back to it."""
    order = engine.order("900.00")
    both = [call("pay_keyed", order=order, amount="420.00"), call("give", value={"read": 1})]
    run = engine.go(engine.start(*engine.read(order), both))
    (pay,), (give,) = engine.steps(run, "pay_keyed"), engine.steps(run, "give")
    assert (give.state, run.waiting_for) == (StepState.DONE, WaitingFor.APPROVAL)
    operations.decide(engine.card(run).pk, Said(verdict=Verdict.REJECT, comment="no"), by=engine.person)
    operations.pause_run(run.pk, reason="x", by=engine.person)
    operations.resume_run(run.pk, reason="x", by=engine.person)
    engine.worker.tools.close()
    engine.go(run)
    pay.refresh_from_db()
    assert (run.state, pay.state, pay.error) == (RunState.SUCCEEDED, StepState.REJECTED, "no")
    assert engine.paid(order) == 0
    assert not Attempt.objects.filter(step=pay).exists()
    assert Attempt.objects.filter(step=give).count() == 1


def test_the_journal_holds_what_was_asked_approved_and_executed(engine: Engine) -> None:
    order, run, card = above(engine)
    edited: dict[str, Any] = {"order": order, "amount": "80.00", "memo": ""}
    operations.decide(card.pk, Said(verdict=Verdict.EDIT, arguments=edited), by=engine.person)
    engine.go(run)
    (step,) = engine.steps(run, "pay_keyed")
    assert (step.asked["amount"], step.arguments) == ("420.00", edited)
    assert Key.objects.get(step=step).arguments == edited
    assert dig(engine.shop.list_refunds(order), "refunds", 0, "amount") == "80.00"


def test_after_the_log_was_folded_what_waited_still_waits_and_constraints_stand_verbatim(engine: Engine) -> None:
    """K3: whatever a summary says, gates and rules are rows; the plan's first action is gated as before."""
    order = engine.order("900.00")
    constraint = "Never mail outside the company."
    rounds = [[call("give", value={"n": n, "text": "x" * 400})] for n in range(12)]
    pay = [call("pay_keyed", order=order, amount="420.00")]
    run = engine.go(engine.start(*engine.read(order), *rounds, pay, constraints=[constraint]))
    card = engine.card(run)
    built = briefing.build(run.pk, shares=briefing.Shares(log=300))
    assert any("steps" in line for line in built.log), "nothing was folded"
    assert constraint in built.constraints
    assert [notice["notice"] for notice in built.notices if notice.get("tool") == "pay_keyed"] == ["under_way"]
    operations.decide(card.pk, Said(verdict=Verdict.EXPLAIN, comment="what is it?"), by=engine.person)
    engine.go(run)
    assert (run.waiting_for, engine.paid(order)) == (WaitingFor.APPROVAL, 0)
    assert Approval.objects.get(pk=card.pk).state == ApprovalState.PENDING


def test_a_page_and_the_api_decide_one_card_at_once_and_one_counts(engine: Engine) -> None:
    """B1: a browser's form against a program, both past the look at the card."""
    order, run, card = above(engine)
    client, program = client_of(engine.person), api_of(engine.person)
    form = {"version": str(card.version), "verdict": "reject", "comment": "no"}
    page, api = together(
        lambda: client.post(f"/approvals/{card.pk}/decision", form),
        lambda: program.post(f"/approvals/{card.pk}/decision", {"version": card.version, "verdict": "approve"}),
    )
    assert sorted([page.status_code in (302,), api.status_code in (200,)]) == [False, True]
    assert {page.status_code, api.status_code} in ({302, 409}, {409, 200})
    engine.go(run)
    card.refresh_from_db()
    assert engine.paid(order) == (1 if api.status_code == 200 else 0)
    kinds = list(JournalEntry.objects.filter(run=run, kind__startswith="approval.").values_list("kind", flat=True))
    assert (kinds.count("approval.decided"), kinds.count("approval.decision_refused")) == (1, 1)


class NoTools:
    """Stands for a tool process that is ready: what is taken here is never performed."""

    def ready(self, **_: object) -> uuid.UUID:
        return uuid.UUID(int=1)


def test_a_switch_and_a_take_raced_never_is_anything_taken_after_the_switch(person: User, full_matrix: bool) -> None:
    """The engine's own take against the switch, on two connections that stay open. 2,000 times with --full-matrix."""
    times = 2_000 if full_matrix else 60
    tool = get_agent("scripted").tool("close_request")
    assert tool is not None
    run = start(person, steps=100_000)
    held = claim(run)
    hand = Hand(claim=held, worker=uuid.uuid4(), tools=cast(ToolHost, NoTools()))
    step_ids: list[int] = []
    barrier = threading.Barrier(3)
    outcomes: list[tuple[bool, Switch]] = []
    last: list[Any] = [None, None]

    def take_each() -> None:
        connection.ensure_connection()
        for _ in range(times):
            barrier.wait(60)
            last[0] = act._take(hand, step_ids[-1])
            barrier.wait(60)

    def engage_each() -> None:
        connection.ensure_connection()
        for _ in range(times):
            barrier.wait(60)
            last[1] = operations.engage_switch("all", reason="race", by=person)
            barrier.wait(60)

    threads = [Thread(take_each), Thread(engage_each)]
    for number in range(times):
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            planned = steps.plan(
                locked,
                steps.Asked(
                    kind=StepKind.ACT,
                    tool=tool.name,
                    arguments=tool.normalise({"request": f"r{number}", "outcome": "x"}),
                    contract=tool.contract,
                ),
            )
        step_ids.append(planned.pk)
        barrier.wait(60)
        barrier.wait(60)
        taken, switch = last
        attempt = Attempt.objects.filter(step=planned).first()
        assert (taken is None) == (attempt is None)
        if attempt is not None:
            assert attempt.taken_at < switch.engaged_at, f"race {number}: taken after the switch"
            with transaction.atomic():
                assert not steps.begin(attempt.pk), "and it may not even begin"
        outcomes.append((attempt is not None, switch))
        clear(run, planned, attempt)
        sql.execute("UPDATE runs_switch SET released_at = lw_clock() WHERE id = %s", [switch.pk])
    for thread in threads:
        thread.finish()
    assert len(outcomes) == times
    # A race in which one side always wins would prove nothing.
    won = sum(was_taken for was_taken, _ in outcomes)
    assert 0 < won < times, f"{won} of {times} were taken"


def clear(run: Run, step: Step, attempt: Attempt | None) -> None:
    """Leave nothing open for the next race."""
    with transaction.atomic():
        lifecycle.lock(run.pk)
        locked = steps.lock(step.pk)
        if attempt is not None:
            key = keys.lock(attempt.key_id or 0)
            steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.NOT_BEGUN)
            budgets.release(attempt.pk, note="race")
            keys.close(key, KeyState.FAILED, how="settled")
        steps.close(locked, StepState.VOID, error="race")
