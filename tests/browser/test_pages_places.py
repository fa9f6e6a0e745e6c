"""Finding one's way: tabs that change in place, the list behind a card on a phone, headings that count along."""

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from runs import operations
from runs.access import Role
from tests import page_situations, situations
from tests.browser.browsing import Browsing
from tests.browser.test_live_pages import expect_state
from tests.people import make_person


@pytest.fixture
def ada(transactional_db: None) -> User:
    return make_person("ada", Role.ADMIN)


def read_scroll(page: Page) -> int:
    return int(page.evaluate("Math.round(scrollY)"))


def test_a_tab_changes_in_place_and_stays_live(browsing: Browsing, ada: User) -> None:
    run = situations.start(ada)
    page = browsing.open(f"/runs/{run.pk}", user=ada, phone=True)
    expect_state(page, "live")
    tab = page.locator("#to-facts")
    tab.scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, 200)")
    page.evaluate("window.same = true")
    before = read_scroll(page)
    tab.click()
    expect(page).to_have_url(f"{browsing.web.url}/runs/{run.pk}?tab=facts")
    expect(tab).to_have_attribute("aria-current", "page")
    expect(tab).to_be_focused()
    assert page.evaluate("window.same"), "the page is the same"
    assert abs(read_scroll(page) - before) < 150
    # A fact that comes later is there by itself, and so is the button that has it checked again.
    fact = page_situations.record_fact(run, max_age_s=0.2)
    expect(page.locator(f"#fact-{fact.pk}")).to_be_visible()
    page.locator(f"#fact-{fact.pk}").get_by_role("button", name="Re-check").click()
    expect(page.locator("main")).to_contain_text("It is being checked again.")
    page.go_back()
    page.go_back()
    expect(page.locator("#to-timeline")).to_have_attribute("aria-current", "page")


def test_a_phone_comes_from_a_card_to_the_list_and_to_another_card(browsing: Browsing, ada: User) -> None:
    situations.ask_approval(situations.start(ada), valid_for_s=600)
    second = situations.ask_approval(situations.start(ada), order="1002", valid_for_s=6_000)
    page = browsing.open("/approvals", user=ada, phone=True)
    page.get_by_role("link", name="All 2").click()
    page.locator(".aps").get_by_text("Refund 420.00 of order 1002").click()
    expect(page).to_have_url(f"{browsing.web.url}/approvals/{second.card.pk}")


def test_headings_and_counts_go_along(browsing: Browsing, ada: User) -> None:
    run = situations.start(ada)
    home, runs, inbox = (browsing.open(path, user=ada) for path in ("/", "/runs", "/approvals"))
    for page in (home, runs, inbox):
        expect_state(page, "live")
    expect(home.locator("#home-sentence")).to_have_text("1 run not finished. 0 things need a person.")
    situations.ask_approval(run)
    expect(home.locator("#home-sentence")).to_have_text("1 run not finished. 1 thing needs a person.")
    expect(runs.locator("#run-views")).to_contain_text("Needs a person 1")
    expect(inbox.locator("#approvals-sentence")).to_contain_text("1 to decide")
    expect(inbox.locator("#approvals-count")).to_have_text("1")
    operations.stop_run(run.pk, reason="wrong batch", by=ada)
    expect(runs.locator("#runs-sentence")).to_have_text("0 not finished, 1 ended in 24 h")
    expect(inbox.locator("#approvals-sentence")).to_have_text("nothing to decide")
