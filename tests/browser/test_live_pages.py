"""A page shows what is, says how true it is, and finds back by itself after each kind of trouble."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from playwright.sync_api import Page, Route, expect

from console.live.hub import MOST_STREAMS_OF_ONE
from runs import clock
from runs.access import Role
from runs.models import Run
from tests import situations
from tests.browser.browsing import Browsing, check_axe
from tests.live_tools import note
from tests.people import make_person
from tests.web_process import Stream, WebProcess, end_listener, session_cookie

# What the browser itself writes when the server is away: expected in those tests, and nothing else is.
AWAY = r"console: Failed to load resource|console: htmx: htmx:error: Failed to fetch"
RECOVERED_S = 5.0

KEEP_STATES = """addEventListener("DOMContentLoaded", () => { window.states = [];
  document.addEventListener("live:state", (event) => states.push(event.detail.state)); })"""
SET_HIDDEN = """(hidden) => { Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange")); }"""


@pytest.fixture
def olga(transactional_db: None) -> User:
    return make_person("olga", Role.OPERATOR)


@pytest.fixture
def run(olga: User) -> Run:
    return situations.start(olga)


@pytest.fixture
def page(browsing: Browsing, olga: User, run: Run) -> Page:
    page = browsing.open(user=olga)
    page.add_init_script(KEEP_STATES)
    page.goto(f"/test/live/{run.pk}")
    expect_state(page, "live")
    return page


def expect_state(page: Page, state: str, *, within_s: float = 20.0) -> None:
    expect(page.locator("html")).to_have_attribute("data-live", state, timeout=within_s * 1000)


def expect_news(page: Page, text: str, *, within_s: float = 10.0) -> None:
    expect(page.locator("#panel li").last).to_contain_text(text, timeout=within_s * 1000)


def expect_fresh(page: Page, browsing: Browsing, *, since: float, within_s: float = RECOVERED_S) -> None:
    """The panel equals a fresh load within so long of the recovery."""
    fresh = browsing.beside(page)
    wanted = read_panel(fresh)
    fresh.close()
    while (shown := read_panel(page)) != wanted:
        assert time.monotonic() - since < within_s, f"still {shown}, not {wanted}"
        time.sleep(0.05)
    expect_state(page, "live", within_s=max(0.1, within_s - (time.monotonic() - since)))


def read_panel(page: Page) -> str:
    """Its mark-up; white space between elements is no difference."""
    return " ".join(page.locator("#panel").inner_html().split())


def test_a_change_is_shown_as_it_is_committed(page: Page, run: Run) -> None:
    note(run, "seen live")
    expect_news(page, "seen live")
    expect(page.locator("#live-chip b")).to_have_text("Live")
    expect(page.locator("#live-chip .age")).to_have_text("0 s ago")


def test_what_moved_between_the_page_and_its_stream_is_fetched(page: Page, run: Run) -> None:
    """The stream opens only after the page has come."""
    held: list[Route] = []
    page.route("**/live?**", lambda route: held.append(route))
    with page.expect_request("**/live?**"):
        page.reload()
    note(run, "in between")
    page.wait_for_timeout(300)  # its hint finds no stream
    held[-1].continue_()
    expect_news(page, "in between")


def test_what_a_person_has_opened_and_ticked_stays(page: Page, run: Run) -> None:
    page.locator("summary").click()
    page.locator("summary").focus()
    note(run, "behind an open fold")
    expect(page.get_by_text("behind an open fold")).to_be_visible()
    expect(page.locator("summary")).to_be_focused()


def test_nothing_moves_under_what_is_selected(page: Page, run: Run) -> None:
    page.locator("#pick").check()
    note(run, "while selecting")
    expect(page.locator("#live-chip")).to_contain_text("Paused while you select")
    time.sleep(1.5)
    expect(page.get_by_text("while selecting")).to_have_count(0)
    page.locator("#pick").uncheck()
    expect_news(page, "while selecting")
    expect_state(page, "live")


def test_a_killed_server_is_said_and_the_page_finds_back(
    page: Page, run: Run, web: WebProcess, browsing: Browsing
) -> None:
    browsing.problems.allow(AWAY)
    web.kill()
    expect_state(page, "reconnecting")
    expect(page.locator("#live-chip .age")).to_contain_text("as of")
    note(run, "while it was away")
    web.start()
    expect_fresh(page, browsing, since=time.monotonic())
    expect_news(page, "while it was away")


def test_a_server_that_stops_in_order_ends_the_streams_and_the_page_finds_back(
    page: Page, run: Run, web: WebProcess, browsing: Browsing
) -> None:
    browsing.problems.allow(AWAY)
    assert web.stop() < 4.0
    note(run, "between two servers")
    web.start()
    expect_fresh(page, browsing, since=time.monotonic())


def test_a_frozen_server_is_noticed_though_nothing_was_closed(
    page: Page, run: Run, web: WebProcess, browsing: Browsing
) -> None:
    browsing.problems.allow(AWAY)
    web.freeze()
    expect_state(page, "reconnecting")
    note(run, "while it was frozen")
    time.sleep(4.0)  # several attempts hang in the meantime
    web.thaw()
    expect_fresh(page, browsing, since=time.monotonic())
    expect_news(page, "while it was frozen")


def test_a_listener_that_is_ended_is_said_and_what_it_missed_is_fetched(
    page: Page, run: Run, browsing: Browsing
) -> None:
    end_listener()
    ended = time.monotonic()
    note(run, "unheard")
    expect_fresh(page, browsing, since=ended)
    expect_news(page, "unheard")
    assert page.evaluate("states") == ["live", "degraded", "live"]


def test_a_database_that_lets_nobody_in_is_said_and_the_page_finds_back(
    page: Page, run: Run, browsing: Browsing
) -> None:
    browsing.problems.allow(r"Failed to load resource.*(500|503)")
    with closed_database():
        expect_state(page, "degraded")
        note(run, "while nobody was let in")
        time.sleep(4.0)
        expect_state(page, "degraded")
    expect_fresh(page, browsing, since=time.monotonic())
    expect_news(page, "while nobody was let in")


def test_a_session_that_ends_is_said_aloud_and_signing_in_elsewhere_is_enough(
    page: Page, run: Run, olga: User, browsing: Browsing
) -> None:
    browsing.problems.allow(r"Failed to load resource.*401")  # a panel may be fetched before the stream says so
    Session.objects.all().delete()
    expect_state(page, "signed-out")
    expect(page.get_by_role("alert")).to_have_text("Signed out. Updates have stopped.")
    page.locator("#words").fill("a long reason")
    note(run, "while signed out")
    time.sleep(1.5)
    expect(page.get_by_text("while signed out")).to_have_count(0)
    browsing.sign_in(page.context, olga)
    other = browsing.beside(page)
    expect_state(other, "live")
    expect_fresh(page, browsing, since=time.monotonic())
    expect_news(page, "while signed out")
    expect(page.locator("#words")).to_have_value("a long reason")
    page.get_by_role("button", name="Say").click()
    expect(page.locator("body")).to_have_text("said: a long reason")


def test_somebody_else_who_signs_in_gets_a_page_of_their_own(page: Page, run: Run, browsing: Browsing) -> None:
    browsing.problems.allow(r"Failed to load resource.*401")
    page.locator("#words").fill("not for other eyes")
    Session.objects.all().delete()
    expect_state(page, "signed-out")
    browsing.sign_in(page.context, make_person("otto", Role.VIEWER))
    expect_state(browsing.beside(page), "live")
    expect(page.locator("#words")).to_have_value("")
    expect_state(page, "live")


def test_a_panel_that_is_refused_says_signed_out_before_the_stream_does(
    page: Page, run: Run, browsing: Browsing
) -> None:
    browsing.problems.allow(r"Failed to load resource.*401")
    page.context.clear_cookies()
    note(run)
    expect_state(page, "signed-out", within_s=5.0)
    expect(page.locator("#panel")).to_contain_text("entries")


def test_a_tab_hidden_for_an_hour_holds_no_stream_and_is_fresh_when_it_is_looked_at(
    page: Page, run: Run, olga: User, web: WebProcess, browsing: Browsing
) -> None:
    page.clock.install()
    page.evaluate(SET_HIDDEN, True)
    expect_state(page, "paused")
    clock.shift(timedelta(hours=1))
    note(run, "an hour later")
    with ExitStack() as stack:  # its place is free
        streams = [stack.enter_context(Stream(web, session_cookie(olga))) for _ in range(MOST_STREAMS_OF_ONE)]
        assert [stream.status for stream in streams] == [200] * MOST_STREAMS_OF_ONE
    page.clock.fast_forward("01:00:00")
    expect(page.get_by_text("an hour later")).to_have_count(0)
    page.evaluate(SET_HIDDEN, False)
    expect_fresh(page, browsing, since=time.monotonic())
    expect_news(page, "an hour later")
    clock.shift(timedelta(hours=-1))


def test_where_no_stream_can_be_had_the_panels_are_fetched_every_10_s(
    page: Page, run: Run, olga: User, web: WebProcess, browsing: Browsing
) -> None:
    browsing.problems.allow(r"Failed to load resource.*503")
    page.evaluate(SET_HIDDEN, True)
    with ExitStack() as stack:
        for _ in range(MOST_STREAMS_OF_ONE):
            wait_for_place(lambda: stack.enter_context(Stream(web, session_cookie(olga))))
        page.evaluate(SET_HIDDEN, False)
        note(run, "without a stream")
        expect_news(page, "without a stream", within_s=15.0)
        expect_state(page, "polling")
        expect(page.locator("#live-chip b")).to_have_text("Every 10 s")
    expect_state(page, "live", within_s=10.0)


def test_a_panel_that_could_not_be_fetched_is_fetched_again(page: Page, run: Run, browsing: Browsing) -> None:
    browsing.problems.allow(r"Failed to load resource.*503")
    page.route("**/panel", lambda route: route.fulfill(status=503), times=1)
    note(run, "at the second try")
    expect_news(page, "at the second try")


def test_the_chip_breaks_no_rule_of_accessibility(page: Page, browsing: Browsing) -> None:
    check_axe(page, within="#live-chip")


def test_from_commit_to_screen(page: Page, run: Run, record_property: Callable[[str, Any], None]) -> None:
    """Measured by one clock: the commit here, the changed panel there."""
    page.evaluate(
        """() => { window.shown = []; new MutationObserver(() => shown.push(Date.now()))
             .observe(document.querySelector("#panel"), { subtree: true, childList: true, characterData: true }) }"""
    )
    took = []
    for number in range(9):
        page.evaluate("shown.length = 0")
        note(run, f"number {number}")
        committed = time.time() * 1000
        expect_news(page, f"number {number}")
        took.append(page.evaluate("shown.at(0)") - committed)
        time.sleep(1.05)  # a panel is fetched at most once a second
    median = statistics.median(took)
    record_property("median_ms", median)
    print(f"from commit to screen: median {median:.0f} ms, worst {max(took):.0f} ms")
    assert median < 300


def wait_for_place(enter: Callable[[], Stream]) -> None:
    """The tab's own place is free a moment after it left."""
    for _ in range(100):
        if enter().status == 200:
            return
        time.sleep(0.1)
    raise AssertionError("no place became free")


@contextmanager
def closed_database() -> Iterator[None]:
    """Nobody new gets in, and the listener is put out."""
    params = connection.get_connection_params()
    address = {key: params[key] for key in ("user", "password", "host", "port") if key in params}
    name = connection.settings_dict["NAME"]
    with psycopg.connect(**address, dbname="postgres", autocommit=True) as other:
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            end_listener()
            yield
        finally:
            other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
