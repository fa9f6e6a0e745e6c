"""A server that dies forgets its last moments, and gives the numbers of the tries that it forgot to others: whoever still
has one of those touches nothing of theirs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from runs import budgets, sql
from runs.engine import act, advance, decide, harmless
from runs.engine.toolwire import Report, Said
from runs.engine.worker import Worker
from runs.errors import Untaken
from runs.models import Attempt, Run
from runs.states import AttemptOutcome, RunState
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.test_crash_fences import Held, advance_to, claim, list_ready, take

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def rival(engine: Engine) -> Iterator[Worker]:
    """A second worker."""
    worker = Worker()
    yield worker
    worker.tools.close()


def forgetting[T](taking: Callable[[], T]) -> T:
    """What was taken, and then rolled back: as if the server had died before it was on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_commit", connection.rollback)
        return taking()


def give_again(attempt: int) -> None:
    """Numbers that were not on the disk either are given out again."""
    sql.execute("SELECT setval(pg_get_serial_sequence('runs_attempt', 'id'), %s, false)", [attempt])


def two_payments(engine: Engine) -> list[tuple[Run, str]]:
    """Two runs whose next step is a payment that can be neither repeated nor looked up; the first is due first."""
    made = []
    for _ in range(2):
        order = engine.order()
        run = engine.start(*engine.read(order), [call("pay_once", order=order, amount="20.00")])
        made.append((advance_to(engine, run, "pay_once"), order))
        sql.execute("UPDATE runs_run SET due_at = lw_clock() + interval '1 h' WHERE id = %s", [run.pk])
    sql.execute("UPDATE runs_run SET due_at = created_at")
    return made


def take_two(engine: Engine, rival: Worker) -> tuple[Held, Held]:
    """A call whose taking was forgotten, and that of another worker which has its number now."""
    rival.tools.ready()
    hand = claim(engine.worker)
    ready = list_ready(hand)
    taken = forgetting(lambda: act._take(hand, ready[0].pk))
    assert taken is not None
    forgotten = Held(hand=hand, taken=taken, step=ready[0].pk)
    give_again(forgotten.taken.attempt)
    other = take(rival)
    assert other.taken.attempt == forgotten.taken.attempt
    assert other.hand.claim.run != forgotten.hand.claim.run
    return forgotten, other


def expect_each_paid_once(engine: Engine, payments: list[tuple[Run, str]], *held: Held) -> None:
    """Both runs come to their end when nobody holds them any more."""
    for each in held:
        advance._let_others(each.hand)
    assert [engine.go_on(run).state for run, _ in payments] == [RunState.SUCCEEDED] * 2
    assert [engine.paid(order) for _, order in payments] == [1, 1]
    assert not budgets.mismatches()


def test_what_was_forgotten_is_not_sent_on_the_try_of_another(engine: Engine, rival: Worker) -> None:
    payments = two_payments(engine)
    forgotten, other = take_two(engine, rival)
    assert forgotten.perform().said is Said.NOT_BEGUN
    assert other.attempt.began_at is None
    other.settle(other.perform())
    expect_each_paid_once(engine, payments, forgotten, other)


@pytest.mark.parametrize("said", [Said.NOT_BEGUN, Said.UNKNOWN, Said.DONE])
def test_what_became_of_it_closes_no_try_of_another(engine: Engine, rival: Worker, said: Said) -> None:
    payments = two_payments(engine)
    forgotten, other = take_two(engine, rival)
    outcome = other.perform()
    with pytest.raises(Untaken):
        forgotten.settle(Report(attempt=forgotten.taken.attempt, said=said, error="the server had died"))
    assert other.attempt.outcome == AttemptOutcome.OPEN
    other.settle(outcome)
    expect_each_paid_once(engine, payments, forgotten, other)


@pytest.mark.parametrize("decided", [[{"tool": "give", "arguments": {"value": 1}}], "not a list"])
def test_a_thought_that_was_forgotten_is_not_anothers(engine: Engine, rival: Worker, decided: Any) -> None:
    for worker in (engine.worker, rival):
        worker.tools.ready()
    runs = [engine.start([call("give", value=7)]) for _ in range(2)]
    hand = claim(engine.worker)
    forgotten = forgetting(lambda: advance._choose(hand, engine.worker.tools.living()))
    assert isinstance(forgotten, harmless.Taken)
    give_again(forgotten.call.attempt)
    others = claim(rival)
    other = advance._choose(others, rival.tools.living())
    assert isinstance(other, harmless.Taken)
    assert other.call.attempt == forgotten.call.attempt
    with pytest.raises(Untaken):
        decide._settle(hand, forgotten.call.attempt, Report(said=Said.DONE, result=decided))
    assert Attempt.objects.get(pk=other.call.attempt).outcome == AttemptOutcome.OPEN
    advance._work(others, other)
    advance._let_others(hand)
    advance._let_others(others)
    for run in runs:
        assert engine.go_on(run).state == RunState.SUCCEEDED
        assert [step.result for step in engine.steps(run, "give")] == [7]
    assert not budgets.mismatches()
