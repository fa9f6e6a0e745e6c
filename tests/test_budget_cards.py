"""A limit is a question: what the card tells, what each answer does, and what it refuses."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from runs import budgets, operations
from runs.approvals import Said
from runs.errors import Malformed
from runs.gateway.claims import Counted, Parked, Taken, Uncounted, take_call
from runs.gateway.provider import Credential, Provider
from runs.models import Approval, JournalEntry, Run, Step
from runs.states import StepKind, StepState, Verdict, WaitingFor
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.gateway_tools import Desk, desk, model_process, model_server

__all__ = ["desk", "engine", "model_process", "model_server", "shop_process", "workers"]

pytestmark = pytest.mark.django_db(transaction=True)


def count(desk: Desk, call: Uncounted) -> int:
    async def ask() -> int | None:
        provider = Provider(Credential(key="test", base_url=desk.model.url))
        try:
            return await provider.count(call.request)
        finally:
            await provider.close()

    tokens = asyncio.run(ask())
    assert tokens is not None
    return tokens


def take(desk: Desk, counted: Counted | None = None) -> Taken | Parked | Uncounted | None:
    return take_call(desk.worker, Credential(key="test", base_url=desk.model.url), counted=counted)


@pytest.fixture
def by_bytes(desk: Desk) -> Decimal:
    """What the next call of a new thinker may cost, by the bytes of its prompt."""
    run = desk.start()
    taken = take(desk)
    assert isinstance(taken, Taken)
    operations.stop_run(run.pk, reason="it was a trial", by=desk.person)
    return taken.reserved.usd


def card_of(run: Run) -> Approval:
    return Approval.objects.get(run=run, kind="budget", state="pending")


def decide(desk: Desk | Engine, card: Approval, verdict: Verdict, **said: object) -> None:
    operations.decide(card.pk, Said(verdict=verdict, version=card.version, **said), by=desk.person)  # type: ignore[arg-type]


class TestPrompt:
    def test_the_providers_own_count_is_asked_only_where_the_bytes_do_not_fit(
        self, desk: Desk, by_bytes: Decimal
    ) -> None:
        run = desk.start(usd=str(by_bytes * Decimal("0.99")))
        uncounted = take(desk)
        assert isinstance(uncounted, Uncounted)
        tokens = count(desk, uncounted)
        operations.set_budget(run.pk, {"ask_percent": None}, reason="not asked", by=desk.person)
        assert isinstance(take(desk, Counted(call=uncounted, tokens=tokens)), Uncounted), "the run has changed since"
        again = take(desk)
        assert isinstance(again, Uncounted)
        taken = take(desk, Counted(call=again, tokens=tokens))
        assert isinstance(taken, Taken)
        assert tokens < taken.bounds.prompt < tokens * 1.1 + 300
        assert taken.reserved.usd < by_bytes / 2 + Decimal("0.01")

    def test_a_gateway_counts_by_itself_and_makes_the_call(self, desk: Desk, by_bytes: Decimal) -> None:
        run = desk.start(usd=str(by_bytes * Decimal("0.99")))
        operations.set_budget(run.pk, {"ask_percent": None}, reason="not asked", by=desk.person)
        desk.gateway()
        desk.until(run, state="queued")
        assert desk.ledger(run, "reserve")[0].usd < by_bytes
        assert len(desk.ledger(run, "settle")) == 1


class TestCard:
    def test_it_says_what_was_spent_and_what_going_on_costs(self, desk: Desk) -> None:
        run = desk.start(usd="0.0100")
        desk.gateway()
        desk.until(run, state="waiting", waiting_for="budget")
        card = card_of(run)
        assert card.verdicts == ["grant", "finish", "stop"]
        told: dict[str, Any] = card.evidence or {}
        assert (told["dimension"], told["limit"], told["spent"], told["reserved"]) == ("usd", "0.01", "0.00", "0.00")
        assert Decimal(told["needed"]) > Decimal("0.01")
        cached, cold = Decimal(told["prompt_usd_if_cached"]), Decimal(told["prompt_usd_after_a_pause"])
        assert 0 < cached < cold < Decimal(told["next_call_usd_at_most"])

    def test_a_grant_that_is_too_small_is_refused_and_says_how_much_it_takes(self, desk: Desk) -> None:
        run = desk.start(usd="0.0100")
        desk.gateway()
        desk.until(run, state="waiting", waiting_for="budget")
        card = card_of(run)
        with pytest.raises(Malformed, match=r"Grant at least 0\.\d+ USD"):
            decide(desk, card, Verdict.GRANT, grant={"usd": "0.0001"})
        decide(desk, card, Verdict.GRANT, grant={"usd": "1.00"})
        desk.hand_over(run)
        desk.until(run, state="queued")
        assert len(desk.ledger(run, "settle")) == 1

    def test_a_large_share_is_asked_about_once_and_may_be_let_through_without_more(
        self, desk: Desk, by_bytes: Decimal
    ) -> None:
        run = desk.start(usd=str(by_bytes * Decimal("1.01")))
        uncounted = take(desk)
        assert isinstance(uncounted, Uncounted)
        assert isinstance(take(desk, Counted(call=uncounted, tokens=None)), Parked)
        card = card_of(run)
        assert "a large share" in card.title
        assert dig(card.evidence, "asked_above_percent") == 50
        decide(desk, card, Verdict.GRANT)
        desk.hand_over(run)
        assert isinstance(take(desk), Taken)
        assert desk.budget(run).usd_limit == by_bytes * Decimal("1.01")

    def test_finish_lets_it_think_once_more_tells_it_so_and_pays_just_that(self, desk: Desk) -> None:
        run = desk.start(usd="0.0100")
        desk.gateway()
        desk.until(run, state="waiting", waiting_for="budget")
        decide(desk, card_of(run), Verdict.FINISH, comment="enough")
        desk.hand_over(run)
        desk.until(run, state="queued")
        (finish,) = Step.objects.filter(run=run).exclude(kind=StepKind.THINK)
        assert (finish.kind, finish.state) == (StepKind.FINISH, StepState.PLANNED)
        budget = desk.budget(run)
        # The time in the prompt may have a digit less by then.
        assert Decimal(0) <= budget.usd_limit - desk.ledger(run, "reserve")[-1].usd < Decimal("0.0001")
        assert budget.usd_overrun == 0
        raised = JournalEntry.objects.filter(run=run, kind="budget.limits_set")
        assert all("finishes with what it has" in entry.why for entry in raised)
        assert 1 <= len(raised) <= 3, "the raise itself is told in the briefing, a few bytes more"
        assert JournalEntry.objects.get(run=run, kind="budget.finish_asked").why == "enough"


class TestSteps:
    def short_of_steps(self, engine: Engine) -> Run:
        order = engine.order()
        run = engine.start([call("read_order", order=order)], steps=1)
        engine.go(run)
        assert (run.state, run.waiting_for) == ("waiting", WaitingFor.BUDGET)
        return run

    def test_a_card_for_steps_asks_for_steps_and_takes_no_dollars(self, engine: Engine) -> None:
        run = self.short_of_steps(engine)
        card = card_of(run)
        assert (dig(card.evidence, "dimension"), dig(card.evidence, "limit"), dig(card.evidence, "spent")) == (
            "steps",
            1,
            1,
        )
        with pytest.raises(Malformed, match="asks for steps, not for USD"):
            decide(engine, card, Verdict.GRANT, grant={"usd": "1.00"})
        with pytest.raises(Malformed, match="says how much"):
            decide(engine, card, Verdict.GRANT)
        with pytest.raises(Malformed, match="Grant at least 1 step"):
            decide(engine, card, Verdict.GRANT, grant={"steps": "0"})
        decide(engine, card, Verdict.GRANT, grant={"steps": "20"})
        engine.go(run)
        assert run.state == "succeeded"

    def test_finish_drops_what_is_open_and_the_last_reply_may_only_end_it(self, engine: Engine) -> None:
        run = self.short_of_steps(engine)
        decide(engine, card_of(run), Verdict.FINISH)
        engine.until_rest(run, sweeps=3)
        assert run.state == "succeeded"
        assert Step.objects.get(run=run, tool="read_order").state == StepState.VOID
        assert budgets.mismatches() == []

    def test_a_last_reply_that_does_not_finish_ends_the_run_as_failed(self, engine: Engine) -> None:
        reads, closes = call("read_order", order=engine.order()), call("close_request", request="r1", outcome="refused")
        run = engine.start([reads], [closes], steps=1)
        engine.go(run)
        decide(engine, card_of(run), Verdict.FINISH)
        engine.until_rest(run, sweeps=3)
        assert (run.state, run.end_reason) == (
            "failed",
            "it was to finish with what it had, and its last reply did not",
        )
        refused = Step.objects.get(run=run, tool="close_request")
        assert (refused.state, "nothing else is begun" in refused.error) == (StepState.REFUSED, True)

    def test_working_time_is_asked_for_and_granted_in_seconds(self, engine: Engine) -> None:
        order = engine.order()
        run = engine.start([call("read_order", order=order)], working_s=0.000001)
        engine.go(run)
        card = card_of(run)
        assert dig(card.evidence, "dimension") == "working_s"
        decide(engine, card, Verdict.GRANT, grant={"working_s": "600"})
        engine.go(run)
        assert run.state == "succeeded"
