"""The database goes away under a gateway: streams go on, and a reply that it holds is settled when it is back."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection

from runs import budgets, operations, sql
from runs.gateway import claims
from runs.gateway.provider import Credential
from runs.models import Process, Step
from runs.states import AttemptOutcome, StepKind, StepState
from tests.gateway_tools import Desk, desk, model_process, model_server
from tests.waiting import wait_until

__all__ = ["desk", "model_process", "model_server"]

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def no_connections() -> Iterator[None]:
    """Throw everyone but the test out of the database, and let nobody in."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    parameters = {**connection.get_connection_params(), "dbname": "postgres", "autocommit": True}
    for ours in ("cursor_factory", "context", "prepare_threshold", "server_side_binding"):
        parameters.pop(ours, None)
    with psycopg.connect(**parameters) as outside:
        outside.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        try:
            sql.fetch_all(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            yield
        finally:
            outside.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")


def test_a_reply_that_arrives_while_the_database_is_away_is_settled_when_it_is_back(desk: Desk) -> None:
    desk.model.fault("slow", seconds=0.5)
    gateway = desk.gateway()
    run = desk.start()
    desk.until_streaming()
    with no_connections():
        wait_until(lambda: not desk.sent()[0]["open"], what="the reply is whole")
        wait_until(lambda: gateway.in_flight() == 1, what="held")
    desk.until(run, state="queued")
    (attempt,) = desk.attempts(run)
    assert attempt.outcome == AttemptOutcome.DONE
    assert Step.objects.filter(run=run, kind=StepKind.ACT).count() == 1
    assert len(desk.sent()) == 1
    assert budgets.mismatches() == []


def test_a_gateway_that_lost_its_connections_takes_calls_again_and_hears_of_stops(desk: Desk) -> None:
    gateway = desk.gateway()
    first = desk.start()
    desk.until(first, state="queued")
    with no_connections():
        pass
    desk.model.fault("slow", seconds=30)
    run = desk.start()
    desk.until_streaming()
    operations.stop_run(run.pk, reason="enough", by=desk.person)
    wait_until(lambda: desk.sent()[-1]["client_gone"], what="the stream is cut", timeout_s=2)
    wait_until(lambda: gateway.in_flight() == 0, what="closed")


def test_a_gateway_that_starts_without_a_database_waits_for_it(desk: Desk) -> None:
    run = desk.start()
    with no_connections():
        gateway = desk.gateway()
    desk.until(run, state="queued")
    assert gateway.close() < 3


def test_an_attempt_whose_taking_was_committed_but_never_heard_of_is_given_back(desk: Desk) -> None:
    """The connection was lost at the commit: the gateway renews its lease without knowing what it is."""
    gateway = desk.gateway(capacity=0)
    ident = wait_until(lambda: Process.objects.filter(kind="gateway").values_list("pk", flat=True), what="registered")[
        0
    ]
    run = desk.start()
    taken = claims.take_call(ident, Credential(key="test", base_url=desk.model.url))
    assert isinstance(taken, claims.Taken)
    wait_until(lambda: desk.attempts(run)[0].outcome == AttemptOutcome.NOT_BEGUN, what="given back")
    assert desk.ledger(run, "release")
    assert (desk.think_step(run).state, desk.sent()) == (StepState.PLANNED, [])
    gateway.close()
    desk.gateway()
    desk.until(run, state="queued")
