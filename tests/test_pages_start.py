"""Starting a run from its form: what was typed becomes what is started, once, with limits."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runs import operations
from runs.access import Role
from runs.models import JournalEntry, Run
from tests.page_tools import client_of, fields_of, read
from tests.people import approver, make_person, make_stranger, operator, viewer

__all__ = ["approver", "operator", "viewer"]

pytestmark = pytest.mark.django_db

TYPED = {
    "agent": "refund-desk",
    "goal": "Work off batch b7",
    "inputs": "batch=b7\r\n shop = harbour = pine ",
    "constraints": "Never on a Sunday.\r\n\r\nAsk first.",
    "usd": "1.50",
    "tokens": "",
    "calls": "30",
    "effects": "4",
    "working": "2h 30m",
    "steps": "80",
    "max_age": "1d 12h",
    "deadline": "2999-11-30T08:00",
    "labels": "shift=night",
}


def test_the_form_says_which_limits_apply(operator: User) -> None:
    words = read(client_of(operator).get("/runs/new"))
    assert "refund-desk claude-sonnet-5-5 (rehearsal) Inputs batch The batch of refund requests to work" in words
    assert "Limits Age 3 d Money $2.00 Steps 240" in words
    assert "refund keyed irreversible may ask a person" in words
    assert "stock-watch plain Python" in words


def test_what_was_typed_is_started_and_the_page_of_the_run_is_shown(operator: User) -> None:
    client = client_of(operator)
    response = client.post("/runs/new", TYPED)
    run = Run.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/runs/{run.pk}")
    assert (run.agent, run.goal, run.started_by) == ("refund-desk", "Work off batch b7", operator)
    assert run.inputs == {"batch": "b7", "shop": "harbour = pine"}
    assert run.constraints[-2:] == ["Never on a Sunday.", "Ask first."]
    assert run.labels == {"shift": "night"}
    assert run.max_age_s == 129_600
    budget = run.budget
    assert (budget.usd_limit, budget.steps_limit, budget.calls_limit) == (Decimal("1.5"), 80, 30)
    assert (budget.effects_limit, budget.working_limit_s) == (4, 9_000.0)
    assert run.deadline_at == datetime(2999, 11, 30, 8, tzinfo=UTC)
    assert JournalEntry.objects.filter(run=run, user=operator).exists()
    assert "Started." in read(client.get(response["Location"]))


def test_the_same_form_twice_starts_one_run(operator: User) -> None:
    client = client_of(operator)
    typed = TYPED | fields_of(client.get("/runs/new"), "/runs/new")
    assert typed["key"]
    first, second = client.post("/runs/new", typed), client.post("/runs/new", typed)
    assert first["Location"] == second["Location"]
    assert Run.objects.count() == 1
    assert client.post("/runs/new", typed | {"goal": "Something else"}).status_code == 422
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("agent", "nobody", "not one of the available choices"),
        ("goal", "  ", "required"),
        ("goal", "x" * 20_001, "at most 20000 characters"),
        ("inputs", "batch", "is no name=value"),
        ("usd", "-1", "greater than or equal to 0"),
        ("usd", "a lot", "Enter a number"),
        ("tokens", "1.5", "whole number"),
        ("steps", "9" * 30, "less than or equal to"),
        ("max_age", "soon", "Write a duration"),
        ("max_age", "0d", "Write a duration"),
        ("calls", "-1", "greater than or equal to 0"),
        ("effects", "x", "whole number"),
        ("working", "2 weeks", "Write a duration"),
        ("deadline", "soon", "valid date/time"),
        ("deadline", "2001-01-01T00:00", "has passed already"),
        ("labels", "=x", "is no name=value"),
    ],
)
def test_what_cannot_be_started_comes_back_as_typed_with_what_is_wrong(
    operator: User, field: str, value: str, said: str
) -> None:
    response = client_of(operator).post("/runs/new", TYPED | {field: value})
    assert response.status_code == 422
    assert said in read(response)
    assert not Run.objects.exists()
    if field != "goal":
        assert ">Work off batch b7</textarea>" in response.content.decode()


def test_a_switched_off_agent_is_not_started_and_says_why(operator: User) -> None:
    operations.engage_switch("agent:refund-desk", reason="duplicate refunds", by=operator)
    response = client_of(operator).post("/runs/new", TYPED)
    assert response.status_code == 409
    assert "duplicate refunds" in read(response)
    assert not Run.objects.exists()


def test_who_may_not_start_gets_no_form_and_starts_nothing(viewer: User, approver: User) -> None:
    for person, status in ((viewer, 403), (approver, 403), (make_stranger(), 404)):
        client = client_of(person)
        assert client.get("/runs/new").status_code == status
        assert client.post("/runs/new", TYPED).status_code == status
    assert Client().post("/runs/new", TYPED).status_code == 302
    other = client_of(make_person("noor", Role.OPERATOR, agents=("stock-watch",)))
    assert "refund-desk" not in read(other.get("/runs/new"))
    assert other.post("/runs/new", TYPED).status_code == 422
    assert not Run.objects.exists()


def test_a_nul_is_replaced_and_not_an_error(operator: User) -> None:
    response = client_of(operator).post("/runs/new", TYPED | {"inputs": "batch=a\x00b"})
    assert response.status_code in (302, 422)
