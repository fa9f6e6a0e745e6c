"""From a notification to a decision in a real browser: by keys alone, on a phone, two at one card; switches and the journal."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from runs import operations
from runs.access import Role
from runs.approvals import Said
from runs.models import Approval, Decision, Switch
from runs.reaching import reach_people
from runs.states import RunState, Verdict
from tests import situations
from tests.browser.browsing import Browsing, check_axe
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.people import make_person
from tests.receivers import receive_http
from tests.writers import shifted

__all__ = ["engine", "shop_process", "workers"]

PASSWORD = "a long enough password"


@pytest.fixture
def ada(transactional_db: None) -> User:
    return make_person("ada", Role.ADMIN)


@pytest.fixture
def ben(transactional_db: None) -> User:
    person = make_person("ben", Role.APPROVER)
    person.set_password(PASSWORD)
    person.save()
    return person


@contextmanager
def notified(settings: Any, base: str) -> Iterator[Callable[[], str]]:
    """A webhook that is told of cards; what is given reads the link that the next message holds."""
    settings.PUBLIC_URL = base

    def read_link() -> str:
        reach_people()
        with shifted(timedelta(seconds=3)):  # cards are gathered for a moment
            assert reach_people() == 1
        (card,) = json.loads(http.got[-1].body)["cards"]
        return str(card["url"])

    with receive_http() as http:
        settings.WEBHOOK_URL = http.url
        yield read_link


def tab_to(page: Page, selector: str, most: int = 80) -> None:
    """Move the focus by the Tab key alone until it stands there."""
    for _ in range(most):
        if page.evaluate("(s) => document.activeElement?.matches(s) ?? false", selector):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"the Tab key does not reach {selector}")


@pytest.mark.parametrize("phone", [False, True])
def test_by_keys_alone_from_the_link_of_a_notification_to_an_edited_approval(
    browsing: Browsing, ada: User, ben: User, phone: bool, settings: Any
) -> None:
    asking = situations.ask_approval(situations.start(ada))
    page = browsing.open(phone=phone)
    with notified(settings, browsing.web.url) as read_link:
        page.goto(read_link())
    expect(page).to_have_url(re.compile(r"/sign-in\?next=/approvals/\d+$"), timeout=30_000)
    tab_to(page, "[name=username]")
    page.keyboard.type("ben")
    tab_to(page, "[name=password]")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    # Checking a password takes its time, by design.
    expect(page.locator("article h2")).to_have_text("Refund 420.00 of order 1001", timeout=30_000)
    tab_to(page, "main button[commandfor=edit-dialog]")
    page.keyboard.press("Enter")
    expect(page.locator("#edit-dialog")).to_be_visible()
    tab_to(page, "[name='arg.amount']")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("150")
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator("main")).to_contain_text("Approved with changes", timeout=30_000)
    card = Approval.objects.get(pk=asking.card.pk)
    assert (card.state, (card.arguments or {})["amount"]) == ("approved", "150.00")
    assert Decision.objects.get().by.get_username() == "ben"


def test_j_k_enter_and_confirm_work_off_the_inbox_and_say_what_is_left(browsing: Browsing, ada: User) -> None:
    first = situations.ask_approval(situations.start(ada), order="1001", valid_for_s=600).card
    second = situations.ask_approval(situations.start(ada), order="1002", valid_for_s=6_000).card
    page = browsing.open("/approvals", user=ada)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/approvals/{second.pk}$"))
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/approvals/{first.pk}$"))
    assert not Decision.objects.exists()
    # A card that has just come takes no such key for a moment.
    page.evaluate("new Promise((done) => setTimeout(done, 750 - performance.now()))")
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator("main")).to_contain_text("1 card left to decide.")
    assert Approval.objects.get(pk=first.pk).state == "approved"
    assert Approval.objects.get(pk=second.pk).state == "pending"


def test_two_people_on_one_card_have_one_effect(browsing: Browsing, engine: Engine, ada: User, ben: User) -> None:
    order = engine.order("900.00")
    run = engine.go(engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")]))
    card = engine.card(run)
    pages = [
        browsing.open(f"/approvals/{card.pk}", user=user, phone=phone) for user, phone in ((ada, False), (ben, True))
    ]
    browsing.problems.allow("409")
    for page in pages:
        expect(page.locator("#decide-form")).to_be_visible()
    # Neither hears of the other: both press what they see.
    for page in pages:
        page.evaluate("document.querySelector('#decide-form .primary').click()")
    for page in pages:
        expect(page.locator("main")).to_contain_text(re.compile("Nothing is left to decide|already approved by"))
    assert Decision.objects.filter(approval=card).count() == 1
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_switch_is_engaged_and_released(browsing: Browsing, ada: User, scripts: bool) -> None:
    situations.start(ada)
    page = browsing.open("/switches", user=ada, java_script_enabled=scripts)
    page.get_by_label("Reason (everybody sees it)").fill("odd refunds")
    page.get_by_role("button", name="Hold it now").click()
    expect(page.locator("#engaged")).to_contain_text("odd refunds")
    page.get_by_role("button", name="Release…").click()
    page.locator("dialog").get_by_label("Reason").first.fill("it is fine")
    page.get_by_role("button", name="Release it").click()
    expect(page.locator("#engaged")).to_contain_text("No switch is engaged")
    assert Switch.objects.get().release_reason == "it is fine"


@pytest.mark.parametrize(("theme", "phone"), [("light", False), ("dark", False), ("dark", True)])
def test_cards_switches_and_journal_are_in_order(browsing: Browsing, ada: User, theme: str, phone: bool) -> None:
    held, asked = (situations.ask_approval(situations.start(ada), order=str(n)) for n in (1001, 1002))
    situations.ask_approval(situations.start(ada), order="1003")
    operations.decide(held.card.pk, Said(verdict=Verdict.APPROVE), by=ada, hold_s=600.0)
    operations.decide(asked.card.pk, Said(verdict=Verdict.EXPLAIN, comment="why so much?"), by=ada)
    operations.claim_approval(asked.card.pk, by=ada)
    operations.engage_switch("all", reason="odd refunds", by=ada)
    operations.release_switch(operations.engage_switch("tool:refund", reason="x", by=ada).pk, reason="fine", by=ada)
    page = browsing.open(user=ada, theme=theme, phone=phone)
    wrong = []
    for path in (
        "/approvals?list=1",
        f"/approvals?undo={held.card.pk}",
        f"/approvals/{held.card.pk}",
        f"/approvals/{asked.card.pk}",
        "/approvals/together",
        "/switches",
        "/journal",
        "/journal?person=ada&action=approval.&since=2020-01-01",
    ):
        page.goto(path)
        try:
            check_axe(page)
            width, shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width <= shown, f"{width} wide in a window of {shown}"
        except AssertionError as found:
            wrong.append(f"{path}: {found}")
    for day in ("since", "until"):  # which of two empty dates is which can be seen
        box = page.locator(f"label[for={day}]").bounding_box()
        assert box is not None
        assert box["width"] > 8
    page.goto(f"/approvals/{asked.card.pk}")
    page.get_by_role("button", name="Ask for more…").locator("visible=true").first.click()
    check_axe(page)
    assert not wrong, "\n".join(wrong)
