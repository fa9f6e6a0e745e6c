"""How soon open pages hear of a change: from the moment it is asked for to its frame at each stream."""

import asyncio
import threading
import time
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db import connection

from console.bench.agents import parker
from console.bench.house import CannotMeasure, Stage, wait_for
from console.bench.readings import describe_ms, percentile, read_memory_mb, to_ms
from console.bench.sizes import Sizes
from console.bench.visitor import HOST, Visitor
from console.bench.work import Starter
from console.live.hub import MOST_STREAMS_OF_ONE

# A process tells screens of changes four times a second at most; each of these is told by itself.
_APART_S = 0.5


class Stream:
    """One open page: when it was told of a change, by this process's clock."""

    def __init__(self) -> None:
        self.opened = False
        self.told: list[float] = []

    async def read(self, port: int, cookie: str) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        asked = f"GET /live HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\nAccept: text/event-stream\r\n\r\n"
        writer.write(asked.encode())
        async for line in reader:
            if line.startswith(b"event: hello"):
                self.opened = True
            elif line.startswith(b"event: changed"):
                self.told.append(time.monotonic())


class Audience:
    """Streams that are read in a thread of their own, until it is closed."""

    def __init__(self, port: int, cookies: Sequence[str]) -> None:
        self.streams = [Stream() for _ in cookies]
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="audience")
        self._thread.start()
        for stream, cookie in zip(self.streams, cookies, strict=True):
            asyncio.run_coroutine_threadsafe(self._open(stream, port, cookie), self._loop)

    async def _open(self, stream: Stream, port: int, cookie: str) -> None:
        self._tasks.append(asyncio.create_task(stream.read(port, cookie)))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    streams, seconds = sizes.runs or 200, sizes.seconds or 20.0
    changes = max(int(seconds / _APART_S), 2)
    port = stage.start_web()
    people = -(-streams // MOST_STREAMS_OF_ONE)
    cookies = [Visitor(User.objects.create_superuser(f"reader-{n}")).cookie for n in range(people)]
    starter = Starter(parker.name)
    waits: list[float] = []
    audience = Audience(port, [cookies[n % people] for n in range(streams)])
    try:
        wait_for(
            "The opening of all streams", lambda: all(each.opened for each in audience.streams), within_s=30.0 + streams
        )
        time.sleep(2 * _APART_S)
        for _ in range(changes):
            began = time.monotonic()
            starter.start()  # nobody works on it: its start is the change
            waits += [_wait_for_frame(each, after=began) - began for each in audience.streams]
            time.sleep(max(began + _APART_S - time.monotonic(), 0.0))
        rss_mb, pss_mb = read_memory_mb(stage.pids_of("web"))
        connections = _count_connections()
    finally:
        audience.close()
    return {
        "streams": streams,
        "p50_ms": to_ms(percentile(waits, 50)),
        "p95_ms": to_ms(percentile(waits, 95)),
        "max_ms": to_ms(max(waits)),
        "rss_mb": rss_mb,
        "pss_mb": pss_mb,
        "db_connections": connections,
        "distributions_ms": {"change_to_frame": describe_ms(waits)},
        "settings": stage.describe()
        | {
            "changes": changes,
            "people": people,
            "apart_s": _APART_S,
            "from": "before the operation that makes the change",
            "rss_mb": "of the web server",
            "db_connections": "of the web server, while all streams are open",
        },
    }


def _wait_for_frame(stream: Stream, *, after: float) -> float:
    def look() -> float | None:
        last = stream.told[-1] if stream.told else 0.0
        return last if last >= after else None

    try:
        return wait_for("A frame", look, within_s=30.0, every_s=0.002)
    except CannotMeasure:
        raise CannotMeasure("A change was not told to every stream within 30 s.") from None


def _count_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
        (count,) = cursor.fetchone() or (0,)
    return int(count)
