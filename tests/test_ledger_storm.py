"""Eight processes at random on one tree, some of which die: no limit is passed at any moment, and the sums are exact."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import budgets, lifecycle, sql, steps
from runs.models import Attempt, Run
from runs.states import StepKind
from tests.conftest import PROJECT
from tests.writers import open_attempt, person, start, start_child

__all__ = ["person"]

PROCESSES = 8
OPERATIONS = 800
ALL = 10_000


def make_attempts(run: Run, count: int) -> None:
    """Tries for the ledger to name: each once, whoever takes it."""
    with transaction.atomic():
        attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.THINK)))
        sql.execute("UPDATE runs_attempt SET outcome = 'lost', ended_at = lw_clock() WHERE id = %s", [attempt.pk])
    columns = [str(f.column) for f in Attempt._meta.concrete_fields if f.column not in ("id", "number")]
    names = ", ".join(columns)
    sql.execute(
        f"INSERT INTO runs_attempt (number, {names}) SELECT n, {names} FROM runs_attempt, generate_series(2, %s) n"
        " WHERE runs_attempt.id = %s",
        [count, attempt.pk],
    )
    sql.execute("CREATE TABLE storm_first AS SELECT %s::bigint AS first", [attempt.pk])
    sql.execute("CREATE SEQUENCE storm_attempts MINVALUE 0 START 0")


def violations() -> list[Any]:
    """At this moment, as everybody sees it: a limit that is passed, or an overrun where nothing passed its reservation."""
    return sql.fetch_all(
        "SELECT run_id, usd_spent, usd_reserved, usd_limit FROM runs_budget"
        " WHERE usd_spent + usd_reserved > usd_limit OR usd_overrun > 0 OR steps_spent + steps_reserved > steps_limit"
    )


@pytest.mark.crash
@pytest.mark.django_db(transaction=True)
def test_a_storm_of_eight_processes_passes_no_limit_and_loses_no_cent(
    person: User, database_url: str, full_matrix: bool
) -> None:
    operations = ALL if full_matrix else OPERATIONS
    top = start(person, usd="3.00", steps=1_000_000)
    for usd in ("1.50", "0.80"):
        start_child(start_child(top, usd=usd), usd="0.60")
    sql.execute("UPDATE runs_budget SET steps_limit = 1000000")
    make_attempts(top, operations * 2)
    storm = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger_storm", str(top.pk), str(operations), str(PROCESSES), "7"],
        cwd=PROJECT,
        env=os.environ | {"DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: list[Any] = []
    looks = 0
    try:
        while storm.poll() is None:
            seen += violations()
            looks += 1
        told = json.loads(storm.communicate(timeout=60)[0])
    finally:
        storm.kill()
        storm.wait()
        sql.execute("DROP TABLE IF EXISTS storm_first")
        sql.execute("DROP SEQUENCE IF EXISTS storm_attempts")
    assert seen == [] == violations()
    assert budgets.mismatches() == []
    assert looks > 10
    assert not [what for what in told if what.startswith("database")], told
    assert all(told.get(what) for what in ("reserve", "settle", "raise", "lower", "spawn", "abort")), told
    print(f"{operations} operations, {looks} looks: {told}")
    connection.close()
