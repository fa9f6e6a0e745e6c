"""The limits of a run on its page: every dimension shown, and set by whoever may."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User

from runs import clock, operations
from runs.engine.sweep import sweep_once
from runs.models import Budget, JournalEntry, Run
from runs.states import RunState
from tests import situations
from tests.page_tools import client_of, fields_of, read
from tests.people import approver, operator, viewer

__all__ = ["approver", "operator", "viewer"]
pytestmark = pytest.mark.django_db


def send(user: User, run: Run, **typed: str) -> tuple[int, str]:
    client = client_of(user)
    known = {"version": str(Budget.objects.get(pk=run.pk).version), "reason": "worth it"}
    response = client.post(f"/runs/{run.pk}/limits", known | typed)
    return response.status_code, read(response)


def test_the_meters_have_every_dimension_that_is_limited_or_used(operator: User, viewer: User) -> None:
    deadline = clock.now().replace(year=clock.now().year + 1)
    run = situations.start(
        operator, usd="2.00", tokens=5000, calls=40, effects=7, steps=90, working_s=7200.0, deadline_at=deadline
    )
    words = read(client_of(viewer).get(f"/runs/{run.pk}"))
    for said in (
        "of $2.00",
        "0 of 5,000",
        "0 of 90",
        "Model calls 0 of 40",
        "Effects 0 of 7",
        "Working time 0 s of 2 h",
    ):
        assert said in words
    assert f"Deadline {deadline.day} " in words
    assert "then it expires" in words
    assert "limits-dialog" not in client_of(viewer).get(f"/runs/{run.pk}").content.decode()


def test_the_form_shows_them_as_they_are_and_sets_them_all(operator: User) -> None:
    run = situations.start(operator, usd="2.00", working_s=5400.0)
    client = client_of(operator)
    page = client.get(f"/runs/{run.pk}")
    text = page.content.decode()
    assert 'id="limit-usd" name="usd" value="2.00"' in text
    assert 'id="limit-working" name="working" value="90m"' in text
    typed = fields_of(page, f"/runs/{run.pk}/limits") | {
        "usd": "3.5",
        "tokens": "9000",
        "calls": "12",
        "effects": "3",
        "steps": "",
        "working": "2h",
        "reason": "a bigger batch",
    }
    assert client.post(f"/runs/{run.pk}/limits", typed)["Location"] == f"/runs/{run.pk}"
    budget = Budget.objects.get(pk=run.pk)
    assert (budget.usd_limit, budget.tokens_limit, budget.calls_limit) == (Decimal("3.5"), 9000, 12)
    assert (budget.effects_limit, budget.steps_limit, budget.working_limit_s) == (3, None, 7200.0)
    entry = JournalEntry.objects.get(run=run, kind="budget.limits_set")
    assert (entry.user, entry.why) == (operator, "a bigger batch")
    # The form that was opened before knows other limits than those that stand now.
    assert client.post(f"/runs/{run.pk}/limits", typed).status_code == 409


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [
        ({"usd": "-1"}, 422, "greater than or equal to 0"),
        ({"calls": "1.5"}, 422, "whole number"),
        ({"working": "soon"}, 422, "Write a duration"),
        ({"usd": "1", "reason": " "}, 422, "needs a reason"),
        ({"usd": "", "steps": "", "tokens": ""}, 422, "limit"),
        ({"usd": "1", "version": "0"}, 422, "does not say which limits"),
        ({"usd": "1", "version": "99"}, 409, "was changed since you opened it"),
    ],
)
def test_what_cannot_be_set_is_said_in_the_open_form_and_changes_nothing(
    operator: User, typed: dict[str, str], status: int, said: str
) -> None:
    run = situations.start(operator, usd="2.00")
    before = Budget.objects.values().get(pk=run.pk)
    answered, words = send(operator, run, **typed)
    assert (answered, said in words) == (status, True), words
    assert Budget.objects.values().get(pk=run.pk) == before


def test_a_waiting_run_goes_on_by_itself(operator: User) -> None:
    card = situations.ask_budget(run := situations.start(operator, usd="1.00"))
    status, words = send(operator, run, usd="4")
    run.refresh_from_db()
    card.refresh_from_db()
    assert (status, run.state, card.state) == (302, "queued", "void"), words


def test_who_may_not_set_limits_has_no_form(operator: User, viewer: User, approver: User) -> None:
    run = situations.start(operator, usd="2.00")
    for user in (viewer, approver):
        assert send(user, run, usd="9")[0] == 403
        assert "limits-dialog" not in client_of(user).get(f"/runs/{run.pk}").content.decode()
    operations.stop_run(run.pk, reason="enough", by=operator)
    assert "limits-dialog" not in client_of(operator).get(f"/runs/{run.pk}").content.decode()


def test_the_end_of_a_run_is_moved_there_too_and_a_stale_form_moves_nothing(operator: User) -> None:
    now = clock.now()
    run = situations.start(operator, usd="2.00", max_age_s=7200.0, deadline_at=now + timedelta(days=1, seconds=7))
    client = client_of(operator)
    page = client.get(f"/runs/{run.pk}")
    shown = dict(re.findall(r'id="limit-\w+" name="(\w+)" value="([^"]*)"', page.content.decode()))
    assert (shown["max_age"], shown["deadline"]) == ("2h", f"{run.deadline_at:%Y-%m-%dT%H:%M}")
    seen = fields_of(page, f"/runs/{run.pk}/limits") | shown | {"reason": "the shop is closed until Monday"}
    assert client.post(f"/runs/{run.pk}/limits", seen).status_code == 302, "nothing is changed by saying what is so"
    assert not JournalEntry.objects.filter(run=run, kind="run.ends_set").exists()
    client.post(f"/runs/{run.pk}/limits", seen | {"max_age": "3d"})
    run.refresh_from_db()
    assert run.expires_at == run.created_at + timedelta(days=3)
    assert run.deadline_at == now + timedelta(days=1, seconds=7), "a field without seconds takes none away"
    entry = JournalEntry.objects.get(run=run, kind="run.ends_set")
    assert (entry.before or {})["max_age_s"] == 7200.0
    assert (entry.after or {})["max_age_s"] == 259_200.0
    assert entry.why == seen["reason"]
    assert client.post(f"/runs/{run.pk}/limits", seen | {"max_age": "9d"}).status_code == 409
    status, words = send(operator, run, usd="2.00", max_age="", deadline=f"{now:%Y-%m-%dT%H:%M}")
    assert status == 422
    assert "would have expired already" in words
    send(operator, run, usd="2.00", max_age="", deadline=f"{now + timedelta(days=2):%Y-%m-%dT%H:%M}")
    assert not Run.objects.filter(pk=run.pk, expires_at__isnull=False).exists()
    clock.shift(timedelta(days=1, hours=1))
    assert sweep_once() == 0, "the old deadline holds no more"
    clock.shift(timedelta(days=1))
    sweep_once()
    assert Run.objects.get(pk=run.pk).state == RunState.EXPIRED
