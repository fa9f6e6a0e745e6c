"""Stop the embedded PostgreSQL when `manage.py up` could not: `python -m console.keeper FD FOLDER`.

`up` and each of its processes hold the other end of a pipe. When all of them are gone, however they ended, the read
below returns. Where the next `up` has taken the server over by then, it goes on running.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    os.read(int(sys.argv[1]), 1)
    # Only now, because it waits for weeks and should weigh little.
    from console.postgres import EmbeddedServer

    EmbeddedServer(Path(sys.argv[2])).stop_if_unused()


if __name__ == "__main__":
    main()
