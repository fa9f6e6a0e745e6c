"""The console's own pages are live: what is committed comes to them, and after trouble they equal a fresh load."""

import re
import time

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from runs import notify, operations
from runs.access import Role
from runs.approvals import Said
from runs.models import Decision
from runs.states import Verdict
from tests import page_situations, situations
from tests.browser.browsing import Browsing
from tests.browser.test_live_pages import AWAY, RECOVERED_S, SET_HIDDEN, expect_state
from tests.live_tools import note
from tests.people import make_person
from tests.situations import Asking
from tests.web_process import WebProcess

PAGES = ["/", "/runs", "/runs/{run}", "/runs/{run}?tab=journal", "/approvals"]
PANELS = """() => Object.fromEntries([...document.querySelectorAll("[hx-trigger*='live:']")]
  .map((panel) => [panel.id, panel.innerText]))"""


@pytest.fixture
def anna(transactional_db: None) -> User:
    return make_person("anna", Role.OPERATOR, Role.APPROVER)


@pytest.fixture
def asking(anna: User) -> Asking:
    return situations.ask_approval(situations.start(anna))


def read_panels(page: Page) -> dict[str, str]:
    """What each panel says. Ages go on by themselves, in both of two pages, but not in step."""
    texts: dict[str, str] = page.evaluate(PANELS)
    return {
        name: " ".join(re.sub(r"[\d.]+\s(ms|s|min|h|d)\b", "some time", text).split())
        for name, text in texts.items()
        if text
    }


def reject(asking: Asking, anna: User) -> None:
    said = Said(verdict=Verdict.REJECT, version=asking.card.version, comment="not twice")
    operations.decide(asking.card.pk, said, by=anna)
    notify.flush()


def expect_fresh_panels(page: Page, browsing: Browsing, *, since: float) -> None:
    """Every panel of a fresh load says the same here. An open card stays as it is until its reader says otherwise."""
    fresh = browsing.beside(page)
    expect_state(fresh, "live")
    wanted = read_panels(fresh)
    assert wanted
    fresh.close()
    while (shown := {name: text for name, text in read_panels(page).items() if name in wanted}) != wanted:
        assert time.monotonic() - since < RECOVERED_S, f"{shown}\n  is not\n{wanted}"
        time.sleep(0.05)


@pytest.fixture
def pages(browsing: Browsing, asking: Asking, anna: User) -> list[Page]:
    """Every page with panels, each in a browser of its own."""
    opened = [browsing.open(path.format(run=asking.run.pk), user=anna) for path in PAGES]
    for page in opened:
        expect_state(page, "live")
    return opened


def test_a_decision_of_somebody_else_comes_to_every_page(
    browsing: Browsing, pages: list[Page], asking: Asking, anna: User
) -> None:
    before = [read_panels(page) for page in pages]
    reject(asking, anna)
    decided = time.monotonic()
    for page, was in zip(pages, before, strict=True):
        while read_panels(page) == was:
            assert time.monotonic() - decided < 10.0, f"nothing changed on {page.url}"
            time.sleep(0.05)
        expect_fresh_panels(page, browsing, since=time.monotonic())


def test_a_long_text_that_was_opened_stays_open_when_its_panel_changes(browsing: Browsing, anna: User) -> None:
    run = situations.start(anna, goal="G" * 500)
    page = browsing.open(f"/runs/{run.pk}", user=anna)
    expect_state(page, "live")
    page.locator("#whole-goal > summary").click()
    operations.amend_run(run.pk, text="Only orders of May.", by=anna)
    notify.flush()
    expect(page.locator(".run-head")).to_contain_text("Only orders of May.", timeout=10_000)
    expect(page.locator("#whole-goal > div")).to_be_visible()


def test_every_page_finds_back_after_the_server_was_killed(
    browsing: Browsing, web: WebProcess, pages: list[Page], asking: Asking, anna: User
) -> None:
    browsing.problems.allow(AWAY)
    web.kill()
    for page in pages:
        expect_state(page, "reconnecting")
    time.sleep(8.0)  # each asks several times, and what it gave up is answered first
    reject(asking, anna)
    web.start()
    back = time.monotonic()
    for page in pages:
        expect_state(page, "live", within_s=RECOVERED_S)
    print(f"live again after {time.monotonic() - back:.1f} s")
    for page in pages:
        expect_fresh_panels(page, browsing, since=time.monotonic())


def test_j4_what_was_decided_and_asked_while_a_tab_slept_shows_at_once_and_its_old_card_decides_nothing(
    browsing: Browsing, asking: Asking, anna: User
) -> None:
    """200 events, an end, a decision and a new approval; a second browser stays connected."""
    ben = make_person("ben", Role.APPROVER)
    ending = situations.start(anna)
    inbox, card = (browsing.open(path, user=anna) for path in ("/approvals?list=1", f"/approvals/{asking.card.pk}"))
    awake = browsing.open("/approvals?list=1", user=ben)
    for page in (inbox, card, awake):
        expect_state(page, "live")
    before = read_panels(inbox)
    for page in (inbox, card):
        page.evaluate(SET_HIDDEN, True)
        expect_state(page, "paused")
    for number in range(199):
        note(ending, f"event {number}", hint=number % 50 == 0)
    operations.stop_run(ending.pk, reason="enough", by=anna)
    operations.decide(asking.card.pk, Said(verdict=Verdict.REJECT, version=1, comment="no"), by=ben)
    new = situations.ask_approval(situations.start(anna), order="1002").card
    notify.flush()
    expect(awake.locator("#approvals-list")).to_contain_text(new.title)
    assert read_panels(inbox) == before
    # What the sleeping card offers is judged by what is.
    browsing.problems.allow("409")
    card.evaluate("document.querySelector('#decide-form .primary').click()")
    expect(card.locator("main [role=alert]")).to_contain_text("already rejected by ben")
    inbox.evaluate(SET_HIDDEN, False)
    woken = time.monotonic()
    expect_state(inbox, "live", within_s=RECOVERED_S)
    expect_fresh_panels(inbox, browsing, since=woken)
    expect(inbox.locator("#approvals-list li")).to_have_count(1)
    assert [made.by.get_username() for made in Decision.objects.all()] == ["ben"]


def test_the_bar_that_says_signed_out_is_seen_when_one_is(browsing: Browsing, asking: Asking, anna: User) -> None:
    page = browsing.open(f"/runs/{asking.run.pk}", user=anna)
    expect_state(page, "live")
    bar = page.locator(".bar.signed-out")
    expect(bar).to_be_hidden()
    anna.set_password("another correct horse")
    anna.save()
    expect_state(page, "signed-out")
    expect(bar).to_be_visible()


def test_on_a_quiet_page_ages_go_on_and_a_fact_becomes_stale_by_itself(browsing: Browsing, anna: User) -> None:
    run = situations.start(anna)
    fact = page_situations.record_fact(run, max_age_s=4.0)
    page = browsing.open(f"/runs/{run.pk}?tab=facts", user=anna)
    expect_state(page, "live")
    line = page.locator(f"#fact-{fact.pk}")
    expect(line.locator(".pill")).to_have_text("Fresh")
    expect(line.locator("time:visible")).to_have_text("2 s")
    # Nothing happens to the run, and nobody reloads.
    expect(line.locator(".pill")).to_have_text("Stale", timeout=10_000)
    expect(page.locator("#run-head")).to_contain_text("1 fact not fresh")
    expect(page.locator("#run-tab nav .count")).to_have_text("1")
    clock, total = page.locator("#clock"), page.locator(".clock-total time")
    shown = clock.inner_text(), total.inner_text()
    expect(clock).not_to_have_text(shown[0])
    expect(total).not_to_have_text(shown[1])


@pytest.mark.parametrize("trouble", ["frozen", "killed"])
def test_a_click_while_the_server_is_away_is_done_once_when_it_is_back(
    browsing: Browsing, web: WebProcess, asking: Asking, anna: User, trouble: str
) -> None:
    browsing.problems.allow(AWAY)
    page = browsing.open(f"/approvals/{asking.card.pk}", user=anna)
    expect_state(page, "live")
    if trouble == "frozen":
        web.freeze()
    else:
        web.kill()
    with page.expect_request("**/decision"):
        page.locator("#decide-form button[value=approve]").click(no_wait_after=True)
    assert not Decision.objects.exists()
    if trouble == "frozen":
        web.thaw()
    else:
        web.start()
    expect(page.locator("main")).to_contain_text("Nothing is left to decide.", timeout=20_000)
    assert [made.verdict for made in Decision.objects.all()] == ["approve"]
