"""Cases from the field about people in charge: B1, B3, B4, C4, F3, K3, and a switch raced with a take.

C1 and J4 take real clusters and browsers (test_stop_in_flight, browser/test_people_pages); B6 is in test_reaching, C2 in
test_tree, where more of B1 (test_approvals), B3 (test_fact_gate) and C4 (test_tree) is, too.
"""

import threading
import uuid
from datetime import timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import approvals, budgets, clock, course, facts, keys, lifecycle, operations, sql, steps
from runs.agents import get_agent
from runs.approvals import Said
from runs.engine import act, briefing
from runs.engine.hand import Hand
from runs.engine.toolhost import ToolHost
from runs.errors import AlreadyDecided, SwitchedOff
from runs.models import Approval, Attempt, Fact, JournalEntry, Key, Run, Step, Switch
from runs.states import ApprovalState, AttemptOutcome, KeyState, RunState, StepKind, StepState, Verdict, WaitingFor
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.page_tools import client_of
from tests.people import api_of
from tests.writers import Thread, claim, errors, person, start, together

__all__ = ["engine", "person", "shop_process", "workers"]

pytestmark = pytest.mark.usefixtures("transactional_db")


def above(engine: Engine, *more: list[dict[str, Any]]) -> tuple[str, Run, Approval]:
    order = engine.order("900.00")
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")], *more)
    engine.go(run)
    return order, run, engine.card(run)


def approve(card: Approval, by: User) -> Approval:
    return operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=by)


def redeploy(run: Run, card: Approval) -> None:
    """Let the card have been shown for a tool as it was before a deploy."""
    before = "0" * 64
    step = Step.objects.get(pk=card.step_id or 0)
    bound = approvals.bind(run=run, step=step, contract=before, arguments=dict(card.arguments or {}))
    sql.execute("UPDATE runs_step SET contract = %s WHERE id = %s", [before, step.pk])
    sql.execute("UPDATE runs_approval SET contract = %s, digest = %s WHERE id = %s", [before, bound, card.pk])


def test_f3_a_tool_that_changed_while_two_people_approved_it_is_not_called_and_asked_again_once(engine: Engine) -> None:
    order, run, card = above(engine)
    redeploy(run, card)
    ben = User.objects.create_superuser("ben")
    told = together(*(lambda by=by: approve(card, by) for by in (engine.person, ben)))
    assert [type(error) for error in errors(told)] == [AlreadyDecided]
    engine.go(run)
    card.refresh_from_db()
    new = engine.card(run)
    assert (card.state, card.closed_because) == (ApprovalState.VOID, "the tool changed")
    assert (new.replaces_id, [change["what"] for change in new.changes]) == (card.pk, ["tool"])
    assert engine.paid(order) == 0
    operations.decide(new.pk, Said(verdict=Verdict.APPROVE), by=engine.person)
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)


def test_f3_a_deploy_that_changes_nothing_voids_nothing(engine: Engine) -> None:
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


def test_b3_a_fact_that_changes_at_the_moment_of_the_approval_leaves_nothing_paid_and_asks_again(
    engine: Engine,
) -> None:
    """Both orders of the two are met: the card is void before the click, or the approval at the take."""
    order, run, card = above(engine)

    def change() -> None:
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            fact = Fact.objects.get(run=run)
            value = {**cast(dict[str, Any], fact.value), "paid": "430.00"}
            facts.record(
                locked,
                name=fact.name,
                value=value,
                source=fact.source,
                observed_at=clock.now(),
                max_age_s=fact.max_age_s,
            )
            course.void_dependents(locked, [fact.name], old=fact.value, new=value)
            course.rest(locked)

    told = together(change, lambda: approve(card, engine.person))
    assert all(isinstance(error, AlreadyDecided) for error in errors(told)), told
    engine.go(run)
    card.refresh_from_db()
    (pay,) = engine.steps(run, "pay_keyed")
    assert (card.state, engine.paid(order)) == (ApprovalState.VOID, 0)
    assert (dig(pay.result, "old", "paid"), dig(pay.result, "new", "paid")) == ("900.00", "430.00")


def test_b4_of_two_calls_of_one_reply_the_rejected_one_never_runs_and_the_other_runs_once(engine: Engine) -> None:
    """Rejected while a worker is at the run, then with the pause, the resume and the new process that lead back to it."""
    order = engine.order("900.00")
    both = [call("pay_keyed", order=order, amount="420.00"), call("give", value={"read": 1})]
    after = [call("wait_until", seconds=3600, reason="so that the run is not over")]
    run = engine.go(engine.start(*engine.read(order), both, after))
    (pay,), (give,) = engine.steps(run, "pay_keyed"), engine.steps(run, "give")
    assert (give.state, run.waiting_for) == (StepState.DONE, WaitingFor.APPROVAL)
    card = engine.card(run)
    sql.execute("UPDATE runs_run SET due_at = lw_clock() WHERE id = %s", [run.pk])
    reject = Said(verdict=Verdict.REJECT, comment="no")
    raced = together(
        lambda: operations.decide(card.pk, reject, by=engine.person),
        lambda: engine.worker.claim_and_advance(),
    )
    assert not errors(raced)
    operations.pause_run(run.pk, reason="x", by=engine.person)
    operations.resume_run(run.pk, reason="x", by=engine.person)
    engine.worker.tools.close()
    engine.go(run)
    clock.shift(timedelta(hours=2))
    engine.go(run)
    pay.refresh_from_db()
    assert (run.state, pay.state, pay.error) == (RunState.SUCCEEDED, StepState.REJECTED, "no")
    assert engine.paid(order) == 0
    assert not Attempt.objects.filter(step=pay).exists()
    assert Attempt.objects.filter(step=give).count() == 1


def test_b3_what_was_asked_approved_and_executed_stand_side_by_side(engine: Engine) -> None:
    order = engine.order("900.00")
    run = engine.go(engine.start(*engine.read(order), [call("pay_keyed", order=order, amount=420)]))
    card = engine.card(run)
    # Normalised before anybody saw it.
    assert dict(card.arguments or {}) == {"order": order, "amount": "420", "memo": ""}
    edited: dict[str, Any] = {"order": order, "amount": "80.00", "memo": ""}
    operations.decide(card.pk, Said(verdict=Verdict.EDIT, arguments=edited), by=engine.person)
    engine.go(run)
    (step,) = engine.steps(run, "pay_keyed")
    assert (step.asked["amount"], step.arguments) == ("420", edited)
    assert Key.objects.get(step=step).arguments == edited
    assert dig(engine.shop.list_refunds(order), "refunds", 0, "amount") == "80.00"


def test_k3_after_the_log_was_folded_what_waited_still_waits_and_constraints_stand_verbatim(engine: Engine) -> None:
    """Whatever a summary says, gates and rules are rows; the plan's first action is gated as before."""
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


def test_b1_a_page_and_the_api_decide_one_card_at_once_and_one_counts(engine: Engine) -> None:
    """A browser's form against a program, both past the look at the card."""
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


def test_c4_of_ten_runs_of_an_agent_exactly_the_one_that_was_stopped_stops(engine: Engine) -> None:
    """In the midst of their work, and then the switches: what they hold goes on by itself only when they are released."""
    runs = [engine.start([call("give", value={"n": n})], [call("give", value={"n": -n})]) for n in range(10)]
    told = together(
        lambda: operations.stop_run(runs[6].pk, reason="this one", by=engine.person),
        lambda: [engine.worker.claim_and_advance() for _ in range(4)],
    )
    assert not errors(told)
    engaged = [
        operations.engage_switch(scope, reason="look first", by=engine.person)
        for scope in ("tool:give", "agent:scripted")
    ]
    engine.go(runs[0])
    with pytest.raises(SwitchedOff, match="look first"):
        engine.start()
    for switch in engaged:
        operations.release_switch(switch.pk, reason="fine", by=engine.person)
    engine.go(runs[0])
    states = [Run.objects.get(pk=run.pk).state for run in runs]
    assert states == [RunState.STOPPED if n == 6 else RunState.SUCCEEDED for n in range(10)]
    assert not Attempt.objects.filter(run=runs[6], taken_at__gt=Run.objects.get(pk=runs[6].pk).ended_at).exists()


class NoTools:
    """Stands for a tool process that is ready: what is taken here is never performed."""

    def ready(self, **_: object) -> uuid.UUID:
        return uuid.UUID(int=1)


@pytest.mark.timeout(1_200)  # 2,000 of them
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
    print(f"{times} races, {won} taken before the switch, none after it")


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
