"""The sandbox shop as tests run it: a process of its own that can be killed and started again on the same data."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from runs.examples.shop.client import Received, ShopClient

PROJECT = Path(__file__).resolve().parent.parent


class ShopProcess:
    """One shop on one folder; it keeps its port over a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it and wait for its ready line."""
        command = [sys.executable, "-W", "error", "-m", "runs.examples.shop", "--port", str(self.port)]
        command += ["--data", str(self.folder), "--die-with-parent"]
        self.process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 20)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.process.kill()
            raise AssertionError(f"the shop did not start: {self.process.communicate()[1].decode()}")
        ready = json.loads(line)
        assert ready["pid"] == self.process.pid
        self.url: str = ready["url"]
        self.port = int(self.url.rpartition(":")[2])

    def client(self, *, timeout_s: float = 10.0, caller: str = "") -> ShopClient:
        """A client of this shop."""
        return ShopClient(url=self.url, timeout_s=timeout_s, caller=caller)

    def kill(self) -> None:
        """Kill it as the machine would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> str:
        """Stop it in order; answers what it wrote to stderr, and fails unless it ended with 0."""
        self.process.terminate()
        errors = self.process.communicate(timeout=20)[1].decode()
        assert self.process.returncode == 0, errors
        return errors


def wait_for(found: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    """Ask until it is so."""
    ticker = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if found():
            return
        ticker.wait(0.02)
    raise AssertionError("it did not come to be in time")


def post_refund(shop: ShopClient, order: str, key: str | None, amount: str = "1.00", memo: str = "") -> Received:
    """Ask for a refund and see the whole answer."""
    return shop.call("POST", f"/orders/{order}/refunds", body={"amount": amount, "memo": memo}, key=key)
