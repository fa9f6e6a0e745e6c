"""What a tool process, and all that it starts, prints or logs: lines that say whose they are, and not without end.

Its standard output and error are a file without a name, which its worker reads. Unlike a pipe it is never full, and it
does not break when the worker dies: a call is neither held up nor ended by what it prints. What was read is freed.
"""

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from django.conf import settings

from runs.engine.toolwire import Perform

log = logging.getLogger(__name__)

CALL_BYTES = 64 * 1024
"""So much of what one call prints and logs is put into the log, and of what follows only how much it was."""
_LINE_BYTES = 4096
# What a line costs besides, so that a million empty ones are too many.
_EACH_BYTES = 100
_PIECE_BYTES = 64 * 1024
_FREE_BYTES = 1024 * 1024
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01  # linux/falloc.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class Printed:
    """The worker's side: reads on while its tool process works, and once more when that has ended."""

    def __init__(self) -> None:
        self._fd = -1
        self._at = self._freed = 0
        self._last = self._whose = ""
        self._line = b""
        self._left, self._omitted = CALL_BYTES, 0

    def open(self) -> int:
        """A file for a new tool process to print to."""
        self._fd, self._at, self._freed = _open_file(), 0, 0
        self._last, self._whose = "", "a tool process"
        return self._fd

    def begin(self, perform: Perform) -> None:
        self._last = self._whose = f"run {perform.run}, step {perform.step}, {perform.tool or perform.function}"

    def tell(self, upto: int | None = None) -> None:
        """Log the lines that were printed since, up to this size of the file."""
        if self._fd < 0 or upto == self._at:
            return
        with suppress(OSError):
            size = os.fstat(self._fd).st_size
            self._read(min(self._at, size), size if upto is None else min(upto, size))

    def end(self, upto: int | None = None) -> None:
        """The same, when the call is over: what is printed from here on is not its own, or not in its time."""
        self.tell(upto)
        if self._line:
            self._say(self._line)
        if self._omitted:
            log.info("%s: … %d bytes more were printed and are left out", self._whose, self._omitted)
        self._line, self._left, self._omitted = b"", CALL_BYTES, 0
        if self._last:
            self._whose = f"after {self._last}"

    def close(self) -> None:
        """Log the rest. Nobody prints any more."""
        self.end()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _read(self, at: int, end: int) -> None:
        self._at = at
        while self._at < end and self._left > 0:
            piece = os.pread(self._fd, min(end - self._at, _PIECE_BYTES), self._at)
            if not piece:
                break
            self._at += len(piece)
            *lines, self._line = (self._line + piece).split(b"\n")
            for line in lines:
                self._say(line)
            while len(self._line) > _LINE_BYTES and self._left > 0:
                self._say(self._line[:_LINE_BYTES])
                self._line = self._line[_LINE_BYTES:]
        self._omitted += max(end - self._at, 0)
        self._at = max(self._at, end)
        if self._at - self._freed >= _FREE_BYTES:
            # Where the file system cannot do it, the file is as large as what was printed until its process ends.
            start, length = ctypes.c_int64(self._freed), ctypes.c_int64(self._at - self._freed)
            _LIBC.fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, start, length)
            self._freed = self._at

    def _say(self, line: bytes) -> None:
        for start in range(0, max(len(line), 1), _LINE_BYTES):
            part = line[start : start + _LINE_BYTES]
            if self._left <= 0:
                self._omitted += len(part)
                continue
            self._left -= len(part) + _EACH_BYTES
            log.info("%s: %s", self._whose, part.decode(errors="backslashreplace"))


def join_log() -> Callable[[], int]:
    """In the tool process: its log goes to that file too, whatever the agent's code does to its outputs; the file's size,
    when asked."""
    stdout, own = sys.stdout, os.dup(1)
    logged = os.fdopen(own, "w", buffering=1, errors="backslashreplace", closefd=False)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setStream(logged)
    # In the order in which it was printed, and there when the process is killed.
    stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def size() -> int:
        with suppress(Exception):  # the agent's code may have closed it
            stdout.flush()
        return os.lseek(own, 0, os.SEEK_END)

    return size


def _open_file() -> int:
    flags = os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(settings.DATA_DIR, flags, 0o600)
    except OSError:  # no folder there, or no file system for this
        return os.memfd_create("printed")
