"""A run from its start to its end: a worker with its tool process, the gateway, and the rehearsal model over HTTP."""

from decimal import Decimal

import pytest

from runs import budgets, operations
from runs.models import Step
from runs.operations import Start
from runs.states import RunState, StepKind
from tests.gateway_tools import Desk, desk, model_process, model_server, work_through

__all__ = ["desk", "model_process", "model_server"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_thinks_acts_thinks_and_finishes(desk: Desk, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    run, _ = operations.start_run(Start(agent="thinker", goal="Look at it.", inputs={"value": 7}), by=desk.person)
    desk.gateway()
    assert work_through(run).state == RunState.SUCCEEDED
    kinds = list(Step.objects.filter(run=run).order_by("number").values_list("kind", "tool", "state"))
    assert kinds == [
        (StepKind.THINK, "", "done"),
        (StepKind.ACT, "give", "done"),
        (StepKind.THINK, "", "done"),
        (StepKind.FINISH, "finish", "done"),
    ]
    assert Step.objects.get(run=run, tool="give").result == 7
    budget = run.budget
    assert (budget.calls_spent, budget.usd_reserved) == (2, Decimal(0))
    assert budget.usd_spent > 0
    assert budgets.mismatches() == []
