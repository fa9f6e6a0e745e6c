"""The gateway's way to the database: a few threads, each with a connection of its own that survives an outage."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import InterfaceError, InternalError, OperationalError, connection

# What a server that restarts, a lost connection, a lock timeout or a deadlock looks like: it passes.
OUTAGES = (OperationalError, InterfaceError, InternalError)


class Outage(Exception):
    """The database could not do it now. Whether it did may be unknown, if it was lost at the commit."""


class Threads:
    """Threads for database work. What waits in one pool never delays another."""

    def __init__(self, name: str, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=f"gateway-{name}")

    async def run[T](self, work: Callable[[], T]) -> T:
        """Run a function in one of the threads. Raises: Outage, after which the next one connects anew."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _guard, work)

    def close(self, *, timeout_s: float) -> None:
        """Let every thread close its connection, and end."""
        together = threading.Barrier(self._count)

        def close_one() -> None:
            connection.close()
            try:
                together.wait(timeout_s)
            except threading.BrokenBarrierError:
                return

        for _ in range(self._count):
            self._pool.submit(close_one)
        self._pool.shutdown(wait=True)


def _guard[T](work: Callable[[], T]) -> T:
    try:
        return work()
    except OUTAGES as error:
        # It may be broken or hold a transaction that nobody ends.
        connection.close()
        raise Outage(str(error).strip() or type(error).__name__) from error
