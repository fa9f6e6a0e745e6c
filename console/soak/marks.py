"""Find what was started here among the processes of this machine, however it was orphaned."""

import os
import time
from pathlib import Path

from runs.supervise import read_processes


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
