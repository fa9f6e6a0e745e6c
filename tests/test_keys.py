"""A key stands for one intended effect: the same intent finds it, and only what certainly failed is left behind."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import keys, lifecycle, locks, sql, steps
from runs.agents import Call, Effect, Json, Tool, tool
from runs.errors import WrongState
from runs.models import Attempt, Key, KeyAlias, Lock, Run, Step
from runs.states import AttemptOutcome, KeyState
from tests.situations import key_of
from tests.writers import Thread, person, plan_act, start, take, together, until_blocked

__all__ = ["person"]


@tool(effect=Effect.KEYED, irreversible=True, identity=["order", "amount"], locks=["order.{order}"])
def pay(
    call: Call,
    order: str,
    amount: Decimal,
    memo: str = "",
    note: str | None = None,
    express: bool = False,
    on: date | None = None,
    way: Literal["card", "cash"] = "card",
    fee: Decimal = Decimal(0),
) -> None:
    """Pay."""


@tool(effect=Effect.KEYED)
def send(call: Call, to: str, text: str) -> None:
    """Send: without identity arguments every argument counts."""


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


def find(run: Run, made: Tool = pay, **arguments: Any) -> keys.Same | None:
    return keys.find(run, made, made.normalise(arguments))


def close(key: int | None, state: KeyState, result: Json = None, outcome: AttemptOutcome | None = None) -> list[str]:
    """Close a key with its attempts, as settling does."""
    assert key is not None
    with transaction.atomic():
        found = Key.objects.get(pk=key)
        lifecycle.lock(found.run_id)
        for attempt in Attempt.objects.filter(key=key, outcome=AttemptOutcome.OPEN):
            steps.close_attempt(
                steps.lock_attempt(attempt.pk),
                outcome or (AttemptOutcome.DONE if state == KeyState.DONE else AttemptOutcome.NOT_BEGUN),
            )
        return list(keys.close(keys.lock(key), state, how="settled", result=result))


def again(step: Step) -> Step:
    """A taken step whose attempt is closed, planned again."""
    with transaction.atomic():
        lifecycle.lock(step.run_id)
        fresh = steps.lock(step.pk)
        steps.wake(fresh)
        return fresh


@pytest.mark.django_db
class TestIntent:
    def test_the_same_identity_is_the_same_intent_whatever_else_is_said(self, run: Run) -> None:
        one = keys.intent_of(pay, pay.normalise({"order": "7", "amount": "5.00", "memo": "a"}))
        assert one == keys.intent_of(pay, pay.normalise({"order": "7", "amount": "5.00", "memo": "b", "fee": "1"}))
        assert one != keys.intent_of(pay, pay.normalise({"order": "7", "amount": "5.01"}))
        assert one != keys.intent_of(pay, pay.normalise({"order": "8", "amount": "5.00"}))

    def test_without_identity_arguments_every_argument_counts(self, run: Run) -> None:
        first = keys.intent_of(send, send.normalise({"to": "ben", "text": "a"}))
        assert first != keys.intent_of(send, send.normalise({"to": "ben", "text": "b"}))

    def test_another_tool_with_the_same_arguments_is_another_intent(self, run: Run) -> None:
        @tool(effect=Effect.KEYED, identity=["order", "amount"])
        def pay_twice(call: Call, order: str, amount: Decimal) -> None:
            """Pay elsewhere."""

        take(run, plan_act(run, pay, order="7", amount="5"), pay)
        assert find(run, pay_twice, order="7", amount="5") is None
        assert find(run, order="7", amount="5") is not None

    def test_the_header_names_run_intent_occurrence_and_generation_in_255_characters(self, run: Run) -> None:
        key = key_of(take(run, plan_act(run, pay, order="7" * 5000, amount="5"), pay))
        assert key.header == f"{run.uid}-{key.intent[:32]}-1-1"
        assert len(key.header) <= 255


@pytest.mark.django_db
class TestFind:
    def test_a_reworded_call_is_the_same_call(self, run: Run) -> None:
        close(take(run, plan_act(run, pay, order="7", amount="5", memo="thanks"), pay).key_id, KeyState.DONE, {"id": 1})
        same = find(run, order="7", amount="5", memo="with many thanks", note="please")
        assert same is not None
        assert (same.key.state, same.key.result, same.other_values) == (KeyState.DONE, {"id": 1}, [])

    @pytest.mark.parametrize(
        "other",
        [{"express": True}, {"on": "2026-12-01"}, {"way": "cash"}, {"fee": "2.50"}],
        ids=lambda o: next(iter(o)),
    )
    def test_another_value_is_told_apart_from_wording_also_where_json_writes_it_as_text(
        self, run: Run, other: dict[str, Any]
    ) -> None:
        take(run, plan_act(run, pay, order="7", amount="5"), pay)
        same = find(run, order="7", amount="5", memo="reworded", **other)
        assert same is not None
        assert same.other_values == list(other)

    def test_another_run_does_not_find_it_and_one_that_retries_this_run_does(self, run: Run, person: User) -> None:
        take(run, plan_act(run, pay, order="7", amount="5"), pay)
        other = start(person)
        assert find(other, order="7", amount="5") is None
        other.origin = run.origin
        assert find(other, order="7", amount="5") is not None

    def test_what_was_done_is_found_before_what_failed_later(self, run: Run) -> None:
        done = take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id
        close(done, KeyState.DONE)
        second = take(run, plan_act(run, pay, order="7", amount="5", again="they paid twice"), pay).key_id
        close(second, KeyState.FAILED)
        same = find(run, order="7", amount="5")
        assert same is not None
        assert same.key.pk == done


@pytest.mark.django_db
class TestTake:
    def test_a_certain_failure_opens_a_new_generation_and_keeps_the_old_key(self, run: Run) -> None:
        first = take(run, plan_act(run, pay, order="7", amount="5"), pay)
        close(first.key_id, KeyState.FAILED)
        second = key_of(take(run, plan_act(run, pay, order="7", amount="5"), pay))
        assert (second.occurrence, second.generation) == (1, 2)
        assert Key.objects.count() == 2

    def test_a_deliberate_second_time_is_a_new_occurrence(self, run: Run) -> None:
        close(take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id, KeyState.DONE)
        with pytest.raises(WrongState):
            take(run, plan_act(run, pay, order="7", amount="5"), pay)
        second = key_of(take(run, plan_act(run, pay, order="7", amount="5", again="twice"), pay))
        assert (second.occurrence, second.generation) == (2, 1)

    def test_another_step_cannot_take_what_is_open_even_when_it_says_again(self, run: Run) -> None:
        take(run, plan_act(run, pay, order="7", amount="5"), pay)
        for reason in ("", "really"):
            with pytest.raises(WrongState, match="taken by another step"):
                take(run, plan_act(run, pay, order="7", amount="5", again=reason), pay)

    def test_a_redo_of_the_same_step_keeps_its_key(self, run: Run) -> None:
        step = plan_act(run, pay, order="7", amount="5")
        first = take(run, step, pay)
        with transaction.atomic():
            steps.close_attempt(steps.lock_attempt(first.pk), AttemptOutcome.UNKNOWN)
        second = take(run, again(step), pay)
        assert second.key_id == first.key_id
        assert Key.objects.count() == 1

    def test_a_key_in_doubt_is_not_taken_by_its_own_step(self, run: Run) -> None:
        step = plan_act(run, pay, order="7", amount="5")
        first = take(run, step, pay)
        close(first.key_id, KeyState.IN_DOUBT, outcome=AttemptOutcome.UNKNOWN)
        with pytest.raises(WrongState):
            take(run, again(step), pay)

    def test_a_key_closes_once_and_frees_its_locks(self, run: Run) -> None:
        key = take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id
        assert key is not None
        with transaction.atomic():
            locks.take(["order.7"], key=key, run=run.pk)
        assert "order.7" in close(key, KeyState.DONE)
        assert not Lock.objects.exists()
        with pytest.raises(WrongState):
            close(key, KeyState.FAILED)

    def test_doubt_keeps_the_locks(self, run: Run) -> None:
        key = take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id
        assert key is not None
        with transaction.atomic():
            locks.take(["order.7"], key=key, run=run.pk)
        assert close(key, KeyState.IN_DOUBT) == []
        assert Lock.objects.filter(key=key).exists()


def edit(step: Step, **arguments: Any) -> Step:
    with transaction.atomic():
        lifecycle.lock(step.run_id)
        fresh = steps.lock(step.pk)
        steps.set_arguments(fresh, pay.normalise(arguments), pay.contract)
        return Step.objects.get(pk=step.pk)


@pytest.mark.django_db
class TestEdits:
    def test_an_edited_call_is_found_by_what_was_asked_and_by_what_it_became(self, run: Run) -> None:
        step = edit(plan_act(run, pay, order="7", amount="100", express=True), order="7", amount="80", express=False)
        key = take(run, step, pay).key_id
        close(key, KeyState.DONE, {"paid": "80"})
        for asked in ({"amount": "100", "express": True}, {"amount": "80"}):
            same = find(run, order="7", **asked)
            assert same is not None
            assert (same.key.pk, same.key.result, same.other_values) == (key, {"paid": "80"}, [])
        assert KeyAlias.objects.count() == 1
        assert find(run, order="7", amount="90") is None

    def test_what_another_call_became_is_found_though_the_own_one_failed(self, run: Run) -> None:
        close(take(run, plan_act(run, pay, order="7", amount="80"), pay).key_id, KeyState.FAILED)
        became = take(run, edit(plan_act(run, pay, order="7", amount="100"), order="7", amount="80"), pay).key_id
        close(became, KeyState.DONE)
        same = find(run, order="7", amount="80")
        assert same is not None
        assert (same.key.pk, same.key.state) == (became, KeyState.DONE)

    def test_a_call_edited_after_a_try_that_did_nothing_gets_a_key_that_the_receiver_does_not_know(
        self, run: Run
    ) -> None:
        step = plan_act(run, pay, order="7", amount="100")
        first = take(run, step, pay)
        with transaction.atomic():
            sql.execute("UPDATE runs_attempt SET began_at = lw_clock() WHERE id = %s", [first.pk])
            steps.close_attempt(steps.lock_attempt(first.pk), AttemptOutcome.DISPROVED)
        second = take(run, edit(again(step), order="7", amount="80"), pay)
        old, new = key_of(first), key_of(second)
        assert (old.state, old.arguments["amount"]) == (KeyState.FAILED, "100")
        assert (new.generation, new.arguments["amount"]) == (2, "80")
        assert new.header != old.header

    def test_a_call_edited_after_a_try_that_may_have_acted_keeps_its_key(self, run: Run) -> None:
        step = plan_act(run, pay, order="7", amount="100")
        first = take(run, step, pay)
        with transaction.atomic():
            sql.execute("UPDATE runs_attempt SET began_at = lw_clock() WHERE id = %s", [first.pk])
            steps.close_attempt(steps.lock_attempt(first.pk), AttemptOutcome.UNKNOWN)
        second = take(run, edit(again(step), order="7", amount="80"), pay)
        assert second.key_id == first.key_id
        same = find(run, order="7", amount="80")
        assert same is not None
        assert same.key.pk == first.key_id


def outcomes(results: Sequence[Any]) -> list[str]:
    return sorted(type(result).__name__ for result in results)


@pytest.mark.django_db(transaction=True)
class TestTwoAtOnce:
    def test_two_runs_of_one_namespace_take_it_once(self, person: User) -> None:
        run, retry = start(person), start(person)
        retry.origin = run.origin  # as a run that retries another has it
        made = {r.pk: plan_act(r, pay, order="7", amount="5") for r in (run, retry)}
        results = together(*(lambda r=r: take(r, made[r.pk], pay) for r in (run, retry)))
        assert outcomes(results) == ["Attempt", "WrongState"]
        assert Key.objects.count() == 1

    def test_of_two_runs_that_want_one_lock_the_second_is_told_who_holds_it_and_gets_it_when_it_is_freed(
        self, person: User
    ) -> None:
        run, other = start(person), start(person)
        key = take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id
        wanted = take(other, plan_act(other, pay, order="7", amount="5"), pay).key_id
        assert key is not None
        assert wanted is not None

        def want() -> None:
            with transaction.atomic():
                locks.take(["order.7", "order.1"], key=wanted, run=other.pk)

        with transaction.atomic():
            locks.take(["order.7"], key=key, run=run.pk)
            waiting = Thread(want)
            until_blocked()
        with pytest.raises(locks.Blocked, match=f"order.7 is held by run {run.pk}"):
            waiting.finish()
        assert list(Lock.objects.values_list("name", flat=True)) == ["order.7"]
        close(key, KeyState.DONE)
        Thread(want).finish()
        assert set(Lock.objects.values_list("name", flat=True)) == {"order.1", "order.7"}

    def test_locks_wanted_in_opposite_orders_do_not_deadlock(self, person: User) -> None:
        wanting = []
        for names in (["a", "b", "c"], ["c", "b", "a"]):
            run = start(person)
            wanting.append((run, take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id, names))

        def take_and_free(run: Run, key: int | None, names: list[str]) -> int:
            taken = 0
            for _ in range(25):
                try:
                    with transaction.atomic():
                        assert key is not None
                        locks.take(names, key=key, run=run.pk)
                    taken += 1
                    with transaction.atomic():
                        locks.release(key)
                except locks.Blocked:
                    continue
            return taken

        results = together(*(lambda each=each: take_and_free(*each) for each in wanting))
        assert all(isinstance(taken, int) for taken in results), results

    def test_whoever_frees_a_lock_waits_for_one_that_is_just_beginning_to_wait_for_it(self, person: User) -> None:
        run = start(person)
        key = take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id
        assert key is not None
        with transaction.atomic():
            locks.take(["order.7"], key=key, run=run.pk)
        with transaction.atomic():
            assert locks.watch("order.7")
            freeing = Thread(lambda: close(key, KeyState.DONE))
            until_blocked()
            assert Lock.objects.filter(name="order.7").exists()
        freeing.finish()
        with transaction.atomic():
            assert not locks.watch("order.7")


@pytest.mark.django_db
def test_a_name_that_is_too_long_for_a_lock_is_kept_by_its_digest(run: Run) -> None:
    key = take(run, plan_act(run, pay, order="7", amount="5"), pay).key_id
    assert key is not None
    long = "order." + "7" * 5000
    with transaction.atomic():
        locks.take([long, long[:-1]], key=key, run=run.pk)
    names = set(Lock.objects.values_list("name", flat=True))
    assert names == {locks.fit(long), locks.fit(long[:-1])}
    assert all(len(name) == 200 for name in names)
