"""Wait on conditions over real processes; used by the tests of supervisor, cluster and `up`."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from runs.supervise import read_processes

ROOT = Path(__file__).resolve().parent.parent


def wait_until[T](probe: Callable[[], T], *, timeout_s: float = 20.0, what: str = "") -> T:
    """Return the first true answer of `probe`; fail after `timeout_s`."""
    until = time.monotonic() + timeout_s
    while not (answer := probe()):
        assert time.monotonic() < until, f"still not true after {timeout_s} s: {what or probe}"
        time.sleep(0.02)
    return answer


def find_marked(mark: str) -> set[int]:
    """Return the living processes that have `mark` in their environment or command line."""
    found = set()
    for stat in read_processes():
        if stat.state in "ZX" or stat.pid == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{stat.pid}/environ").read_bytes()
            command = Path(f"/proc/{stat.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment or mark.encode() in command:
            found.add(stat.pid)
    return found


def make_mark(name: str) -> str:
    """Return a text that no other process on this machine carries."""
    return f"{name}-{os.getpid()}-{time.monotonic_ns()}"
