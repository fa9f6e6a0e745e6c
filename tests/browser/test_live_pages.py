"""A page shows what is, says how true it is, and finds back by itself after each kind of trouble."""

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from runs.access import Role
from runs.models import Run
from tests import situations
from tests.browser.browsing import Browsing
from tests.live_tools import note
from tests.people import make_person


@pytest.fixture
def olga(transactional_db: None) -> User:
    return make_person("olga", Role.OPERATOR)


@pytest.fixture
def run(olga: User) -> Run:
    return situations.start(olga)


@pytest.fixture
def page(browsing: Browsing, olga: User, run: Run) -> Page:
    page = browsing.open(f"/test/live/{run.pk}", user=olga)
    expect_state(page, "live")
    return page


def expect_state(page: Page, state: str, *, within_s: float = 20.0) -> None:
    expect(page.locator("html")).to_have_attribute("data-live", state, timeout=within_s * 1000)


def test_a_change_is_shown_as_it_is_committed(page: Page, run: Run) -> None:
    note(run, "seen live")
    expect(page.locator("#panel li").last).to_have_text("run.noted: seen live")
