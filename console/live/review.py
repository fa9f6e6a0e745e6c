"""Sessions that ended, and rights that changed, while a stream was open. No connection is held in between."""

import asyncio
import logging
from collections.abc import Collection
from importlib import import_module

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.db import DatabaseError, connections
from django.http import HttpRequest

from console.live.hub import Hub
from runs.access import visible_agents

log = logging.getLogger(__name__)


async def review_sessions(hub: Hub) -> None:
    """At every heartbeat: end the streams of sessions that are over, and tell each no more than its person may see."""
    while True:
        await asyncio.sleep(settings.LIVE_HEARTBEAT_S)
        try:
            found = await sync_to_async(read_agents, thread_sensitive=False)({c.session for c in hub.clients})
        except DatabaseError:
            continue  # the listener says so, and the next round reviews
        except Exception:
            log.exception("the sessions of the live pages were not reviewed; the next round comes")
            continue
        for client in list(hub.clients):
            agents = found.get(client.session, client.agents)
            if agents is None:
                client.finish("expired")
            elif agents != client.agents:
                client.agents = agents
                client.notify("resync")


def read_agents(sessions: Collection[str]) -> dict[str, frozenset[str] | None]:
    """The agents that each session's person sees now; None when nobody is signed in with it."""
    store = import_module(settings.SESSION_ENGINE).SessionStore
    found: dict[str, frozenset[str] | None] = {}
    seen_by: dict[int, frozenset[str]] = {}
    try:
        for key in sessions:
            request = HttpRequest()
            request.session = store(key)
            user = get_user(request)
            if not isinstance(user, User):
                found[key] = None
                continue
            if user.pk not in seen_by:
                seen_by[user.pk] = frozenset(visible_agents(user))
            found[key] = seen_by[user.pk]
    finally:
        connections.close_all()
    return found
