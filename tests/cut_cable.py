"""A cable to the database that a test can cut: what a server that restarts looks like to a process, without one.

Or that breaks by itself at the worst moment: at a commit, just before the server gets it, or just after it has done it.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

# unsent: the server never gets the commit. unheard: it commits, and its answer does not come.
type Moment = Literal["unsent", "unheard"]
_COMMITS = (b"COMMIT\0", b"COMMIT; ")  # alone in its message, or with what comes along


class Cable:
    """Passes bytes between a socket of its own and the server's, until it is cut; `mend` plugs it in again."""

    def __init__(self, server: Path, own: Path) -> None:
        self._server = server
        self._own = own
        self._ends: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._moment: Moment | None = None
        self.mend()

    def break_at_commit(self, moment: Moment) -> None:
        """Let the connection that commits next break at this moment of it."""
        self._moment = moment

    @property
    def has_broken(self) -> bool:
        """Whether that has come."""
        return self._moment is None

    def _breaks(self, data: bytes) -> Moment | None:
        if self._moment is None or not any(commit in data for commit in _COMMITS):
            return None
        moment, self._moment = self._moment, None
        return moment

    def mend(self) -> None:
        self._own.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._own))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        assert self._listener is not None
        self._own.unlink()
        # A shutdown wakes the threads that wait in these sockets; they close them.
        for end in [self._listener, *self._ends]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._ends += [client, server]
                threading.Thread(target=_pump, args=[client, server, self._breaks], daemon=True).start()
                threading.Thread(target=_pump, args=[server, client, None], daemon=True).start()


def _pump(giver: socket.socket, taker: socket.socket, breaks: Callable[[bytes], Moment | None] | None) -> None:
    with suppress(OSError):
        while data := giver.recv(65536):
            moment = breaks(data) if breaks is not None else None
            if moment == "unsent":
                break
            if moment == "unheard":
                giver.shutdown(socket.SHUT_RDWR)  # nobody hears the answer any more
            taker.sendall(data)
            if moment == "unheard":
                taker.shutdown(socket.SHUT_WR)  # the server does what it got, and then sees the end
                giver.close()
                return
    for end in (giver, taker):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    giver.close()
