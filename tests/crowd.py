"""What a statement touches in a database with many runs in it (`console.bench.crowd`)."""

import json
from collections.abc import Iterator
from typing import Any

from django.db import connection

from console.bench.crowd import add_done, add_runs, fill
from tests.writers import Thread

__all__ = ["add_runs", "fill"]


def fill_steps(first: int, last: int) -> None:
    """Steps that were done, in a session of its own: what others know of the tables stays as it was."""

    def add() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        add_done(first, last)

    Thread(add).finish()


def explain(statement: str, params: Any) -> dict[str, Any]:
    """Run a statement and return the plan that it went by, with what it touched."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, params)
        (found,) = cursor.fetchone() or ("",)
    plan: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]
    return plan


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a plan, and all below it."""
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)


def count_pages(plan: dict[str, Any]) -> int:
    top = plan["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])
