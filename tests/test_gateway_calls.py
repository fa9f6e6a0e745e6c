"""A model call from its reservation to its settlement, driven with the real SDK at a real server over HTTP."""

import uuid
from decimal import Decimal

import pytest
from django.db import transaction

from runs import budgets, operations
from runs.gateway.provider import Credential
from runs.models import Approval, Budget, Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState, WaitingFor
from tests.gateway_tools import Desk, GatewayThread, desk, model_process, model_server, told

__all__ = ["desk", "model_process", "model_server"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_reply_becomes_planned_steps_and_is_paid_for_as_it_was_used(desk: Desk) -> None:
    desk.gateway()
    run = desk.start()
    desk.until(run, state="queued")
    think = desk.think_step(run)
    assert (think.state, told(think.result)["text"], told(think.result)["stop_reason"]) == (
        "done",
        "I look first.",
        "tool_use",
    )
    (act,) = Step.objects.filter(run=run, kind=StepKind.ACT)
    assert (act.tool, act.arguments, act.state, act.reply_to_id) == ("give", {"value": 7}, StepState.PLANNED, think.pk)
    assert act.call_id.startswith("toolu_")
    (attempt,) = desk.attempts(run)
    assert (attempt.outcome, attempt.late) == (AttemptOutcome.DONE, False)
    assert attempt.began_at is not None
    assert set(told(attempt.progress)) == {"looked_after_s", "sent_after_look_s", "first_byte_s", "reply_s"}
    (call,) = desk.sent()
    (reserve,), (settle,) = desk.ledger(run, "reserve"), desk.ledger(run, "settle")
    assert (
        told(settle.usage)["input_tokens"] + told(settle.usage)["cache_creation_input_tokens"] == call["input_tokens"]
    )
    assert (settle.tokens, settle.calls, settle.steps) == (call["input_tokens"] + call["output_tokens"], 1, 1)
    assert (settle.model, settle.estimated) == ("claude-sonnet-5-5", False)
    assert told(settle.price)["per_million"]["output"] == "10"
    wanted = (
        Decimal(told(settle.usage)["input_tokens"]) * 2
        + Decimal(told(settle.usage)["cache_creation_input_tokens"]) * Decimal("2.5")
        + Decimal(call["output_tokens"]) * 10
    ) / 1_000_000
    assert settle.usd == wanted == think.usd
    assert 0 < settle.usd < reserve.usd
    assert 0 < settle.tokens < reserve.tokens
    budget = desk.budget(run)
    assert (budget.usd_spent, budget.usd_reserved, budget.calls_spent) == (settle.usd, Decimal(0), 1)
    assert budgets.mismatches() == []


def test_what_was_cached_is_read_at_its_own_price(desk: Desk) -> None:
    # The provider's cache belongs to the key: one that nobody has used yet.
    desk.gateway(credential=Credential(key=str(uuid.uuid4()), base_url=desk.model.url))
    run = desk.start()
    desk.until(run, state="queued")
    again = desk.start()
    desk.until(again, state="queued")
    (settle,) = desk.ledger(again, "settle")
    assert told(settle.usage)["cache_read_input_tokens"] > 0
    assert settle.usd < desk.ledger(run, "settle")[0].usd


def test_a_budget_that_does_not_cover_the_next_call_makes_none_and_a_raise_lets_it_go_on(desk: Desk) -> None:
    desk.gateway()
    run = desk.start(usd="0.001")
    desk.until(run, state="waiting", waiting_for="budget")
    card = Approval.objects.get(run=run)
    assert (card.kind, card.state, card.verdicts) == ("budget", "pending", ["grant", "finish", "stop"])
    assert desk.sent() == []
    assert desk.attempts(run) == []
    assert desk.budget(run).usd_reserved == 0
    operations.set_budget(run.pk, {"usd": Decimal("2.00")}, reason="go on", by=desk.person)
    desk.hand_over(run)
    desk.until(run, state="queued")
    card.refresh_from_db()
    assert card.state == "void"
    assert len(desk.sent()) == 1


def test_a_run_short_because_of_what_others_reserved_waits_and_asks_nobody(desk: Desk) -> None:
    run = desk.start()
    with transaction.atomic():
        Budget.objects.filter(pk=run.pk).update(usd_limit=Decimal("0.60"), usd_reserved=Decimal("0.59"))
    desk.gateway()
    desk.until(run, state="waiting", waiting_for="budget")
    assert not Approval.objects.filter(run=run).exists()
    assert 0 < desk.waits_s(run) < 10
    assert desk.sent() == []


def test_a_model_without_a_price_makes_no_call_and_says_so(desk: Desk) -> None:
    desk.gateway()
    run = desk.start("unpriced")
    desk.until(run, state="waiting", waiting_for="budget")
    assert "no price for the model 'm-new'" in run.why
    assert Approval.objects.get(run=run).verdicts == ["stop"]
    assert desk.sent() == []
    assert desk.budget(run).usd_spent == 0


def test_without_a_credential_nothing_is_sent_and_a_person_is_asked(desk: Desk) -> None:
    gateway = GatewayThread(None)
    try:
        run = desk.start()
        desk.until(run, state="waiting", waiting_for="credential")
        assert "ANTHROPIC_API_KEY" in run.why
    finally:
        gateway.close()


def test_calls_that_cannot_be_made_are_refused_with_a_reason_and_the_others_planned(desk: Desk) -> None:
    desk.gateway()
    run = desk.start("fumbler")
    desk.until(run, state="queued")
    unknown, wrong, mark, bad_facts, finish, twice = (
        Step.objects.filter(run=run).exclude(kind="think").order_by("place")
    )
    assert (unknown.state, unknown.tool) == (StepState.REFUSED, "no_such_tool")
    assert "no tool 'no_such_tool'" in unknown.error
    assert (wrong.state, wrong.tool) == (StepState.REFUSED, "give")
    assert "wrong arguments" in wrong.error
    assert (mark.state, mark.arguments) == (StepState.PLANNED, {"order": "7", "colour": "red"})
    assert (mark.because, mark.again, mark.rests_on) == ("it is due", "it was washed off", ["order.7", "policy"])
    assert mark.contract
    assert "rests_on" in bad_facts.error
    assert (finish.kind, finish.state) == (StepKind.FINISH, StepState.PLANNED)
    assert (twice.state, twice.error) == (StepState.REFUSED, "A reply may finish once.")


@pytest.mark.parametrize("kind", ["max_tokens", "refusal"])
def test_a_reply_that_is_not_whole_executes_nothing_and_is_paid_for(desk: Desk, kind: str) -> None:
    desk.model.fault(kind)
    desk.gateway()
    run = desk.start()
    desk.until(run, state="queued")
    think = desk.think_step(run)
    assert think.state == StepState.FAILED
    assert told(think.result)["notice"] == {"max_tokens": "cut_off", "refusal": "refusal"}[kind]
    assert not Step.objects.filter(run=run).exclude(kind="think").exists()
    (settle,) = desk.ledger(run, "settle")
    assert settle.usd > 0
    assert not settle.estimated


def test_three_replies_in_a_row_that_come_to_nothing_are_put_before_a_person(desk: Desk) -> None:
    desk.gateway()
    run = desk.start("talker")
    for _ in range(2):
        desk.until(run, state="queued")
        assert told(desk.think_step(run).result)["notice"] == "no_call"
        desk.hand_over(run)
    desk.until(run, state="waiting", waiting_for="failure")
    card = Approval.objects.get(run=run)
    assert (card.kind, card.verdicts) == ("failure", ["retry", "respond", "stop"])
    assert "3 replies in a row" in card.why
    assert len(desk.sent()) == 3


@pytest.mark.parametrize("usage", ["missing", "null", "negative", "text"])
def test_a_usage_that_cannot_be_read_is_booked_at_its_bound_and_flagged(desk: Desk, usage: str) -> None:
    desk.model.fault("bad_usage", usage=usage)
    desk.gateway()
    run = desk.start()
    desk.until(run, state="queued")
    (reserve,), (settle,) = desk.ledger(run, "reserve"), desk.ledger(run, "settle")
    assert settle.estimated
    assert told(settle.price)["flaws"]
    assert reserve.usd / 2 < settle.usd <= reserve.usd
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1
    assert desk.budget(run).usd_overrun == 0


def test_many_runs_think_at_once(desk: Desk) -> None:
    desk.model.fault("slow", seconds=12.0, times=None)
    runs = [desk.start() for _ in range(25)]
    gateway = desk.gateway()
    desk.until_streaming(25)
    assert gateway.in_flight() == 25
    for run in runs:
        desk.until(run, state="queued")
    assert len(desk.sent()) == 25
    assert budgets.mismatches() == []


def test_no_more_calls_than_the_capacity_are_in_flight(desk: Desk) -> None:
    desk.model.fault("slow", seconds=0.4, times=None)
    gateway = desk.gateway(capacity=2)
    runs = [desk.start() for _ in range(6)]
    most = 0
    while Run.objects.filter(state=RunState.THINKING).exists():
        most = max(most, gateway.in_flight())
    assert most == 2
    assert {desk.until(run, state="queued").state for run in runs} == {"queued"}


def test_a_wrong_address_is_nobodys_fault_and_waits_for_the_provider(desk: Desk) -> None:
    desk.gateway(credential=Credential(key="test", base_url="http://127.0.0.1:9"))
    run = desk.start()
    desk.until(run, state="waiting", waiting_for=WaitingFor.PROVIDER)
    assert "cannot be reached" in run.why
    assert desk.attempts(run)[0].outcome == AttemptOutcome.REFUSED
    assert desk.budget(run).usd_spent == desk.budget(run).usd_reserved == 0
