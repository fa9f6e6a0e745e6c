"""A run that repeats itself stops spending and asks a person, with the reason."""

import pytest

from runs import operations
from runs.approvals import Said
from runs.models import Step
from runs.states import RunState, StepKind, Verdict, WaitingFor
from tests.engine_tools import Engine, call, engine, shop_process, workers

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")

SAME = [call("give", value="the same")]


def test_the_same_call_over_and_over_is_found_and_a_person_asked(engine: Engine) -> None:
    run = engine.go(engine.start(*[SAME] * 30))
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.FAILURE)
    card = engine.card(run, "failure")
    assert "no progress over its last 8 thinks" in card.why
    assert "give" in card.why
    thought = Step.objects.filter(run=run, kind=StepKind.THINK).exclude(approvals=card).count()
    assert thought == 9
    operations.decide(card.pk, Said(verdict=Verdict.RETRY), by=engine.person)
    engine.go(run)
    assert run.waiting_for == WaitingFor.FAILURE
    assert Step.objects.filter(run=run, kind=StepKind.THINK).count() > thought + 5


def test_new_results_are_progress(engine: Engine) -> None:
    run = engine.go(engine.start(*[[call("give", value=number)] for number in range(20)]))
    assert run.state == RunState.SUCCEEDED


def test_failures_alone_are_no_progress(engine: Engine) -> None:
    run = engine.go(engine.start(*[[call("pay_keyed", order="1", amount="1.00")]] * 30))
    assert run.waiting_for == WaitingFor.FAILURE
