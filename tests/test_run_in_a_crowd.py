"""What a run costs does not grow with how many others there are or were: nothing on its way reads a table from end to end."""

import pytest
from django.contrib.auth.models import User
from django.db import connection

from runs import operations, sql
from runs.approvals import Said
from runs.engine.sweep import sweep_once
from runs.operations import Start
from runs.states import RunState, Verdict
from tests.crowd import fill, fill_steps
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.gateway_tools import Desk, desk, model_process, model_server, work_through
from tests.page_tools import client_of
from tests.people import operator

__all__ = ["desk", "engine", "model_process", "model_server", "operator", "shop_process", "workers"]

FINISHED, WAITING = 8_000, 2_000


@pytest.fixture
def crowd(transactional_db: None) -> None:
    fill(finished=FINISHED, waiting=WAITING, due=0)


def read_whole() -> dict[str, int]:
    """By table of many rows, how many were read by going through all of it, so far."""
    sql.execute("SELECT pg_stat_force_next_flush()")
    return dict(sql.fetch_all("SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE n_live_tup > 1000"))


def read_by_index(*tables: str) -> int:
    """How many entries of the indexes of these tables were read so far."""
    sql.execute("SELECT pg_stat_force_next_flush()")
    (read,) = sql.fetch_row(
        "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = ANY(%s)", [list(tables)]
    )
    return int(read)


def grown_since(before: dict[str, int]) -> dict[str, int]:
    after = read_whole()
    assert len(after) >= 10
    return {table: after[table] - rows for table, rows in before.items() if after[table] > rows}


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
    assert engine.paid(order) == 1
    assert grown_since(before) == {}


def test_reads_that_were_planned_in_a_small_database_look_at_no_more_in_a_large_one(engine: Engine) -> None:
    reads = [call("give", value=place) for place in range(5)]
    connection.close()  # the plans are those of a connection
    sql.execute("VACUUM ANALYZE runs_step, runs_attempt")
    assert engine.go(engine.start(reads)).state == RunState.SUCCEEDED
    fill_steps(1_000_001, 1_000_000 + FINISHED)
    before = read_by_index("runs_step", "runs_attempt")
    assert engine.go(engine.start(reads)).state == RunState.SUCCEEDED
    assert read_by_index("runs_step", "runs_attempt") - before < FINISHED / 2


def test_a_run_of_a_model_reads_no_table_whole(
    crowd: None, desk: Desk, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    run, _ = operations.start_run(Start(agent="thinker", goal="Look at it.", inputs={"value": 7}), by=desk.person)
    before = read_whole()
    gateway = desk.gateway()
    assert work_through(run).state == RunState.SUCCEEDED
    gateway.close()  # at its end a connection has told what it read
    assert grown_since(before) == {}


@pytest.mark.parametrize(
    "page", ["/switches", "/journal?person=nobody", "/journal?action=switch", "/approvals", "/facts"]
)
def test_a_page_reads_what_it_shows(crowd: None, operator: User, page: str) -> None:
    browser = client_of(operator)
    browser.get(page)
    before, looked_up = read_whole(), read_by_index("runs_journalentry")
    assert browser.get(page).status_code == 200
    assert grown_since(before) == {}
    assert read_by_index("runs_journalentry") - looked_up < FINISHED / 2
