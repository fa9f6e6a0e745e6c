"""The system outside that effects reach: honours idempotency keys, and keeps when each request came."""

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request: when it came, by the machine's clock, and whether its key had been seen before."""

    at: float
    key: str
    run: int
    number: int
    repeated: bool


class Receiver:
    """An HTTP server in a thread of this process."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                at = time.time()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.take(at, self.headers["Idempotency-Key"], body["run"], body["number"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: what came is in `arrivals`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def effects(self) -> int:
        """How many different effects came: one for each key."""
        return len(self._keys)

    def take(self, at: float, key: str, run: int, number: int) -> None:
        with self._lock:
            self.arrivals.append(Arrival(at=at, key=key, run=run, number=number, repeated=key in self._keys))
            self._keys.add(key)

    def find(self, run: int, number: int | None = None, *, after: float = 0.0) -> Arrival | None:
        """Return the first request for a run, and step where one is named, that came after a moment."""
        for arrival in list(self.arrivals):
            if arrival.run == run and number in (None, arrival.number) and arrival.at > after:
                return arrival
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
