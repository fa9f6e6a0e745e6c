"""Every page in light and dark, on a desk and on a phone: nothing axe objects to, nothing cut off, nothing inline."""

from decimal import Decimal
from typing import Literal

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from runs import operations
from runs.access import Role
from runs.allowances import Terms
from tests import page_situations, situations
from tests.browser.browsing import Browsing, check_axe
from tests.people import make_person

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
DESK_WIDTHS = [768, 1024, 1920, 1280]
PHONE_WIDTHS = [412, 390]


@pytest.fixture
def ada(transactional_db: None) -> User:
    return make_person("ada", Role.ADMIN)


@pytest.fixture
def paths(ada: User) -> list[str]:
    """A page of each sort, with something on it."""
    doubt = page_situations.make_card("verdict", ada)
    asking = situations.ask_approval(situations.start(ada, goal="Work the refund requests of 27 November"))
    long = page_situations.ask_at_length(situations.start(ada, goal="Long " + "W" * 300), "10\u202e01 " + "x" * 6_000)
    ended = situations.start(ada)
    operations.stop_run(ended.pk, reason="wrong batch", by=ada)
    operations.engage_switch("tool:refund", reason="Order 10377 was confirmed three times", by=ada)
    page_situations.book(asking.run, "0.42", estimated=True)
    operations.create_allowance(
        Terms(scope="all", dimension="usd", period="day", hard=Decimal("0.50")), reason="because", by=ada
    )
    page_situations.wait_for_credential(situations.start(ada), "shop")
    cards = [page_situations.make_card(kind, ada) for kind in ("question", "failure", "budget", "fact")]
    tabs = ("timeline", "facts", "work", "keys", "failures", "ledger", "briefing", "journal")
    return [
        "/",
        "/runs",
        "/runs?state=failed&agent=stock-watch",
        "/runs/new",
        "/runs/999",
        *(f"/runs/{asking.run.pk}?tab={tab}" for tab in tabs),
        f"/runs/{asking.run.pk}?tab=step&step=1",
        f"/runs/{asking.run.pk}?tab=facts&fact={asking.fact.pk}",
        "/spend",
        "/ledger",
        "/credentials",
        f"/runs/{doubt.run_id}",
        f"/runs/{ended.pk}",
        f"/runs/{long.run_id}",
        "/approvals",
        "/approvals?state=decided",
        *(f"/approvals/{card.pk}" for card in [doubt, asking.card, long, *cards]),
    ]


def expect_nothing_sideways(page: Page) -> None:
    # Not innerWidth: on a phone that grows with a page which is too wide.
    width, shown = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width <= shown, f"{page.url} is {width} wide in a window of {shown}"


def expect_in_order(page: Page) -> None:
    """Nothing beside the window, and nothing that axe objects to, in light and dark."""
    expect_nothing_sideways(page)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        check_axe(page)
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_every_page_is_in_order(browsing: Browsing, ada: User, paths: list[str], phone: bool) -> None:
    browsing.problems.allow("404")
    page = browsing.open(user=ada, phone=phone)
    wrong = []
    for path in paths:
        page.goto(path)
        expect(page.locator("main")).to_be_visible()
        try:
            for width in PHONE_WIDTHS if phone else DESK_WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                expect_nothing_sideways(page)
            expect_in_order(page)
        except AssertionError as found:
            wrong.append(f"{path}: {found}")
    assert not wrong, "\n".join(wrong)


def test_long_words_neither_widen_a_page_nor_push_why_off_a_phone_s_first_screen(browsing: Browsing, ada: User) -> None:
    word = "W" * 500
    run = situations.start(ada, goal=word, constraints=[word], inputs={"k" * 60: word}, labels={"l" * 60: "x" * 190})
    for _ in range(3):
        operations.amend_run(run.pk, text=word, by=ada)
    operations.pause_run(run.pk, reason=word, by=ada)
    question = situations.ask_question(situations.start(ada), word)
    # Not as a phone: there the window is said to be as wide as what is in it.
    page = browsing.open(user=ada, viewport={"width": 390, "height": 844})
    for path in (
        "/runs",
        "/approvals?list=1",
        f"/approvals/{question.pk}",
        f"/runs/{question.run_id}",
        f"/runs/{run.pk}",
    ):
        page.goto(path)
        expect(page.locator("main")).to_be_visible()
        expect_nothing_sideways(page)
    assert page.evaluate("document.querySelector('.why-line').getBoundingClientRect().top") < 844
    for summary in page.locator("details.whole > summary:visible").all():
        summary.click()
    expect(page.locator("#whole-goal > div")).to_have_text(word)
    expect_nothing_sideways(page)
    check_axe(page)


def test_a_phone_s_bar_of_buttons_leaves_why_to_be_seen(browsing: Browsing, ada: User) -> None:
    word = "W" * 500
    run = situations.start(ada, goal=word)
    operations.amend_run(run.pk, text=word, by=ada)
    situations.ask_approval(run)
    operations.engage_switch("tool:refund", reason=word, by=ada)
    page = browsing.open(f"/runs/{run.pk}", user=ada, viewport={"width": 390, "height": 844})
    why, bar = page.locator(".why-line").bounding_box(), page.locator(".sticky-bar").bounding_box()
    assert why is not None
    assert bar is not None
    assert why["y"] + why["height"] <= bar["y"]


def test_dialogs_are_in_order_too(browsing: Browsing, ada: User) -> None:
    asking = situations.ask_approval(situations.start(ada))
    page = browsing.open(f"/approvals/{asking.card.pk}", user=ada)
    for button, dialog in (
        ("Reject…", "#reject-dialog"),
        ("Edit…", "#edit-dialog"),
        ("Answer instead…", "#respond-dialog"),
    ):
        page.get_by_role("button", name=button).first.click()
        expect(page.locator(dialog)).to_be_visible()
        check_axe(page)
        page.keyboard.press("Escape")
        expect(page.locator(dialog)).to_be_hidden()
    page.goto(f"/runs/{asking.run.pk}")
    for button, dialog in (("Stop…", "#stop-dialog"), ("Limits…", "#limits-dialog")):
        page.get_by_role("button", name=button).first.click()
        expect(page.locator(dialog)).to_be_visible()
        check_axe(page)
        page.keyboard.press("Escape")
    page.goto("/credentials")
    page.get_by_role("button", name="Renew…").first.click()
    check_axe(page)


def test_a_theme_is_chosen_and_kept(browsing: Browsing, ada: User) -> None:
    page = browsing.open("/runs?state=open", user=ada, theme="light")
    page.get_by_role("button", name="Theme", exact=True).click()
    page.locator("#theme-menu").get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.url.endswith("/runs?state=open")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 17, 16)"
