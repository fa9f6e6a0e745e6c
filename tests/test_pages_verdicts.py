"""What a card lets people do beyond yes and no: undo, ask for more, claim, decide by two, approve together; on every route."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction

from runs import approvals, course, facts, lifecycle, operations
from runs.access import Role
from runs.agents import get_agent
from runs.approvals import Replaced, Said
from runs.journal import RUNTIME
from runs.models import Approval, Decision
from runs.states import ApprovalKind, Verdict
from tests import page_situations, situations
from tests.conftest import Manage
from tests.page_tools import client_of, fields_of, read
from tests.people import api_of, approver, make_person, make_stranger, operator, viewer
from tests.writers import ask, plan_act, record, start

__all__ = ["approver", "operator", "viewer"]

pytestmark = pytest.mark.django_db


def asking_of(by: User, **given: Any) -> situations.Asking:
    return situations.ask_approval(situations.start(by), **given)


def say(verdict: str, version: int = 1, **more: str) -> dict[str, str]:
    return {"verdict": verdict, "version": str(version)} | more


def test_a_decision_on_a_page_can_be_undone_while_it_is_held(settings: Any, operator: User, approver: User) -> None:
    settings.UNDO_S = 10.0
    asking, other = asking_of(operator), asking_of(operator, order="1002")
    client = client_of(approver)
    place = f"/approvals/{asking.card.pk}/decision"
    response = client.post(place, say("approve"))
    assert response["Location"] == f"/approvals/{other.card.pk}?undo={asking.card.pk}"
    page = client.get(response["Location"])
    assert "Nothing has been done yet." in read(page)
    assert f'class="ap" href="/approvals/{asking.card.pk}"' not in page.content.decode()
    assert "anna approved it; it takes effect in" in read(client.get(f"/approvals/{asking.card.pk}"))
    berta = client_of(make_person("berta", Role.APPROVER))
    assert "Undo" not in read(berta.get(f"/approvals/{asking.card.pk}"))
    assert berta.post(place, say("undo", 2)).status_code == 409
    response = client.post(place, fields_of(page, place) | {"verdict": "undo"})
    assert response["Location"] == f"/approvals/{asking.card.pk}"
    assert "took it back" in read(client.get(response["Location"]))
    assert Approval.objects.get(pk=asking.card.pk).effective_at is None


def test_over_the_api_a_decision_takes_effect_at_once(settings: Any, operator: User, approver: User) -> None:
    settings.UNDO_S = 10.0
    card = asking_of(operator).card
    answer = api_of(approver).post(f"/approvals/{card.pk}/decision", {"version": 1, "verdict": "approve"}).json()
    assert (answer["state"], answer["effective_at"], answer["approved_by"]) == ("approved", None, ["anna"])


def test_asking_for_more_leaves_the_card_open_and_shows_what_was_asked(operator: User, approver: User) -> None:
    card = asking_of(operator).card
    client = client_of(approver)
    assert client.post(f"/approvals/{card.pk}/decision", say("explain")).status_code == 422
    response = client.post(f"/approvals/{card.pk}/decision", say("explain", comment="Was it paid twice?"))
    assert response["Location"] == f"/approvals/{card.pk}"
    words = read(client.get(response["Location"]))
    assert "anna: Was it paid twice?" in words
    assert "It has not answered yet." in words
    with transaction.atomic():
        lifecycle.lock(card.run_id)
        approvals.explain(approvals.lock(card.pk), "Yes:\u202e twice", actor=RUNTIME)
    page = client.get(f"/approvals/{card.pk}")
    assert "Yes:\\u202e twice" in read(page)
    assert fields_of(page, f"/approvals/{card.pk}/decision")["version"] == "3"
    assert api_of(approver).get(f"/approvals/{card.pk}").json()["explained"][0]["text"] == "Yes:\u202e twice"


def test_what_is_different_from_the_card_before_stands_side_by_side(operator: User, approver: User) -> None:
    old = asking_of(operator)
    with transaction.atomic():
        run = lifecycle.lock(old.run.pk)
        approvals.void(approvals.lock(old.card.pk), why="order.1001 changed")
        new = approvals.ask(
            run,
            ApprovalKind.APPROVAL,
            title="Refund it",
            step=old.step,
            arguments=old.card.arguments,
            replaces=Replaced(
                approval=old.card.pk,
                changes=[{"what": "argument", "name": "amount", "old": "420.00", "new": "42\u200b0.00"}],
            ),
        )
        course.rest(run)
    words = read(client_of(approver).get(f"/approvals/{new.pk}"))
    assert f"approval {old.card.pk} , void now" in words
    assert "amount 420.00 42\\u200b0.00" in words
    assert f"It was asked again: approval {new.pk}" in read(client_of(approver).get(f"/approvals/{old.card.pk}"))


def test_claimed_by_one_it_is_taken_over_before_another_decides(operator: User, approver: User, viewer: User) -> None:
    card = asking_of(operator).card
    anna, berta = client_of(approver), client_of(make_person("berta", Role.APPROVER))
    place = f"/approvals/{card.pk}"
    assert anna.post(f"{place}/claim").status_code == 302
    assert "You are at it; others can’t decide it meanwhile." in read(anna.get(place))
    words = read(berta.get(place))
    assert "anna is at it. To decide, take it over first." in words
    refused = berta.post(f"{place}/decision", say("approve"))
    assert (refused.status_code, Decision.objects.count()) == (409, 0)
    assert "anna is at this card." in read(refused)
    assert berta.post(f"{place}/claim").status_code == 302
    assert anna.post(f"{place}/release").status_code == 409
    assert berta.post(f"{place}/release").status_code == 302
    assert anna.post(f"{place}/decision", say("approve")).status_code == 302
    for act in ("claim", "release"):
        assert anna.get(f"{place}/{act}").status_code == 405
        assert client_of(viewer).post(f"{place}/{act}").status_code == 403
        assert client_of(make_stranger(act)).post(f"{place}/{act}").status_code == 404
        assert anna.post(f"{place}/{act}").status_code == 409
    assert api_of(approver).post(f"{place}/claim").status_code == 409


def test_a_card_for_a_group_says_so_to_others_and_takes_nothing_from_them(operator: User, approver: User) -> None:
    run = situations.start(operator)
    tool = get_agent(situations.AGENT).tool("refund")
    assert tool is not None
    card = ask(run, plan_act(run, tool, order="1", amount="5"), groups=["finance"], needed=2)
    client = client_of(approver)
    words = read(client.get(f"/approvals/{card.pk}"))
    assert "This card is for finance." in words
    assert "2 different people; 2 more" in words
    assert client.post(f"/approvals/{card.pk}/decision", say("approve")).status_code == 403
    approver.groups.add(Group.objects.create(name="finance"))
    client.post(f"/approvals/{card.pk}/decision", say("approve"))
    assert "anna approved; 1 more" in read(client.get(f"/approvals/{card.pk}"))


def test_a_ready_reason_is_as_good_as_a_typed_one(operator: User, approver: User) -> None:
    card = asking_of(operator).card
    client_of(approver).post(f"/approvals/{card.pk}/decision", say("reject", ready="Too much"))
    assert Decision.objects.get().comment == "Too much"


def test_an_escalation_is_agreed_to_or_not(operator: User, approver: User) -> None:
    card = page_situations.make_card(ApprovalKind.ESCALATION, operator)
    client = client_of(approver)
    assert "Keep to what was stated" in read(client.get(f"/approvals/{card.pk}"))
    client.post(f"/approvals/{card.pk}/decision", say("reject", comment="no"))
    assert Approval.objects.get(pk=card.pk).state == "rejected"


def test_what_is_of_low_risk_is_approved_together_and_tells_each_result(
    operator: User, approver: User, viewer: User
) -> None:
    tool = get_agent("scripted").tool("note_request")
    assert tool is not None
    cards = []
    for number in (1, 2, 3):
        run = start(operator)
        fact = record(run, f"order.{number}", {"paid": "5"}, age_s=90.0 if number == 3 else 0.0)
        step = plan_act(run, tool, request=f"r{number}", order=str(number))
        cards.append(ask(run, step, facts=facts.shown(facts.judge(run.pk, [fact.name]).values())))
    high = asking_of(operator).card
    facts_now = client_of(approver).get("/approvals/together")
    assert read(facts_now).count("May it?") >= 2
    sent = {"card": [f"{card.pk}.1" for card in [*cards, high]], "comment": "seen"}
    told = client_of(approver).post("/approvals/together/approve", sent)
    assert "cannot be undone is approved alone" in read(told)
    states = [Approval.objects.get(pk=card.pk).state for card in [*cards, high]]
    assert states == ["approved", "approved", "approved", "pending"]
    assert client_of(viewer).post("/approvals/together/approve", sent).status_code == 403
    assert client_of(make_stranger()).get("/approvals/together").status_code == 404
    body = {"approvals": [{"approval": high.pk, "version": 1}]}
    assert "approved alone" in api_of(approver).post("/approvals/batch", body).json()["items"][0]["refused"]


def test_what_is_to_be_looked_at_alone_leaves_no_less_to_approve_together(
    operator: User, approver: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.views.approvals.INBOX_SHOWN", 2)
    alone = [asking_of(operator, order=order, valid_for_s=600.0).card for order in ("1001", "1002", "1003")]
    tool = get_agent("scripted").tool("note_request")
    assert tool is not None
    run = start(operator)
    steps = [plan_act(run, tool, request=f"r{number}", order=str(number)) for number in range(3)]
    low = [ask(run, step, valid_for_s=7200.0 * (number + 1)) for number, step in enumerate(steps)]
    page = client_of(approver).get("/approvals/together").content.decode()
    assert [card.pk for card in [*alone, *low] if f'value="{card.pk}.1"' in page] == [card.pk for card in low[:2]]


@pytest.mark.django_db(transaction=True)
def test_the_command_line_asks_for_more_approves_and_edits(manage: Manage) -> None:
    ana = make_person("ana", Role.OPERATOR, Role.APPROVER)
    edited, asked = asking_of(ana), asking_of(ana, order="1002")
    more = ["--comment", "why?", "--as", "ana", "--json"]
    done = manage("decide", str(asked.card.pk), "explain", *more)
    assert json.loads(done.stdout)["explained"][0]["question"] == "why?"
    arguments = json.dumps({"order": "1001", "amount": "150.00"})
    done = manage("decide", str(edited.card.pk), "edit", "--arguments", arguments, "--as", "ana", "--json")
    assert json.loads(done.stdout)["arguments"] == {"order": "1001", "amount": "150.00", "memo": ""}
    operations.decide(asked.card.pk, Said(verdict=Verdict.APPROVE), by=ana, hold_s=60.0)
    done = manage("decide", str(asked.card.pk), "undo", "--as", "ana", "--json")
    assert json.loads(done.stdout)["effective_at"] is None
