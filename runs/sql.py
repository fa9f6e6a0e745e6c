"""The writers' way to the database: plain SQL on Django's connection, with types that are true of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection
from psycopg.types.json import Jsonb

from runs.sanitise import clean_json

type Params = Sequence[Any] | Mapping[str, Any]


def execute(statement: str, params: Params = ()) -> int:
    """Run a statement; how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return int(cursor.rowcount)


def fetch_all(statement: str, params: Params = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


def fetch_one(statement: str, params: Params = ()) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def fetch_row(statement: str, params: Params = ()) -> tuple[Any, ...]:
    """The one row that must be there. Raises: LookupError."""
    row = fetch_one(statement, params)
    if row is None:
        raise LookupError(f"no row from: {statement}")
    return row


def jsonb(value: object) -> Jsonb | None:
    """A cleaned value for a jsonb column; None is SQL's NULL. A raw read gives jsonb back as text."""
    return None if value is None else Jsonb(clean_json(value))
