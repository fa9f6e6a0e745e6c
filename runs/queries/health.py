"""Whether this installation can do its work, part by part. The web process asks; what it asks about may be elsewhere."""

from dataclasses import dataclass

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from runs import sql
from runs.states import ProcessKind

SEEN_WITHIN_S = 15.0
"""A process that has shown no sign for so long is not counted on, at the default lease."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: ok or not, and why not."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Health:
    ok: bool
    parts: list[Part]


def read_health(*, seen_within_s: float = SEEN_WITHIN_S) -> Health:
    """Ask the database, compare its migrations with the code's, and look for a gateway and a worker seen lately."""
    try:
        parts = [_database(), _migrations()]
        parts += _processes(seen_within_s) if parts[1].ok else []
    except DatabaseError as error:
        parts = [Part(name="database", ok=False, detail=" ".join(str(error).split()) or type(error).__name__)]
    return Health(ok=all(part.ok for part in parts), parts=parts)


def _database() -> Part:
    sql.fetch_row("SELECT 1")
    return Part(name="database", ok=True, detail="answers")


def _migrations() -> Part:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in missing)
    return Part(name="migrations", ok=not missing, detail=f"not applied: {names}" if missing else "applied")


def _processes(seen_within_s: float) -> list[Part]:
    ages = dict(
        sql.fetch_all(
            "SELECT CASE kind WHEN 'worker' THEN 'cluster' ELSE kind END,"
            " extract(epoch FROM clock_timestamp() - max(seen_at))::float8 FROM runs_process"
            " WHERE ended_at IS NULL AND kind IN ('gateway', 'cluster', 'worker') GROUP BY 1"
        )
    )
    parts = []
    for kind in (ProcessKind.GATEWAY, ProcessKind.CLUSTER):
        age = ages.get(kind.value)
        detail = f"no {kind.value} is running" if age is None else f"last seen {max(age, 0.0):.0f} s ago"
        parts.append(Part(name=kind.value, ok=age is not None and age <= seen_within_s, detail=detail))
    return parts
