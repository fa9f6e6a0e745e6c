"""Cards over the API: read with their facts, decided once and only as they were shown."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import clock, facts
from runs.models import Decision, JournalEntry
from tests import situations
from tests.people import api_of, approver, error_of, operator

__all__ = ["approver", "operator"]

pytestmark = pytest.mark.django_db

FIELDS = [
    "id",
    "version",
    "run",
    "step",
    "kind",
    "title",
    "tool",
    "arguments",
    "digest",
    "because",
    "facts",
    "verdicts",
    "expires_at",
    "on_expiry",
    "state",
    "decisions",
]


def test_a_card_shows_the_exact_arguments_and_the_facts_behind_them(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    card = api_of(approver).get(f"/approvals/{asking.card.pk}").json()
    assert set(FIELDS) <= set(card)
    assert card["arguments"] == {"order": "1001", "amount": "420.00", "memo": ""}
    assert len(card["digest"]) == 64
    assert card["verdicts"] == ["approve", "edit", "reject", "respond", "explain"]
    fact = card["facts"][0]
    assert (fact["name"], fact["value"], fact["state"], fact["changed"]) == (
        "order.1001",
        {"paid": "420.00"},
        "fresh",
        False,
    )
    clock.shift(timedelta(seconds=901))
    stale = api_of(approver).get(f"/approvals/{asking.card.pk}").json()["facts"][0]
    assert stale["state"] == "stale"
    assert stale["age_s"] > 900


def test_a_fact_that_changed_since_is_marked(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    with transaction.atomic():
        facts.check_changed(asking.fact, {"paid": "0.00"}, began_at=clock.now(), step=asking.step.pk)
    fact = api_of(approver).get(f"/approvals/{asking.card.pk}").json()["facts"][0]
    assert fact["changed"] is True
    assert fact["value"] == {"paid": "420.00"}


def test_cards_are_listed_by_state_and_agent(operator: User, approver: User) -> None:
    first = situations.ask_approval(situations.start(operator))
    second = situations.ask_approval(situations.start(operator))
    api = api_of(approver)
    api.post(f"/approvals/{first.card.pk}/decision", {"version": 1, "verdict": "reject", "comment": "no"})

    def found(**query: Any) -> list[int]:
        return [card["id"] for card in api.get("/approvals", **query).json()["items"]]

    assert found() == [first.card.pk, second.card.pk]
    assert found(state="pending") == [second.card.pk]
    assert found(state="rejected,pending") == [first.card.pk, second.card.pk]
    assert found(state="pending", agent="refund-desk") == [second.card.pk]
    assert found(agent="other") == []
    assert api.get("/approvals", state="maybe").status_code == 400
    page = api.get("/approvals", limit=1).json()
    assert [card["id"] for card in api.get("/approvals", after=page["next"]).json()["items"]] == [second.card.pk]


def test_a_card_is_approved_once_and_the_second_is_told_who_did_it(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    api, path = api_of(approver), f"/approvals/{asking.card.pk}/decision"
    response = api.post(path, {"version": 1, "verdict": "approve", "comment": "checked"})
    assert response.status_code == 200, response.content
    card = response.json()
    assert (card["state"], card["verdicts"]) == ("approved", [])
    assert [(d["by"], d["verdict"], d["comment"]) for d in card["decisions"]] == [("anna", "approve", "checked")]
    assert api.get(f"/runs/{asking.run.pk}").json()["state"] == "queued"
    late = api.post(path, {"version": 1, "verdict": "reject"})
    assert late.status_code == 409
    assert error_of(late)["code"] == "already_decided"
    assert "by anna" in error_of(late)["message"]
    assert late.json()["approval"]["state"] == "approved"
    assert Decision.objects.count() == 1
    assert JournalEntry.objects.filter(kind="approval.decision_refused").count() == 1


def test_another_version_is_refused_with_the_fresh_card(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    response = api_of(approver).post(f"/approvals/{asking.card.pk}/decision", {"version": 7, "verdict": "approve"})
    assert response.status_code == 409
    assert error_of(response)["code"] == "another_version"
    assert response.json()["approval"]["version"] == 1
    assert not Decision.objects.exists()


def test_an_edit_is_validated_and_becomes_what_runs(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    api, path = api_of(approver), f"/approvals/{asking.card.pk}/decision"
    wrong = api.post(path, {"version": 1, "verdict": "edit", "arguments": {"order": "1001"}})
    assert wrong.status_code == 400
    assert error_of(wrong)["code"] == "bad_arguments"
    edited = {"order": "1001", "amount": "150"}
    card = api.post(path, {"version": 1, "verdict": "edit", "arguments": edited}).json()
    assert card["arguments"] == {"order": "1001", "amount": "150.00", "memo": ""}
    step = api.get(f"/runs/{asking.run.pk}/steps").json()["items"][0]
    assert step["asked"]["amount"] == "420.00"
    assert step["arguments"]["amount"] == "150.00"


def test_a_question_is_answered(operator: User, approver: User) -> None:
    card = situations.ask_question(situations.start(operator))
    api, path = api_of(approver), f"/approvals/{card.pk}/decision"
    assert api.post(path, {"version": 1, "verdict": "respond"}).status_code == 400
    response = api.post(path, {"version": 1, "verdict": "respond", "answer": "b2"})
    assert response.json()["state"] == "answered"
    assert api.get(f"/runs/{card.run_id}/steps").json()["items"][0]["result"] == {"answer": "b2"}


def test_a_budget_card_grants_more(operator: User, approver: User) -> None:
    run = situations.start(operator, usd="1.00")
    card = situations.ask_budget(run)
    api, path = api_of(approver), f"/approvals/{card.pk}/decision"
    for grant in (None, {}, {"usd": "-1"}, {"usd": "1e300"}, {"tokens": 1.5}, {"euro": "1"}):
        response = api.post(path, {"version": 1, "verdict": "grant", "grant": grant})
        assert response.status_code == 400, (grant, response.content)
    response = api.post(path, {"version": 1, "verdict": "grant", "grant": {"usd": "0.50"}})
    assert response.json()["state"] == "answered", response.content
    assert api.get(f"/runs/{run.pk}").json()["budget"]["limits"]["usd"] == "1.50"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"verdict": "approve"},
        {"version": 1, "verdict": "perhaps"},
        {"version": 0, "verdict": "approve"},
        {"version": 2**40, "verdict": "approve"},
        {"version": 1, "verdict": "grant"},
        {"version": 1, "verdict": "approve", "extra": True},
        {"version": 1, "verdict": "edit", "arguments": []},
        {"version": 1, "verdict": "edit"},
    ],
)
def test_a_decision_that_cannot_be_used_decides_nothing(operator: User, approver: User, body: dict[str, Any]) -> None:
    asking = situations.ask_approval(situations.start(operator))
    api = api_of(approver)
    assert api.post(f"/approvals/{asking.card.pk}/decision", body).status_code == 400
    assert api.get(f"/approvals/{asking.card.pk}").json()["state"] == "pending"
    assert not Decision.objects.exists()


@pytest.mark.parametrize("number", ["0", "99999999999999999999999", "abc", "9223372036854775807"])
def test_a_card_that_cannot_be_there_is_not_found(approver: User, number: str) -> None:
    api = api_of(approver)
    assert api.get(f"/approvals/{number}").status_code == 404
    assert api.post(f"/approvals/{number}/decision", {"version": 1, "verdict": "approve"}).status_code == 404


def test_a_card_is_never_decided_by_a_get(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    response = api_of(approver).get(f"/approvals/{asking.card.pk}/decision", version=1, verdict="approve")
    assert response.status_code == 405
    assert response["Allow"] == "POST"
    assert error_of(response)["code"] == "method_not_allowed"
    assert not Decision.objects.exists()
