"""The migrations run forward, back and forward again on a real database, and none is missing."""

import os
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from pytest_django import DjangoDbBlocker

# The workers of pytest-xdist share one server.
ALIAS = NAME = f"migrated_{os.getpid()}"


@pytest.fixture
def executor(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[MigrationExecutor]:
    """Migrations on a database of their own, empty at first."""
    with django_db_blocker.unblock():
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {NAME}")
            cursor.execute(f"CREATE DATABASE {NAME}")
        connections.databases[ALIAS] = connections.databases["default"] | {"NAME": NAME}
        try:
            yield MigrationExecutor(connections[ALIAS])
        finally:
            connections[ALIAS].close()
            del connections[ALIAS], connections.databases[ALIAS]
            with connection._nodb_cursor() as cursor:
                cursor.execute(f"DROP DATABASE {NAME} WITH (FORCE)")
            connection.close()


def migrate(executor: MigrationExecutor, to: str | None) -> None:
    executor.loader.build_graph()
    targets = executor.loader.graph.leaf_nodes() if to is None else [("runs", to)]
    executor.migrate(targets)


def own_objects() -> set[str]:
    """What our SQL made: functions, triggers, and tables that no model knows."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            " UNION SELECT tgrelid::regclass || '.' || tgname FROM pg_trigger WHERE NOT tgisinternal"
            " UNION SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'lw%'"
        )
        return {row[0] for row in cursor.fetchall()}


def tables() -> set[str]:
    with connections[ALIAS].cursor() as cursor:
        return {name for name in connections[ALIAS].introspection.table_names(cursor) if name.startswith("runs_")}


def test_the_guards_go_forward_back_and_forward_again(executor: MigrationExecutor) -> None:
    migrate(executor, "0001_initial")
    assert own_objects() == set()
    migrate(executor, "0002_clock_and_guards")
    made = own_objects()
    assert {"lw_now", "lw_clock", "lw_fact_state", "lw_clock_shift", "runs_run.guard", "runs_key.fixed"} <= made
    migrate(executor, "0001_initial")
    assert own_objects() == set()
    migrate(executor, None)
    assert own_objects() >= made
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT lw_now() - statement_timestamp(), lw_clock() >= statement_timestamp()")
        assert cursor.fetchone() is not None


def test_everything_goes_back_to_nothing_and_forward_to_the_tables_of_the_models(executor: MigrationExecutor) -> None:
    migrate(executor, None)
    expected = {model._meta.db_table for model in apps.get_app_config("runs").get_models()}
    assert tables() == expected
    executor.loader.build_graph()
    executor.migrate([("runs", None)])
    assert tables() == own_objects() == set()
    migrate(executor, None)
    assert tables() == expected


def test_no_migration_is_missing(db: None) -> None:
    call_command("makemigrations", "runs", check=True, dry_run=True, verbosity=0)
