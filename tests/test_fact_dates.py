"""Nothing becomes younger by being said again: a fact's date is that of the reading, whoever cites it and how."""

from datetime import timedelta
from typing import Any

import pytest

from runs import clock
from runs.models import Fact, Run, Step
from runs.states import RunState
from tests.engine_tools import Engine, call, engine, shop_process, workers

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.django_db(transaction=True)


def record(name: str, **given: Any) -> dict[str, Any]:
    return call("record_fact", name=name, **given)


def run_script(engine: Engine, *script: list[dict[str, Any]]) -> Run:
    run = engine.start(*script)
    engine.go(run)
    assert run.state == RunState.SUCCEEDED, run.why
    return run


def refusals(run: Run) -> list[str]:
    steps = Step.objects.filter(run=run, tool="record_fact").order_by("number")
    return [step.error for step in steps]


def test_a_fact_cites_the_step_that_read_it_and_no_other(engine: Engine) -> None:
    run = run_script(
        engine,
        [call("give", value={"a": 1})],
        [call("recall", step=2), call("plan", add=["x"]), record("a", from_step=2, max_age_s=60)],
        [record("b", from_step=4, pointer="/result/a", max_age_s=60), record("c", from_step=6, max_age_s=60)],
        [call("plan", drop=[{"item": "w1", "reason": "done"}])],
    )
    first, recalled, recorded = refusals(run)
    assert first == ""
    assert "Step 4 (recall) read nothing itself" in recalled
    assert "Step 6 (record_fact) read nothing itself" in recorded


def test_what_is_read_is_not_said(engine: Engine) -> None:
    run = run_script(
        engine,
        [call("give", value=1)],
        [record("a", from_step=2, max_age_s=60)],
        [record("a", value=1, max_age_s=60), record("order.7", value={"paid": "1.00"})],
    )
    _, said, first = refusals(run)
    assert "a is read, not said" in said
    assert "order.7 is read, not said" in first


def test_a_claim_of_the_agent_is_as_old_as_when_it_was_first_made(engine: Engine) -> None:
    run = engine.start(
        [record("mood", value="good", max_age_s=60)],
        [call("wait_until", seconds=300, reason="it takes time")],
        [record("mood", value="good", max_age_s=60)],
        [call("give", value=1)],
        [record("mood", value="bad", max_age_s=60)],
    )
    engine.go(run)
    first = Fact.objects.get(run=run).verified_at
    clock.shift(timedelta(seconds=400))
    engine.go(run)
    values = Fact.objects.get(run=run).versions.order_by("version").values_list("value", "observed_at")
    assert [value for value, _ in values] == ["good", "bad"]
    assert values[0][1] == first
    again = Step.objects.filter(run=run, tool="record_fact").order_by("number")[1]
    assert again.state == "done"
    assert values[1][1] is not None
    assert first is not None
    assert values[1][1] > first + timedelta(seconds=300)


def test_the_shortest_of_what_agent_tool_and_call_allow_is_its_max_age(engine: Engine) -> None:
    at = clock.now().isoformat()
    run = run_script(
        engine,
        [call("give_copy", value={"at": at})],
        [
            record("order.1", from_step=2),
            record("order.2", from_step=2, max_age_s=10),
            record("other", from_step=2),
            record("order.3", from_step=2, max_age_s=31),
            record("order.4", from_step=2, max_age_s=float("nan")),
        ],
    )
    told = dict(Fact.objects.filter(run=run).values_list("name", "max_age_s"))
    assert told == {"order.1": 30, "order.2": 10, "other": 30}
    assert "at most 30 s old; 31 s is longer than its policy allows" in refusals(run)[3]


@pytest.mark.parametrize(
    ("told", "known"),
    [(-20, True), (60, False), ("yesterday", False), ("2026-11-29T10:00:00", False), (None, False), ({}, False)],
)
def test_a_source_that_says_from_when_its_data_are_is_believed_only_about_the_past(
    engine: Engine, told: object, known: bool
) -> None:
    at = (clock.now() + timedelta(seconds=told)).isoformat() if isinstance(told, int) else told
    value = {"at": at} if at is not None else {}
    run = run_script(engine, [call("give_copy", value=value)], [record("copy", from_step=2)])
    fact = Fact.objects.get(run=run)
    if known:
        assert fact.verified_at is not None
        assert fact.verified_at.isoformat() == at
    else:
        assert (fact.observed_at, fact.verified_at) == (None, None)


def test_a_check_of_a_fact_whose_date_lies_ahead_gives_it_the_date_of_the_check(engine: Engine) -> None:
    order = engine.order()
    wait = call("wait_until", seconds=30, reason="a while")
    run = engine.start(*engine.read(order), [wait], [call("pay_keyed", order=order, amount="5.00")])
    engine.go(run)
    # What a clock that went wrong for a while has left behind.
    Fact.objects.filter(run=run).update(verified_at=clock.now() + timedelta(days=1))
    clock.shift(timedelta(seconds=40))
    engine.go(run)
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
    assert Step.objects.filter(run=run, kind="check").count() == 1
