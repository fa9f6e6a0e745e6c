"""What a run costs does not grow with how many others there are or were: nothing on its way reads a table from end to end."""

import pytest
from django.contrib.auth.models import User

from runs import operations, sql
from runs.approvals import Said
from runs.engine.sweep import sweep_once
from runs.states import RunState, Verdict
from tests.crowd import fill
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.page_tools import client_of
from tests.people import operator

__all__ = ["engine", "operator", "shop_process", "workers"]

FINISHED, WAITING = 8_000, 2_000
# Tables of a handful of rows, which are cheapest to read whole.
_SMALL = frozenset({"auth_user", "lw_clock_shift", "runs_lock", "runs_process", "runs_switch"})


@pytest.fixture
def crowd(transactional_db: None) -> None:
    fill(finished=FINISHED, waiting=WAITING, due=0)


def read_whole() -> dict[str, int]:
    """By table, how many rows were read by going through all of it, so far."""
    sql.execute("SELECT pg_stat_force_next_flush()")
    return dict(sql.fetch_all("SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'public'"))


def test_a_run_with_every_kind_of_step_reads_no_table_whole(crowd: None, engine: Engine) -> None:
    order = engine.order("300.00")
    run = engine.start(
        *engine.read(order),
        [call("plan", add=["pay", "tell"])],
        [call("pay_keyed", order=order, amount="250.00")],
        [call("ask", question="Go on?", options=["yes", "no"])],
        [call("wait_until", seconds=0.05, reason="a moment")],
        [call("spawn", agent="scripted", goal="a part of it", inputs={"script": [[call("give", value=1)]]})],
        [call("recall", search="nothing like this")],
        [call("plan", close=[{"item": "w1", "outcome": "paid"}], drop=[{"item": "w2", "reason": "not needed"}])],
    )
    before = read_whole()
    answers: dict[str, Said] = {
        "approval": Said(verdict=Verdict.APPROVE),
        "question": Said(verdict=Verdict.RESPOND, answer="yes"),
    }
    for kind, said in answers.items():
        engine.go_on(run)
        operations.decide(engine.card(run, kind).pk, said, by=engine.person)
    assert engine.go_on(run).state == RunState.SUCCEEDED
    sweep_once()
    after = read_whole()
    assert engine.paid(order) == 1
    grown = {table: rows - before.get(table, 0) for table, rows in after.items() if table not in _SMALL}
    assert {table: rows for table, rows in grown.items() if rows} == {}


def test_the_page_of_the_switches_reads_no_table_whole(crowd: None, operator: User) -> None:
    browser = client_of(operator)
    browser.get("/switches")
    before = read_whole()
    assert browser.get("/switches").status_code == 200
    after = read_whole()
    assert {table: after[table] - before[table] for table in ("runs_run", "runs_step", "runs_attempt")} == {
        "runs_run": 0,
        "runs_step": 0,
        "runs_attempt": 0,
    }
