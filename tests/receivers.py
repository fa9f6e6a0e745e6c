"""Real receivers of messages, on the loopback: an HTTP server and a mail server that keep what they are sent."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpReceiver:
    """Answers each POST with the next of `statuses`, then 200."""

    url: str = ""
    got: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


@dataclass
class MailReceiver:
    """`refuse`: addresses that it does not take."""

    url: str = ""
    got: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)


@contextmanager
def receive_http() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            self.send_response(status)
            if status in (301, 302, 307, 308):
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        receiver.url = f"http://127.0.0.1:{port}"
        yield receiver


@contextmanager
def receive_mail() -> Iterator[MailReceiver]:
    """As much of SMTP (RFC 5321) as a client needs that hands over mail."""
    receiver = MailReceiver()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            to: list[str] = []
            self._say(220, "ready")
            while line := self.rfile.readline().decode().strip():
                word = line.split()[0].upper()
                if word == "RCPT":
                    address = line.partition("<")[2].partition(">")[0]
                    if address in receiver.refuse:
                        self._say(550, "no such mailbox")
                        continue
                    to.append(address)
                elif word == "DATA":
                    self._say(354, "go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    raw = b"".join(each.removeprefix(b".") if each.startswith(b"..") else each for each in lines)
                    receiver.got.append((to, message_from_bytes(raw, policy=policy.default)))
                    to = []
                elif word == "QUIT":
                    self._say(221, "bye")
                    return
                self._say(250, "ok")

        def _say(self, code: int, words: str) -> None:
            self.wfile.write(f"{code} {words}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with _serving(Server(("127.0.0.1", 0), Handler)) as port:
        receiver.url = f"smtp://127.0.0.1:{port}"
        yield receiver


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
