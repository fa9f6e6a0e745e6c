"""The shop over HTTP: connections, faults, answers. One thread per connection."""

import contextlib
import json
import select
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from runs.examples.shop import acts
from runs.examples.shop.acts import Answer, ShopError
from runs.examples.shop.faults import Fault, FaultKind, Target
from runs.examples.shop.routes import SILENT, Ask, Route, find_route
from runs.examples.shop.storage import Storage

BODY_MOST = 1_000_000


class Flight:
    """The keys that are at work right now. In memory on purpose: a killed shop has nothing in flight."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, str] = {}

    @contextlib.contextmanager
    def hold(self, key: str | None, fingerprint: str) -> Iterator[None]:
        """Hold a key while its request is at work.

        Raises:
            ShopError: 409 while another request with this key is at work, 422 if that one asks for something else.
        """
        if key is None:
            yield
            return
        with self._lock:
            flying = self._keys.setdefault(key, fingerprint)
            mine = flying is fingerprint
        if not mine and flying != fingerprint:
            raise ShopError(422, "key_reused", "this Idempotency-Key is at work for another refund")
        if not mine:
            raise ShopError(409, "key_in_flight", "a request with this Idempotency-Key is still at work; ask again")
        try:
            yield
        finally:
            with self._lock:
                del self._keys[key]


class Shop(ThreadingHTTPServer):
    """The listening server; `stop` ends it from any thread or signal handler."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, *, storage: Storage, port: int, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), Handler)
        self.storage = storage
        self.flight = Flight()
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def stop(self) -> None:
        """Take no more requests; what waits out a fault is dropped, what acts ends its commit."""
        self.stopping.set()
        threading.Thread(target=self.shutdown, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that has gone is no fault of the shop; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """Serve the requests of one connection."""

    server: Shop
    protocol_version = "HTTP/1.1"
    server_version = "shop"
    wbufsize = -1  # head and body leave in one packet
    disable_nagle_algorithm = True
    timeout = 300

    def serve(self) -> None:
        """Answer one request, with whatever faults it meets."""
        parts = urlsplit(self.path)
        try:
            route, name = find_route(self.command, parts.path)
            body = self.read_body()
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            if route.quiet:
                self.answer(
                    route.act(Ask(storage=self.server.storage, arrival=SILENT, name=name, query=query, body=body))
                )
                return
            self.serve_logged(route, name=name, query=query, body=body)
        except ShopError as refusal:
            self.answer(Answer(status=refusal.status, body={"error": refusal.body}))

    do_GET = do_POST = do_PATCH = do_DELETE = serve

    def serve_logged(self, route: Route, *, name: str, query: Mapping[str, str], body: Mapping[str, object]) -> None:
        """Log the arrival, act between the faults, log how it ended, answer."""
        storage = self.server.storage
        target = self.target(route, name)
        caller = self.headers.get("X-Caller")
        arrival = storage.arrive(target=target, caller=caller, body=body or None, faulty=route.faulty)
        faults: dict[FaultKind, Fault] = {fault.kind: fault for fault in arrival.faults}
        lag_s = faults["late_reads"].seconds if "late_reads" in faults else 0.0
        keyed = "ignore_keys" not in faults
        ask = Ask(storage=storage, arrival=arrival, name=name, query=query, body=body, keyed=keyed, lag_s=lag_s)
        try:
            answer = self.act(route, ask, faults)
        except ShopError as refusal:
            answer = Answer(status=refusal.status, body={"error": refusal.body})
        except Exception:
            traceback.print_exc()
            answer = Answer(
                status=500, body={"error": {"code": "internal", "message": "the shop is broken; see its output"}}
            )
        if answer is None or "act_and_drop" in faults:
            storage.note_end(arrival, kind="dropped")
            self.drop()
            return
        if "slow_after" in faults and self.server.stopping.wait(faults["slow_after"].seconds):
            self.drop()
            return
        if "act_and_fail" in faults:
            answer = failure(faults["act_and_fail"])
        storage.note_end(arrival, kind="answered", status=answer.status, value={"replayed": answer.replayed})
        if "garble" in faults:
            self.write(answer.status, b"<html>502 Bad Gateway \xff\xfe", {"Content-Type": "text/html"})
            return
        retry_after = next(
            (fault.retry_after for fault in arrival.faults if fault.kind in ("fail", "act_and_fail")), None
        )
        self.answer(answer, retry_after=retry_after)

    def act(self, route: Route, ask: Ask, faults: Mapping[FaultKind, Fault]) -> Answer | None:
        """Do what the route does unless a fault comes before it; None says that the connection is to be dropped."""
        flying = hold_key(self.server.flight, ask) if route.keyed and ask.keyed else contextlib.nullcontext()
        with flying:
            if "slow" in faults and self.server.stopping.wait(faults["slow"].seconds):
                return None
            if "drop_before" in faults:
                return None
            if "hang" in faults:
                self.wait_until_gone()
                return None
            if "fail" in faults:
                return failure(faults["fail"])
            return route.act(ask)

    def target(self, route: Route, name: str) -> Target:
        """Work out which order and batch a request is about."""
        order, batch = name if route.about == "order" else None, name if route.about == "batch" else None
        if route.about == "request":
            rows = self.server.storage.fetch("SELECT order_name FROM request WHERE name = ?", (name,))
            order = rows[0][0] if rows else None
        if route.about == "sku":
            rows = self.server.storage.fetch("SELECT batch FROM stock WHERE sku = ?", (name,))
            batch = rows[0][0] if rows else None
        if order is not None:
            rows = self.server.storage.fetch("SELECT batch FROM orders WHERE name = ?", (order,))
            batch = rows[0][0] if rows else None
        key = self.headers.get("Idempotency-Key")
        if key is not None and not 1 <= len(key) <= 255:
            raise ShopError(400, "malformed", "Idempotency-Key has 1 to 255 characters")
        return Target(method=self.command, path=urlsplit(self.path).path, order=order, batch=batch, key=key)

    def read_body(self) -> Mapping[str, object]:
        """Read a JSON object; no body is an empty one.

        Raises:
            ShopError: 400 for anything else, 413 when it is too large; the connection closes where its rest is unread.
        """
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.close_connection = True
            raise ShopError(400, "malformed", "send a Content-Length")
        if int(length) > BODY_MOST:
            self.close_connection = True
            raise ShopError(413, "malformed", f"a body has at most {BODY_MOST} bytes")
        raw = self.rfile.read(int(length))
        if not raw:
            return {}
        try:
            body = json.loads(raw)
            json.dumps(body, ensure_ascii=False).encode()  # a lone surrogate cannot be stored or shown
        except (ValueError, RecursionError) as wrong:
            raise ShopError(400, "malformed", f"the body is no JSON: {wrong}") from wrong
        if not isinstance(body, dict):
            raise ShopError(400, "malformed", "the body is a JSON object")
        return body

    def wait_until_gone(self) -> None:
        """Return when the caller has closed the connection, or the shop stops."""
        while not self.server.stopping.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.2)
            if readable:
                with contextlib.suppress(OSError):
                    if self.connection.recv(1, socket.MSG_PEEK):
                        self.server.stopping.wait(0.2)
                        continue
                return

    def drop(self) -> None:
        """Close the connection under the caller's hands."""
        self.close_connection = True

    def answer(self, answer: Answer, *, retry_after: float | None = None) -> None:
        """Send a JSON answer."""
        head = {"Content-Type": "application/json"}
        if answer.replayed:
            head["Idempotent-Replayed"] = "true"
        if retry_after is not None:
            head["Retry-After"] = f"{retry_after:g}"
        self.write(answer.status, json.dumps(answer.body).encode(), head)

    def write(self, status: int, body: bytes, head: Mapping[str, str]) -> None:
        """Send bytes."""
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the log is in the storage."""


def hold_key(flight: Flight, ask: Ask) -> contextlib.AbstractContextManager[None]:
    """Hold the key of a refund request for as long as it is at work, the time that a fault adds included."""
    return flight.hold(ask.arrival.key, acts.fingerprint_refund(ask.name, ask.body))


def failure(fault: Fault) -> Answer:
    """Answer as a service that is broken, or refuses."""
    codes = {401: "unauthorized", 403: "forbidden", 429: "rate_limited", 503: "overloaded"}
    code = codes.get(fault.status, "internal" if fault.status >= 500 else "refused")
    return Answer(status=fault.status, body={"error": {"code": code, "message": f"told to answer {fault.status}"}})
