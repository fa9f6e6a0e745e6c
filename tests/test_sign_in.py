"""Signing in by password or by a link that works once, and signing out."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from runs import access, operations
from runs.access import Role
from runs.models import JournalEntry
from tests.people import make_person

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"


@pytest.fixture
def anna() -> User:
    cache.clear()
    user = make_person("anna", Role.APPROVER)
    user.set_password(PASSWORD)
    user.save()
    return user


def is_signed_in(client: Client) -> bool:
    return client.get("/").status_code == 200


def test_every_page_asks_to_sign_in_first_and_goes_on_afterwards(anna: User) -> None:
    client = Client()
    response = client.get("/runs/7")
    assert (response.status_code, response["Location"]) == (302, "/sign-in?next=/runs/7")
    page = client.get("/sign-in?next=/runs/7").content.decode()
    assert 'name="next" value="/runs/7"' in page
    response = client.post("/sign-in", {"username": "anna", "password": PASSWORD, "next": "/runs/7"})
    assert (response.status_code, response["Location"]) == (302, "/runs/7")
    assert is_signed_in(client)


@pytest.mark.parametrize("target", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)"])
def test_signing_in_leads_nowhere_else(anna: User, target: str) -> None:
    response = Client().post("/sign-in", {"username": "anna", "password": PASSWORD, "next": target})
    assert response["Location"] == "/"


def test_a_wrong_password_is_refused_and_after_five_the_name_waits(anna: User) -> None:
    client = Client()
    for left in (4, 3, 2, 1):
        page = client.post("/sign-in", {"username": "anna", "password": "wrong"}).content.decode()
        assert f"After {left} more" in page
    page = client.post("/sign-in", {"username": "anna", "password": "wrong"}).content.decode()
    assert "This name waits 10 min now." in page
    page = client.post("/sign-in", {"username": "anna", "password": PASSWORD}).content.decode()
    assert "Too many tries" in page
    assert not is_signed_in(client)
    # Somebody else is not kept out, and a link still works.
    link = access.make_sign_in_token(anna)
    assert client.post("/sign-in", {"token": link}).status_code == 302
    assert is_signed_in(client)


def test_a_link_signs_in_once_and_only_by_a_post(anna: User) -> None:
    link = access.make_sign_in_token(anna)
    scanner, client, second = Client(), Client(), Client()
    for _ in range(3):
        page = scanner.get("/sign-in", {"token": link})
        assert page.status_code == 200
        assert "Sign in as anna" in page.content.decode()
    assert not is_signed_in(scanner)
    assert client.post("/sign-in", {"token": link}).status_code == 302
    assert is_signed_in(client)
    assert JournalEntry.objects.get(kind="person.signed_in").actor == "person:anna"
    refused = second.post("/sign-in", {"token": link})
    assert refused.status_code == 410
    assert "has been used" in refused.content.decode()
    assert second.get("/sign-in", {"token": link}).status_code == 410
    assert not is_signed_in(second)


@pytest.mark.parametrize("link", ["x", "a:b:c", "\x00", "é", "x" * 100_000])
def test_a_forged_link_is_refused(anna: User, link: str) -> None:
    assert Client().get("/sign-in", {"token": link}).status_code == 410
    assert Client().post("/sign-in", {"token": link}).status_code == 410


def test_an_old_link_is_refused(anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
    link = access.make_sign_in_token(anna)
    monkeypatch.setattr(access, "SIGN_IN_LINK_S", -1)
    assert Client().get("/sign-in", {"token": link}).status_code == 410


def test_a_link_for_someone_who_left_is_refused(anna: User) -> None:
    link = access.make_sign_in_token(anna)
    User.objects.filter(pk=anna.pk).update(is_active=False)
    assert operations.spend_sign_in_token(link) is None


def test_a_post_from_another_site_is_refused(anna: User) -> None:
    client = Client(enforce_csrf_checks=True)
    link = access.make_sign_in_token(anna)
    assert client.post("/sign-in", {"token": link}).status_code == 403
    assert client.post("/sign-in", {"username": "anna", "password": PASSWORD}).status_code == 403


def test_signing_out_takes_a_post(anna: User) -> None:
    client = Client()
    client.force_login(anna)
    assert client.get("/sign-out").status_code == 405
    assert is_signed_in(client)
    assert client.post("/sign-out").status_code == 302
    assert not is_signed_in(client)


def test_the_sign_in_page_names_the_environment_and_runs_under_the_policy(anna: User) -> None:
    response = Client().get("/sign-in")
    text = response.content.decode()
    assert "Rehearsal" in text
    assert "<script" not in text
    assert "style=" not in text
    assert "script-src 'self'" in response["Content-Security-Policy"]
    assert timedelta(seconds=access.SIGN_IN_LINK_S) == timedelta(minutes=15)


def test_the_admin_uses_the_same_page_and_turns_others_away(anna: User) -> None:
    client = Client()
    assert client.get("/admin/", follow=True).redirect_chain[-1] == ("/sign-in?next=/admin/", 302)
    assert client.get("/admin/login/?next=/admin/runs/")["Location"] == "/sign-in?next=/admin/runs/"
    client.force_login(anna)
    assert client.get("/admin/", follow=True).status_code == 403
