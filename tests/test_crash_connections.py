"""Must show: a connection that breaks exactly at a commit, before the server has it or before its answer, costs no effect.

Each commit of a call: its take, its last look, its settlement. Counted at the shop.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection
from pytest_django import DjangoDbBlocker

from console.databases import write_database_url
from runs import budgets
from runs.engine import act, advance
from runs.engine.hand import Hand
from runs.engine.persist import forget_connection, persist
from runs.engine.settle import settle_call
from runs.engine.sweep import reap_attempt, reap_run
from runs.engine.worker import Worker
from runs.models import Approval, Attempt, Key, Lock, Run, Step
from runs.states import AttemptOutcome, KeyState, RunState, StepKind, StepState
from tests.cut_cable import Cable, Moment
from tests.engine_tools import Engine, call, engine, keep_workers, shop_process, workers
from tests.test_crash_fences import advance_to, claim, list_ready
from tests.waiting import wait_until

__all__ = ["engine", "shop_process", "workers"]
pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("transactional_db")]

PAYING = ["pay_keyed", "pay_checkable", "pay_once"]
MOMENTS: list[Moment] = ["unsent", "unheard"]


@pytest.fixture(scope="module")
def cabled_workers(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[list[Worker]]:
    yield from keep_workers(django_db_blocker)


@pytest.fixture
def cable(
    engine: Engine, cabled_workers: list[Worker], tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cable]:
    """A cable between the database and this process and its tool process."""
    socket = f".s.PGSQL.{connection.settings_dict['PORT'] or 5432}"
    folder: Path = _folder(tmp_path_factory)
    straight = connection.settings_dict["HOST"]
    cable = Cable(Path(straight) / socket, folder / socket)
    connection.close()
    connection.settings_dict["HOST"] = str(folder)
    monkeypatch.setenv("DATABASE_URL", write_database_url(connection.settings_dict))
    if not cabled_workers:
        cabled_workers.append(Worker())
    engine.worker = cabled_workers[0]
    yield cable
    connection.close()
    connection.settings_dict["HOST"] = straight
    cable.cut()


def _folder(factory: Any) -> Path:
    """One for all: the tool process is kept, and connects to it again and again."""
    base: Path = factory.getbasetemp() / "cable"
    base.mkdir(exist_ok=True)
    return base


def payment(engine: Engine, tool: str) -> tuple[Run, str]:
    """A run whose next due step is this call, and its order."""
    order = engine.order()
    what = {"request": f"r{order}", "outcome": "closed"} if tool == "close_request" else {"order": order}
    if tool.startswith("pay"):
        what["amount"] = "20.00"
    run = engine.start(*engine.read(order), [call(tool, **what)])
    advance_to(engine, run, tool)
    return run, order


def perform(hand: Hand, taken: act.Taken) -> Any:
    return hand.tools.perform(taken.perform, tick=lambda: hand.tick(taken.attempt))


def choose(engine: Engine) -> tuple[Hand, Step]:
    hand = claim(engine.worker)
    ready = list_ready(hand)
    step = ready[0]
    return hand, step


def lose_all(run: Run) -> None:
    """The leases of the run and of what is open of it are over; the sweep finds that."""
    with connection.cursor() as cursor:
        for table, ident in (("runs_attempt", "run_id"), ("runs_run", "id")):
            cursor.execute(
                f"UPDATE {table} SET lease_until = clock_timestamp() - interval '1 second'"
                f" WHERE {ident} = %s AND lease_until IS NOT NULL",
                [run.pk],
            )
    for attempt in Attempt.objects.filter(run=run, outcome=AttemptOutcome.OPEN):
        reap_attempt(attempt.pk)
    reap_run(run.pk)


def settled(engine: Engine, run: Run, order: str, tool: str) -> None:
    """Once at the receiver, nobody asked, nothing held, everything booked."""
    assert engine.go_on(run, timeout_s=60).state == RunState.SUCCEEDED, run.why
    kind = "close" if tool == "close_request" else "refund"
    assert len(engine.shop.effects(order=order, kind=kind)) == 1
    assert Step.objects.get(run=run, tool=tool, kind=StepKind.ACT).state == StepState.DONE
    assert set(Key.objects.filter(run=run).values_list("state", flat=True)) <= {KeyState.DONE, KeyState.FAILED}
    assert not Approval.objects.filter(run=run).exists()
    assert not Lock.objects.filter(run=run).exists()
    assert not budgets.mismatches()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("tool", [*PAYING, "close_request"])
def test_at_the_take(engine: Engine, cable: Cable, tool: str, moment: Moment) -> None:
    run, order = payment(engine, tool)
    hand, step = choose(engine)
    cable.break_at_commit(moment)
    with pytest.raises(DatabaseError):
        act._take(hand, step.pk)
    assert cable.has_broken
    forget_connection()
    if moment == "unheard":  # what was not heard may still be under way
        wait_until(lambda: Attempt.objects.filter(step=step).exists(), what="the take")
    assert Attempt.objects.filter(step=step).count() == (1 if moment == "unheard" else 0)
    lose_all(run)
    settled(engine, run, order, tool)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("tool", [*PAYING, "close_request"])
def test_at_the_last_look(engine: Engine, cable: Cable, tool: str, moment: Moment) -> None:
    """A look whose answer does not come is a no: nothing is sent, though the beginning may stand in the database."""
    run, order = payment(engine, tool)
    hand, step = choose(engine)
    taken = act._take(hand, step.pk)
    assert taken is not None
    cable.break_at_commit(moment)
    outcome = perform(hand, taken)
    assert cable.has_broken
    assert not engine.shop.effects(order=order)
    settle_call(hand.claim, taken.attempt, taken.tool, outcome)
    attempt = Attempt.objects.get(pk=taken.attempt)
    assert attempt.outcome == (AttemptOutcome.DISPROVED if moment == "unheard" else AttemptOutcome.NOT_BEGUN)
    advance._let_others(hand)
    settled(engine, run, order, tool)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("tool", [*PAYING, "close_request"])
def test_at_the_settlement(engine: Engine, cable: Cable, tool: str, moment: Moment) -> None:
    """The final write: it is written again, and what was written is not written twice."""
    run, order = payment(engine, tool)
    hand, step = choose(engine)
    taken = act._take(hand, step.pk)
    assert taken is not None
    outcome = perform(hand, taken)
    cable.break_at_commit(moment)
    persist(lambda: settle_call(hand.claim, taken.attempt, taken.tool, outcome))
    assert cable.has_broken
    assert Step.objects.get(pk=step.pk).state == StepState.DONE
    advance._let_others(hand)
    settled(engine, run, order, tool)
    assert Attempt.objects.filter(step=step).count() == 1
