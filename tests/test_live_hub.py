"""The hub bounds what it keeps, and a stream ends when it should."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from console.live.drain import drain_on_signals
from console.live.hub import MOST_STREAMS, MOST_STREAMS_OF_ONE, Client, Hub, NoRoom
from console.live.listener import look
from console.live.stream import write_frames
from runs.queries.since import MOST, Moved, Since

EVERYTHING = frozenset({"*"})


def make_client(hub: Hub, *, user: int = 1, agents: frozenset[str] = EVERYTHING, page: str = "") -> Client:
    client = Client(user=user, session="s", page=page)
    client.agents = agents
    hub.join(client)
    return client


def moved(entry: int, *, run: int | None = 7, agent: str | None = "refund-desk", noun: str = "step") -> Moved:
    return Moved(entry=entry, xid=100 + entry, run=run, agent=agent, noun=noun)


def since(*entries: Moved, mark: int = 100, complete: bool = True) -> Since:
    return Since(mark=mark, moved=entries, complete=complete)


def events_of(frames: list[str]) -> list[str]:
    return [line.removeprefix("event: ") for frame in frames for line in frame.splitlines() if line.startswith("event")]


async def collect(frames: AsyncIterator[str]) -> list[str]:
    return [frame async for frame in frames]


def test_each_entry_is_told_once_however_long_a_writer_holds_the_mark_back() -> None:
    hub = Hub()
    client = make_client(hub)
    hub.begin(since(moved(1)))
    hub.pass_on(since(moved(1), moved(2)))
    assert client.take() == (None, ["run.7", "runs"])
    hub.pass_on(since(moved(1), moved(2)))
    assert client.take() == (None, [])
    hub.pass_on(since(moved(1), moved(2), moved(3, run=8), mark=103))
    assert client.take() == (None, ["run.8", "runs"])


def test_who_has_just_come_is_not_told_what_it_read_itself() -> None:
    hub = Hub()
    hub.begin(since())
    early, late = make_client(hub), make_client(hub)
    late.knows = since(moved(2), mark=102)
    hub.pass_on(since(moved(1, run=1), moved(2, run=2), moved(3, run=3)))
    assert early.take()[1] == ["run.1", "run.2", "run.3", "runs"]
    assert late.take()[1] == ["run.3", "runs"]


@pytest.mark.parametrize("begun", [None, 103], ids=["nobody was there", "others were told more"])
def test_what_moves_while_a_stream_begins_is_told(begun: int | None) -> None:
    hub = Hub()
    if begun:
        hub.begin(since(mark=begun))
    client = make_client(hub)
    journal = [moved(2, run=2)]

    async def read(mark: int | None) -> Since:
        if (
            client.knows is None
        ):  # the answer takes so long that the stream has said hello before it, and something moved
            client.knows = since(mark=101)
            hub.begin_by(client.knows)
        at = 110 if mark is None else mark
        return since(*(each for each in journal if each.xid >= at), mark=110)

    async def look_twice() -> None:
        await look(hub, read)
        await look(hub, read)

    asyncio.run(look_twice())
    assert client.take()[1] == ["run.2", "runs"]


def test_only_those_who_may_see_the_agent_are_told() -> None:
    hub = Hub()
    hub.begin(since())
    others, nobody = make_client(hub, agents=frozenset({"stock-watch"})), make_client(hub, agents=frozenset())
    hub.pass_on(since(moved(1), moved(2, run=9, agent="stock-watch", noun="approval"), moved(3, run=None)), hints=["x"])
    assert others.take()[1] == ["approvals", "journal", "run.9", "runs", "x"]
    assert nobody.take()[1] == []


def test_more_than_can_be_told_one_by_one_is_told_as_everything() -> None:
    hub = Hub()
    client = make_client(hub)
    client.tell([f"run.{n}" for n in range(MOST + 1)])
    assert client.take() == ("resync", [])
    hub.begin(since())
    hub.pass_on(since(moved(1), complete=False))
    assert client.take() == ("resync", [])
    hub.pass_on(since(moved(2), complete=False))
    assert client.take() == (None, ["run.7", "runs"]), "everything is asked for once in a while, not at every look"


def test_there_is_room_for_so_many() -> None:
    hub = Hub()
    kept = [make_client(hub, user=n) for n in range(MOST_STREAMS)]
    with pytest.raises(NoRoom):
        make_client(hub, user=MOST_STREAMS)
    kept.pop()  # one that was never read: nothing else has to be done for its place
    kept.append(make_client(hub, user=MOST_STREAMS))

    hub = Hub()
    kept = [make_client(hub) for _ in range(MOST_STREAMS_OF_ONE)]
    with pytest.raises(NoRoom):
        make_client(hub)


def test_a_page_that_comes_back_takes_the_place_of_its_stream_before() -> None:
    hub = Hub()
    others = [make_client(hub, page=f"page {n}") for n in range(MOST_STREAMS_OF_ONE - 1)]
    first = make_client(hub, page="mine")
    second = make_client(hub, page="mine")
    assert (first.end, second.end) == ("bye", None)
    somebody_else = make_client(hub, user=2, page="mine")
    assert set(hub.clients) == {*others, second, somebody_else}
    assert second.end is None, "a name is one person's own"


def test_an_old_stream_says_goodbye_and_its_client_comes_back(settings: Any) -> None:
    settings.LIVE_HEARTBEAT_S, settings.LIVE_STREAM_S = 0.05, 0.3
    hub = Hub()
    hub.recover(since())

    events = events_of(asyncio.run(collect(write_frames(make_client(hub), hub, mark=1))))
    assert (events[0], set(events[1:-1]), events[-1]) == ("hello", {"ping"}, "bye")
    assert not hub.clients


def test_a_stream_without_a_listener_says_so_at_once_and_a_draining_server_opens_none() -> None:
    hub = Hub()

    async def watch() -> list[str]:
        client = make_client(hub)
        asyncio.get_running_loop().call_later(0.05, hub.drain)
        return await collect(write_frames(client, hub, mark=1))

    assert events_of(asyncio.run(watch())) == ["hello", "degraded", "bye"]
    with pytest.raises(NoRoom):
        make_client(hub)


def test_a_signal_drains_and_still_reaches_who_waited_for_it() -> None:
    heard: list[str] = []

    async def serve() -> None:
        with drain_on_signals(lambda: heard.append("drain")):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)

    def stop(number: int, frame: object) -> None:
        heard.append("server")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        asyncio.run(serve())
        assert sorted(heard) == ["drain", "server"]
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)
