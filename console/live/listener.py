"""One connection per web process: it hears hints, and reads in the journal what they were about.

It is a connection of its own, straight to the server: behind a pooler that hands out connections per transaction, LISTEN
does nothing and says nothing. No connection is held per page.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

import psycopg
from asgiref.sync import sync_to_async
from django.db import connections

from console.live.hub import SWEEP_S, Hub
from runs.notify import SCREEN
from runs.queries.since import MARK, SINCE, Since, keep_unexplained, parse_since

log = logging.getLogger(__name__)

COALESCE_S = 0.05
CONNECT_S = 5
ANSWER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

type Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class HearsNothing(psycopg.OperationalError):
    """LISTEN was accepted and forgotten."""

    def __init__(self) -> None:
        super().__init__(
            "LISTEN has no effect on this connection: DATABASE_URL goes through a pooler that works per transaction."
            " Pages fetch every 10 s instead. Point it at the server itself, or at a pooler that works per session."
        )


async def listen(hub: Hub) -> None:
    """Keep a listening connection, for ever; the hub is degraded while there is none."""
    pause, said = FIRST_PAUSE_S, ""
    while True:
        try:
            async with await _connect() as connection:
                await begin(connection, hub)
                pause, said = FIRST_PAUSE_S, ""
                await _hear(connection, hub)
        except (psycopg.Error, OSError) as error:
            why = str(error).strip() or type(error).__name__
            if why != said:  # once, however often it is tried
                log.warning("live pages hear nothing from the database: %s", why)
            said = why
        except Exception:
            log.exception("the listener of the live pages broke; it starts again")
        hub.degrade()
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        pause = min(pause * 2, LONGEST_PAUSE_S)


async def _connect() -> Connection:
    # In a thread: with the embedded server this may start it.
    params = await sync_to_async(_read_params, thread_sensitive=False)()
    return await psycopg.AsyncConnection.connect(**params, autocommit=True)


def _read_params() -> dict[str, Any]:
    """Django's own parameters, without what is only for its kind of connection."""
    params = connections["default"].get_connection_params()
    kept = {key: value for key, value in params.items() if key not in {"cursor_factory", "context"}}
    name = f"{params.get('application_name', 'longwatch')} live"
    return {"connect_timeout": CONNECT_S} | kept | {"application_name": name}


async def begin(connection: Connection, hub: Hub) -> None:
    async with asyncio.timeout(ANSWER_S):
        await connection.execute(f"LISTEN {SCREEN}")
        if not await _fetch(connection, "SELECT pg_listening_channels()"):
            raise HearsNothing
    hub.recover(await _read_since(connection, None))


async def _hear(connection: Connection, hub: Hub) -> None:
    """Look when a hint comes, and every few seconds without one, as long as anybody listens."""
    while True:
        hints = {hint.payload async for hint in connection.notifies(timeout=SWEEP_S, stop_after=1)}
        if hints:
            hints |= {hint.payload async for hint in connection.notifies(timeout=COALESCE_S)}
        if hub.clients:
            await look(hub, partial(_read_since, connection), hints=keep_unexplained(hints))
        else:
            hub.forget()


async def look(hub: Hub, read: Callable[[int | None], Awaitable[Since]], *, hints: Collection[str] = ()) -> None:
    """Tell what moved. A stream that begins meanwhile may know less than what is being read: then it is read again."""
    while (mark := hub.mark) is not None:
        since = await read(mark)
        if hub.mark == mark:
            hub.pass_on(since, hints=hints)
            return
    hub.begin_by(await read(None))


async def _read_since(connection: Connection, mark: int | None) -> Since:
    """What moved since `mark`; without one, since just now."""
    async with asyncio.timeout(ANSWER_S):
        if mark is None:
            mark = (await _fetch(connection, MARK))[0][0]
        return parse_since(await _fetch(connection, SINCE, mark))


async def _fetch(connection: Connection, statement: str, *params: object) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(statement, params)
    return await cursor.fetchall()
