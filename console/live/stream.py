"""`GET /live`: the frames of one stream.

    hello     the stream is open; for whom, in which session, and how often to expect a sign of life
    changed   topics that moved, as a JSON list
    ping      nothing moved, and the server is there
    degraded  the database is not heard; fetch by yourself until
    resync    fetch everything once
    expired   nobody is signed in any more; do not come back by yourself
    bye       come back: the server stops, or the stream is old, and coming back renews session and rights

Every frame carries the mark up to which everything was told; `?since=MARK` (or Last-Event-ID) is told what moved since.
With `&page=NAME` it ends the stream that the same page had before.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_GET

from console.live.hub import HUB, Client, Hub, NoRoom
from runs.access import visible_agents
from runs.queries.since import Since, name_topics, read_mark, read_since

# The smallest bigint's worth of digits; anything longer is no mark.
_MARK_DIGITS = 18
_PAGE_LENGTH = 32


@login_not_required  # someone who is not signed in is told so in the stream: a script cannot see why a stream is refused
@require_GET
async def live(request: HttpRequest) -> HttpResponseBase:
    if not isinstance(request, ASGIRequest):
        return _refuse()  # under WSGI a stream would be collected to its end, which never comes
    user = await request.auser()
    if not isinstance(user, User):
        await _close_connections()
        return _answer(_say_expired())
    page = request.GET.get("page", "")[:_PAGE_LENGTH]
    client = Client(user=user.pk, session=request.session.session_key or "", page=page)
    try:
        HUB.join(client)  # before the look back, so that nothing falls between
    except NoRoom:
        await _close_connections()
        return _refuse()
    given = _read_given_mark(request)
    client.knows = since = await sync_to_async(_prepare)(client, user, given)
    HUB.begin_by(since)
    if given is not None and (given > since.mark or not since.complete):
        client.notify("resync")  # a mark of another database, or too long ago
    elif given is not None:
        client.tell(name_topics(since.moved, agents=client.agents))
    return _answer(write_frames(client, HUB, mark=since.mark))


def _prepare(client: Client, user: User, given: int | None) -> Since:
    """Find what the person may see and has missed, and give the connection back: a stream holds none."""
    try:
        client.agents = frozenset(visible_agents(user))  # first: from here on the hub tells it what moves
        return read_since(read_mark() if given is None else given)
    finally:
        connections.close_all()


async def write_frames(client: Client, hub: Hub, *, mark: int) -> AsyncIterator[str]:
    """Write until the client goes, its session ends, the server stops or the stream is old."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + settings.LIVE_STREAM_S * random.uniform(0.9, 1.1)  # noqa: S311
    try:
        hello = {"heartbeat_s": settings.LIVE_HEARTBEAT_S, "user": client.user, "session": client.session_name}
        yield _frame("hello", mark, hello)
        if hub.degraded:
            yield _frame("degraded", mark)
        while client.end is None and loop.time() < ends_at:
            try:
                async with asyncio.timeout_at(min(loop.time() + settings.LIVE_HEARTBEAT_S, ends_at)):
                    await client.wake.wait()
            except TimeoutError:
                yield _frame("ping", hub.mark or mark)
                continue
            notice, topics = client.take()
            mark = hub.mark or mark
            if notice:
                yield _frame(notice, mark)
            if topics:
                yield _frame("changed", mark, topics)
        yield _frame(client.end or "bye", mark)
    finally:
        hub.leave(client)


async def _say_expired() -> AsyncIterator[str]:
    yield _frame("expired", 0)


def _frame(event: str, mark: int, data: object = None) -> str:
    return f"id: {mark}\nevent: {event}\ndata: {json.dumps(data)}\n\n"


def _answer(frames: AsyncIterator[str]) -> HttpResponseBase:
    headers = {
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
        "Content-Encoding": "identity",
    }
    return StreamingHttpResponse(frames, content_type="text/event-stream", headers=headers)


def _refuse() -> HttpResponse:
    """No stream now: the page fetches by itself, and tries again."""
    return HttpResponse(status=503, headers={"Retry-After": "5"})


def _read_given_mark(request: HttpRequest) -> int | None:
    given = request.headers.get("Last-Event-ID") or request.GET.get("since", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= _MARK_DIGITS else None


async def _close_connections() -> None:
    await sync_to_async(connections.close_all)()
