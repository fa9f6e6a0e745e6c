"""Start the shop: prints one JSON line {"url", "pid"} when it serves; SIGTERM or SIGINT stops it."""

import argparse
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from runs.arguments import whole
from runs.examples.shop.server import Shop
from runs.examples.shop.storage import AlreadyOpen, Storage

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="runs.examples.shop", description="The sandbox shop.")
    parser.add_argument("--port", type=whole(0, 65_535), default=0, help="0 takes a free one; see the ready line")
    parser.add_argument("--data", type=Path, required=True, help="folder of its own")
    parser.add_argument("--die-with-parent", action="store_true")
    options = parser.parse_args()
    if options.die_with_parent and not die_with_parent():
        return 0
    try:
        storage = Storage(options.data)
        shop = Shop(storage=storage, port=options.port)
    except (AlreadyOpen, OSError) as wrong:
        print(f"the shop cannot start: {wrong}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: shop.stop())
    print(json.dumps({"url": shop.url, "pid": os.getpid()}), flush=True)
    shop.serve_forever(poll_interval=0.1)
    shop.server_close()
    storage.close()
    return 0


def die_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent dies; False when the parent is gone already.

    The kernel means the *thread* that started us (prctl(2)): start the shop from a thread that lives as long as
    the process does.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


if __name__ == "__main__":
    sys.exit(main())
