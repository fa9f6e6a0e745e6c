"""A cable to the database that a test can cut: what a server that restarts looks like to a process, without one."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class Cable:
    """Passes bytes between a socket of its own and the server's, until it is cut; `mend` plugs it in again."""

    def __init__(self, server: Path, own: Path) -> None:
        self._server = server
        self._own = own
        self._ends: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.mend()

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
                for giver, taker in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=[giver, taker], daemon=True).start()


def _pump(giver: socket.socket, taker: socket.socket) -> None:
    with suppress(OSError):
        while data := giver.recv(65536):
            taker.sendall(data)
    for end in (giver, taker):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    giver.close()
