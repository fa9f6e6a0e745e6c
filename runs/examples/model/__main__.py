"""Run the rehearsal model: python -m runs.examples.model [--port N] [--pace SECONDS] [--die-with-parent]."""

import argparse
import ctypes
import json
import logging
import os
import resource
import signal
import socket
import sys

import uvicorn

from runs.arguments import number, whole
from runs.examples.model.server import RehearsalModel

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    """Serve until a signal; print one JSON line when ready."""
    options = _read_options()
    parent = os.getppid()
    if options.die_with_parent:
        _die_with_parent(parent)
    _raise_file_limit()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port}: {error.strerror}", file=sys.stderr)
        return 1
    listener.listen(2048)
    host, port = listener.getsockname()
    app = RehearsalModel(pace_s=options.pace, api_key=options.api_key)
    # Breaking a stream off is part of the play; uvicorn would report each as an error.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing response" not in record.msg)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
        backlog=2048,
    )
    # The socket already listens, so whoever reads this line can connect.
    print(json.dumps({"url": f"http://{host}:{port}", "pid": os.getpid()}), flush=True)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runs.examples.model", description="The rehearsal model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=whole(0, 65_535), default=0, help="0 takes a free one")
    parser.add_argument(
        "--pace", type=number(0, 86_400), default=0.0, help="seconds that a reply takes, streamed in pieces"
    )
    parser.add_argument("--api-key", default=None, help="refuse calls with another key")
    parser.add_argument(
        "--die-with-parent", action="store_true", help="end when the process that started this one does"
    )
    return parser.parse_args()


def _die_with_parent(parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # it died before the kernel was told


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
