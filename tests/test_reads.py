"""Plain reads in one statement each: the same record as the general path leaves, and a no wherever something stands
against the next one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.db import OperationalError

from runs import budgets, operations, sql
from runs.agents import get_agent
from runs.allowances import Terms
from runs.engine import advance, reads
from runs.engine import hand as hands
from runs.engine.hand import Hand
from runs.engine.sweep import sweep_once
from runs.engine.toolhost import CannotStart, Outcome, Tick, ToolHost
from runs.engine.toolwire import Perform
from runs.models import Attempt, JournalEntry, LedgerEntry, Run, Step
from runs.states import AttemptOutcome, RunState, StepKind, StepState, WaitingFor
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.test_crash_fences import claim, list_ready
from tests.waiting import wait_until

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a slice is soon over, and its run is claimed anew in between."""
    monkeypatch.setattr(hands, "SLICE_S", 60.0)


def start(engine: Engine, order: str, *, count: int = 4) -> Run:
    return engine.start([call("read_order", order=order) for _ in range(count)])


def counted(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in Step.objects.filter(run=run, tool="read_order").values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found


@pytest.fixture
def after_call(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Do something when the n-th read has returned and is not settled yet."""

    def arrange(nth: int, act: Callable[[], object]) -> None:
        perform_each, seen = engine.worker.tools.perform_each, [0]

        def performing(asked: Any, **kwargs: Any) -> Iterator[tuple[Perform, Outcome]]:
            for read, outcome in perform_each(asked, **kwargs):
                seen[0] += read.tool == "read_order"
                if seen[0] == nth and read.tool == "read_order":
                    act()
                yield read, outcome

        monkeypatch.setattr(engine.worker.tools, "perform_each", performing)

    return arrange


def test_a_read_leaves_the_same_record_as_on_the_general_path(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    order = engine.order()

    def begin() -> Run:
        run = start(engine, order)
        # Of eight steps it takes six: half of them are a threshold that is told.
        operations.set_budget(run.pk, {"steps": 8}, reason="few", by=engine.person)
        return run

    quick = engine.go(begin())
    with monkeypatch.context() as patch:
        patch.setattr(reads, "leading", lambda agent, ready: [])
        general = engine.go(begin())
    assert quick.state == general.state == RunState.SUCCEEDED
    assert record(quick) == record(general)
    assert quick.budget.notice_due or quick.budget.told_percent
    assert [row["result"] is not None for row in record(quick)["steps"] if row["tool"] == "read_order"] == [True] * 4


def test_the_quick_path_was_taken(engine: Engine) -> None:
    run = engine.go(start(engine, engine.order()))
    kinds = list(JournalEntry.objects.filter(run=run, step__tool="read_order").values_list("kind", flat=True))
    assert kinds.count("step.taken") == kinds.count("attempt.done") == kinds.count("step.done") == 4
    assert "step.passed_gate" not in kinds
    numbers = list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))


def test_where_choosing_has_used_up_the_slice_one_read_is_done_in_the_same_way(engine: Engine) -> None:
    run = start(engine, engine.order())
    hand = claim(engine.worker)
    advance._work(hand, list_ready(hand))  # it thinks
    chosen = list_ready(hand)
    hand.until = 0.0
    advance._work(hand, chosen)
    advance._let_others(hand)
    assert counted(run) == {StepState.DONE: 1, StepState.PLANNED: 3}
    assert not JournalEntry.objects.filter(run=run, kind="step.passed_gate").exists()
    assert engine.go(run).state == RunState.SUCCEEDED


def test_a_stop_lets_the_read_in_hand_be_recorded_and_takes_no_other(
    engine: Engine, after_call: Callable[[int, Callable[[], object]], None]
) -> None:
    run = start(engine, engine.order())
    after_call(2, lambda: operations.stop_run(run.pk, reason="enough", by=engine.person))
    engine.go(run)
    assert run.state == RunState.STOPPED
    assert run.drained_at is not None
    assert counted(run) == {StepState.DONE: 2, StepState.VOID: 2}
    assert Attempt.objects.filter(run=run, step__tool="read_order").count() == 2
    assert run.budget.steps_reserved == 0


def test_a_pause_takes_no_other_and_a_resume_does_none_twice(
    engine: Engine, after_call: Callable[[int, Callable[[], object]], None]
) -> None:
    run = start(engine, engine.order())
    after_call(2, lambda: operations.pause_run(run.pk, reason="wait", by=engine.person))
    engine.go(run)
    assert counted(run) == {StepState.DONE: 2, StepState.PLANNED: 2}
    assert run.held_by == "paused: wait"
    operations.resume_run(run.pk, reason="on", by=engine.person)
    engine.go(run)
    assert run.state == RunState.SUCCEEDED
    assert Attempt.objects.filter(run=run, step__tool="read_order").count() == 4


@pytest.mark.parametrize("scope", ["all", "agent:scripted", "tool:read_order", "run"])
def test_a_switch_takes_no_other_and_its_release_lets_them_go_on(
    engine: Engine, after_call: Callable[[int, Callable[[], object]], None], scope: str
) -> None:
    run = start(engine, engine.order())
    scope = f"run:{run.pk}" if scope == "run" else scope
    engaged: list[int] = []
    after_call(1, lambda: engaged.append(operations.engage_switch(scope, reason="hold", by=engine.person).pk))
    engine.go(run)
    assert counted(run).get(StepState.DONE) == 1
    assert Attempt.objects.filter(run=run, step__tool="read_order").count() == 1
    operations.release_switch(engaged[0], reason="go", by=engine.person)
    engine.until_rest(run, sweeps=2)
    assert run.state == RunState.SUCCEEDED
    assert Attempt.objects.filter(run=run, step__tool="read_order").count() == 4


def test_a_switch_elsewhere_holds_nothing_here(
    engine: Engine, after_call: Callable[[int, Callable[[], object]], None]
) -> None:
    run = start(engine, engine.order())
    after_call(1, lambda: operations.engage_switch("tool:pay_once", reason="hold", by=engine.person))
    engine.go(run)
    assert run.state == RunState.SUCCEEDED


def test_a_budget_for_two_more_steps_lets_two_be_done_and_asks(engine: Engine) -> None:
    run = start(engine, engine.order())
    operations.set_budget(run.pk, {"steps": 3}, reason="small", by=engine.person)  # the first thought is one
    engine.go(run)
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.BUDGET)
    assert counted(run) == {StepState.DONE: 2, StepState.WAITING: 2}
    operations.set_budget(run.pk, {"steps": 50}, reason="more", by=engine.person)
    engine.until_rest(run)
    assert run.state == RunState.SUCCEEDED


def test_an_allowance_of_steps_is_kept_by_the_general_path(engine: Engine) -> None:
    terms = Terms(scope="all", dimension="steps", period="day", zone="UTC", hard=Decimal(3))
    operations.create_allowance(terms, reason="few", by=engine.person)
    run = engine.go(start(engine, engine.order()))
    assert run.state == RunState.WAITING
    assert counted(run)[StepState.DONE] == 2


def test_whoever_took_the_run_over_is_not_disturbed_by_a_read_that_returns_late(
    engine: Engine, after_call: Callable[[int, Callable[[], object]], None]
) -> None:
    run = start(engine, engine.order())
    after_call(2, lambda: sql.execute("UPDATE runs_run SET epoch = epoch + 1 WHERE id = %s", [run.pk]))
    engine.go(run)
    # What it read is kept by its attempt; nothing else of the run was touched.
    assert counted(run) == {StepState.DONE: 2, StepState.PLANNED: 2}
    assert run.state == RunState.RUNNING


def test_a_settlement_whose_answer_was_lost_is_not_written_twice(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(engine, engine.order())
    ask, seen = sql.ask, [0]

    def losing(statement: str, params: Any = ()) -> Any:
        answer = ask(statement, params)
        if "lw_read_on" in statement:
            seen[0] += 1
            if seen[0] == 2:
                answer.all()
                raise OperationalError("the answer was lost")
        return answer

    monkeypatch.setattr(sql, "ask", losing)
    engine.go(run)
    lost = Attempt.objects.get(run=run, outcome=AttemptOutcome.OPEN)
    sql.execute("UPDATE runs_attempt SET lease_until = clock_timestamp() WHERE id = %s", [lost.pk])
    sql.execute("UPDATE runs_run SET due_at = lw_clock() WHERE id = %s AND state = 'waiting'", [run.pk])
    wait_until(lambda: sweep_once() is not None and engine.go(run).state == RunState.SUCCEEDED, what="its end")
    assert counted(run) == {StepState.DONE: 4}
    tries = list(Attempt.objects.filter(run=run, step__tool="read_order").values_list("outcome", flat=True))
    assert sorted(tries) == sorted([AttemptOutcome.DONE] * 4 + [AttemptOutcome.LOST])
    assert LedgerEntry.objects.filter(run=run, kind="settle").values("attempt").distinct().count() == (
        LedgerEntry.objects.filter(run=run, kind="settle").count()
    )


def test_what_was_read_is_kept_when_no_tool_process_comes_up_for_the_next(
    engine: Engine, after_call: Callable[[int, Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tools = start(engine, engine.order()), engine.worker.tools
    tools.ready()

    def die() -> None:
        assert tools._leader is not None
        tools._leader.kill_group()
        wait_until(lambda: tools.living() is None, what="its end")

    def refuse(_: object) -> None:
        raise CannotStart("there is no memory for it")

    after_call(1, die)
    with monkeypatch.context() as patch:
        patch.setattr(tools, "_start", refuse)
        with pytest.raises(CannotStart):
            engine.go(run)
    assert counted(run) == {StepState.DONE: 1, StepState.PLANNED: 3}
    assert not Attempt.objects.filter(run=run, outcome=AttemptOutcome.OPEN).exists()


def test_a_read_that_fails_is_tried_again_by_the_general_path(engine: Engine) -> None:
    order = engine.order()
    run = engine.start(
        [call("read_order", order=order), call("read_order", order="none-such"), call("read_order", order=order)]
    )
    engine.go_on(run)
    assert run.state == RunState.SUCCEEDED
    assert counted(run) == {StepState.DONE: 2, StepState.FAILED: 1}


@pytest.mark.parametrize(
    ("agent", "step"),
    [
        ({"gate": lambda tool, arguments: None}, {}),
        ({}, {"tries": 1}),
        ({}, {"gated": True}),
        ({}, {"rests_on": ["order.1"]}),
        ({}, {"contract": "another"}),
        ({}, {"tool": "pay_keyed"}),
        ({}, {"kind": StepKind.CHECK}),
    ],
)
def test_only_plain_reads_are_taken_this_way(agent: dict[str, Any], step: dict[str, Any]) -> None:
    scripted = get_agent("scripted")
    contract = scripted.tool("read_order").contract  # type: ignore[union-attr]
    plain = Step(kind=StepKind.ACT, tool="read_order", contract=contract, number=1)
    other = Step(**{"kind": StepKind.ACT, "tool": "read_order", "contract": contract, "number": 2} | step)
    assert len(reads.leading(scripted, [plain, plain])) == 2
    assert len(reads.leading(replace(scripted, **agent), [plain, other])) == (0 if agent else 1)


def together(run: Run) -> list[list[int]]:
    """The numbers of the reads that were taken in one statement."""
    taken: dict[Any, list[int]] = {}
    for number, at in (
        Attempt.objects.filter(run=run, number=1, step__kind=StepKind.ACT)
        .order_by("pk")
        .values_list("step__number", "taken_at")
    ):
        taken.setdefault(at, []).append(number)
    return list(taken.values())


def line_up(engine: Engine) -> None:
    """Let another run wait for a worker, until the next one has ended."""
    other = engine.start([])
    sql.execute("UPDATE runs_run SET priority = -1 WHERE id = %s", [other.pk])


class TestWhileOthersWait:
    """Quick reads of one reply are taken several at a time."""

    @pytest.fixture(autouse=True)
    def _other(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ToolHost, "usual_s", lambda host, agent, tool: 0.0)  # on a busy machine nothing is quick
        line_up(engine)

    def test_they_leave_the_same_record(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        order = engine.order()
        quick = engine.go(start(engine, order, count=9))
        with monkeypatch.context() as patch:
            patch.setattr(reads, "leading", lambda agent, ready: [])
            general = engine.go(start(engine, order, count=9))
        assert [len(group) for group in together(quick)] == [9]
        one, other = record(quick), record(general)
        for each in (one, other):  # side by side: in another order
            each["journal"].sort(key=lambda entry: int(entry["step"]))
        assert one == other
        numbers = list(JournalEntry.objects.filter(run=quick).order_by("seq").values_list("seq", flat=True))
        assert numbers == list(range(1, len(numbers) + 1))

    def test_one_that_kills_its_process_charges_its_neighbours_nothing(self, engine: Engine) -> None:
        gives = [call("give", value=place) for place in range(4)]
        run = engine.go_on(engine.start([*gives, call("die"), *gives]))
        (deadly,) = engine.steps(run, "die")
        assert [*range(deadly.number - 4, deadly.number + 5)] in together(run)
        assert run.waiting_for == WaitingFor.FAILURE
        assert {step.state for step in engine.steps(run, "give")} == {StepState.DONE}
        outcomes = list(Attempt.objects.filter(run=run, step__tool="give").values_list("outcome", flat=True))
        assert set(outcomes) == {AttemptOutcome.DONE, AttemptOutcome.NOT_BEGUN}
        assert outcomes.count(AttemptOutcome.DONE) == 8
        died = Attempt.objects.filter(run=run, step__tool="die").values_list("outcome", flat=True)
        assert list(died) == [AttemptOutcome.DEAD] * 3
        assert not budgets.mismatches()

    def test_what_returned_is_settled_while_the_one_behind_it_takes_its_time(self, engine: Engine) -> None:
        gives = [call("give", value=place) for place in range(4)]
        run = engine.go(engine.start([*gives, call("linger", for_s=0.7, heed=False)]))
        (slow,) = engine.steps(run, "linger")
        before = engine.steps(run, "give")[-1]
        assert [*range(slow.number - 4, slow.number + 1)] in together(run)
        assert before.ended_at is not None
        assert slow.ended_at is not None
        assert before.ended_at < slow.ended_at

    def test_those_behind_one_that_takes_its_time_are_not_taken_for_lost(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.LEASE_S = 1.0
        tick = Hand.tick

        def sweeping(hand: Hand, attempt: int, *behind: int) -> Tick:
            sweep_once()
            return tick(hand, attempt, *behind)

        monkeypatch.setattr(Hand, "tick", sweeping)
        gives = [call("give", value=place) for place in range(3)]
        run = engine.go_on(engine.start([*gives, call("linger", for_s=2.5, heed=False), *gives]))
        assert run.state == RunState.SUCCEEDED
        (slow,) = engine.steps(run, "linger")
        assert [*range(slow.number - 3, slow.number + 4)] in together(run)
        outcomes = list(Attempt.objects.filter(run=run, step__tool="give").values_list("outcome", flat=True))
        assert outcomes.count(AttemptOutcome.DONE) == 6
        # They began too late, and so not at all: that costs nothing.
        assert outcomes.count(AttemptOutcome.NOT_BEGUN) == len(outcomes) - 6 == 3
        assert run.budget.steps_spent == Attempt.objects.filter(run=run, outcome=AttemptOutcome.DONE).count()
        assert not budgets.mismatches()

    def test_a_stop_lets_none_begin_that_is_behind_one_that_takes_its_time(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tick, stopped = Hand.tick, list[Run]()

        def stopping(hand: Hand, attempt: int, *behind: int) -> Tick:
            if not stopped and Attempt.objects.get(pk=attempt).step.tool == "linger":
                stopped.append(operations.stop_run(hand.claim.run, reason="enough", by=engine.person))
            return tick(hand, attempt, *behind)

        monkeypatch.setattr(Hand, "tick", stopping)
        gives = [call("give", value=place) for place in range(3)]
        run = engine.go(engine.start([*gives, *(call("linger", for_s=0.6, heed=False) for _ in range(4))]))
        assert [len(group) for group in together(run)] == [7]
        assert run.state == RunState.STOPPED
        assert run.drained_at is not None
        outcomes = Attempt.objects.filter(run=run, step__tool="linger").order_by("pk").values_list("outcome", flat=True)
        assert list(outcomes) == [AttemptOutcome.DONE, *[AttemptOutcome.NOT_BEGUN] * 3]
        assert run.budget.steps_reserved == 0
        assert not budgets.mismatches()

    def test_a_stop_lets_those_in_hand_be_recorded_and_takes_no_other(
        self,
        engine: Engine,
        monkeypatch: pytest.MonkeyPatch,
        after_call: Callable[[int, Callable[[], object]], None],
    ) -> None:
        monkeypatch.setattr(reads, "_MOST", 4)
        run = start(engine, engine.order(), count=12)
        after_call(5, lambda: operations.stop_run(run.pk, reason="enough", by=engine.person))
        engine.go(run)
        assert run.state == RunState.STOPPED
        assert run.drained_at is not None
        assert counted(run) == {StepState.DONE: 8, StepState.VOID: 4}
        assert Attempt.objects.filter(run=run, step__tool="read_order").count() == 8
        assert run.budget.steps_reserved == 0

    def test_a_budget_that_is_too_small_for_all_lets_as_many_be_done_as_it_allows(self, engine: Engine) -> None:
        run = start(engine, engine.order(), count=9)
        operations.set_budget(run.pk, {"steps": 6}, reason="small", by=engine.person)  # the first thought is one
        engine.go(run)
        assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.BUDGET)
        assert counted(run) == {StepState.DONE: 5, StepState.WAITING: 4}

    def test_one_that_fails_is_tried_again_and_the_others_are_done_once(self, engine: Engine) -> None:
        order = engine.order()
        orders = [order, order, order, "none-such", order, order]
        run = engine.go_on(engine.start([call("read_order", order=each) for each in orders]))
        assert run.state == RunState.SUCCEEDED
        assert counted(run) == {StepState.DONE: 5, StepState.FAILED: 1}
        tries = Attempt.objects.filter(run=run, step__tool="read_order")
        assert tries.count() == 5 + 2


class TestWhatIsQuick:
    """Of a tool that was not called yet nobody knows; after that its last calls tell."""

    def test_the_first_call_of_a_tool_goes_alone(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reads, "_TOGETHER_S", 60.0)  # on a busy machine nothing is quick
        monkeypatch.setattr(engine.worker.tools, "_lately_s", {})
        for expected in [1, 5], [6]:
            line_up(engine)
            run = engine.go(engine.start([call("give", value=place) for place in range(6)]))
            assert [len(group) for group in together(run)] == expected

    def test_only_as_many_go_together_as_are_done_soon(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        line_up(engine)
        usual = {"give": reads._TOGETHER_S / 3.5, "linger": reads._TOGETHER_S / 2}
        monkeypatch.setattr(ToolHost, "usual_s", lambda host, agent, tool: usual[tool])
        gives = [call("give", value=place) for place in range(5)]
        run = engine.go(engine.start([*gives, *(call("linger", for_s=0.0, heed=False) for _ in range(4))]))
        assert [len(group) for group in together(run)] == [3, 2, 2, 2]

    def test_of_those_that_went_together_each_is_known_by_its_own_time(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line_up(engine)
        linger, takes_s = ("scripted", "linger"), 0.05  # it sleeps for so long at least
        monkeypatch.setattr(engine.worker.tools, "_lately_s", {linger: 0.0})
        run = engine.go(engine.start([call("linger", for_s=takes_s, heed=False) for _ in range(5)]))
        assert [len(group) for group in together(run)] == [5]
        assert engine.worker.tools.usual_s(*linger) > takes_s * (1 - 0.5**5) * 0.99


def test_alone_a_run_has_one_read_in_flight(engine: Engine) -> None:
    run = engine.go(start(engine, engine.order()))
    assert [len(group) for group in together(run)] == [1, 1, 1, 1]


def record(run: Run) -> dict[str, list[dict[str, Any]]]:
    """What a run left in every table, without what differs from run to run."""
    steps = Step.objects.filter(run=run).order_by("number")
    attempts = Attempt.objects.filter(run=run).order_by("step__number", "number")
    ledger = LedgerEntry.objects.filter(run=run).order_by("attempt__step__number", "id")
    journal = JournalEntry.objects.filter(run=run, step__isnull=False).order_by("seq")
    return {
        "steps": [
            dict(row)
            for row in steps.values(
                "number",
                "kind",
                "state",
                "tool",
                "contract",
                "arguments",
                "result",
                "error",
                "tries",
                "gated",
                "gate_reason",
            )
        ],
        "attempts": [
            dict(row)
            for row in attempts.values(
                "step__number",
                "number",
                "outcome",
                "timeout_s",
                "visible_within_s",
                "began_at",
                "error",
                "late",
                "key",
            )
        ],
        "ledger": [
            dict(row)
            for row in ledger.values(
                "attempt__step__number", "kind", "usd", "tokens", "calls", "effects", "steps", "estimated", "note"
            )
        ],
        "budget": [
            {
                name: value
                for name, value in vars(run.budget).items()
                if name.endswith(("_spent", "_reserved", "_overrun", "notice_due", "told_percent"))
            }
        ],
        # That a read has no gate to pass is said on the general path alone.
        "journal": [
            {"step": step, "kind": kind, "actor": actor}
            for step, kind, actor in journal.values_list("step__number", "kind", "actor")
            if kind != "step.passed_gate"
        ],
    }
