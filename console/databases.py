"""Turn a database address into Django's settings for it, and back."""

from typing import Any
from urllib.parse import quote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from console.env import BadVariable

EMBEDDED_USER = "longwatch"
EMBEDDED_NAME = "longwatch"

# What Django keeps in keys of its own; the rest of an address goes to OPTIONS as libpq names it.
_DJANGO_KEYS = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


def read_database_url(url: str | None, *, engine_process: bool, process_name: str) -> dict[str, Any]:
    """Return the settings of the default database.

    `url` is any address that libpq reads, also over a unix socket: postgresql:///name?host=/folder.
    None means the embedded server. `engine_process` is true in processes that hold attempts (cluster,
    gateway, tool process): they keep their connections and let PostgreSQL keep their plans.

    Raises:
        BadVariable: the address cannot be read. Its value is not shown, because it may hold a password.
    """
    settings: dict[str, Any] = {
        "ENGINE": "runs.database",
        "NAME": EMBEDDED_NAME,
        "USER": "",
        "PASSWORD": "",
        "HOST": "",
        "PORT": "",
        # A web process serves many threads: a connection kept per thread would use up the server's.
        "CONN_MAX_AGE": None if engine_process else 0,
        "CONN_HEALTH_CHECKS": engine_process,
    }
    options: dict[str, Any] = {}
    if url is None:
        settings |= {"ENGINE": "console.database", "USER": EMBEDDED_USER}
    else:
        for key, value in _read_address(url).items():
            if key in _DJANGO_KEYS:
                settings[_DJANGO_KEYS[key]] = value
            else:
                options[key] = value
    options.setdefault("application_name", f"longwatch {process_name}".strip())
    # In every process, not only in the engine: a query that works with one binding only would
    # otherwise pass in the tests and fail in a worker.
    options["server_side_binding"] = True
    if engine_process:
        options["prepare_threshold"] = 5
        # Nobody waits behind a process that was stopped or lost between two statements.
        limits = "-c lock_timeout=5s -c idle_in_transaction_session_timeout=10s"
        options["options"] = f"{options.get('options', '')} {limits}".strip()
    settings["OPTIONS"] = options
    return settings


def write_database_url(settings: dict[str, Any]) -> str:
    """Return the address of a database from Django's settings for it, for a process of its own."""
    user = quote(settings["USER"] or "", safe="")
    password = f":{quote(settings['PASSWORD'], safe='')}" if settings["PASSWORD"] else ""
    query: dict[str, str] = {}
    if settings["HOST"]:
        query["host"] = str(settings["HOST"])
    if settings["PORT"]:
        query["port"] = str(settings["PORT"])
    credentials = f"{user}{password}@" if user or password else ""
    return f"postgresql://{credentials}/{quote(settings['NAME'], safe='')}" + (f"?{urlencode(query)}" if query else "")


def _read_address(url: str) -> dict[str, str]:
    remedy = "Write it as postgresql://user:password@host:5432/name or postgresql:///name?host=/folder-of-the-socket."
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadVariable(name="DATABASE_URL", value=None, rule="must begin with postgresql://", remedy=remedy)
    try:
        address = conninfo_to_dict(url)
    except ProgrammingError as error:
        # libpq's own message can quote the address, and with it the password.
        raise BadVariable(name="DATABASE_URL", value=None, rule="cannot be read by libpq", remedy=remedy) from error
    if not address.get("dbname"):
        raise BadVariable(name="DATABASE_URL", value=None, rule="must name a database", remedy=remedy)
    return {key: str(value) for key, value in address.items() if value is not None}
