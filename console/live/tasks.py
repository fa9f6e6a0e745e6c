"""Work that goes on beside the requests."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def keep_running(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run these beside the body, and end them with it."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
