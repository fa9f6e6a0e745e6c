"""Whose cards the inbox shows: everybody's, those that are the reader's own, and those that the reader has put off."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from runs import clock, operations
from runs.access import Role
from runs.agents import get_agent
from runs.approvals import Said
from runs.models import Approval, Decision
from runs.states import ApprovalKind, Verdict
from tests import page_situations, situations, writers
from tests.page_tools import client_of, read
from tests.people import approver, make_person, operator

__all__ = ["approver", "operator"]

pytestmark = pytest.mark.django_db


def ask(by: User, **given: Any) -> Approval:
    return situations.ask_approval(situations.start(by), **given).card


def listed(client: Client, query: str = "") -> list[int]:
    """The cards in the list, from top to bottom."""
    context = client.get(f"/approvals/panels/list{query}").context
    return [item.id for item in context["items"]]


def test_mine_is_what_a_group_of_mine_is_asked_what_i_have_claimed_and_what_i_started(
    operator: User, approver: User
) -> None:
    run = writers.start(operator)
    tool = get_agent("scripted").tool("pay_keyed")
    assert tool is not None
    grouped = writers.ask(run, writers.plan_act(run, tool, order="7", amount="500"), groups=["finance"])
    claimed, others = ask(operator), ask(operator)
    own = ask(make_person("berta", Role.OPERATOR, Role.APPROVER))
    approver.groups.add(Group.objects.create(name="finance"))
    operations.claim_approval(claimed.pk, by=approver)
    client = client_of(approver)
    assert set(listed(client)) == {grouped.pk, claimed.pk, others.pk, own.pk}
    assert set(listed(client, "?mine=1")) == {grouped.pk, claimed.pk}
    assert listed(client_of(User.objects.get(username="berta")), "?mine=1") == [own.pk]
    clock.shift(timedelta(minutes=16))  # who claimed it went away
    assert listed(client, "?mine=1") == [grouped.pk]


def test_who_works_off_their_own_stays_among_them(operator: User, approver: User) -> None:
    first, _, second = (ask(operator, valid_for_s=1000.0 * (n + 1)) for n in range(3))
    for card in (first, second):
        operations.claim_approval(card.pk, by=approver)
    client = client_of(approver)
    page = client.get("/approvals?mine=1")
    assert page.context["card"].id == first.pk
    assert f'href="/approvals/{second.pk}?mine=1"' in page.content.decode()
    assert '<input type="hidden" name="mine" value="1">' in page.content.decode()
    response = client.post(
        f"/approvals/{first.pk}/decision", {"version": "1", "verdict": "reject", "comment": "no", "mine": "1"}
    )
    assert response["Location"].partition("&")[0] == f"/approvals/{second.pk}?mine=1"
    assert "1 card left to decide." in read(client.get(response["Location"]))


def test_a_list_that_is_cut_says_that_there_is_more(
    operator: User, approver: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.views.approvals.INBOX_SHOWN", 2)
    first, *_ = (ask(operator, valid_for_s=10_000.0 * (n + 1)) for n in range(4))
    client = client_of(approver)
    words = read(client.get("/approvals"))
    assert "2+ to decide; what expires first is shown" in words
    assert "All 2+ 1 of 2+, expires first" in words
    response = client.post(f"/approvals/{first.pk}/decision", {"version": "1", "verdict": "reject", "comment": "no"})
    assert "2+ cards left to decide." in read(client.get(response["Location"]))
    operations.decide(listed(client)[0], Said(verdict=Verdict.REJECT, comment="no"), by=approver)
    words = read(client.get("/approvals"))
    assert "2 to decide" in words
    assert "what expires first is shown" not in words


def test_what_is_put_off_leaves_the_readers_own_list_and_comes_back_at_its_time(operator: User, approver: User) -> None:
    late, next_one = ask(operator, valid_for_s=86_400), ask(operator, valid_for_s=90_000)
    client = client_of(approver)
    response = client.post(f"/approvals/{late.pk}/later", {"minutes": "60"})
    assert response["Location"] == f"/approvals/{next_one.pk}"
    assert "It shows again in 1 h. 1 card left to decide." in read(client.get(response["Location"]))
    assert (listed(client), listed(client, "?state=later")) == ([next_one.pk], [late.pk])
    assert set(listed(client_of(make_person("berta", Role.APPROVER)))) == {late.pk, next_one.pk}
    words = read(client.get(f"/approvals/{late.pk}"))
    assert "You put it off until" in words
    clock.shift(timedelta(minutes=61))
    assert (listed(client), listed(client, "?state=later")) == ([late.pk, next_one.pk], [])
    assert not Decision.objects.exists()


def test_a_list_or_kind_that_there_is_not_is_left_out_alone_and_the_page_says_so(
    operator: User, approver: User
) -> None:
    asked = situations.ask_question(situations.start(operator))
    ask(operator)
    client = client_of(approver)
    words = read(client.get("/approvals?kind=riddle&kind=question&state=newest"))
    assert "'riddle' is no kind of card. It was left out." in words
    assert "'newest' is no list of approvals. It was left out. Known: later, decided." in words
    assert listed(client, "?kind=riddle&kind=question") == [asked.pk]
    assert "It was left out" not in read(client.get("/approvals?kind=question&state="))


def test_the_list_is_cut_after_what_is_put_off_has_left_it(
    operator: User, approver: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.views.approvals.INBOX_SHOWN", 2)
    cards = [ask(operator, valid_for_s=10_000.0 * (n + 1)).pk for n in range(5)]
    client = client_of(approver)
    for card in (*cards[:2], cards[4]):
        client.post(f"/approvals/{card}/later", {"minutes": "60"})
    assert listed(client) == cards[2:4]
    words = read(client.get("/approvals"))
    assert "2 to decide" in words
    assert "what expires first is shown" not in words
    # What is put off is listed wherever it would stand among the others, and cut as they are.
    for card in cards[:2]:
        client.post(f"/approvals/{card}/later", {"minutes": "0"})
    assert (listed(client), listed(client, "?state=later")) == (cards[:2], cards[4:])
    for card in cards[:2]:
        client.post(f"/approvals/{card}/later", {"minutes": "60"})
    assert listed(client, "?state=later") == [*cards[:2], cards[4]]


def test_what_is_put_off_comes_back_before_it_expires_or_when_it_is_asked_for(operator: User, approver: User) -> None:
    card = ask(operator, valid_for_s=3_600)
    client = client_of(approver)
    assert client.post(f"/approvals/{card.pk}/later", {"minutes": "480"})["Location"] == "/approvals"
    assert "What waits, you have put off" in read(client.get("/approvals"))
    assert client.post(f"/approvals/{card.pk}/later", {"minutes": "0"})["Location"] == f"/approvals/{card.pk}"
    assert listed(client) == [card.pk]
    client.post(f"/approvals/{card.pk}/later", {"minutes": "480"})
    clock.shift(timedelta(minutes=46))
    assert listed(client) == [card.pk]


@pytest.mark.parametrize("kind", ApprovalKind)
def test_every_kind_of_card_can_be_claimed_and_put_off(operator: User, approver: User, kind: ApprovalKind) -> None:
    card = page_situations.make_card(kind, operator)
    client, other = client_of(approver), client_of(make_person("berta", Role.APPROVER))
    page = client.get(f"/approvals/{card.pk}").content.decode()
    assert f'action="/approvals/{card.pk}/claim"' in page
    assert f'action="/approvals/{card.pk}/later"' in page
    client.post(f"/approvals/{card.pk}/claim")
    assert "You are at it" in read(client.get(f"/approvals/{card.pk}"))
    assert f"{approver.get_username()} is at it." in read(other.get(f"/approvals/{card.pk}"))
    client.post(f"/approvals/{card.pk}/later", {"minutes": "60"})
    assert (listed(client), listed(other)) == ([], [card.pk])
