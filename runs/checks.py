"""System checks: what is wrong with this installation, and how to mend it.

`manage.py check` runs those of the settings, `migrate` and `check --database default` also those of the database.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.apps.config import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections
from django.http.request import validate_host

from runs.agents import get_agents
from runs.errors import LongwatchError

MIN_POSTGRESQL = 16
MIN_SECRET_LENGTH = 32
# Engine, gateway and web each hold connections of their own; fewer and a burst of readers starves the workers.
MIN_CONNECTIONS = 50
LONGEST_LEASE_S = 300.0
LONGEST_GRACE_S = 600.0


@register(Tags.security)
def check_secret_key(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    key: str = settings.SECRET_KEY
    if len(key) >= MIN_SECRET_LENGTH and len(set(key)) >= 8:
        return []
    return [
        Error(
            "The secret key is too short or too plain to sign sessions and the queue's messages with.",
            hint="Leave LONGWATCH_SECRET_KEY out (a key is then made and kept) or set 50 random characters.",
            id="runs.E001",
        )
    ]


@register(Tags.security)
def check_hosts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterator[CheckMessage]:
    public = urlsplit(settings.PUBLIC_URL)
    loopback = public.hostname in {"localhost", "127.0.0.1", "::1"}
    if "*" in settings.ALLOWED_HOSTS and not settings.DEBUG:
        yield Error(
            "LONGWATCH_ALLOWED_HOSTS accepts every host name, so a forged one can end up in links.",
            hint="Name the hosts that people use, separated by commas.",
            id="runs.E002",
        )
    elif public.hostname and not _is_allowed(public.hostname):
        yield Error(
            f"LONGWATCH_URL is {settings.PUBLIC_URL}, whose host LONGWATCH_ALLOWED_HOSTS refuses.",
            hint=f"Add {public.hostname} to LONGWATCH_ALLOWED_HOSTS.",
            id="runs.E003",
        )
    if public.path.strip("/"):
        yield Error(
            f"LONGWATCH_URL is {settings.PUBLIC_URL}: the console has to be at the root of its host, not below a path.",
            hint=f"Give it a host name of its own, such as {public.scheme}://agents.{public.hostname}.",
            id="runs.E018",
        )
    if public.scheme == "http" and not loopback and not settings.DEBUG:
        yield Warning(
            f"LONGWATCH_URL is {settings.PUBLIC_URL}: passwords and approvals would cross the network unencrypted.",
            hint="Put a proxy with TLS in front and set LONGWATCH_URL to its https address.",
            id="runs.W004",
        )


@register(Tags.compatibility)
def check_serving(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterator[CheckMessage]:
    if not settings.ASGI_APPLICATION or settings.WSGI_APPLICATION:
        yield Error(
            "The pages have to be served over ASGI: a live page holds its request open, and would hold a WSGI worker.",
            hint="Set ASGI_APPLICATION = 'console.asgi.application' and no WSGI_APPLICATION; serve it with uvicorn.",
            id="runs.E005",
        )
    if not settings.USE_TZ:
        yield Error(
            "USE_TZ is off: deadlines, ages and leases would have no time zone.",
            hint="Set USE_TZ = True.",
            id="runs.E006",
        )


@register(Tags.compatibility)
def check_agents(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterator[CheckMessage]:
    try:
        get_agents()
    except LongwatchError as error:
        yield Error(error.message, hint=error.remedy, id="runs.E017")


@register(Tags.compatibility)
def check_leases(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterator[CheckMessage]:
    if not 0.2 <= settings.LEASE_S <= LONGEST_LEASE_S:
        yield Error(
            f"LONGWATCH_LEASE_S is {settings.LEASE_S:g}: too short to be renewed in time, or so long that "
            "a dead worker holds its run for minutes.",
            hint=f"Set 0.2 to {LONGEST_LEASE_S:g} seconds; 15 suits a network, 1 suits tests.",
            id="runs.E007",
        )
    if not 0 < settings.GRACE_S <= LONGEST_GRACE_S:
        yield Error(
            f"LONGWATCH_GRACE_S is {settings.GRACE_S:g}: a stopped tool has that long to end before it is killed.",
            hint=f"Set more than 0 and at most {LONGEST_GRACE_S:g} seconds; 10 is the default.",
            id="runs.E008",
        )


@register(Tags.compatibility)
def check_connections(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Iterator[CheckMessage]:
    default: dict[str, Any] = connections["default"].settings_dict
    if connections["default"].vendor != "postgresql":
        yield Error(
            "The database is not PostgreSQL. Row locks, LISTEN and the database's clock carry every guarantee.",
            hint="Set DATABASE_URL to a PostgreSQL server, or leave it out for the embedded one.",
            id="runs.E009",
        )
    if default["OPTIONS"].get("pool"):
        yield Error(
            "The database has a connection pool: the executor forks, and a forked pool shares its sockets.",
            hint="Remove 'pool' from OPTIONS.",
            id="runs.E010",
        )
    if default["ATOMIC_REQUESTS"]:
        yield Error(
            "ATOMIC_REQUESTS is on: every operation opens its own transaction and has to own it.",
            hint="Remove ATOMIC_REQUESTS.",
            id="runs.E011",
        )


@register(Tags.database)
def check_server(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    if "default" not in (databases or ()) or connections["default"].vendor != "postgresql":
        return []
    try:
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('server_version_num')::int, current_setting('fsync'), "
                "current_setting('max_connections')::int, "
                "current_setting('synchronous_commit'), pg_is_in_recovery()"
            )
            version, fsync, slots, commit, standby = cursor.fetchone()
    except DatabaseError as error:
        return [
            Error(
                f"The database cannot be reached: {' '.join(str(error).split())}",
                hint="Start the server or mend DATABASE_URL; leave DATABASE_URL out to use the embedded PostgreSQL.",
                id="runs.E012",
            )
        ]
    return list(judge_server(version=version, fsync=fsync, slots=slots, commit=commit, standby=standby))


def judge_server(*, version: int, fsync: str, slots: int, commit: str, standby: bool) -> Iterator[CheckMessage]:
    """Say what is wrong with a server that answered. `version` is PostgreSQL's server_version_num."""
    if version < MIN_POSTGRESQL * 10_000:
        yield Error(
            f"PostgreSQL {version // 10_000} is too old; Longwatch needs {MIN_POSTGRESQL} or newer.",
            hint="Upgrade the server, or leave DATABASE_URL out to use the embedded PostgreSQL 18.",
            id="runs.E013",
        )
    if standby:
        yield Error(
            "The database is a standby: nothing can be written to it.",
            hint="Point DATABASE_URL at the primary.",
            id="runs.E014",
        )
    if fsync == "off" or commit == "off":
        yield Warning(
            "The server acknowledges commits that a power cut can lose: an effect could then be made twice.",
            hint="Set fsync = on and synchronous_commit = on.",
            id="runs.W015",
        )
    if slots < MIN_CONNECTIONS:
        yield Warning(
            f"The server allows {slots} connections; a cluster, a gateway and the web need {MIN_CONNECTIONS}.",
            hint="Raise max_connections.",
            id="runs.W016",
        )


def _is_allowed(host: str) -> bool:
    return validate_host(host, settings.ALLOWED_HOSTS) or validate_host(f"[{host}]", settings.ALLOWED_HOSTS)
