"""A budget in a real browser: a limit that is raised in the admin, seen live, and each answer of a budget card."""

import re
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from playwright.sync_api import expect

from runs import course, lifecycle, steps
from runs.access import Role
from runs.engine.waits import wait_for_budget
from runs.errors import OverBudget
from runs.models import Approval, Budget, Run
from runs.states import StepKind
from tests import situations
from tests.browser.browsing import Browsing, check_axe, expect_live, take_picture
from tests.people import make_person

COSTS = {"next_call_usd_at_most": "0.6000", "prompt_usd_if_cached": "0.0021", "prompt_usd_after_a_pause": "0.0270"}


@pytest.fixture
def ada(transactional_db: None) -> User:
    return make_person("ada", Role.ADMIN, staff=True)


def short_run(by: User, *, percent: int | None = None) -> tuple[Run, Approval]:
    """A run whose next model call does not fit its budget, or takes a large share of it."""
    run = situations.start(by, usd="0.50" if percent is None else "1.00")
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
        short = OverBudget(dimension="usd", needed=Decimal("0.60"), left=Decimal("0.50"), run=run.pk, percent=percent)
        wait_for_budget(locked, step, short, costs=COSTS)
        course.rest(locked)
    run.refresh_from_db()
    return run, Approval.objects.get(run=run)


def test_a_limit_raised_in_the_admin_lets_the_run_go_on_and_the_page_shows_it_live(
    browsing: Browsing, ada: User
) -> None:
    run, _ = short_run(ada)
    page = browsing.open(f"/runs/{run.pk}", user=ada)
    expect(page.locator("main")).to_contain_text("needs more USD")
    expect_live(page)
    admin = browsing.beside(page, f"/admin/runs/budget/{run.pk}/change/")
    admin.locator("#id_usd_limit").fill("5")
    admin.locator("#id_reason").fill("worth it")
    admin.locator("input[name=_save]").click()
    expect(admin.locator(".messagelist")).to_contain_text("was changed successfully")
    expect(page.locator("main")).not_to_contain_text("needs more USD")
    expect(page.locator("#budgets")).to_contain_text("$5.00")
    run.refresh_from_db()
    assert run.state == "queued"


def test_each_answer_of_a_budget_card_does_what_it_says(browsing: Browsing, ada: User, tmp_path: Path) -> None:
    run, card = short_run(ada)
    page = browsing.open(f"/approvals/{card.pk}", user=ada)
    expect(page.locator("main")).to_contain_text("after a pause (cold cache)")
    check_axe(page, within="main")
    take_picture(page, tmp_path, "budget-light")
    for name, look in {"dark": {"theme": "dark"}, "phone": {"phone": True}}.items():
        other = browsing.open(f"/approvals/{card.pk}", user=ada, **look)  # type: ignore[arg-type]
        take_picture(other, tmp_path, f"budget-{name}")
        other.close()
    browsing.problems.allow("422")
    page.locator("#amount").fill("0.01")
    page.get_by_role("button", name="Grant it").click()
    expect(page.locator("main [role=alert]")).to_contain_text("Grant at least 0.10 USD")
    page.locator("#amount").fill("2.00")
    page.get_by_role("button", name="Grant it").click()
    expect(page.locator("main")).to_contain_text("Nothing is left to decide")
    run.refresh_from_db()
    assert (run.state, Budget.objects.get(pk=run.pk).usd_limit) == ("queued", Decimal("2.50"))

    shared, card = short_run(ada, percent=50)
    page.goto(f"/approvals/{card.pk}")
    take_picture(page, tmp_path, "share-light")
    page.get_by_role("button", name="Let it", exact=True).click()
    expect(page.locator("main")).to_contain_text("Nothing is left to decide")
    assert Budget.objects.get(pk=shared.pk).usd_limit == 1

    finishing, card = short_run(ada)
    page.goto(f"/approvals/{card.pk}")
    page.get_by_role("button", name="Let it finish").click()
    expect(page.locator("main")).to_contain_text("Nothing is left to decide")
    assert Budget.objects.get(pk=finishing.pk).finish_asked_at is not None

    stopped, card = short_run(ada)
    page.goto(f"/approvals/{card.pk}")
    page.locator("#why-stop").fill("too dear")
    page.get_by_role("button", name="Stop the run").click()
    expect(page.locator("main")).to_contain_text(re.compile("Nothing is left to decide|stopped", re.IGNORECASE))
    stopped.refresh_from_db()
    assert (stopped.state, stopped.end_reason) == ("stopped", "too dear")
