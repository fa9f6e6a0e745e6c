"""A tool that returns `Wait`: its call is over, and its step goes on with the one event that it waits for, or without it."""

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction

from runs import budgets, course, lifecycle, operations, sql
from runs.access import Role
from runs.agents import BadTool, Wait
from runs.approvals import Said as Says
from runs.clock import shift
from runs.engine import advance
from runs.engine.toolwire import Report, Said
from runs.engine.worker import Worker
from runs.errors import Forbidden, Malformed, WrongState
from runs.models import Event, JournalEntry, Key, Run, Step, Switch
from runs.states import (
    ApprovalState,
    AttemptOutcome,
    KeyState,
    RunState,
    StepKind,
    StepState,
    Verdict,
    WaitingFor,
)
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.people import Api, api_of, make_person
from tests.test_crash_fences import Held, advance_to, bury, lose, rival, take
from tests.writers import Thread, open_attempt, together, until_blocked

__all__ = ["engine", "rival", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")

EFFECTS = ["order_keyed", "order_idempotent", "order_checkable", "order_once"]
TOOLS = [*EFFECTS, "read_later"]


def ask(engine: Engine, tool: str, **arguments: Any) -> tuple[Run, str]:
    """A run whose next call pays an order of its own and then waits for the event `paid`."""
    order = engine.order()
    return engine.start(*engine.read(order), [call(tool, order=order, **arguments)]), order


def wait(engine: Engine, tool: str, **arguments: Any) -> tuple[Run, Step, str]:
    """The same, when it waits."""
    run, order = ask(engine, tool, **arguments)
    engine.go(run)
    assert run.state == RunState.WAITING, run.why
    (step,) = engine.steps(run, tool)
    return run, step, order


def hold(engine: Engine, tool: str, **arguments: Any) -> tuple[Run, Held, str]:
    """The same, when its call was taken and not yet performed."""
    run, order = ask(engine, tool, **arguments)
    run = advance_to(engine, run, tool)
    return run, take(engine.worker), order


def deliver(
    engine: Engine, key: str, *, name: str = "paid", delivery: str = "d1", payload: Any = "yes", by: User | None = None
) -> Event:
    event, _ = operations.store_event(
        name=name, key=key, payload=payload, source="bank", delivery_id=delivery, by=by or engine.person
    )
    return event


def key_of(step: Step) -> str:
    """The key under which a step waits for its event."""
    return str(dig(step.result, "key"))


def told(run: Run, tool: str) -> Any:
    """The result of the one step of this tool, which is done."""
    step = Step.objects.get(run=run, tool=tool, kind=StepKind.ACT)
    assert step.state == StepState.DONE, (step.state, step.wait_note, step.error)
    return step.result


def unmatched() -> int:
    return Event.objects.filter(step=None, matched_at=None).count()


@pytest.mark.parametrize("tool", TOOLS)
def test_the_event_ends_the_wait_and_the_call_is_never_made_again(engine: Engine, tool: str) -> None:
    run, step, order = wait(engine, tool)
    paid = int(tool in EFFECTS)
    assert (run.waiting_for, step.wake_at, step.tries) == (WaitingFor.EVENT, None, 1)
    assert step.wait_note == f"waits for the event paid ({key_of(step)}): the bank takes its time"
    attempt = step.attempts.get()
    assert (attempt.outcome, attempt.ended_at is not None) == (AttemptOutcome.DONE, True)
    if paid:
        key = Key.objects.get(step=step)
        assert (key.state, key.header) == (KeyState.DONE, key_of(step))
    for _ in range(3):  # whoever looks at it again finds that it waits
        engine.hasten(run)
        engine.go(run)
    assert (engine.paid(order), run.state) == (paid, RunState.WAITING)
    event = deliver(engine, key_of(step), payload={"at": "noon"})
    assert (event.step_id, event.matched_at is not None) == (step.pk, True)
    assert engine.go(run).state == RunState.SUCCEEDED
    result = told(run, tool)
    assert result.pop("waited_s") > 0
    assert result == {"event": "paid", "payload": {"at": "noon"}, "delivered_at": event.received_at.isoformat()}
    step.refresh_from_db()
    assert (engine.paid(order), step.tries, step.attempts.count()) == (paid, 1, 1)
    assert run.budget.effects_spent == paid
    assert not budgets.mismatches()
    entry = JournalEntry.objects.get(run=run, kind="event.matched")
    assert (entry.step_id, dig(entry.after, "event"), entry.actor) == (step.pk, event.pk, "person:ana")


@pytest.mark.parametrize("tool", TOOLS)
def test_an_event_that_comes_before_the_wait_is_written_ends_it_at_once(engine: Engine, tool: str) -> None:
    run, held, order = hold(engine, tool)
    report = held.perform()
    assert report.said is Said.WAITS
    event = deliver(engine, report.result["key"])
    assert event.step_id is None
    held.settle(report)
    event = Event.objects.get()
    assert (event.step_id, event.matched_at is not None) == (held.step, True)
    assert told(run, tool)["payload"] == "yes"
    assert engine.paid(order) == int(tool in EFFECTS)
    assert JournalEntry.objects.get(run=run, kind="event.matched").step_id == held.step


def test_a_settlement_that_has_looked_is_found_by_the_delivery_that_comes_meanwhile(engine: Engine) -> None:
    run, held, _ = hold(engine, "order_keyed")
    report = held.perform()
    with transaction.atomic():
        sql.execute("SELECT 1 FROM runs_budget WHERE run_id = %s FOR UPDATE", [run.pk])
        settling = Thread(lambda: held.settle(report))  # stands at the budget, its last lock, after it looked
        until_blocked(1)
        delivering = Thread(lambda: deliver(engine, report.result["key"]))
        until_blocked(2)
    settling.finish()
    assert delivering.finish().step_id == held.step
    advance_and_finish(engine, held, run)
    assert told(run, "order_keyed")["payload"] == "yes"


def test_a_delivery_that_has_looked_is_found_by_the_settlement_that_comes_meanwhile(
    engine: Engine, database_url: str
) -> None:
    run, held, _ = hold(engine, "order_keyed")
    report = held.perform()
    with psycopg.connect(database_url) as other:
        # Whoever stores this delivery waits until it is known what becomes of this one.
        other.execute(
            "INSERT INTO runs_event (name, key, source, delivery_id, agents, received_at)"
            " VALUES ('x', 'x', 'bank', 'd1', '[]', now())"
        )
        delivering = Thread(lambda: deliver(engine, report.result["key"]))
        until_blocked(1)
        settling = Thread(lambda: held.settle(report))
        until_blocked(2)
        other.rollback()
    assert delivering.finish().step_id is None
    settling.finish()
    assert Event.objects.get().step_id == held.step
    assert told(run, "order_keyed")["payload"] == "yes"


def advance_and_finish(engine: Engine, held: Held, run: Run) -> None:
    """Let a run that stands still in the test's hands be advanced by its worker again."""
    advance._let_others(held.hand)
    engine.go(run)


def test_of_many_deliveries_at_once_one_ends_the_wait_and_all_are_kept(engine: Engine) -> None:
    run, step, _ = wait(engine, "read_later", key="k")
    made = together(*(partial(deliver, engine, "k", delivery=f"d{n}") for n in range(4)))
    assert sorted(event.step_id or 0 for event in made) == [0, 0, 0, step.pk], made
    assert unmatched() == 3
    assert engine.go(run).state == RunState.SUCCEEDED
    assert unmatched() == 3


def test_the_same_delivery_again_does_nothing_also_for_the_next_wait(engine: Engine) -> None:
    run, step, _ = wait(engine, "read_later", key="k")
    first, is_new = operations.store_event(
        name="paid", key="k", payload=1, source="bank", delivery_id="d1", by=engine.person
    )
    engine.go(run)
    other, _, _ = wait(engine, "read_later", key="k")
    again, is_new_again = operations.store_event(
        name="paid", key="k", payload=2, source="bank", delivery_id="d1", by=engine.person
    )
    assert (is_new, is_new_again, again.pk, again.step_id, again.payload) == (True, False, first.pk, step.pk, 1)
    assert engine.go(other).state == RunState.WAITING


def test_each_event_ends_one_wait_of_several_with_its_name_and_key_the_oldest(engine: Engine) -> None:
    first, step, _ = wait(engine, "read_later", key="k")
    second, other, _ = wait(engine, "read_later", key="k")
    assert deliver(engine, "k", delivery="d1").step_id == step.pk
    assert deliver(engine, "k", delivery="d2").step_id == other.pk
    assert (engine.go(first).state, engine.go(second).state) == (RunState.SUCCEEDED, RunState.SUCCEEDED)


@pytest.mark.parametrize(
    ("name", "key"), [("paid", "other"), ("shipped", "k"), ("paid k", ""), ("paid", ""), ("PAID", "k")]
)
def test_an_event_of_another_name_or_key_is_kept_and_wakes_nobody(engine: Engine, name: str, key: str) -> None:
    run, _, _ = wait(engine, "read_later", key="k")
    assert deliver(engine, key, name=name).step_id is None
    assert engine.go(run).state == RunState.WAITING
    assert unmatched() == 1


def test_an_old_event_with_the_same_key_does_not_answer_a_new_question(engine: Engine) -> None:
    deliver(engine, "k", delivery="last week")
    run, step, _ = wait(engine, "order_keyed", key="k")
    assert unmatched() == 1
    assert deliver(engine, "k", delivery="today", payload="now").step_id == step.pk
    engine.go(run)
    assert told(run, "order_keyed")["payload"] == "now"


def test_who_does_not_see_the_agent_cannot_end_its_waits_early_or_late(engine: Engine) -> None:
    stranger = make_person("noor", Role.SERVICE, agents=("stock-watch",))
    _, held, _ = hold(engine, "read_later", key="k")
    report = held.perform()
    deliver(engine, "k", delivery="early", by=stranger)
    held.settle(report)
    assert deliver(engine, "k", delivery="late", by=stranger).step_id is None
    assert deliver(engine, "k", delivery="own").step_id == held.step
    assert unmatched() == 2


def test_old_events_that_ended_no_wait_are_deleted_once_no_open_run_can_ask_for_them(engine: Engine) -> None:
    stranger = make_person("noor", Role.SERVICE, agents=("stock-watch",))
    deliver(engine, "before the run", delivery="1")
    run, step, _ = wait(engine, "read_later")
    deliver(engine, key_of(step), delivery="matched")
    deliver(engine, "asked for later", delivery="2")
    deliver(engine, "from who may not reach it", delivery="3", by=stranger)
    shift(timedelta(days=3))
    deliver(engine, "new", delivery="4")

    def delete() -> str:
        said = io.StringIO()
        call_command("deleteevents", "--older-than=2d", stdout=said)
        return said.getvalue()

    assert delete() == "2 events that nobody waited for are deleted.\n"
    assert set(Event.objects.values_list("delivery_id", flat=True)) == {"matched", "2", "4"}
    assert JournalEntry.objects.get(kind="events.deleted").after == {"events": 2, "older_than_s": 172_800}
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    assert delete().startswith("1 events")
    assert delete().startswith("0 events")
    assert set(Event.objects.values_list("delivery_id", flat=True)) == {"matched", "4"}
    assert JournalEntry.objects.filter(kind="events.deleted").count() == 2


def test_events_are_deleted_by_an_admin_and_not_while_they_may_be_repeated(engine: Engine) -> None:
    with pytest.raises(Forbidden):
        operations.delete_events(older_than_s=1e6, by=make_person("olga", Role.OPERATOR))
    for seconds in (0.0, 86_399.0, float("nan"), 1e30):
        with pytest.raises(Malformed):
            operations.delete_events(older_than_s=seconds, by=engine.person)


def pause(engine: Engine, run: Run) -> None:
    operations.pause_run(run.pk, reason="lunch", by=engine.person)


def resume(engine: Engine, run: Run) -> None:
    operations.resume_run(run.pk, reason="back", by=engine.person)


def engage(engine: Engine, run: Run) -> None:
    operations.engage_switch(f"run:{run.pk}", reason="an audit", by=engine.person)


def release(engine: Engine, run: Run) -> None:
    operations.release_switch(Switch.objects.get(released_at=None).pk, reason="audited", by=engine.person)


@pytest.mark.parametrize(("stand", "go"), [(pause, resume), (engage, release)])
@pytest.mark.parametrize("when", ["waits", "in flight"])
def test_an_event_for_a_run_that_stands_still_is_its_own_and_it_goes_on_afterwards(
    engine: Engine, stand: Callable[[Engine, Run], None], go: Callable[[Engine, Run], None], when: str
) -> None:
    if when == "waits":
        run, step, _ = wait(engine, "read_later")
        stand(engine, run)
        key = key_of(step)
    else:
        run, held, _ = hold(engine, "read_later")
        report = held.perform()
        stand(engine, run)
        held.settle(report)
        advance_and_finish(engine, held, run)
        key = report.result["key"]
    assert deliver(engine, key).step is not None
    assert engine.go(run).state in (RunState.QUEUED, RunState.WAITING)
    assert Step.objects.get(run=run, tool="read_later").state == StepState.PLANNED
    go(engine, run)
    assert engine.go(run).state == RunState.SUCCEEDED
    assert told(run, "read_later")["payload"] == "yes"


def test_an_event_for_a_run_that_has_ended_is_kept_and_moves_nothing(engine: Engine) -> None:
    run, step, order = wait(engine, "order_keyed")
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    assert deliver(engine, key_of(step)).step_id is None
    step.refresh_from_db()
    assert (step.state, engine.go(run).state, engine.paid(order)) == (StepState.VOID, RunState.STOPPED, 1)
    assert unmatched() == 1


def test_what_returns_after_the_stop_is_recorded_and_waits_for_nothing(engine: Engine) -> None:
    run, held, order = hold(engine, "order_keyed")
    report = held.perform()
    operations.stop_run(run.pk, reason="enough", by=engine.person)
    held.settle(report)
    run.refresh_from_db()
    assert (run.state, run.drained_at is not None, engine.paid(order)) == (RunState.STOPPED, True, 1)
    assert Key.objects.get(run=run).state == KeyState.DONE
    assert told(run, "order_keyed") == report.result
    assert deliver(engine, report.result["key"]).step_id is None


def test_a_stop_and_the_event_at_once_agree(engine: Engine) -> None:
    for turn in range(5):
        run, step, _ = wait(engine, "read_later", key=f"k{turn}")
        made = together(
            partial(operations.stop_run, run.pk, reason="enough", by=engine.person),
            partial(deliver, engine, f"k{turn}", delivery=f"d{turn}"),
        )
        assert not [each for each in made if isinstance(each, BaseException)], made
        step.refresh_from_db()
        run.refresh_from_db()
        assert (run.state, step.state) == (RunState.STOPPED, StepState.VOID)


def test_when_the_event_does_not_come_in_time_the_agent_is_told_so(engine: Engine) -> None:
    run, step, order = wait(engine, "order_keyed", for_s=3600)
    until = step.wake_at
    assert until is not None
    assert (run.waiting_for, run.due_at) == (WaitingFor.EVENT, until)
    assert " UTC: the bank takes its time" in step.wait_note
    assert step.and_then == "the agent is told that it did not come"
    shift(timedelta(seconds=3601))
    late = deliver(engine, key_of(step))
    assert engine.go(run).state == RunState.SUCCEEDED
    result = told(run, "order_keyed")
    assert 3590 < result.pop("waited_s") < 3600.5
    assert result == {"event": "paid", "timed_out": True, "waited_until": until.isoformat()}
    late.refresh_from_db()
    assert (late.step_id, engine.paid(order)) == (None, 1)


def test_an_event_that_came_in_time_counts_however_late_the_worker_is(engine: Engine) -> None:
    run, step, _ = wait(engine, "order_keyed", for_s=3600)
    deliver(engine, key_of(step))
    shift(timedelta(days=0.5))
    engine.go(run)
    assert told(run, "order_keyed")["payload"] == "yes"


def test_a_wait_for_a_moment_alone_is_a_timer(engine: Engine) -> None:
    run = engine.go(engine.start([call("pause_for", for_s=600)]))
    (step,) = engine.steps(run, "pause_for")
    until = step.wake_at
    assert until is not None
    assert (run.waiting_for, step.and_then) == (WaitingFor.TIMER, "the agent goes on")
    assert step.wait_note == f"waits until {until:%Y-%m-%d %H:%M:%S} UTC: it dries"
    shift(timedelta(seconds=601))
    assert engine.go(run).state == RunState.SUCCEEDED
    assert told(run, "pause_for") == {"waited_until": until.isoformat()}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"key": "k"},
        {"event": "e" * 201},
        {"event": "paid", "key": "k" * 201},
        {"until": datetime.now(UTC).replace(tzinfo=None)},
        {"until": datetime(9999, 12, 31, tzinfo=UTC)},
    ],
)
def test_a_wait_that_nothing_could_end_is_refused_where_it_is_written(given: dict[str, Any]) -> None:
    with pytest.raises(BadTool):
        Wait(**given)


def test_a_result_that_looks_like_a_wait_is_a_result(engine: Engine) -> None:
    looks = {"event": "paid", "key": "k", "until": None, "reason": "", "since": "2026-01-01T00:00:00+00:00"}
    run = engine.go(engine.start([call("give", value=looks)], [call("give", value={"wait": "paid"})]))
    assert run.state == RunState.SUCCEEDED
    assert [step.result for step in engine.steps(run, "give")] == [looks, {"wait": "paid"}]


def test_a_decision_cannot_wait_and_says_so(engine: Engine) -> None:
    run = engine.go(engine.start(agent="hesitant"))
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.RETRY)
    assert "it returned a Wait, and nothing can wait for that here" in run.why


def test_a_read_that_waits_among_others_of_one_reply_holds_none_of_them_up(engine: Engine) -> None:
    run = engine.start([call("give", value=1), call("read_later", order="1", key="k"), call("give", value=2)])
    engine.go(run)
    assert [step.state for step in engine.steps(run, "give")] == [StepState.DONE, StepState.DONE]
    assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.EVENT)
    deliver(engine, "k")
    assert engine.go(run).state == RunState.SUCCEEDED


def test_the_same_call_twice_in_one_reply_waits_once_and_both_are_told(engine: Engine) -> None:
    order = engine.order()
    run = engine.start(*engine.read(order), [call("order_keyed", order=order), call("order_keyed", order=order)])
    engine.go(run)
    first, second = engine.steps(run, "order_keyed")
    assert (first.waiting_for, second.waiting_for) == (WaitingFor.EVENT, WaitingFor.LOCK)
    deliver(engine, key_of(first))
    assert engine.go(run).state == RunState.SUCCEEDED
    first, second = engine.steps(run, "order_keyed")
    assert second.result == first.result
    assert (second.replay_of_id, engine.paid(order)) == (first.pk, 1)


def test_a_changed_fact_drops_no_call_that_is_over_and_waits(engine: Engine) -> None:
    run, step, order = wait(engine, "order_keyed")
    with transaction.atomic():
        assert course.void_dependents(lifecycle.lock(run.pk), [f"order.{order}"], old=1, new=2) == []
    step.refresh_from_db()
    assert step.state == StepState.WAITING


def test_a_step_that_keeps_its_wait_cannot_be_tried_again(engine: Engine) -> None:
    run, step, _ = wait(engine, "read_later")
    deliver(engine, key_of(step))
    step.refresh_from_db()
    assert step.state == StepState.PLANNED
    with transaction.atomic():
        lifecycle.lock(run.pk)
        with pytest.raises(WrongState):
            open_attempt(step)


def test_a_large_payload_is_kept_as_an_artifact(engine: Engine) -> None:
    run, step, _ = wait(engine, "read_later", key="k")
    deliver(engine, "k", payload={"text": "x" * 50_000})
    assert engine.go(run).state == RunState.SUCCEEDED
    step.refresh_from_db()
    assert (dig(step.result, "shortened"), step.artifact is not None) == (True, True)


# What a crash between the tool's Wait and its settlement leaves is settled by the effect, as always.


@pytest.mark.parametrize("tool", ["order_keyed", "order_idempotent", "order_checkable", "read_later"])
def test_a_call_that_is_repeated_or_looked_up_after_a_crash_waits_for_what_came_meanwhile(
    engine: Engine, tool: str
) -> None:
    run, held, order = hold(engine, tool, key="k")
    held.perform()
    die(held)
    if tool in EFFECTS:
        deliver(engine, "k")
    retry(engine, run)
    if tool not in EFFECTS:  # the second try asks anew
        deliver(engine, "k")
    engine.go_on(run)
    assert run.state == RunState.SUCCEEDED, run.why
    assert (told(run, tool)["payload"], engine.paid(order)) == ("yes", int(tool in EFFECTS))


def die(held: Held) -> None:
    """Its worker and its tool process are gone, and that is known."""
    bury(held)
    lose(held)


def retry(engine: Engine, run: Run) -> None:
    """Let the run go on as far as it goes."""
    for _ in range(3):
        engine.hasten(run)
        engine.go(run)


def test_a_call_that_cannot_be_repeated_is_in_doubt_after_a_crash_and_waits_when_it_answers_late(
    engine: Engine,
) -> None:
    run, held, order = hold(engine, "order_once")
    report = held.perform()
    die(held)
    retry(engine, run)
    assert (run.waiting_for, Step.objects.get(pk=held.step).state) == (WaitingFor.VERDICT, StepState.IN_DOUBT)
    card = engine.card(run, "verdict")
    held.settle(report)
    card.refresh_from_db()
    run.refresh_from_db()
    assert (card.state, run.waiting_for) == (ApprovalState.VOID, WaitingFor.EVENT)
    deliver(engine, report.result["key"])
    assert engine.go(run).state == RunState.SUCCEEDED
    assert (told(run, "order_once")["payload"], engine.paid(order)) == ("yes", 1)


def test_what_a_person_says_of_a_call_in_doubt_is_its_result(engine: Engine) -> None:
    run, held, order = hold(engine, "order_once")
    report = held.perform()
    die(held)
    retry(engine, run)
    operations.decide(
        engine.card(run, "verdict").pk, Says(verdict=Verdict.HAPPENED, result={"seen": True}), by=engine.person
    )
    assert engine.go(run).state == RunState.SUCCEEDED
    assert (told(run, "order_once"), engine.paid(order)) == ({"seen": True}, 1)
    held.settle(report)  # too late to be heard
    assert told(run, "order_once") == {"seen": True}


def test_a_call_that_a_person_said_did_not_happen_and_that_returns_a_wait_after_all_is_not_made_again(
    engine: Engine,
) -> None:
    run, held, order = hold(engine, "order_once")
    report = held.perform()
    die(held)
    retry(engine, run)
    operations.decide(engine.card(run, "verdict").pk, Says(verdict=Verdict.DID_NOT_HAPPEN), by=engine.person)
    held.settle(report)
    assert engine.go(run).waiting_for == WaitingFor.EVENT
    deliver(engine, report.result["key"])
    assert engine.go(run).state == RunState.SUCCEEDED
    assert (told(run, "order_once")["payload"], engine.paid(order)) == ("yes", 1)


@pytest.mark.parametrize("said", [Said.REFUSED, Said.NOT_BEGUN, Said.UNKNOWN, Said.DONE])
def test_whatever_a_later_try_says_the_wait_of_the_first_one_stands(engine: Engine, rival: Worker, said: Said) -> None:
    run, frozen, order = hold(engine, "order_keyed")
    report = frozen.perform()
    die(frozen)
    follower = take(rival)
    frozen.settle(report)
    step = Step.objects.get(pk=frozen.step)
    assert (step.state, step.waiting_for) == (StepState.WAITING, WaitingFor.EVENT)
    follower.settle(Report(attempt=follower.taken.attempt, said=said, error="so it says", result={"other": 1}))
    advance_and_finish(engine, follower, run)
    step.refresh_from_db()
    assert (step.state, step.waiting_for) == (StepState.WAITING, WaitingFor.EVENT)
    deliver(engine, report.result["key"])
    assert engine.go(run).state == RunState.SUCCEEDED
    assert (told(run, "order_keyed")["payload"], engine.paid(order)) == ("yes", 1)


def test_over_the_api_an_event_is_delivered_and_the_run_says_what_it_waits_for(engine: Engine) -> None:
    api: Api = api_of(engine.person)
    run, step, _ = wait(engine, "order_keyed")
    shown = api.get(f"/runs/{run.pk}").json()
    (waits,) = shown["waits"]
    assert (shown["waiting_for"], waits["note"], waits["and_then"]) == (
        "event",
        step.wait_note,
        "it goes on when the event arrives",
    )
    body = {"name": "paid", "key": key_of(step), "payload": [1], "delivery_id": "d1", "source": "bank"}
    first = api.post("/events", body)
    assert (first.status_code, first.json()["matched_run"]) == (202, run.pk)
    again = api.post("/events", body)
    assert (again.status_code, again.json()) == (200, first.json())
    stranger = api_of(make_person("noor", Role.SERVICE, agents=("stock-watch",)))
    assert stranger.post("/events", body).json() == {"id": first.json()["id"], "matched_run": None}
    second = api.post("/events", body | {"delivery_id": "d2"})
    assert (second.status_code, second.json()["matched_run"]) == (202, None)
    assert engine.go(run).state == RunState.SUCCEEDED


class TestAskedByTheAgent:
    """The built-in `wait_for`: the agent itself waits for an event, by a key that something outside gave it."""

    def test_the_event_is_its_result_and_a_fact_from_it_is_as_old_as_its_delivery(self, engine: Engine) -> None:
        waits = call("wait_for", event="paid", key="job-7", reason="the bank takes its time")
        records = call("record_fact", name="job", from_step=2, pointer="/payload", max_age_s=600)
        run = engine.go(engine.start([waits], [records]))
        assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.EVENT)
        (step,) = engine.steps(run, "wait_for")
        assert (step.number, step.wait_note) == (2, "waits for the event paid (job-7): the bank takes its time")
        engine.hasten(run)
        assert engine.go(run).state == RunState.WAITING
        deliver(engine, "job-8", delivery="other")
        assert engine.go(run).state == RunState.WAITING
        event = deliver(engine, "job-7", payload="in full")
        assert engine.go(run).state == RunState.SUCCEEDED
        assert dig(told(run, "wait_for"), "payload") == "in full"
        fact = run.facts.get(name="job")
        assert (fact.value, fact.observed_at) == ("in full", event.received_at)
        assert Step.objects.get(pk=step.pk).attempts.count() == 1
        assert not budgets.mismatches()

    @pytest.mark.parametrize("names", [True, False])
    def test_one_that_came_before_counts_from_the_step_that_is_named(self, engine: Engine, names: bool) -> None:
        since: dict[str, Any] = {"from_step": 2} if names else {}
        run = engine.start(
            [call("give", value="job-7")], [call("wait_for", event="paid", key="job-7", reason="r", **since)]
        )
        advance_to(engine, run, "wait_for")
        event = deliver(engine, "job-7")
        # It came after the other step was begun, and before this one was asked for.
        with transaction.atomic():
            sql.execute("SET LOCAL session_replication_role = replica")
            sql.execute(
                "UPDATE runs_step SET created_at = lw_clock() WHERE run_id = %s AND tool = 'wait_for'", [run.pk]
            )
        engine.hasten(run)
        engine.go(run)
        event.refresh_from_db()
        assert run.state == (RunState.SUCCEEDED if names else RunState.WAITING)
        assert (event.matched_at is not None) == names

    def test_it_goes_on_without_the_event_when_its_time_is_over(self, engine: Engine) -> None:
        run = engine.go(engine.start([call("wait_for", event="paid", key="job-7", reason="r", seconds=3600)]))
        assert run.state == RunState.WAITING
        shift(timedelta(seconds=3601))
        engine.go(run)
        assert run.state == RunState.SUCCEEDED
        assert dig(told(run, "wait_for"), "timed_out") is True

    @pytest.mark.parametrize(
        ("given", "word"),
        [({"from_step": 99}, "not begun"), ({"key": ""}, "at least 1"), ({"time": "soon"}, "no time")],
    )
    def test_a_call_that_makes_no_sense_is_refused(self, engine: Engine, given: dict[str, Any], word: str) -> None:
        arguments = {"event": "paid", "key": "job-7", "reason": "r"} | given
        run = engine.go(engine.start([call("wait_for", **arguments)]))
        (step,) = engine.steps(run, "wait_for")
        assert (step.state, run.state) == (StepState.REFUSED, RunState.SUCCEEDED)
        assert word in step.error
