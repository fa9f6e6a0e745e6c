"""The ASGI application: Django, with a start and an end.

Django's own handler refuses the lifespan protocol, so what has to be opened before the first request and
closed after the last (the listener behind the live pages) is a context in `CONTEXTS`.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

type Receive = Callable[[], Awaitable[Mapping[str, Any]]]
type Send = Callable[[Mapping[str, Any]], Awaitable[None]]
type Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
type Context = Callable[[], AbstractAsyncContextManager[Any]]


class WithLifespan:
    """An ASGI application that enters its contexts at start-up and leaves them, in reverse, at shut-down."""

    def __init__(self, application: Application, *, contexts: Sequence[Context]) -> None:
        self._application = application
        self._contexts = contexts

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._application(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                for context in self._contexts:
                    await stack.enter_async_context(context())
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
                raise
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


# Before the imports that need Django's apps.
_django = get_asgi_application()

from console.live import keep_live  # noqa: E402

CONTEXTS: Sequence[Context] = [keep_live]
application = WithLifespan(_django, contexts=CONTEXTS)
