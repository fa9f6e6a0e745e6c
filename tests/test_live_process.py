"""What the streams cost a web process, and what becomes of them when it, or its connection, ends."""

import asyncio
import time
from contextlib import ExitStack, suppress

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from console.live.hub import MOST_STREAMS_OF_ONE, Hub
from console.live.listener import HearsNothing, begin
from console.soak.waiting import Overdue
from runs.access import Role
from runs.models import Run
from tests import situations
from tests.live_tools import note
from tests.people import make_person
from tests.waiting import wait_until
from tests.web_process import (
    IS_LISTENER,
    IS_OURS,
    Stream,
    WebProcess,
    end_listener,
    session_cookie,
    web,
    web_process,
)

__all__ = ["web", "web_process"]


@pytest.fixture
def olga(transactional_db: None) -> User:
    return make_person("olga", Role.OPERATOR)


@pytest.fixture
def run(olga: User) -> Run:
    return situations.start(olga)


@pytest.fixture
def many(transactional_db: None) -> list[str]:
    """Session cookies for a hundred streams."""
    people = [make_person(f"person-{n}", Role.VIEWER) for n in range(13)]
    return [session_cookie(person) for person in people for _ in range(MOST_STREAMS_OF_ONE)][:100]


def read_connections(*, listening: bool) -> list[tuple[str, str, str]]:
    """The connections of the web process: state, the last statement, and when that was."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, query, age(clock_timestamp(), query_start)::text FROM pg_stat_activity"
            f" WHERE {IS_OURS} AND ({IS_LISTENER}) = %s",
            [listening],
        )
        found: list[tuple[str, str, str]] = cursor.fetchall()
    return found


def wait_until_none_is_held() -> None:
    with suppress(Overdue):
        wait_until(lambda: not read_connections(listening=False), what="no connection is held")
    assert read_connections(listening=False) == []


def open_streams(web: WebProcess, cookies: list[str], stack: ExitStack) -> list[Stream]:
    streams = [stack.enter_context(Stream(web, cookie)) for cookie in cookies]
    for stream in streams:
        assert stream.next().event == "hello"
    return streams


def test_a_hundred_streams_hold_no_connection_and_one_listens_for_all(
    web: WebProcess, many: list[str], run: Run
) -> None:
    with ExitStack() as stack:
        streams = open_streams(web, many, stack)
        wait_until_none_is_held()
        assert len(read_connections(listening=True)) == 1
        note(run)
        for stream in streams:
            assert stream.next_about(f"run.{run.pk}")
        streams[0].next("ping")  # with each heartbeat the sessions are looked at, and nothing is kept from it
        wait_until_none_is_held()


def test_one_person_has_so_many_streams_and_others_still_get_theirs(web: WebProcess, olga: User) -> None:
    cookie = session_cookie(olga)
    with ExitStack() as stack:
        open_streams(web, [cookie] * MOST_STREAMS_OF_ONE, stack)
        with Stream(web, cookie) as refused:
            assert (refused.status, refused.response.headers["Retry-After"]) == (503, "5")
        other = session_cookie(make_person("otto", Role.VIEWER))
        open_streams(web, [other], stack)

    def is_let_in() -> bool:
        with Stream(web, cookie) as stream:
            return stream.status == 200

    wait_until(is_let_in, what="a place is free again")


def test_the_server_stops_at_once_and_says_so_to_every_stream(web: WebProcess, many: list[str]) -> None:
    with ExitStack() as stack:
        streams = open_streams(web, many[:20], stack)
        assert web.stop() < 4.0  # before uvicorn's own patience of 5 s ends
        for stream in streams:
            assert [frame.event for frame in stream.frames()][-1] == "bye"
    assert "Cancel" not in web.log.read_text().splitlines()[-1]


def test_a_lost_listener_is_said_and_comes_back_by_itself(web: WebProcess, olga: User, run: Run) -> None:
    with Stream(web, session_cookie(olga)) as stream:
        stream.next("hello")
        end_listener()
        began = time.monotonic()
        stream.next("degraded")
        stream.next("resync")
        assert time.monotonic() - began < 5.0
        note(run)
        assert stream.next_about(f"run.{run.pk}")


class Pooled(psycopg.AsyncConnection[tuple[object, ...]]):
    """As behind a pooler that works per transaction: LISTEN is answered, and forgotten with the transaction."""

    async def execute(self, query: object, params: object = None, **given: object) -> psycopg.AsyncCursor:
        done = await super().execute(query, params, **given)  # type: ignore[call-overload]
        if str(query).startswith("LISTEN"):
            await super().execute("UNLISTEN *")
        return done  # type: ignore[no-any-return]


@pytest.mark.usefixtures("transactional_db")
def test_behind_a_pooler_per_transaction_nothing_is_believed() -> None:
    async def listen(kind: type[psycopg.AsyncConnection[tuple[object, ...]]], hub: Hub) -> None:
        params = connection.get_connection_params()
        address = {key: params[key] for key in ("dbname", "user", "password", "host", "port") if key in params}
        async with await kind.connect(**address, autocommit=True) as listening:
            await begin(listening, hub)

    hub = Hub()
    with pytest.raises(HearsNothing, match="DATABASE_URL"):
        asyncio.run(listen(Pooled, hub))
    assert hub.degraded
    asyncio.run(listen(psycopg.AsyncConnection, hub))
    assert not hub.degraded
