"""Run the web server on a socket that is already open: `python -m console.serve FD`.

`manage.py up` holds the socket, so that whoever calls while the server is started again waits a moment and is served.
uvicorn's own `--fd` takes the socket for a local one and leaves TCP_NODELAY off.
"""

import socket
import sys
import warnings

import uvicorn

GRACE_S = 5


def main() -> None:
    # WhiteNoise gives files piece by piece and not asynchronously; Django reads a small file whole, and warns of it.
    warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous iterators")
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        "console.asgi:application",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,
        timeout_graceful_shutdown=GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
