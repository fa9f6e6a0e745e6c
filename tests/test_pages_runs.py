"""The list of runs: why each is where it is, filters in the address, rows that keep their places."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs import clock, course, lifecycle, operations, sql
from runs.access import Role
from runs.models import Run
from runs.queries.runpage import ACTED_BY
from runs.states import RunState
from tests import page_situations, situations
from tests.crowd import explain, walk
from tests.page_tools import client_of, read, sent_by
from tests.people import make_person, make_stranger, operator, viewer

__all__ = ["operator", "viewer"]

pytestmark = pytest.mark.django_db


def rows_of(response: Any) -> list[int]:
    return [int(number) for number in re.findall(r'<tr id="run-(\d+)"', response.content.decode())]


def test_a_row_says_why_on_whom_since_when_until_when_and_what_then(operator: User, viewer: User) -> None:
    run = situations.start(operator, goal="Work the requests of Sunday")
    situations.ask_approval(run, valid_for_s=540)
    clock.shift(timedelta(seconds=61))
    words = read(client_of(viewer).get("/runs"))
    for expected in (
        "Work the requests of Sunday",
        f"{run.pk} · refund-desk",
        "Step 1 (refund): amount 420.00 is above 200.",
        "an approver · waits 1 min · in 7 min you are asked again",
        "$0.00",
    ):
        assert expected in words, expected


def test_a_card_without_a_time_limit_is_not_said_to_be_asked_again(operator: User, viewer: User) -> None:
    run = situations.start(operator, usd="1.00")
    situations.ask_budget(run)
    clock.shift(timedelta(minutes=50))  # so close that a card's end would be urgent
    words = read(client_of(viewer).get("/runs"))
    assert re.search(r"an operator · waits 50 min · [^:]*[\d:]+, in 9 min: it is looked at again", words), words
    words = read(client_of(viewer).get(f"/runs/{run.pk}"))
    assert "in 9 min And then it is looked at again" in words
    assert "waits 50 min · no time limit" in words


def test_what_needs_a_person_is_loud_and_what_waits_on_the_world_is_not(operator: User, viewer: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    queued = situations.start(operator)
    page = client_of(viewer).get("/runs").content.decode()
    asked, rest = page.split(f'<tr id="run-{asking.run.pk}"')[1], page.split(f'<tr id="run-{queued.pk}"')[1]
    assert 'class="pill waiting loud person"' in asked.split("</tr>")[0]
    assert 'class="pill queued"' in rest.split("</tr>")[0]


def test_a_paused_a_held_and_a_stopping_run_say_so(operator: User, viewer: User) -> None:
    stopping, paused = situations.start(operator), situations.start(operator)
    situations.take(stopping)
    operations.stop_run(stopping.pk, reason="wrong batch", by=operator)
    operations.pause_run(paused.pk, reason="looking at order 7", by=operator)
    words = read(client_of(viewer).get("/runs"))
    assert "Paused: looking at order 7" in words
    assert "goes on when somebody resumes it" in words
    assert "Stopping 1 call in flight" in words


def test_a_row_says_who_ended_or_paused_it_and_of_what_ended_by_itself_nobody(operator: User, viewer: User) -> None:
    stopped, paused, expired = (situations.start(operator, goal=goal) for goal in ("one", "two", "three"))
    operations.stop_run(stopped.pk, reason="wrong batch", by=operator)
    operations.pause_run(paused.pk, reason="look first", by=operator)
    with transaction.atomic():
        course.end(lifecycle.lock_with_descendants(expired.pk), RunState.EXPIRED, reason="it reached its max age")
    words = read(client_of(viewer).get("/runs"))
    assert re.search(r"wrong batch ended \d s ago by olga", words), words
    assert re.search(r"Paused: look first paused \d s ago by olga", words), words
    assert re.search(r"it reached its max age ended \d s ago (?!by)", words), words


def test_who_ended_a_run_is_found_from_the_end_of_its_journal(operator: User) -> None:
    run = situations.start(operator)
    add = "INSERT INTO runs_journalentry (run_id, seq, xid, kind, actor, why, at) SELECT "
    settled = "%s, 100 + n, 1, 'step.settled', 'runtime', '', lw_now() FROM generate_series(1, 5000) n"
    sql.execute(add + settled, [run.pk])
    sql.execute("UPDATE runs_run SET journal_seq = 6000 WHERE id = %s", [run.pk])
    operations.stop_run(run.pk, reason="wrong batch", by=operator)
    others = "NULL, NULL, 1, 'run.stopped', 'runtime', '', lw_now() FROM generate_series(1, 20000) n"
    sql.execute(add + others)
    sql.execute("ANALYZE runs_journalentry")
    plan = explain(f"SELECT ({ACTED_BY}) FROM runs_run r WHERE r.id = %s", [run.pk])
    (found,) = [node for node in walk(plan["Plan"]) if node.get("Relation Name") == "runs_journalentry"]
    assert found["Index Name"] == "journal_seq_once"
    assert found["Rows Removed by Filter"] < 5


@pytest.mark.parametrize(
    ("note", "ends"),
    [("no such item. Open: none.", "Open: none."), ("which one?", "which one?"), ("it waits", "it waits.")],
)
def test_a_reason_ends_with_one_stop(operator: User, note: str, ends: str) -> None:
    run = situations.start(operator)
    situations.ask_question(run, note)
    run.refresh_from_db()
    assert run.why.endswith(ends)


def test_a_doubt_is_shown_as_one(operator: User, viewer: User) -> None:
    page_situations.put_in_doubt(situations.start(operator))
    words = read(client_of(viewer).get("/runs"))
    assert "In doubt" in words
    assert "it is not known whether refund happened" in words
    assert "a person who can find out" in words


def test_a_run_that_nobody_takes_is_overdue(operator: User, viewer: User) -> None:
    situations.start(operator)
    clock.shift(timedelta(seconds=600))
    assert "overdue 10 min" in read(client_of(viewer).get("/runs"))


def test_the_rows_say_when_the_next_fact_under_a_wait_is_stale(operator: User, viewer: User) -> None:
    client = client_of(viewer)
    situations.start(operator)
    assert "data-live-in" not in client.get("/runs").content.decode()
    asking = situations.ask_approval(situations.start(operator))
    clock.shift(timedelta(seconds=890))
    for path in ("/runs", f"/runs/panels/rows?shown={asking.run.pk}"):
        (seconds,) = re.findall(r'data-live-in="([\d.]+)"', client.get(path).content.decode())
        assert 0 < float(seconds) <= 10
    clock.shift(timedelta(seconds=10))
    page = client.get("/runs")
    assert "data-live-in" not in page.content.decode()
    assert "stale" in read(page)


def test_filters_stand_in_the_address_and_can_be_taken_away_one_by_one(operator: User, viewer: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    stopped = situations.start(operator, goal="Count the parcels")
    operations.stop_run(stopped.pk, reason="wrong batch", by=operator)
    client = client_of(viewer)
    assert rows_of(client.get("/runs?state=stopped")) == [stopped.pk]
    assert rows_of(client.get("/runs?waiting_for=people")) == [asking.run.pk]
    assert rows_of(client.get("/runs?state=open,stopped")) == [stopped.pk, asking.run.pk]
    assert rows_of(client.get("/runs?q=parcels")) == [stopped.pk]
    assert rows_of(client.get(f"/runs?q={asking.run.pk}&state=")) == [asking.run.pk]
    page = client.get("/runs?state=stopped&agent=stock-watch")
    words = read(page)
    assert "No runs match this filter" in words
    assert "state is stopped, agent is stock-watch" in words
    assert 'href="/runs?agent=stock-watch"' in page.content.decode()


def test_the_form_keeps_what_the_address_filters_and_it_has_no_field_for(operator: User, viewer: User) -> None:
    runs = [situations.start(operator, labels={"shop": shop}) for shop in ("a&b", "a&b", "other")]
    for run in runs[1:]:
        operations.stop_run(run.pk, reason="wrong batch", by=operator)
    client = client_of(viewer)
    address = "/runs?state=queued,stopped&state=failed&label=shop:a%26b&waiting_for=&agent=gone,refund-desk"
    page = client.get(address)
    assert rows_of(page) == [runs[1].pk, runs[0].pk]
    sent = sent_by(page, "/runs")
    assert sent == [("state", "queued,stopped,failed"), ("agent", "gone,refund-desk"), ("label", "shop:a&b")]
    assert re.findall(r"<option[^>]* selected>([^<]*)<", page.content.decode()) == ["Queued +2", "gone +1"]
    # One thing is changed in the form: the rest stays, and each of it can be taken away.
    page = client.get("/runs", [*(pair for pair in sent if pair[0] != "agent"), ("agent", "refund-desk")])
    assert rows_of(page) == [runs[1].pk, runs[0].pk]
    without = [chip.without for chip in page.context["filter"].chips]
    assert "?state=stopped&state=failed&agent=refund-desk&label=shop%3Aa%26b" in without
    assert "?state=queued&state=stopped&state=failed&agent=refund-desk" in without
    assert all(f'href="/runs{link.replace("&", "&amp;")}"' in page.content.decode() for link in without)
    assert sent_by(client.get("/runs?state=failed"), "/runs") == [("state", "failed")]


def test_a_number_or_a_uid_in_the_search_field_leads_to_the_run(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    client = client_of(viewer)
    for text in (str(run.pk), f" {run.uid} "):
        assert client.get("/runs", {"q": text})["Location"] == f"/runs/{run.pk}"
    assert "No runs match" in read(client.get("/runs", {"q": "9" * 19}))
    other = client_of(make_person("noor", Role.VIEWER, agents=("stock-watch",)))
    assert "No runs match" in read(other.get("/runs", {"q": str(run.pk)}))


def test_a_wrong_filter_is_left_out_alone_and_the_page_says_so(operator: User, viewer: User) -> None:
    found = situations.start(operator, goal="a late parcel")
    situations.start(operator, goal="something else")
    client = client_of(viewer)
    response = client.get("/runs?state=sleeping&q=parcel&label=shop")
    words = read(response)
    assert "'sleeping' is no state. It was left out. Known: open, queued, running" in words
    assert "'shop' is no label. It was left out." in words
    assert [line.id for line in response.context["lines"]] == [found.pk]
    assert response.context["rows_url"] == f"/runs/panels/rows?q=parcel&shown={found.pk}"
    assert 'value="parcel"' in response.content.decode()
    assert "It was left out" not in read(client.get("/runs?state=open&q=parcel"))
    assert client.get("/runs?after=x").status_code == 400


def test_the_view_of_failures_says_of_which_time_its_count_is(operator: User, viewer: User) -> None:
    old, new = situations.start(operator), situations.start(operator)
    for run, days in ((old, 2), (new, 0)):
        with transaction.atomic():
            course.end(lifecycle.lock_with_descendants(run.pk), RunState.FAILED, reason="it could not")
        clock.shift(timedelta(days=days))
    page = client_of(viewer).get("/runs?state=failed")
    assert rows_of(page) == [new.pk, old.pk]
    assert "Failed 1 in 24 h" in read(page)


def test_no_runs_yet_says_how_to_start_one(operator: User, viewer: User) -> None:
    assert "No runs yet" in read(client_of(viewer).get("/runs"))
    assert 'href="/runs/new"' not in client_of(viewer).get("/runs").content.decode()
    assert 'href="/runs/new"' in client_of(operator).get("/runs").content.decode()


def test_pages_are_cut_by_a_cursor_and_move_nothing(operator: User, viewer: User, monkeypatch: Any) -> None:
    monkeypatch.setattr("console.views.runs.PAGE", 2)
    numbers = [situations.start(operator).pk for _ in range(5)][::-1]
    client = client_of(viewer)
    first = client.get("/runs")
    assert rows_of(first) == numbers[:2]
    situations.start(operator)
    second = client.get(f"/runs?after={numbers[1]}")
    assert rows_of(second) == numbers[2:4]
    assert f'href="/runs?after={numbers[3]}"' in second.content.decode()


def test_a_refresh_keeps_the_rows_in_their_places_and_counts_what_is_new(operator: User, viewer: User) -> None:
    first, second = situations.start(operator), situations.start(operator)
    client = client_of(viewer)
    panel = f"/runs/panels/rows?state=open&shown={second.pk},{first.pk}"
    assert (
        f'hx-get="{panel.replace(",", "%2C").replace("&", "&amp;")}"' in client.get("/runs?state=open").content.decode()
    )
    operations.stop_run(first.pk, reason="wrong batch", by=operator)
    situations.start(operator)
    refreshed = client.get(panel)
    assert rows_of(refreshed) == [second.pk, first.pk]
    words = read(refreshed)
    assert "1 new run, show" in words
    assert "wrong batch" in words


def test_a_panel_shows_no_run_that_the_reader_may_not_see(operator: User) -> None:
    run = situations.start(operator)
    client = client_of(make_person("noor", Role.VIEWER, agents=("stock-watch",)))
    assert rows_of(client.get(f"/runs/panels/rows?shown={run.pk}")) == []
    assert rows_of(client.get("/runs")) == []
    assert client_of(make_stranger()).get("/runs").status_code == 404


@pytest.mark.parametrize("shown", ["", "x", "0", "-1", "1,1,1", "9" * 18, "9" * 400, "1%002"])
def test_a_panel_takes_any_numbers(viewer: User, shown: str) -> None:
    assert client_of(viewer).get(f"/runs/panels/rows?shown={shown}").status_code == 200


def test_somebody_who_signed_out_is_sent_to_sign_in_and_a_panel_answers_401(viewer: User) -> None:
    assert Client().get("/runs?state=open")["Location"] == "/sign-in?next=/runs%3Fstate%3Dopen"
    assert Client().get("/runs/panels/rows", headers={"HX-Request": "true"}).status_code == 401


def test_a_list_takes_as_many_queries_for_fifty_runs_as_for_one(operator: User, viewer: User) -> None:
    client = client_of(viewer)
    situations.ask_approval(situations.start(operator))
    with CaptureQueriesContext(connection) as one:
        client.get("/runs")
    for _ in range(12):
        situations.ask_approval(situations.start(operator))
    with CaptureQueriesContext(connection) as many:
        client.get("/runs")
    assert Run.objects.count() == 13
    assert len(many) == len(one) <= 16, [query["sql"][:80] for query in one]
