"""Case D3. Prices that people set: they count first, what had none is priced when there is one, and what waited goes on."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.test import Client

from runs import budgets, clock, operations, prices, sql
from runs.access import Role
from runs.agents import Json
from runs.errors import Conflict, Forbidden, Malformed, NoPrice
from runs.gateway import outcomes
from runs.gateway.claims import Taken, take_call
from runs.gateway.provider import Answer, Credential
from runs.models import Approval, LedgerEntry, Price, Step
from runs.models.price import RATES as NAMES
from runs.prices import NewPrice, find_rates
from runs.usage import Bounds, Tokens, normalise
from tests.gateway_tools import Desk, desk, model_process, model_server
from tests.people import make_person
from tests.writers import person

__all__ = ["desk", "model_process", "model_server", "person"]

RATES = {name: Decimal(rate) for name, rate in zip(NAMES, ("2", "0.2", "2.5", "4", "10"), strict=True)}


def set_price(by: User, model: str = "m-new", **given: Any) -> Price:
    return operations.set_price(NewPrice(**{"model": model, "rates": RATES, "reason": "the page", **given}), by=by)


@pytest.mark.django_db
class TestFinding:
    def test_a_price_that_was_set_counts_before_the_published_one_from_its_moment_on(self, person: User) -> None:
        now = clock.now()
        set_price(person, "claude-sonnet-5-5-20261001", effective_from=now)
        assert find_rates("claude-sonnet-5-5", at=now, prompt=10).cache_read == Decimal("0.2")
        later = find_rates("claude-sonnet-5-5", at=now + timedelta(days=1), prompt=10)
        assert later.effective_from == now
        assert "set in the admin" in later.source
        cheaper = {**RATES, "output": Decimal(1)}
        set_price(person, "claude-sonnet-5-5", rates=cheaper, effective_from=now + timedelta(hours=1))
        assert find_rates("claude-sonnet-5-5", at=now + timedelta(days=1), prompt=10).output == 1
        assert find_rates("claude-sonnet-5-5", at=now, prompt=10).output == 10

    def test_a_tier_is_that_of_the_whole_prompt_and_a_reservation_takes_the_dearest(self, person: User) -> None:
        set_price(person)
        set_price(person, above=1000, rates={name: rate * 2 for name, rate in RATES.items()})
        now = clock.now()
        assert [find_rates("m-new", at=now, prompt=size).uncached for size in (1000, 1001)] == [2, 4]
        assert [prices.dearest("m-new", at=now, prompt=size).output for size in (1000, 1001)] == [10, 20]

    def test_a_ceiling_holds_for_every_model_without_a_price_and_for_no_other(self, person: User) -> None:
        set_price(person, "*", rates=dict.fromkeys(RATES, Decimal(99)))
        now = clock.now()
        assert find_rates("m-new", at=now, prompt=10).output == 99
        assert find_rates("claude-sonnet-5-5", at=now, prompt=10).output == 10

    def test_a_withdrawn_price_counts_no_more_and_is_never_changed(self, person: User) -> None:
        made = set_price(person)
        with pytest.raises(Conflict):
            set_price(person)
        operations.withdraw_price(made.pk, reason="wrong", by=person)
        with pytest.raises(NoPrice):
            find_rates("m-new", at=clock.now(), prompt=10)
        set_price(person)
        with pytest.raises(IntegrityError, match="fixed"), transaction.atomic():
            sql.execute("UPDATE runs_price SET output = 1")

    @pytest.mark.parametrize("wrong", ["0", "-1", "NaN", "1e9"])
    def test_a_price_of_nothing_is_no_price(self, person: User, wrong: str) -> None:
        with pytest.raises(Malformed):
            set_price(person, rates={**RATES, "output": Decimal(wrong)})

    def test_only_who_may_change_money_sets_one(self) -> None:
        with pytest.raises(Forbidden):
            set_price(make_person("olga", Role.OPERATOR))

    def test_a_count_that_no_call_has_is_malformed_and_never_too_large_to_be_kept(self) -> None:
        tokens = normalise({"input_tokens": 10**30, "output_tokens": 5}, Bounds(prompt=900, output=100))
        assert (tokens.uncached, tokens.output) == (900, 5)
        assert tokens.flaws
        assert Tokens(uncached=1).total == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_without_a_price_waits_saying_which_and_goes_on_when_it_is_set(desk: Desk) -> None:
    desk.gateway()
    run = desk.start("unpriced")
    desk.until(run, state="waiting", waiting_for="budget")
    assert "no price for the model 'm-new'" in run.why
    assert Step.objects.get(run=run, state="waiting").waiting_on == "an admin"
    set_price(desk.person)
    run.refresh_from_db()
    assert run.state == "queued"
    assert Approval.objects.get(run=run).state == "void"


@pytest.mark.django_db(transaction=True)
def test_a_call_that_another_model_served_is_an_estimate_until_that_model_has_a_price(desk: Desk) -> None:
    run = desk.start()
    taken = take_call(desk.worker, Credential(key="test"))
    assert isinstance(taken, Taken)
    usage: Json = {"input_tokens": 700_000 - 5, "cache_read_input_tokens": 5, "output_tokens": 100_000}
    outcomes.settle(taken, Answer(text="", calls=(), stop_reason="end_turn", model="m-new", usage=usage), {})
    assert desk.budget(run).usd_spent == taken.reserved.usd > 0
    settled = LedgerEntry.objects.get(run=run, kind="settle")
    assert (settled.estimated, settled.unpriced, settled.model, settled.usage) == (True, True, "m-new", usage)
    page = Client()
    page.force_login(desk.person)
    assert "1 call without a price" in page.get(f"/runs/{run.pk}").content.decode()
    desk.hand_over(run)
    assert not isinstance(take_call(desk.worker, Credential(key="test")), Taken)
    desk.until(run, state="waiting", waiting_for="budget")
    assert "'m-new'" in run.why
    set_price(desk.person)
    assert desk.budget(run).usd_spent == Decimal("2.399991")  # 0.699995 × 2 + 5 × 0.2/1M + 0.1 × 10
    assert budgets.mismatches() == []
    assert "without a price" not in page.get(f"/runs/{run.pk}").content.decode()
    run.refresh_from_db()
    assert run.state == "queued"
    desk.hand_over(run)
    assert isinstance(take_call(desk.worker, Credential(key="test")), Taken)
