"""Deciding, stopping and starting in a real browser: by a click, by keys alone, without scripts, and two at once."""

import re
from typing import Literal

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from runs import operations
from runs.access import Role
from runs.approvals import Said
from runs.models import Approval, Decision, Run
from runs.states import ApprovalKind, Verdict
from tests import page_situations, situations
from tests.browser.browsing import Browsing, expect_live
from tests.people import make_person


@pytest.fixture
def ada(transactional_db: None) -> User:
    return make_person("ada", Role.ADMIN)


@pytest.fixture
def ben(transactional_db: None) -> User:
    return make_person("ben", Role.APPROVER)


def test_one_click_approves_and_the_next_card_is_open(browsing: Browsing, ada: User) -> None:
    first = situations.ask_approval(situations.start(ada), valid_for_s=600)
    second = situations.ask_approval(situations.start(ada), order="1002", valid_for_s=6_000)
    page = browsing.open("/approvals", user=ada)
    page.get_by_role("button", name="Approve Refund 420.00 of order 1001").click()
    expect(page.locator("main")).to_contain_text("1 card left to decide.")
    expect(page.locator("article h2")).to_have_text("Refund 420.00 of order 1002")
    assert page.url.endswith(f"/approvals/{second.card.pk}")
    assert Approval.objects.get(pk=first.card.pk).state == "approved"


# What a mouse would press at the place of the button that approves, as soon as a card is there: at once, as an impatient
# hand would. A press from outside comes too late on a busy machine.
PRESS_AT_ONCE = """addEventListener("DOMContentLoaded", () => requestAnimationFrame(() => {
    const button = document.querySelector(".decision-form button[value=approve]");
    if (!button) return;
    const place = button.getBoundingClientRect();
    const there = document.elementFromPoint(place.x + place.width / 2, place.y + place.height / 2);
    window.pressed = there.tagName;
    there.click();
}))"""


@pytest.mark.parametrize("reduced_motion", ["no-preference", "reduce"])
def test_the_second_of_two_clicks_decides_nothing_on_the_card_that_has_just_come(
    browsing: Browsing, ada: User, reduced_motion: Literal["no-preference", "reduce"]
) -> None:
    situations.ask_approval(situations.start(ada), valid_for_s=600)
    second = situations.ask_approval(situations.start(ada), order="1002", valid_for_s=6_000)
    page = browsing.open("/approvals", user=ada)
    page.emulate_media(reduced_motion=reduced_motion)
    first = page.get_by_role("button", name="Approve Refund 420.00 of order 1001")
    page.add_init_script(PRESS_AT_ONCE)
    first.click()
    approve = page.get_by_role("button", name="Approve Refund 420.00 of order 1002")
    expect(approve).to_be_visible()
    assert page.evaluate("window.pressed") not in ("BUTTON", None)
    expect(page.locator("article h2")).to_have_text("Refund 420.00 of order 1002")
    assert Approval.objects.get(pk=second.card.pk).state == "pending"
    # A moment later it is a decision like any other.
    approve.click()
    expect(page.locator("main")).to_contain_text("Nothing is left to decide.")
    assert Approval.objects.get(pk=second.card.pk).state == "approved"


def test_a_decision_of_somebody_else_shows_on_the_open_card_and_in_the_list(
    browsing: Browsing, ada: User, ben: User
) -> None:
    asking = situations.ask_approval(situations.start(ada))
    page = browsing.open(f"/approvals/{asking.card.pk}", user=ada)
    expect_live(page)
    page.locator("#comment").fill("half typed")
    operations.decide(asking.card.pk, Said(verdict=Verdict.REJECT, version=1, comment="no"), by=ben)
    expect(page.locator("#card-news")).to_contain_text("This card has changed since you opened it. ben rejected")
    expect(page.locator("#nav")).not_to_contain_text("to decide")
    # What somebody is typing is never overwritten, and their click changes nothing any more.
    expect(page.locator("#comment")).to_have_value("half typed")
    # Seen also by who has scrolled down to the buttons.
    page.set_viewport_size({"width": 1280, "height": 480})
    page.mouse.wheel(0, 10_000)
    expect(page.locator(".decision-head")).not_to_be_in_viewport()
    expect(page.locator("#card-news .note")).to_be_in_viewport(ratio=1)
    browsing.problems.allow("409")
    page.get_by_role("button", name="Approve Refund 420.00 of order 1001").click()
    expect(page.locator("main [role=alert]")).to_contain_text("already rejected by ben")
    assert Decision.objects.count() == 1


def test_two_people_on_one_card_make_one_decision(browsing: Browsing, ada: User, ben: User) -> None:
    asking = situations.ask_approval(situations.start(ada))
    browsing.problems.allow("409")
    pages = [
        browsing.open(f"/approvals/{asking.card.pk}", user=person, java_script_enabled=False) for person in (ada, ben)
    ]
    for page in pages:
        # Without waiting for the answer: both are under way at once.
        page.locator("#decide-form button[value=approve]").click(no_wait_after=True)
    for page in pages:
        expect(page.locator("main")).to_contain_text(re.compile("approved", re.IGNORECASE))
    assert Decision.objects.count() == 1
    texts = [page.locator("main").inner_text() for page in pages]
    assert sum("your decision changed nothing" in text for text in texts) == 1


def test_keys_alone_find_edit_and_approve(browsing: Browsing, ada: User) -> None:
    asking = situations.ask_approval(situations.start(ada))
    page = browsing.open("/approvals", user=ada)
    edit = page.get_by_role("button", name="Edit…").first
    edit.focus()
    page.keyboard.press("Enter")
    amount = page.locator('#edit-dialog input[name="arg.amount"]')
    expect(amount).to_be_visible()
    amount.focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("150")
    page.keyboard.press("Control+Enter")
    expect(page.locator("main")).to_contain_text("Approved with changes")
    card = Approval.objects.get(pk=asking.card.pk)
    assert (card.arguments or {})["amount"] == "150.00"


def test_keys_move_and_never_act(browsing: Browsing, ada: User) -> None:
    runs = [situations.start(ada, goal=f"Goal {n}").pk for n in range(3)][::-1]
    page = browsing.open("/runs", user=ada)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(f"#run-{runs[1]} th a")).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator(f"#run-{runs[0]} th a")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{browsing.web.url}/runs/{runs[0]}")
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type(f"j{runs[1]}")
    expect(page.locator("#find")).to_have_value(f"j{runs[1]}")
    page.keyboard.press("Control+a")
    page.keyboard.type(str(runs[1]))
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{browsing.web.url}/runs/{runs[1]}")
    page.get_by_role("button", name="account").click()
    page.get_by_role("button", name="Keys").click()
    page.keyboard.press("Escape")
    page.locator("main").click(position={"x": 2, "y": 2})
    page.keyboard.press("/")
    expect(page.locator("#find")).not_to_be_focused()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_run_is_started_and_stopped_with_a_reason(browsing: Browsing, ada: User, scripts: bool) -> None:
    page = browsing.open("/runs/new", user=ada, java_script_enabled=scripts)
    page.get_by_label("Goal").fill("Work off batch b7")
    page.get_by_label("Inputs").fill("batch=b7")
    page.get_by_role("button", name="Start the run").click()
    expect(page.locator("h1")).to_have_text("Work off batch b7")
    run = Run.objects.get()
    page.get_by_role("button", name="Stop…").first.click()
    page.locator("#stop-dialog").get_by_label("Reason").fill("wrong batch")
    page.get_by_role("button", name="Stop the run").click()
    expect(page.locator("main")).to_contain_text("Stopped: wrong batch")
    run.refresh_from_db()
    assert run.state == "stopped"


def test_what_a_card_asks_for_comes_before_who_is_at_it_and_has_room(browsing: Browsing, ada: User) -> None:
    page = browsing.open(user=ada)
    for kind in set(ApprovalKind) - {ApprovalKind.APPROVAL}:  # its buttons stay in sight, whatever stands above them
        page.goto(f"/approvals/{page_situations.make_card(kind, ada).pk}")
        below = page.locator("form.claim").first.bounding_box()
        answers = page.locator("form.verdict, form[aria-label='Answer with one of the offers']").all()
        assert answers
        for answer in answers:
            box = answer.bounding_box()
            assert box is not None
            assert below is not None
            assert box["y"] < below["y"], kind
        for field in page.locator(".verdict-do .input").all():
            box = field.bounding_box()
            assert box is not None
            assert box["width"] > 190, kind


def test_a_phone_decides_with_two_large_buttons(browsing: Browsing, ada: User) -> None:
    asking = situations.ask_approval(situations.start(ada))
    page = browsing.open("/approvals", user=ada, phone=True)
    bar = page.locator(".sticky-bar")
    for button in bar.get_by_role("button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44
    bar.get_by_role("button", name="Reject…").click()
    page.locator("#reject-why").fill("not back yet")
    page.locator("#reject-dialog").get_by_role("button", name="Reject").click()
    expect(page.locator("main")).to_contain_text("Nothing needs you")
    assert Approval.objects.get(pk=asking.card.pk).state == "rejected"


def test_rows_stay_where_they_are_and_new_runs_wait_to_be_shown(browsing: Browsing, ada: User) -> None:
    run = situations.start(ada, goal="The first")
    page = browsing.open("/runs", user=ada)
    expect_live(page)
    situations.start(ada, goal="The second")
    expect(page.get_by_role("link", name="1 new run, show")).to_be_visible()
    expect(page.locator("#run-rows tbody tr")).to_have_count(1)
    operations.stop_run(run.pk, reason="wrong batch", by=ada)
    expect(page.locator(f"#run-{run.pk}")).to_contain_text("wrong batch")
    page.get_by_role("link", name="1 new run, show").click()
    expect(page.locator("#run-rows tbody tr")).to_have_count(2)


def test_a_run_page_follows_its_run_and_closes_no_fold_that_somebody_opened(browsing: Browsing, ada: User) -> None:
    run = situations.start(ada)
    fact = page_situations.record_fact(run, value={"note": "long " * 60})
    page = browsing.open(f"/runs/{run.pk}?tab=facts", user=ada)
    expect_live(page)
    page.locator(f"#value-{fact.pk} summary").click()
    operations.pause_run(run.pk, reason="looking", by=ada)
    expect(page.locator("#run-head")).to_contain_text("Paused: looking")
    expect(page.locator(f"#value-{fact.pk}")).to_have_attribute("open", "")


def test_what_is_waiting_is_said_once_to_who_cannot_see(browsing: Browsing, ada: User) -> None:
    page = browsing.open("/runs", user=ada)
    expect_live(page)
    situations.ask_approval(situations.start(ada))
    expect(page.locator("#say")).to_have_text("Approvals: 1 to decide, 1 new")
