"""A reply that reads and then finishes: the end is begun right after the reads, and what stood against it before a choice
stands against it there."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runs import operations, sql
from runs.approvals import Said
from runs.engine import advance
from runs.engine import hand as hands
from runs.engine.sweep import sweep_once
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Perform
from runs.models import JournalEntry, Run, Step
from runs.states import RunState, StepKind, StepState, Verdict, Verified, WaitingFor
from tests.engine_tools import Engine, call, engine, shop_process, workers

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")

END = call("finish", outcome="done", evidence=[])


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "SLICE_S", 60.0)


def gives(count: int) -> list[dict[str, Any]]:
    return [call("give", value=place) for place in range(count)]


def start(engine: Engine, *, agent: str = "scripted") -> Run:
    engine.worker.tools.ready()
    return engine.start([*gives(3), END], agent=agent)


def end_of(run: Run) -> Step:
    return Step.objects.filter(run=run, kind=StepKind.FINISH).earliest("number")


@pytest.fixture
def after_last(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something when the last read has returned and is not settled yet."""

    def arrange(act: Callable[[], object]) -> None:
        perform_each, seen = engine.worker.tools.perform_each, [0]

        def performing(asked: Any, **kwargs: Any) -> Iterator[tuple[Perform, Outcome]]:
            for read, outcome in perform_each(asked, **kwargs):
                seen[0] += read.tool == "give"
                if seen[0] == 3 and read.tool == "give":
                    act()
                yield read, outcome

        monkeypatch.setattr(engine.worker.tools, "perform_each", performing)

    return arrange


@pytest.mark.parametrize(("agent", "verified"), [("scripted", Verified.NOT_VERIFIED), ("verified", Verified.VERIFIED)])
def test_it_is_one_thought_and_one_choice(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, agent: str, verified: Verified
) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(advance, "_choose", lambda *given: chosen.append(given))
    run = engine.go(start(engine, agent=agent))
    assert (run.state, run.verified) == (RunState.SUCCEEDED, verified)
    assert Step.objects.filter(run=run, kind=StepKind.THINK).count() == 1
    assert [step.state for step in engine.steps(run, "give")] == [StepState.DONE] * 3
    assert not chosen  # that of the claim is the only one


@pytest.mark.parametrize("agent", ["scripted", "verified"])
def test_it_waits_for_what_is_not_done(engine: Engine, agent: str) -> None:
    ask = call("ask", question="Go on?", options=["yes"])
    run = engine.go(engine.start([*gives(2), ask, END], agent=agent))
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.QUESTION)
    assert end_of(run).state == StepState.PLANNED
    card = engine.card(run, "question")
    operations.decide(card.pk, Said(verdict=Verdict.RESPOND, answer="yes"), by=engine.person)
    engine.go(run)
    assert run.state == RunState.SUCCEEDED
    assert [step.state for step in engine.steps(run, "ask")] == [StepState.DONE]


def test_it_waits_for_a_read_that_is_tried_again(engine: Engine) -> None:
    run = engine.go(engine.start([*gives(1), call("fail", word="no"), END]))
    assert run.state == RunState.WAITING
    assert end_of(run).state == StepState.PLANNED


@pytest.mark.parametrize("agent", ["scripted", "verified"])
def test_open_work_refuses_it(engine: Engine, agent: str) -> None:
    plan = call("plan", add=["look", "tell"])
    run = engine.go(engine.start([plan], [*gives(3), END], agent=agent))
    refused = end_of(run)
    assert refused.state == StepState.REFUSED
    assert "2 work items are open: w1 (look), w2 (tell)" in refused.error
    assert run.state != RunState.SUCCEEDED


@pytest.mark.parametrize("agent", ["scripted", "verified"])
def test_a_pause_meanwhile_holds_it(
    engine: Engine, after_last: Callable[[Callable[[], object]], None], agent: str
) -> None:
    run = start(engine, agent=agent)
    after_last(lambda: operations.pause_run(run.pk, reason="wait", by=engine.person))
    engine.go(run)
    assert (run.state, run.held_by) == (RunState.QUEUED, "paused: wait")
    assert end_of(run).state == StepState.PLANNED
    operations.resume_run(run.pk, reason="on", by=engine.person)
    assert engine.go(run).state == RunState.SUCCEEDED


@pytest.mark.parametrize("agent", ["scripted", "verified"])
def test_a_switch_meanwhile_holds_it(
    engine: Engine, after_last: Callable[[Callable[[], object]], None], agent: str
) -> None:
    run, engaged = start(engine, agent=agent), []
    after_last(lambda: engaged.append(operations.engage_switch("all", reason="hold", by=engine.person).pk))
    engine.go(run)
    assert run.held_by == "switch all: hold"
    assert end_of(run).state == StepState.PLANNED
    operations.release_switch(engaged[0], reason="on", by=engine.person)
    engine.until_rest(run, sweeps=2)
    assert run.state == RunState.SUCCEEDED


@pytest.mark.parametrize("agent", ["scripted", "verified"])
def test_a_run_whose_time_is_over_does_not_succeed(
    engine: Engine, after_last: Callable[[Callable[[], object]], None], agent: str
) -> None:
    run = start(engine, agent=agent)
    after_last(lambda: sql.execute("UPDATE runs_run SET expires_at = lw_clock() WHERE id = %s", [run.pk]))
    engine.go(run)
    assert (run.state, run.end_reason) == (RunState.EXPIRED, "its max age passed")
    assert end_of(run).state == StepState.VOID


def test_a_stop_meanwhile_ends_it(engine: Engine, after_last: Callable[[Callable[[], object]], None]) -> None:
    run = start(engine)
    after_last(lambda: operations.stop_run(run.pk, reason="enough", by=engine.person))
    engine.go(run)
    assert run.state == RunState.STOPPED
    assert run.drained_at is not None
    sweep_once()
    told = list(JournalEntry.objects.filter(run=run, kind__in=["run.draining", "run.drained"]).order_by("seq"))
    assert [entry.kind for entry in told] == ["run.draining", "run.drained"]
