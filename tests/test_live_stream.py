"""A stream says what moved, to those who may see it, and leaves nothing out."""

import re
import threading
import time
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.test import Client

from runs import journal, lifecycle, notify
from runs.access import Role
from runs.models import AgentGrant, JournalEntry, Run
from runs.queries.since import MOST, read_mark
from tests import situations
from tests.live_tools import note
from tests.people import make_person, make_stranger
from tests.waiting import wait_until
from tests.web_process import Stream, WebProcess, session_cookie, web, web_process

__all__ = ["web", "web_process"]


@pytest.fixture
def olga(transactional_db: None) -> User:
    return make_person("olga", Role.OPERATOR)


@pytest.fixture
def run(olga: User) -> Run:
    return situations.start(olga)


@pytest.fixture
def stream(web: WebProcess, olga: User, run: Run) -> Iterator[Stream]:
    with Stream(web, session_cookie(olga)) as stream:
        assert stream.next().event == "hello"
        yield stream


def topics_of(run: Run) -> list[str]:
    return [f"run.{run.pk}", "runs"]


def test_what_is_committed_is_told(stream: Stream, run: Run) -> None:
    note(run)
    assert stream.next("changed").data == topics_of(run)


def test_what_nobody_hinted_at_is_told_all_the_same(stream: Stream, run: Run) -> None:
    note(run, hint=False)
    assert stream.next("changed").data == topics_of(run)


def test_a_second_hint_about_the_same_thing_is_told_again(stream: Stream, run: Run) -> None:
    for _ in range(3):
        note(run)
        assert stream.next("changed").data == topics_of(run)


def test_approvals_switches_and_operator_actions_have_topics_of_their_own(stream: Stream, run: Run) -> None:
    situations.ask_approval(run)
    notify.flush()
    assert stream.next_about("approvals").data == ["approvals", *topics_of(run)]
    with transaction.atomic():
        journal.append("switch.engaged", why="for a test")
    notify.flush()
    assert stream.next_about("switches").data == ["journal", "switches"]


def test_a_burst_is_told_in_one_frame(stream: Stream, run: Run) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('longwatch_screen', 'general.' || n) FROM generate_series(1, 500) AS n")
    assert len(stream.next_about("general.500").data) >= 500
    note(run)
    assert stream.next("changed").data == topics_of(run)


def test_a_quiet_stream_shows_that_the_server_is_there(stream: Stream) -> None:
    stream.next("ping")
    began = time.monotonic()
    stream.next("ping")
    assert 0.5 < time.monotonic() - began < 10.0


def read_mark_of_now() -> int:
    """A mark above all that was written: a transaction in any database of the server holds every mark back."""
    newest = JournalEntry.objects.order_by("-xid").values_list("xid", flat=True)[0]
    return int(wait_until(lambda: (mark := read_mark()) > newest and mark, what="the end of older transactions"))


class TestComingBack:
    def test_it_is_told_what_moved_since_its_mark_and_only_that(self, web: WebProcess, olga: User, run: Run) -> None:
        other = situations.start(olga)
        mark = read_mark_of_now()
        note(run)
        with Stream(web, session_cookie(olga), since=mark) as stream:
            assert [stream.next().event, stream.next()[:2]] == ["hello", ("changed", topics_of(run))]
            assert f"run.{other.pk}" not in topics_of(run)

    def test_nothing_moved_nothing_is_told(self, web: WebProcess, olga: User, run: Run) -> None:
        with Stream(web, session_cookie(olga), since=read_mark_of_now()) as stream:
            assert [stream.next().event, stream.next().event] == ["hello", "ping"]

    def test_what_commits_late_is_not_skipped(self, web: WebProcess, olga: User, run: Run) -> None:
        """Its entry has a smaller id than one that was there when the page was read."""
        late = situations.start(olga)
        wrote, may_commit = threading.Event(), threading.Event()

        def write_late() -> None:
            with transaction.atomic():
                journal.append("run.noted", run=lifecycle.lock(late.pk).pk)
                wrote.set()
                may_commit.wait(20)
            connections.close_all()

        writer = threading.Thread(target=write_late)
        writer.start()
        assert wrote.wait(20)
        note(run)  # commits first, with the greater id
        mark = read_mark()  # the page is read here, and lacks the late one
        may_commit.set()
        writer.join()
        with Stream(web, session_cookie(olga), since=mark) as stream:
            assert f"run.{late.pk}" in stream.next("changed").data

    def test_the_mark_of_every_frame_is_one_to_come_back_with(self, web: WebProcess, olga: User, run: Run) -> None:
        with Stream(web, session_cookie(olga)) as first:
            first.next("hello")
            note(run)
            mark = first.next("changed").id
        other = situations.start(olga)
        with Stream(web, session_cookie(olga), since=mark) as second:
            assert f"run.{other.pk}" in second.next("changed").data

    @pytest.mark.parametrize("since", [10**17, 3])
    def test_with_a_mark_that_says_nothing_everything_is_fetched(
        self, web: WebProcess, olga: User, run: Run, since: int
    ) -> None:
        with connection.cursor() as cursor:  # more than is told one by one
            cursor.execute(
                "INSERT INTO runs_journalentry (kind, actor, xid, at, why) SELECT 'run.noted', 'runtime',"
                f" pg_current_xact_id()::text::bigint, lw_clock(), '' FROM generate_series(1, {MOST})"
            )
        with Stream(web, session_cookie(olga), since=since) as stream:
            assert [stream.next().event, stream.next().event] == ["hello", "resync"]


class TestRights:
    def test_a_run_of_an_agent_that_one_may_not_see_is_not_told(self, web: WebProcess, olga: User, run: Run) -> None:
        with Stream(web, session_cookie(make_person("nina", Role.VIEWER, agents=("stock-watch",))), since=3) as narrow:
            assert narrow.next().event == "hello"
            note(run)
            assert narrow.next().event == "ping"

    def test_a_stranger_is_told_nothing(self, web: WebProcess, run: Run) -> None:
        with Stream(web, session_cookie(make_stranger()), since=3) as stream:
            assert stream.next().event == "hello"
            note(run)
            with transaction.atomic():
                journal.append("switch.engaged")
            notify.flush()
            assert [stream.next().event for _ in range(3)] == ["ping", "ping", "ping"]

    def test_a_right_that_ends_is_noticed_while_the_stream_is_open(self, stream: Stream, run: Run) -> None:
        AgentGrant.objects.all().delete()
        stream.next("resync")
        note(run)
        assert [stream.next().event for _ in range(3)] == ["ping", "ping", "ping"]


class TestSessions:
    def test_the_stream_says_when_its_session_is_over(self, stream: Stream, olga: User) -> None:
        from django.contrib.sessions.models import Session

        Session.objects.all().delete()
        assert [frame.event for frame in stream.frames()][-1] == "expired"

    def test_a_new_password_ends_the_streams_of_the_old_one(self, stream: Stream, olga: User) -> None:
        olga.set_password("another correct horse")
        olga.save()
        assert [frame.event for frame in stream.frames()][-1] == "expired"

    def test_someone_who_may_not_sign_in_any_more_is_told(self, stream: Stream, olga: User) -> None:
        User.objects.update(is_active=False)
        assert [frame.event for frame in stream.frames()][-1] == "expired"

    def test_nobody_is_told_to_sign_in(self, web: WebProcess) -> None:
        with Stream(web) as stream:
            assert [frame.event for frame in stream.frames()] == ["expired"]

    def test_a_fragment_for_nobody_is_a_401_and_a_page_is_a_way_to_sign_in(self, db: None) -> None:
        assert Client().get("/", headers={"HX-Request": "true"}).status_code == 401
        assert Client().get("/").status_code == 302


def test_without_a_server_that_can_stream_it_is_refused(olga: User) -> None:
    client = Client()
    client.force_login(olga)
    assert client.get("/live").status_code == 503
    assert client.post("/live").status_code == 405


def test_a_page_carries_the_mark_from_before_its_queries(web: WebProcess, olga: User, run: Run) -> None:
    before = read_mark()
    _, page = web.get(f"/test/live/{run.pk}", Cookie=f"sessionid={session_cookie(olga)}")
    found = re.search(r'data-live-cursor="(\d+)"', page)
    assert found is not None
    assert before <= int(found[1]) <= read_mark()
