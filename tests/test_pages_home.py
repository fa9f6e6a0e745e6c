"""The first page: what needs a person comes first, most urgent on top, and everything is a link."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from runs import clock, operations
from runs.access import Role
from runs.allowances import Terms
from runs.models import Run
from tests import page_situations, situations
from tests.page_tools import client_of, read
from tests.people import approver, make_person, make_stranger, operator, viewer
from tests.test_pages_spend import noon

__all__ = ["approver", "noon", "operator", "viewer"]

pytestmark = pytest.mark.django_db


def test_nothing_to_do_says_so(viewer: User) -> None:
    words = read(client_of(viewer).get("/"))
    assert "0 runs not finished. 0 things need a person." in words
    assert "Nothing needs you" in words
    assert "No run has ended yet." in words


def test_what_needs_a_person_is_counted_by_kind_with_what_expires_next(operator: User, viewer: User) -> None:
    first = situations.ask_approval(situations.start(operator), valid_for_s=86_400)
    second = situations.ask_approval(situations.start(operator), order="1002", valid_for_s=540)
    doubt = page_situations.make_card("verdict", operator)
    clock.shift(timedelta(seconds=30))
    page = client_of(viewer).get("/")
    words = read(page)
    assert "3 things need a person." in words
    assert f"2 approvals to decide The first: refund-desk, run {second.run.pk}: Refund 420.00 of order 1002" in words
    assert re.search(r"expires in 8 min · oldest waits [34]\d s", words)
    assert "1 effect is in doubt" in words
    html = page.content.decode()
    assert f'href="/approvals/{second.card.pk}"' in html
    assert f'href="/approvals/{doubt.pk}"' in html
    assert html.index("2 approvals to decide") < html.index("1 effect is in doubt")
    assert html.count("button slim primary") == 1
    assert first.run.pk


def test_a_run_that_nobody_takes_comes_before_everything(operator: User, viewer: User) -> None:
    situations.ask_approval(situations.start(operator))
    run = situations.start(operator)
    clock.shift(timedelta(seconds=600))
    words = read(client_of(viewer).get("/"))
    assert "1 run is due and nobody takes it" in words
    assert words.index("due and nobody takes it") < words.index("1 approval to decide")
    assert f'href="/runs/{run.pk}"' in client_of(viewer).get("/").content.decode()


def test_a_budget_that_is_nearly_used_up_is_named(operator: User, viewer: User) -> None:
    run = situations.start(operator, usd="2.00")
    run.budget.__class__.objects.filter(pk=run.pk).update(usd_spent="1.90")
    words = read(client_of(viewer).get("/"))
    assert f"1 budget above 90 % refund-desk: run {run.pk} has used or reserved 95 % of its money" in words


def test_an_allowance_that_is_nearly_used_up_stands_there_with_when_it_frees_up(
    operator: User, viewer: User, noon: None
) -> None:
    admin = User.objects.create_superuser("ada")
    for scope, hard in (("agent:refund-desk", "1.00"), ("all", "50")):
        terms = Terms(scope=scope, dimension="usd", period="day", hard=Decimal(hard))
        operations.create_allowance(terms, reason="because", by=admin)
    page = client_of(viewer)
    assert "allowance above" not in read(page.get("/"))
    page_situations.book(situations.start(operator), "0.95")
    words = read(page.get("/"))
    assert "1 allowance above 90 % refund-desk: $0.95 spent and $0.00 reserved of $1.00 a day" in words
    assert "frees up at" in words
    assert "$0.95 of $1.00" in words
    noor = client_of(make_person("noor", Role.VIEWER, agents=("stock-watch",)))
    assert "$0.95" not in read(noor.get("/"))


def test_counts_are_links_to_the_runs_they_count(operator: User, viewer: User) -> None:
    situations.ask_approval(situations.start(operator))
    ended = situations.start(operator)
    operations.stop_run(ended.pk, reason="wrong batch", by=operator)
    page = client_of(viewer).get("/")
    words = read(page)
    assert "Waiting on people 1" in words
    assert "Stopped 1" in words
    assert "wrong batch" in words
    html = page.content.decode()
    for query in ("state=running", "waiting_for=people", "waiting_for=world", "state=failed"):
        assert f'href="/runs?{query}"' in html
    assert 'href="/runs?agent=refund-desk&amp;state=open"' in html


def test_a_reader_counts_what_they_may_see_only(operator: User) -> None:
    situations.ask_approval(situations.start(operator))
    person = make_person("noor", Role.VIEWER, agents=("stock-watch",))
    words = read(client_of(person).get("/"))
    assert "0 runs not finished" in words
    assert "refund-desk" not in words


def test_a_newcomer_is_told_what_is_shown_and_what_to_try_until_they_have_read_it(operator: User) -> None:
    client = client_of(operator)
    words = read(client.get("/"))
    assert "You are looking at a rehearsal" in words
    assert "Approve a refund" in words
    assert client.get("/welcome").status_code == 405
    assert client.post("/welcome")["Location"] == "/"
    assert "You are looking at a rehearsal" not in read(client.get("/"))


def test_a_stranger_is_told_that_they_see_nothing_yet() -> None:
    words = read(client_of(make_stranger()).get("/"))
    assert "You may not see any agent yet" in words


def test_only_without_agents_of_ones_own_a_rehearsal_touches_nobody(settings: Settings) -> None:
    settings.OWN_APPS = []
    assert "no customer, card or supplier is touched" in read(Client().get("/sign-in"))
    settings.OWN_APPS = ["desk"]
    words = read(Client().get("/sign-in"))
    assert "What agents of your own call is real." in words
    assert "is touched" not in words


def test_every_page_says_that_it_is_a_rehearsal(operator: User) -> None:
    run = situations.start(operator)
    client = client_of(operator)
    for path in ("/", "/runs", f"/runs/{run.pk}", "/approvals", "/runs/new", "/runs/999"):
        page = client.get(path).content.decode()
        assert 'data-env="rehearsal"' in page
        assert "Rehearsal" in page
    assert "Rehearsal" in Client().get("/sign-in").content.decode()


def test_a_theme_is_kept_in_a_cookie_and_rendered_by_the_server(viewer: User) -> None:
    client = client_of(viewer)
    assert "data-theme" not in client.get("/").content.decode().split(">")[1]
    response = client.post("/theme", {"theme": "dark", "next": "/runs?state=open"})
    assert (response.status_code, response["Location"]) == (302, "/runs?state=open")
    assert 'data-theme="dark"' in client.get("/").content.decode()
    client.post("/theme", {"theme": "", "next": "https://elsewhere.example/"})
    assert 'data-theme="dark"' not in client.get("/").content.decode()
    assert client.post("/theme", {"theme": '"><script>', "next": "//elsewhere.example"})["Location"] == "/"
    assert client.get("/theme").status_code == 405


def test_the_page_takes_as_many_queries_for_many_runs_as_for_few(operator: User, viewer: User) -> None:
    client = client_of(viewer)
    counts = []
    for more in (1, 10):
        for _ in range(more):
            situations.ask_approval(situations.start(operator))
            operations.stop_run(situations.start(operator).pk, reason="enough", by=operator)
        with CaptureQueriesContext(connection) as queries:
            client.get("/")
        counts.append(len(queries))
    assert Run.objects.count() == 22
    assert counts[0] == counts[1] <= 24
