"""Who has a stream open, and what each of them has not been told yet. Touched by the event loop alone."""

import asyncio
import time
from collections.abc import Collection
from typing import Final, Literal
from weakref import WeakSet

from django.utils.crypto import salted_hmac

from runs.queries.since import MOST, Since, name_topics

MOST_STREAMS: Final = 1_000
MOST_STREAMS_OF_ONE: Final = 8
SWEEP_S: Final = 2.0

type Notice = Literal["degraded", "resync"]
type End = Literal["expired", "bye"]


class NoRoom(Exception):
    """One stream more would be too many."""


class Client:
    """One open stream. What waits for it is a set of topics, so a slow reader costs no more than their number."""

    def __init__(self, *, user: int, session: str, page: str = "") -> None:
        self.user = user
        self.session = session
        self.page = page  # the same for every stream that one page opens; empty where it says none
        self.agents: frozenset[str] = frozenset()
        self.knows: Since | None = None  # until the first look after it joined, which includes that
        self.wake = asyncio.Event()
        self.end: End | None = None
        self._topics: set[str] = set()
        self._notice: Notice | None = None

    @property
    def session_name(self) -> str:
        """Tells one session from the next, and lets nobody in."""
        return salted_hmac("console.live", self.session, algorithm="sha256").hexdigest()[:16]

    def tell(self, topics: Collection[str]) -> None:
        self._topics |= set(topics)
        if len(self._topics) > MOST:
            self.notify("resync")
        elif topics:
            self.wake.set()

    def notify(self, notice: Notice) -> None:
        """The newest notice counts. After it the page fetches everything, so the topics before it are told."""
        self._notice = notice
        self._topics.clear()
        self.wake.set()

    def finish(self, end: End) -> None:
        self.end = end
        self.wake.set()

    def take(self) -> tuple[Notice | None, list[str]]:
        """What has not been told yet, once."""
        told = self._notice, sorted(self._topics)
        self._notice = None
        self._topics.clear()
        self.wake.clear()
        return told


class Hub:
    """The clients of this process, and up to where they were told everything: None while there are none."""

    def __init__(self) -> None:
        # Weak: a stream that is thrown away before its first frame runs no clean-up of its own.
        self.clients: WeakSet[Client] = WeakSet()
        self.degraded = True
        self.draining = False
        self._told: Since | None = None
        self._resynced_at = 0.0

    @property
    def mark(self) -> int | None:
        """Where to look from."""
        return self._told.mark if self._told else None

    def join(self, client: Client) -> None:
        """A page that comes back takes the place of its stream before, whose end the server may not have seen yet.

        Raises:
            NoRoom: this person, or everybody together, has as many as may be.
        """
        if client.page:
            for other in list(self.clients):
                if (other.user, other.page) == (client.user, client.page):
                    other.finish("bye")
                    self.leave(other)
        mine = sum(1 for other in self.clients if other.user == client.user)
        if self.draining or len(self.clients) >= MOST_STREAMS or mine >= MOST_STREAMS_OF_ONE:
            raise NoRoom
        self.clients.add(client)

    def leave(self, client: Client) -> None:
        self.clients.discard(client)

    def forget(self) -> None:
        """Nobody listens, so nobody has to be told what moves from here on."""
        self._told = None

    def begin(self, since: Since) -> None:
        """Tell what moves from here on; what was there by then is known already."""
        self._told = since

    def begin_by(self, since: Since) -> None:
        """As `begin`, unless everything is told from an earlier moment: somebody may have been promised that."""
        if self._told is None or since.mark < self._told.mark:
            self.begin(since)

    def pass_on(self, since: Since, *, hints: Collection[str] = ()) -> None:
        """Tell each client what moved that it may see. `hints` are topics that move without an entry."""
        fresh = self._told.select_new(since.moved) if self._told else []
        self.begin(since)
        topics: dict[frozenset[str], set[str]] = {}
        for client in list(self.clients):
            agents = client.agents
            if client.knows:
                client.tell(name_topics(client.knows.select_new(fresh), agents=agents))
                client.knows = None
            else:
                if agents not in topics:
                    topics[agents] = name_topics(fresh, agents=agents)
                client.tell(topics[agents])
            if agents:
                client.tell(hints)
        if not since.complete and time.monotonic() - self._resynced_at > SWEEP_S:
            self._resynced_at = time.monotonic()
            self._notify_all("resync")

    def degrade(self) -> None:
        """From here on nothing is heard; pages fetch by themselves."""
        if not self.degraded:
            self.degraded = True
            self._notify_all("degraded")

    def recover(self, since: Since) -> None:
        """Everything is heard from here on; what moved in between is not known, so pages fetch everything once."""
        self.begin(since)
        self.degraded = False
        self._notify_all("resync")

    def drain(self) -> None:
        """End every stream, and let none begin: the server is about to stop, and waits for them."""
        self.draining = True
        for client in list(self.clients):
            client.finish("bye")

    def _notify_all(self, notice: Notice) -> None:
        for client in list(self.clients):
            client.notify(notice)


HUB: Final = Hub()
