"""Facts in a real browser: the lists and the story in order, a card that reads again what has aged when it is opened."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from playwright.sync_api import expect

from runs import clock, facts, lifecycle, operations, steps
from runs.journal import Actor
from runs.models import Fact, FactCheck, Step
from runs.states import CheckOutcome, StepKind, StepState
from tests import page_situations, situations
from tests.browser.browsing import Browsing
from tests.browser.test_pages_look import ada, expect_in_order

__all__ = ["ada"]
ANA = Actor(name="person:ana")


@pytest.fixture
def later() -> Iterator[None]:
    """Half an hour later than the facts of the situations."""
    yield
    clock.shift(timedelta(minutes=-30))


def fill(by: User) -> Fact:
    """Facts in every state, one of them with a story."""
    asking = situations.ask_approval(situations.start(by))
    for paid in ("12.00", "9.00"):
        page_situations.record_fact(situations.start(by), "order.1002", {"paid": paid, "note": "W" * 90})
    fact = page_situations.record_fact(asking.run, "stock.SKU-9", 14)
    for outcome, value in ((CheckOutcome.SAME, 14), (CheckOutcome.CHANGED, 9), (CheckOutcome.UNREACHABLE, 9)):
        with transaction.atomic():
            run = lifecycle.lock(fact.run_id)
            step = steps.plan(run, steps.Asked(kind=StepKind.CHECK, tool="read_order", fact=fact.pk))
            known = Fact.objects.get(pk=fact.pk)
            if outcome == CheckOutcome.SAME:
                facts.check_same(known, began_at=clock.now(), step=step.pk)
            elif outcome == CheckOutcome.CHANGED:
                facts.check_changed(known, value, began_at=clock.now(), step=step.pk)
            else:
                facts.check_failed(known, outcome, "the warehouse answered 503", step=step.pk)
            steps.close(step, StepState.DONE)
        clock.shift(timedelta(minutes=10))
    fresh = page_situations.record_fact(asking.run, "price.SKU-9", "19.90")
    with transaction.atomic():
        lifecycle.lock(fresh.run_id)
        facts.note_use(facts.judge(fresh.run_id, [fact.name]).values(), approval=asking.card.pk)
    return fact


def test_the_lists_and_the_story_are_in_order(browsing: Browsing, ada: User, later: None) -> None:
    fact = fill(ada)
    wrong = []
    for phone in (False, True):
        page = browsing.open(user=ada, phone=phone)
        for path in ("/facts", "/facts?state=all", f"/facts/{fact.pk}", "/facts?state=contradicted", "/"):
            page.goto(path)
            try:
                expect_in_order(page)
            except AssertionError as found:
                wrong.append(f"{path}: {found}")
    assert not wrong, "\n".join(wrong)


def test_a_card_whose_facts_have_aged_reads_them_again_when_it_is_opened_and_says_so(
    browsing: Browsing, ada: User, later: None
) -> None:
    asking = situations.ask_approval(situations.start(ada))
    clock.shift(timedelta(minutes=30))
    page = browsing.open(f"/approvals/{asking.card.pk}", user=ada)
    expect(page.get_by_text("1 fact is being read again. What the source says shows here")).to_be_visible()
    check = Step.objects.get(run=asking.run, kind=StepKind.CHECK)
    with transaction.atomic():
        lifecycle.lock(asking.run.pk)
        facts.check_same(Fact.objects.get(pk=asking.fact.pk), began_at=clock.now(), step=check.pk)
    expect(page.locator("#evidence")).to_contain_text("Fresh")
    assert FactCheck.objects.filter(fact=asking.fact).count() == 1


def test_a_warning_disappears_by_itself(browsing: Browsing, ada: User, later: None) -> None:
    asking = situations.ask_approval(situations.start(ada))
    clock.shift(timedelta(minutes=30))
    page = browsing.open("/facts", user=ada)
    expect(page.get_by_role("link", name="order.1001")).to_be_visible()
    operations.correct_fact(asking.fact.pk, {"paid": "1.00"}, by=ada)
    expect(page.get_by_text("No fact is past its limit.")).to_be_visible()
