"""End the streams when the server is asked to stop.

uvicorn waits for open connections before it says so to the lifespan, and an open stream never closes by itself: so the
signal itself has to be heard. Its handler is chained, never replaced.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def drain_on_signals(drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain` in the running loop before the handler that a signal has now. A signal without one is left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(drain)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    chained = [number for number, handler in before.items() if callable(handler)]
    for number in chained:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in chained:
            signal.signal(number, before[number])
