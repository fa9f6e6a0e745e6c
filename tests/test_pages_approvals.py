"""Cards on pages: complete, decided by one route, once, and only as they were shown."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from runs import clock, facts, operations
from runs.access import Role
from runs.approvals import Said
from runs.models import Approval, Decision, JournalEntry, Run
from runs.states import ApprovalKind, Verdict
from tests import page_situations, situations
from tests.page_tools import client_of, fields_of, read
from tests.people import approver, make_person, make_stranger, operator, viewer

__all__ = ["approver", "operator", "viewer"]

pytestmark = pytest.mark.django_db


def ask(by: User, **given: Any) -> situations.Asking:
    return situations.ask_approval(situations.start(by), **given)


def form(card: Approval, verdict: str, **more: str) -> dict[str, str]:
    return {"version": str(card.version), "verdict": verdict} | more


def test_a_card_shows_what_will_run_exactly_why_it_is_asked_and_on_what_it_rests(
    operator: User, approver: User
) -> None:
    asking = ask(operator)
    words = read(client_of(approver).get(f"/approvals/{asking.card.pk}"))
    for expected in (
        "Refund 420.00 of order 1001",
        "amount 420.00 is above 200",
        "tool refund keyed: the receiver honours the key",
        "order 1001",
        "amount 420.00",
        "irreversible",
        "What the agent says it was paid twice",
        'Fresh {"paid": "420.00"} order.1001 · read_order',
        "of 15 min",
        "you are asked again; nothing runs until someone decides",
        "Approve Refund 420.00 of order 1001",
    ):
        assert expected in words, expected


def test_what_is_established_is_told_in_words_one_by_one(operator: User, approver: User) -> None:
    asking = ask(operator)
    told = {"steps_done": 12, "done_so_far": ["step 16: refund order 7"], "facts": {"order.7": {"paid": "9.00"}}}
    Approval.objects.filter(pk=asking.card.pk).update(evidence={"established": told})
    words = read(client_of(approver).get(f"/approvals/{asking.card.pk}"))
    for expected in ("steps done 12", "done so far step 16: refund order 7", 'facts {"order.7": {"paid": "9.00"}}'):
        assert expected in words, expected
    assert "established" not in words
    assert "steps_done" not in words


def test_arguments_stand_in_the_order_of_the_call_and_empty_ones_too(operator: User, approver: User) -> None:
    asking = ask(operator)
    words = read(client_of(approver).get(f"/approvals/{asking.card.pk}"))
    assert "order 1001 amount 420.00 memo (empty)" in words


def test_a_fact_that_aged_or_changed_is_marked_before_anybody_presses_a_button(operator: User, approver: User) -> None:
    asking = ask(operator, valid_for_s=86_400)
    client = client_of(approver)
    clock.shift(timedelta(seconds=901))
    page = client.get(f"/approvals/{asking.card.pk}")
    assert "order.1001 is checked again right before the call" in read(page)
    assert fields_of(page, f"/facts/{asking.fact.pk}/recheck") == {"next": f"/approvals/{asking.card.pk}"}
    with transaction.atomic():
        facts.check_changed(asking.fact, {"paid": "0.00"}, began_at=clock.now(), step=asking.step.pk)
    words = read(client.get(f"/approvals/{asking.card.pk}/panels/evidence"))
    assert 'Changed {"paid": "420.00"} order.1001 · read_order now {"paid": "0.00"}' in words
    assert "an approval would not be used" in read(client.get(f"/approvals/{asking.card.pk}"))


def test_a_click_approves_once_journals_it_and_leads_to_the_next_card(operator: User, approver: User) -> None:
    first, second = ask(operator, valid_for_s=60), ask(operator, valid_for_s=600)
    client = client_of(approver)
    page = client.get("/approvals")
    assert read(page).count("irreversible") >= 2
    fields = fields_of(page, f"/approvals/{first.card.pk}/decision")
    response = client.post(
        f"/approvals/{first.card.pk}/decision", fields | {"verdict": "approve", "comment": "checked"}
    )
    assert (response.status_code, response["Location"]) == (302, f"/approvals/{second.card.pk}")
    assert "1 card left to decide." in read(client.get(response["Location"]))
    decision = Decision.objects.get()
    assert (decision.verdict, decision.by, decision.comment) == ("approve", approver, "checked")
    assert JournalEntry.objects.filter(kind="approval.decided", run=first.run, user=approver).count() == 1
    assert Run.objects.get(pk=first.run.pk).state == "queued"
    response = client.post(f"/approvals/{second.card.pk}/decision", form(second.card, "reject", comment="no"))
    assert response["Location"] == "/approvals"
    assert "Nothing needs you" in read(client.get("/approvals"))


def test_what_expires_first_stands_first(operator: User, approver: User) -> None:
    never, late, soon = ask(operator, valid_for_s=None), ask(operator, valid_for_s=7200), ask(operator, valid_for_s=120)
    page = client_of(approver).get("/approvals").content.decode()
    places = [page.index(f'class="ap" href="/approvals/{asking.card.pk}"') for asking in (soon, late, never)]
    assert places == sorted(places)
    assert f'action="/approvals/{soon.card.pk}/decision"' in page


def test_the_second_is_told_who_decided_what_and_when_and_changes_nothing(operator: User, approver: User) -> None:
    asking = ask(operator)
    other = client_of(make_person("berta", Role.APPROVER))
    client_of(approver).post(f"/approvals/{asking.card.pk}/decision", form(asking.card, "approve"))
    response = other.post(f"/approvals/{asking.card.pk}/decision", form(asking.card, "reject", comment="too much"))
    assert response.status_code == 409
    words = read(response)
    assert "already approved by anna at" in words
    assert "anna approved" in words
    assert "your decision changed nothing" in words
    assert Decision.objects.count() == 1
    assert "decide-form" not in response.content.decode()


def test_a_card_of_another_version_is_not_decided_and_what_was_typed_is_kept(operator: User, approver: User) -> None:
    asking = ask(operator)
    response = client_of(approver).post(
        f"/approvals/{asking.card.pk}/decision", {"version": "7", "verdict": "approve", "comment": "my reason"}
    )
    assert response.status_code == 409
    assert 'value="my reason"' in response.content.decode()
    assert not Decision.objects.exists()


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"verdict": "approve"},
        {"version": "1"},
        {"version": "1", "verdict": "perhaps"},
        {"version": "x", "verdict": "approve"},
        {"version": "99999999999999999999", "verdict": "approve"},
        {"version": "1", "verdict": "reject"},
        {"version": "1", "verdict": "edit"},
        {"version": "1", "verdict": "edit", "arg.amount": "a lot"},
        {"version": "1", "verdict": "happened"},
        {"version": "1", "verdict": "explain"},
    ],
)
def test_a_form_that_cannot_be_used_decides_nothing_and_says_why(
    operator: User, approver: User, sent: dict[str, str]
) -> None:
    asking = ask(operator)
    response = client_of(approver).post(f"/approvals/{asking.card.pk}/decision", sent)
    assert response.status_code in (409, 422), response.status_code
    assert 'role="alert"' in response.content.decode()
    assert not Decision.objects.exists()


def test_an_edit_runs_exactly_as_edited_and_keeps_what_was_not_touched(operator: User, approver: User) -> None:
    asking = ask(operator)
    response = client_of(approver).post(
        f"/approvals/{asking.card.pk}/decision",
        form(asking.card, "edit", **{"arg.order": "1001", "arg.amount": "150", "arg.memo": "", "comment": "half"}),
    )
    assert response.status_code == 302, read(response)
    card = Approval.objects.get(pk=asking.card.pk)
    assert card.arguments == {"order": "1001", "amount": "150.00", "memo": ""}
    assert "anna approved with changes" in read(client_of(approver).get(f"/approvals/{asking.card.pk}"))


def test_a_wrong_edit_comes_back_open_with_what_was_typed(operator: User, approver: User) -> None:
    asking = ask(operator)
    response = client_of(approver).post(
        f"/approvals/{asking.card.pk}/decision", form(asking.card, "edit", **{"arg.amount": "a lot"})
    )
    page = response.content.decode()
    assert response.status_code == 422
    assert '<dialog id="edit-dialog" aria-labelledby="edit-h" open class="shown">' in page
    assert 'value="a lot"' in page


def test_an_edit_of_another_argument_keeps_what_nobody_can_see_and_an_edit_of_it_drops_that(
    operator: User, approver: User
) -> None:
    kept, dropped = ask(operator, order="10\u202e01"), ask(operator, order="10\u202e01")
    client = client_of(approver)
    page = client.get(f"/approvals/{kept.card.pk}").content.decode()
    assert 'name="arg.order" value="1001"' in page
    assert "1 hidden character of it is not in this field." in page
    edit = form(kept.card, "edit", **{"arg.order": "1001", "arg.amount": "150"})
    assert client.post(f"/approvals/{kept.card.pk}/decision", edit).status_code == 302
    assert client.post(f"/approvals/{dropped.card.pk}/decision", edit | {"arg.order": "1002"}).status_code == 302
    orders = [(Approval.objects.get(pk=asking.card.pk).arguments or {})["order"] for asking in (kept, dropped)]
    assert orders == ["10\u202e01", "1002"]


def test_answering_instead_runs_nothing(operator: User, approver: User) -> None:
    asking = ask(operator)
    client_of(approver).post(
        f"/approvals/{asking.card.pk}/decision", form(asking.card, "respond", answer="close it as refused")
    )
    asking.step.refresh_from_db()
    assert (asking.step.state, asking.step.result) == ("rejected", {"answer": "close it as refused"})


@pytest.mark.parametrize(
    ("kind", "verdict", "more"),
    [
        (ApprovalKind.APPROVAL, "approve", {}),
        (ApprovalKind.QUESTION, "respond", {"answer": "b2"}),
        (ApprovalKind.BUDGET, "grant", {"dimension": "usd", "amount": "1.50"}),
        (ApprovalKind.BUDGET, "stop", {"comment": "enough"}),
        (ApprovalKind.FAILURE, "retry", {}),
        (ApprovalKind.FAILURE, "respond", {"answer": "leave it"}),
        (ApprovalKind.FACT, "confirm", {}),
        (ApprovalKind.FACT, "correct", {"result": '{"paid": "0.00"}'}),
        (ApprovalKind.CREDENTIAL, "renewed", {}),
        (ApprovalKind.ESCALATION, "approve", {}),
        (ApprovalKind.VERDICT, "happened", {"result": "OC-1"}),
        (ApprovalKind.VERDICT, "did_not_happen", {"comment": "no line in their log"}),
        (ApprovalKind.VERDICT, "stop", {"comment": "by hand"}),
    ],
)
def test_each_kind_of_card_is_shown_and_decided(
    operator: User, approver: User, kind: str, verdict: str, more: dict[str, str]
) -> None:
    card = page_situations.make_card(kind, operator)
    client = client_of(approver)
    page = client.get(f"/approvals/{card.pk}")
    assert f'name="verdict" value="{verdict}"' in page.content.decode()
    fields = fields_of(page, f"/approvals/{card.pk}/decision")
    assert fields["version"] == "1"
    response = client.post(f"/approvals/{card.pk}/decision", fields | {"verdict": verdict} | more)
    assert response.status_code == 302, read(response)
    card.refresh_from_db()
    assert card.state != "pending"
    assert Decision.objects.get(approval=card).verdict == verdict
    assert read(client.get(f"/approvals/{card.pk}")).count("anna") >= 1


@pytest.mark.parametrize("kind", list(ApprovalKind))
def test_a_viewer_sees_each_kind_of_card_without_a_button_and_may_not_post(
    operator: User, viewer: User, kind: str
) -> None:
    card = page_situations.make_card(kind, operator)
    client = client_of(viewer)
    page = client.get(f"/approvals/{card.pk}")
    assert page.status_code == 200
    assert "You may look, not decide." in read(page)
    assert f'action="/approvals/{card.pk}/decision"' not in page.content.decode()
    verdict = card.verdicts[0]
    assert client.post(f"/approvals/{card.pk}/decision", form(card, verdict)).status_code == 403
    assert not Decision.objects.exists()


@pytest.mark.parametrize("query", ["", "?version=1&verdict=approve"])
def test_a_get_never_decides(operator: User, approver: User, query: str) -> None:
    asking = ask(operator)
    client = client_of(approver)
    response = client.get(f"/approvals/{asking.card.pk}/decision{query}")
    assert (response.status_code, response["Allow"]) == (405, "POST")
    client.get(f"/approvals/{asking.card.pk}{query}")
    client.head(f"/approvals/{asking.card.pk}{query}")
    assert not Decision.objects.exists()


def test_a_stranger_finds_no_card(operator: User) -> None:
    asking = ask(operator)
    for stranger in (make_stranger(), make_person("noor", Role.APPROVER, agents=("stock-watch",))):
        client = client_of(stranger)
        for path in ("", "/panels/evidence", "/panels/news"):
            assert client.get(f"/approvals/{asking.card.pk}{path}").status_code == 404
        assert client.post(f"/approvals/{asking.card.pk}/decision", form(asking.card, "approve")).status_code == 404
    assert not Decision.objects.exists()


def test_a_post_without_a_token_against_forgery_is_refused(operator: User, approver: User) -> None:
    asking = ask(operator)
    client = Client(enforce_csrf_checks=True)
    client.force_login(approver)
    response = client.post(f"/approvals/{asking.card.pk}/decision", form(asking.card, "approve"))
    assert response.status_code == 403
    assert not Decision.objects.exists()


def test_a_reader_is_told_when_the_card_is_another_one_by_now(operator: User, approver: User) -> None:
    asking = ask(operator)
    client = client_of(approver)
    assert read(client.get(f"/approvals/{asking.card.pk}/panels/news?version=1")) == ""
    client.post(f"/approvals/{asking.card.pk}/decision", form(asking.card, "approve"))
    words = read(client.get(f"/approvals/{asking.card.pk}/panels/news?version=1"))
    assert "This card has changed since you opened it. anna approved" in words


def test_a_card_whose_time_is_over_has_no_buttons(operator: User, approver: User) -> None:
    asking = ask(operator, valid_for_s=60)
    clock.shift(timedelta(seconds=61))
    page = client_of(approver).get(f"/approvals/{asking.card.pk}")
    assert "Its time is over." in read(page)
    assert "decide-form" not in page.content.decode()


def test_decisions_made_before_on_the_tool_are_shown_to_whoever_sees_them(operator: User, approver: User) -> None:
    first = ask(operator)
    client = client_of(approver)
    client.post(f"/approvals/{first.card.pk}/decision", form(first.card, "reject", comment="the parcel is missing"))
    second = ask(operator, order="1002")
    words = read(client.get(f"/approvals/{second.card.pk}"))
    assert "Decided before on refund" in words
    assert "rejected anna the parcel is missing" in words
    assert "Rejected" in read(client.get("/approvals?state=decided"))


def test_a_recheck_is_asked_for_once_and_leads_back(operator: User, approver: User, viewer: User) -> None:
    asking = ask(operator, valid_for_s=86_400)
    path, back = f"/facts/{asking.fact.pk}/recheck", {"next": f"/approvals/{asking.card.pk}"}
    assert client_of(viewer).post(path, back).status_code == 403
    assert client_of(make_stranger()).post(path, back).status_code == 404
    client = client_of(approver)
    assert client.get(path).status_code == 405
    response = client.post(path, back)
    assert (response.status_code, response["Location"]) == (302, f"/approvals/{asking.card.pk}")
    assert client.post(path, {"next": "https://elsewhere.example/"})["Location"] == "/"
    assert asking.run.steps.filter(kind="check").count() == 1
    assert JournalEntry.objects.filter(kind="fact.recheck_asked", user=approver).exists()


def test_what_was_decided_shows_in_an_open_list_of_decisions(operator: User, approver: User) -> None:
    asking, client = situations.ask_approval(situations.start(operator)), client_of(approver)
    page = client.get("/approvals?state=decided").content.decode()
    assert 'hx-get="/approvals/panels/decided"' in page
    assert "Nothing was decided yet" in read(client.get("/approvals/panels/decided"))
    operations.decide(asking.card.pk, Said(verdict=Verdict.REJECT, comment="no"), by=approver)
    panel = client.get("/approvals/panels/decided")
    assert "<html" not in panel.content.decode()
    assert "Refund 420.00 of order 1001" in read(panel)
    # An older page of the list is a place in the past.
    assert "panels/decided" not in client.get("/approvals?state=decided&after=1").content.decode()


def test_a_question_too_long_for_a_heading_is_asked_in_full_below_it(operator: User) -> None:
    card = situations.ask_question(situations.start(operator), "Q" * 500)
    page = client_of(operator).get(f"/approvals/{card.pk}").content.decode()
    assert f"<h2>{'Q' * 120}…</h2>" in page
    assert (
        f'<div class="asked"><span class="meta length">complete, 500 characters:</span><span class="exact">{"Q" * 500}<'
        in page
    )
