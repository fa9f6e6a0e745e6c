import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from console.asgi import Context, WithLifespan


async def refuse(scope: dict[str, Any], receive: object, send: object) -> None:
    raise AssertionError("the lifespan reached the application")


def named_context(name: str, happened: list[str]) -> Context:
    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        happened.append(f"{name} opened")
        try:
            yield
        finally:
            happened.append(f"{name} closed")

    return context


def live(application: WithLifespan) -> list[str]:
    """Start and stop an application as a server would; return what it said."""
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Mapping[str, Any]:
        return next(events)

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(" ".join(str(part) for part in message.values()))

    asyncio.run(application({"type": "lifespan"}, receive, send))
    return sent


def test_contexts_are_opened_in_order_and_closed_in_reverse() -> None:
    happened: list[str] = []
    said = live(WithLifespan(refuse, contexts=[named_context("a", happened), named_context("b", happened)]))
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert happened == ["a opened", "b opened", "b closed", "a closed"]


def test_a_context_that_does_not_open_stops_the_start_and_closes_the_others() -> None:
    happened: list[str] = []

    def broken() -> AbstractAsyncContextManager[None]:
        raise OSError("no listener")

    application = WithLifespan(refuse, contexts=[named_context("a", happened), broken])
    with pytest.raises(OSError, match="no listener"):
        live(application)
    assert happened == ["a opened", "a closed"]
