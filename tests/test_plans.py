"""What the claim, the sweep and a delivery touch: what is due and little else, however many runs have finished or wait."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from runs import events, lifecycle, sql
from runs.engine import sweep
from tests.crowd import count_pages, explain, fill, walk

FINISHED, WAITING, DUE = 8_000, 2_000, 40
# An index is three pages deep here; a statement may look into a dozen of them without touching what is in them.
FEW_PAGES = 150


@pytest.fixture
def crowd(transactional_db: None) -> None:
    fill(finished=FINISHED, waiting=WAITING, due=DUE)


class Heard:
    """The statements that were run, as they were run."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, Any]] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements.append((sql, params))
        return execute(sql, params, many, context)


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    with connection.execute_wrapper(heard):
        yield heard


def judge(plan: dict[str, Any], *, due: int) -> None:
    """Nothing is read from end to end, nothing is read to be thrown away, and the pages are those of what is due."""
    for node in walk(plan["Plan"]):
        if node["Actual Loops"] and node.get("Relation Name", "") in {
            "runs_run",
            "runs_step",
            "runs_attempt",
            "runs_key",
            "runs_approval",
        }:
            assert node["Node Type"] != "Seq Scan", node
            assert node.get("Rows Removed by Filter", 0) * node["Actual Loops"] <= due, node
    assert count_pages(plan) <= FEW_PAGES + 4 * due


def test_a_claim_touches_what_is_due(crowd: None, heard: Heard) -> None:
    with transaction.atomic():
        assert lifecycle.claim(uuid.uuid4(), lease_s=60.0) is not None
        transaction.set_rollback(True)
    (statement,) = [(sql, params) for sql, params in heard.statements if "SKIP LOCKED" in sql]

    judge(explain(*statement), due=DUE)


def test_a_sweep_touches_what_is_due(crowd: None, heard: Heard) -> None:
    assert sweep.sweep() > 0
    (statement,) = heard.statements

    judge(explain(*statement), due=0)


def test_a_delivery_touches_the_step_that_waits_for_it(crowd: None, heard: Heard) -> None:
    sql.execute(
        "UPDATE runs_step SET waiting_for = 'event', result = jsonb_build_object('event', 'paid', 'key', id::text)"
        " WHERE state = 'waiting' AND waiting_for = 'timer'"
    )
    sql.execute("VACUUM ANALYZE runs_step")
    heard.statements.clear()
    found = events.find_waiter(name="paid", key=str(FINISHED + 1), agents=["desk"])
    assert found == events.Waiter(run=FINISHED + 1, step=FINISHED + 1)
    (statement,) = heard.statements

    judge(explain(*statement), due=0)
