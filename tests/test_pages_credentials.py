"""The credentials page: which are not accepted, who waits for them, and a person who says that one is renewed."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs import clock
from runs.access import Role
from runs.models import Approval, Credential, JournalEntry, Step
from tests import situations
from tests.page_situations import wait_for_credential
from tests.page_tools import client_of, fields_of, read
from tests.people import approver, make_person, make_stranger, operator, viewer

__all__ = ["approver", "operator", "viewer"]
pytestmark = pytest.mark.django_db
NAME = "shop"


def test_it_lists_what_agents_sign_in_with_and_what_runs_wait_for(operator: User, viewer: User) -> None:
    runs = [situations.start(operator) for _ in range(7)]
    for run in runs:
        wait_for_credential(run, NAME)
    page = client_of(viewer).get("/credentials")
    words = read(page)
    assert words.index("Not accepted shop") < words.index("model provider")
    assert "In use model provider" in words
    assert f"run {runs[0].pk}, step 1 (read_order)" in words
    assert "and 2 more" in words
    assert "shop is not accepted: 401 <b>from the shop</b>" in words
    assert f"Card {Approval.objects.get().pk}" in words
    assert "<b>from the shop" not in page.content.decode()
    assert "renew-shop" not in page.content.decode()


def test_renewing_decides_the_card_and_wakes_everyone(operator: User, approver: User) -> None:
    waiting = [wait_for_credential(situations.start(operator), NAME) for _ in range(2)]
    client = client_of(approver)
    typed = fields_of(client.get("/credentials"), "/credentials/renew")
    until = clock.now() + timedelta(days=30)
    response = client.post(
        "/credentials/renew", {"name": NAME, "expires_at": f"{until:%Y-%m-%dT%H:%M}", "comment": "rotated"}
    )
    assert response["Location"] == "/credentials"
    assert set(typed) == {"name"}
    card = Approval.objects.get()
    assert (card.state, card.verdict) == ("answered", "renewed")
    assert [Step.objects.get(pk=step.pk).state for step in waiting] == ["planned", "planned"]
    known = Credential.objects.get()
    assert known.refused_at is None
    assert known.expires_at is not None
    assert abs(known.expires_at - until) < timedelta(minutes=1)
    entry = JournalEntry.objects.get(kind="credential.renewed")
    assert (entry.user, entry.why) == (approver, "rotated")
    words = read(client.get("/credentials"))
    assert "shop is renewed." in words
    assert "Renewed shop" in words
    assert "in 29 d 23 h" in words
    clock.shift(timedelta(days=29))
    assert "Ends soon shop" in read(client.get("/credentials"))
    clock.shift(timedelta(days=2))
    assert "Expired shop" in read(client.get("/credentials"))


def test_one_that_nobody_waits_for_is_noted(approver: User) -> None:
    client = client_of(approver)
    assert client.post("/credentials/renew", {"name": "model provider"}).status_code == 302
    known = Credential.objects.get()
    assert (known.name, known.renewed_by) == ("model provider", f"person:{approver}")


@pytest.mark.parametrize(
    ("typed", "said"),
    [({"expires_at": "soon"}, "is no moment"), ({"expires_at": "2001-01-01T00:00"}, "has passed already")],
)
def test_a_wrong_moment_renews_nothing(approver: User, typed: dict[str, str], said: str) -> None:
    response = client_of(approver).post("/credentials/renew", {"name": "model provider"} | typed)
    assert response.status_code == 422
    assert said in read(response)
    assert not Credential.objects.exists()


def test_only_who_may_decide_renews_and_only_what_they_see(operator: User, viewer: User) -> None:
    step = wait_for_credential(situations.start(operator), NAME)
    for user, status in ((viewer, 403), (operator, 403), (make_stranger(), 404)):
        assert client_of(user).post("/credentials/renew", {"name": NAME}).status_code == status
    noor = client_of(make_person("noor", Role.VIEWER, Role.APPROVER, agents=("stock-watch",)))
    assert "No credential is named" in read(noor.get("/credentials"))
    assert noor.post("/credentials/renew", {"name": NAME}).status_code == 404
    assert noor.post("/credentials/renew", {"name": "a\x00b"}).status_code == 404
    assert Step.objects.get(pk=step.pk).state == "waiting"
    assert client_of(viewer).get("/credentials/renew").status_code == 405


def test_a_secret_is_nowhere_and_its_place_is(settings: Any, tmp_path: Any, operator: User, approver: User) -> None:
    (tmp_path / NAME).write_text("very-secret-value")
    settings.SECRETS_DIR = tmp_path
    settings.SECRETS = {"till": "another-secret-value"}
    wait_for_credential(situations.start(operator), NAME)
    wait_for_credential(situations.start(operator), "till")
    text = client_of(approver).get("/credentials").content.decode()
    assert "lies in the file shop" in text
    assert "lies in LONGWATCH_CREDENTIAL_TILL" in text
    assert "secret-value" not in text


def test_it_takes_as_many_queries_for_many_as_for_one(operator: User, viewer: User) -> None:
    client = client_of(viewer)
    wait_for_credential(situations.start(operator), NAME)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as made:
            client.get("/credentials")
        counts.append(len(made))
        for each in range(12):
            wait_for_credential(situations.start(operator), f"name-{each % 3}")
    assert counts[0] == counts[1] < 18
