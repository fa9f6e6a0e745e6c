"""People are told of cards by mail, webhook and chat: once per event, gathered, retried; a link decides nothing (case B6)."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.test import Client

from runs import approvals, clock, course, lifecycle, operations
from runs.access import Role
from runs.agents import get_agent
from runs.approvals import Said
from runs.engine.sweep import sweep_once
from runs.models import Approval, Decision, JournalEntry, Notice
from runs.notices import TRIES
from runs.reaching import reach_people, sign
from runs.states import ApprovalKind, Verdict
from tests import situations
from tests.page_tools import client_of, read
from tests.people import approver, make_person, operator
from tests.receivers import HttpReceiver, MailReceiver, receive_http, receive_mail
from tests.writers import ask, plan_act, start, together

__all__ = ["approver", "operator"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def http(settings: Any) -> Iterator[HttpReceiver]:
    with receive_http() as receiver:
        settings.WEBHOOK_URL = f"{receiver.url}/hook"
        settings.WEBHOOK_SECRET = "a secret of both"
        yield receiver


@pytest.fixture
def mail(settings: Any) -> Iterator[MailReceiver]:
    with receive_mail() as receiver:
        settings.SMTP_URL = receiver.url
        yield receiver


def later(seconds: float) -> int:
    """What is told so much later."""
    reach_people()
    clock.shift(timedelta(seconds=seconds))
    return reach_people()


def cards_of(http: HttpReceiver, number: int = -1) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(http.got[number].body)["cards"]
    return told


def address(person: User, email: str) -> User:
    person.email = email
    person.save()
    return person


def test_cards_are_gathered_into_one_signed_message_and_told_once(operator: User, http: HttpReceiver) -> None:
    asked = [situations.ask_approval(situations.start(operator), order=str(n)).card for n in (1, 2, 3)]
    reach_people()
    assert http.got == []
    assert later(3) == 3
    assert [card["approval"] for card in cards_of(http)] == [card.pk for card in asked]
    assert {card["event"] for card in cards_of(http)} == {"new"}
    (message,) = http.got
    signature = sign("a secret of both", message.headers["x-longwatch-timestamp"], message.body)
    assert message.headers["x-longwatch-signature"] == f"sha256={signature}"
    assert cards_of(http)[0]["url"].endswith(f"/approvals/{asked[0].pk}")
    assert "420.00" not in json.dumps([{k: v for k, v in card.items() if k != "title"} for card in cards_of(http)])
    assert later(60) == 0


def test_what_is_about_to_expire_and_what_was_escalated_is_told_as_that(operator: User, http: HttpReceiver) -> None:
    run = start(operator)

    tool = get_agent("scripted").tool("pay_by_two")
    assert tool is not None
    card = ask(run, plan_act(run, tool, order="7", amount="5"), valid_for_s=3600.0, on_expiry="escalate",
               escalate_to=["managers"])  # fmt: skip
    later(3)
    clock.shift(timedelta(seconds=2760))
    assert later(3) == 1
    assert [(c["approval"], c["event"]) for c in cards_of(http)] == [(card.pk, "expiring")]
    clock.shift(timedelta(seconds=1000))
    sweep_once()
    assert later(3) == 1
    (told,) = cards_of(http)
    assert (told["event"], told["groups"]) == ("escalated", ["managers"])


def test_what_was_decided_meanwhile_is_not_told(operator: User, approver: User, http: HttpReceiver) -> None:
    card = situations.ask_approval(situations.start(operator)).card
    reach_people()
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=approver)
    assert later(5) == 0
    assert http.got == []
    assert Notice.objects.get().state == "spared"


def test_a_failing_receiver_is_tried_again_shown_on_the_page_and_then_well(
    operator: User, approver: User, http: HttpReceiver
) -> None:
    situations.ask_approval(situations.start(operator), valid_for_s=None)
    http.statuses[:] = [500, 503, 307]
    assert later(3) == 0
    words = read(client_of(approver).get("/approvals"))
    assert "People can’t be told by the webhook. 1 card since" in words
    assert "it answered 500" in words
    while not Notice.objects.filter(state="sent").exists():
        later(60)
    assert [message.path for message in http.got] == ["/hook"] * 4  # a redirect is not followed
    assert "can’t be told" not in read(client_of(approver).get("/approvals"))


def test_after_its_last_try_it_is_given_up_in_the_journal(operator: User, settings: Any) -> None:
    settings.WEBHOOK_URL = "http://127.0.0.1:9/nobody-listens"
    situations.ask_approval(situations.start(operator), valid_for_s=None)
    for _ in range(TRIES + 1):
        later(1000)
    notice = Notice.objects.get()
    assert (notice.state, notice.tries) == ("failed", TRIES)
    assert JournalEntry.objects.filter(kind="notice.failed").count() == 1


def test_the_chat_gets_text_that_cannot_forge_a_link(operator: User, settings: Any) -> None:
    with receive_http() as chat:
        settings.SLACK_URL = chat.url
        run = start(operator)
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            approvals.ask(locked, ApprovalKind.QUESTION, title="Pay <http://evil|here> & now\u202e?")
            course.rest(locked)
        assert later(3) == 1
        text = json.loads(chat.got[0].body)["text"]
    assert "<http://evil" not in text
    assert "&lt;http://evil/here&gt; &amp; now\\u202e?" in text
    assert f"/approvals/{Approval.objects.get().pk}|" in text


def test_a_mail_goes_to_whoever_may_decide_with_a_link_and_no_button(operator: User, mail: MailReceiver) -> None:
    address(make_person("anna", Role.APPROVER), "anna@example.com")
    address(make_person("vera", Role.VIEWER), "vera@example.com")
    narrow = address(make_person("nora", Role.APPROVER), "nora@example.com")
    narrow.groups.add(Group.objects.create(name="finance"))
    card = situations.ask_approval(situations.start(operator)).card
    run = start(operator)

    tool = get_agent("scripted").tool("pay_keyed")
    assert tool is not None
    own = ask(run, plan_act(run, tool, order="7", amount="500"), groups=["finance"])
    assert later(3) == 2
    told = {to[0]: message for to, message in mail.got}
    assert set(told) == {"anna@example.com", "nora@example.com"}
    anna = told["anna@example.com"].get_content()
    assert any(line.endswith(f"/approvals/{card.pk}") for line in anna.splitlines())
    assert f"/approvals/{own.pk}" not in anna
    assert f"/approvals/{own.pk}" in told["nora@example.com"].get_content()
    assert "2 cards to decide" in told["nora@example.com"]["Subject"]
    assert "nothing is decided by opening it" in anna


def test_one_mailbox_that_is_refused_keeps_the_others_from_nothing(operator: User, mail: MailReceiver) -> None:
    for name in ("anna", "berta"):
        address(make_person(name, Role.APPROVER), f"{name}@example.com")
    mail.refuse = {"anna@example.com"}
    situations.ask_approval(situations.start(operator))
    assert later(3) == 1
    assert [to for to, _ in mail.got] == [["berta@example.com"]]


def test_two_tellers_at_once_tell_once(operator: User, http: HttpReceiver) -> None:
    for n in range(4):
        situations.ask_approval(situations.start(operator), order=str(n))
    reach_people()
    clock.shift(timedelta(seconds=3))
    together(*[reach_people] * 4)
    assert sorted(card["approval"] for n in range(len(http.got)) for card in cards_of(http, n)) == sorted(
        Approval.objects.values_list("pk", flat=True)
    )


def test_b6_a_scanner_that_opens_the_link_decides_nothing_and_the_click_still_counts(
    operator: User, approver: User, http: HttpReceiver
) -> None:
    """Two GETs and a HEAD without a session, a preview, a prefetch, a forwarded mail; then the operator."""
    card = situations.ask_approval(situations.start(operator)).card
    assert later(3) == 1
    link = f"/approvals/{card.pk}"
    scanner = Client()
    answers = [scanner.get(link), scanner.get(link), scanner.head(link), scanner.get(f"{link}/decision")]
    assert [answer.status_code for answer in answers[:3]] == [302, 302, 302]
    assert answers[0]["Location"] == f"/sign-in?next={link}"
    assert scanner.post(f"{link}/decision", {"version": "1", "verdict": "approve"}).status_code in (302, 403)
    forwarded = client_of(make_person("vera", Role.VIEWER))
    assert "You may look, not decide." in read(forwarded.get(link))
    assert forwarded.post(f"{link}/decision", {"version": "1", "verdict": "approve"}).status_code == 403
    client = client_of(approver)
    for _ in range(2):
        client.get(link, headers={"Sec-Purpose": "prefetch"})
        client.head(link)
        assert client.get(f"{link}/decision").status_code == 405
    assert Approval.objects.get(pk=card.pk).state == "pending"
    # Once more, at the very moment of the click.
    clicked, *scanned = together(
        lambda: client.post(f"{link}/decision", {"version": "1", "verdict": "approve"}).status_code,
        *[lambda: Client().get(link).status_code, lambda: Client().head(link).status_code] * 2,
    )
    assert (clicked, scanned) == (302, [302] * 4)
    assert Decision.objects.filter(approval=card).count() == 1
    words = read(client_of(make_person("berta", Role.APPROVER)).get(link))
    assert "anna approved it" in words or "anna approved" in words
    assert "expired" not in words.lower().replace("expires", "")
