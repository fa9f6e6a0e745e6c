"""A reply that reads and then finishes: the end is begun right after the reads, and what stood against it before a choice
stands against it there."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from runs import operations, sql
from runs.approvals import Said
from runs.engine import advance, harmless
from runs.engine import hand as hands
from runs.engine.sweep import sweep_once
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Perform
from runs.models import Attempt, JournalEntry, Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState, Verdict, Verified, WaitingFor
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.writers import together, until_blocked

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


@pytest.fixture
def while_verified(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something when the claim was verified the first time, and the run has not ended yet."""

    def arrange(act: Callable[[], object]) -> None:
        carry_out, seen = harmless.carry_out, [0]

        def carrying(hand: Any, taken: harmless.Taken) -> Outcome:
            outcome = carry_out(hand, taken)
            if taken.call.function is Function.VERIFY:
                seen[0] += 1
                if seen[0] == 1:
                    act()
            return outcome

        monkeypatch.setattr(harmless, "carry_out", carrying)

    return arrange


def tries_of_end(run: Run) -> list[str]:
    return list(Attempt.objects.filter(step=end_of(run)).order_by("number").values_list("outcome", flat=True))


def test_a_pause_while_it_is_verified_holds_it(
    engine: Engine, while_verified: Callable[[Callable[[], object]], None]
) -> None:
    run = start(engine, agent="verified")
    while_verified(lambda: operations.pause_run(run.pk, reason="wait", by=engine.person))
    engine.go(run)
    assert (run.state, run.held_by, end_of(run).state) == (RunState.QUEUED, "paused: wait", StepState.PLANNED)
    operations.resume_run(run.pk, reason="on", by=engine.person)
    assert engine.go(run).state == RunState.SUCCEEDED
    assert tries_of_end(run) == [AttemptOutcome.DONE] * 2


def test_a_switch_while_it_is_verified_holds_it(
    engine: Engine, while_verified: Callable[[Callable[[], object]], None]
) -> None:
    run, engaged = start(engine, agent="verified"), []
    while_verified(lambda: engaged.append(operations.engage_switch("all", reason="hold", by=engine.person).pk))
    engine.go(run)
    assert (run.held_by, end_of(run).state) == ("switch all: hold", StepState.PLANNED)
    operations.release_switch(engaged[0], reason="on", by=engine.person)
    engine.until_rest(run, sweeps=2)
    assert (run.state, tries_of_end(run)) == (RunState.SUCCEEDED, [AttemptOutcome.DONE] * 2)


def test_a_run_whose_time_is_over_while_it_is_verified_does_not_succeed(
    engine: Engine, while_verified: Callable[[Callable[[], object]], None]
) -> None:
    run = start(engine, agent="verified")
    while_verified(lambda: sql.execute("UPDATE runs_run SET expires_at = lw_clock() WHERE id = %s", [run.pk]))
    engine.go(run)
    assert (run.state, run.end_reason) == (RunState.EXPIRED, "its max age passed")
    assert (end_of(run).state, tries_of_end(run)) == (StepState.VOID, [AttemptOutcome.DONE])


def test_a_stop_meanwhile_ends_it(engine: Engine, after_last: Callable[[Callable[[], object]], None]) -> None:
    run = start(engine)
    after_last(lambda: operations.stop_run(run.pk, reason="enough", by=engine.person))
    engine.go(run)
    assert run.state == RunState.STOPPED
    assert run.drained_at is not None
    sweep_once()
    told = list(JournalEntry.objects.filter(run=run, kind__in=["run.draining", "run.drained"]).order_by("seq"))
    assert [entry.kind for entry in told] == ["run.draining", "run.drained"]


def test_who_waits_for_its_budget_meanwhile_does_not_meet_its_row_locked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads that a decision takes at once change its budget, and so does the settlement of the decision itself."""
    run, decided, queued = start(engine), threading.Event(), threading.Event()
    carry_out = harmless.carry_out

    def deciding(*given: Any) -> Outcome:
        outcome = carry_out(*given)
        decided.set()
        assert queued.wait(10.0)
        return outcome

    def want_budget() -> bool:
        assert decided.wait(20.0)
        with transaction.atomic():
            sql.execute("SELECT lw_queue_for_budget(%s)", [run.pk])
            queued.set()
            until_blocked()
            return bool(
                sql.fetch_row("SELECT true FROM runs_budget WHERE run_id = %s FOR NO KEY UPDATE NOWAIT", [run.pk])[0]
            )

    monkeypatch.setattr(harmless, "carry_out", deciding)
    assert together(want_budget, lambda: engine.go(run).state) == [True, RunState.SUCCEEDED]
    assert [step.tries for step in engine.steps(run, "give")] == [1, 1, 1]


def test_where_the_reads_cannot_be_taken_at_once_the_decision_is_settled_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, carry_out = start(engine), harmless.carry_out

    def pausing(*given: Any) -> Outcome:
        operations.pause_run(run.pk, reason="wait", by=engine.person)
        return carry_out(*given)

    with monkeypatch.context() as patch:
        patch.setattr(harmless, "carry_out", pausing)
        engine.go(run)
    assert [step.state for step in engine.steps(run, "give")] == [StepState.PLANNED] * 3
    assert Step.objects.get(run=run, kind=StepKind.THINK).state == StepState.DONE
    assert not Attempt.objects.filter(run=run, outcome=AttemptOutcome.OPEN).exists()
    numbers = list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))
    operations.resume_run(run.pk, reason="on", by=engine.person)
    assert engine.go(run).state == RunState.SUCCEEDED
    assert [step.tries for step in engine.steps(run, "give")] == [1, 1, 1]


def test_the_last_reads_and_the_end_are_one_transaction(engine: Engine) -> None:
    run = engine.go(start(engine))
    last = engine.steps(run, "give")[-1]
    told = JournalEntry.objects.filter(run=run)
    assert (
        told.get(kind="step.done", step=last).xid
        == told.get(kind="step.done", step=end_of(run)).xid
        == told.get(kind="run.succeeded").xid
    )
    first = engine.steps(run, "give")[0]
    assert told.get(kind="step.planned", step=first).xid == told.get(kind="step.taken", step=first).xid
