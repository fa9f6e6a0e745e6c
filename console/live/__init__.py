"""Live pages: who has a page open is told *that* something moved, and the page fetches what it shows anew.

    hub       who listens, and what each has not been told yet
    listener  one connection per web process that hears hints, and reads in the journal what they were about
    review    sessions that ended and rights that changed while a stream was open
    stream    the frames of one stream, and its view
    drain     streams that end when the server is asked to stop
    cursor    the moment before a page's queries, which the page carries

A hint only says *look*; the journal says what moved. So a hint that is lost costs a sweep, and none is needed for correctness.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from console.live.drain import drain_on_signals
from console.live.hub import HUB
from console.live.listener import listen
from console.live.review import review_sessions
from console.live.tasks import keep_running


@asynccontextmanager
async def keep_live() -> AsyncIterator[None]:
    """Listen and review for as long as the web server runs; let open streams end when it is asked to stop."""
    async with AsyncExitStack() as stack:
        stack.enter_context(drain_on_signals(HUB.drain))
        await stack.enter_async_context(keep_running(listen(HUB), review_sessions(HUB)))
        yield
