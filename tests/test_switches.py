"""A switch holds its scope: nothing new is taken in it after its commit, runs keep their place, and go on afterwards."""

import random
import threading
import time
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction

from runs import course, lifecycle, operations, sql, steps, switches
from runs.access import Role
from runs.agents import get_agent
from runs.engine import think
from runs.engine.check import advance_check
from runs.engine.decide import advance_decide
from runs.engine.hand import Hand
from runs.engine.sweep import sweep_once
from runs.errors import Forbidden, Malformed, NotFound, SwitchedOff, WrongState
from runs.lifecycle import Claim, Held
from runs.models import Attempt, Fact, JournalEntry, Run, Step, Switch
from runs.states import AttemptOutcome, RunState, StepKind, WaitingFor
from tests import people
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.writers import (
    Thread,
    claim,
    errors,
    open_attempt,
    person,
    plan_act,
    start,
    start_child,
    together,
    until_blocked,
)

__all__ = ["engine", "person", "shop_process", "workers"]


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


def engage(scope: str, by: User, reason: str = "look first") -> Switch:
    return operations.engage_switch(scope, reason=reason, by=by)


def claim_one() -> Claim | Held | None:
    with transaction.atomic():
        return lifecycle.claim(uuid.uuid4(), lease_s=60.0)


def attempt_in(run: Run, tool: str = "read_order") -> Attempt:
    with transaction.atomic():
        return open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.CHECK, tool=tool)))


def begins(attempt: Attempt) -> bool:
    with transaction.atomic():
        return steps.begin(attempt.pk)


@pytest.mark.django_db
class TestScopes:
    @pytest.mark.parametrize(
        ("scope", "held"),
        [
            ("all", {"top", "child", "grandchild", "other", "desk"}),
            ("agent:scripted", {"top", "child", "grandchild", "other"}),
            ("agent:refund-desk", {"desk"}),
            ("run:top", {"top", "child", "grandchild"}),
            ("run:child", {"child", "grandchild"}),
            ("run:grandchild", {"grandchild"}),
            ("tool:read_order", set()),
        ],
    )
    def test_each_scope_holds_its_runs_with_their_descendants_and_no_other(
        self, person: User, scope: str, held: set[str]
    ) -> None:
        runs = {"top": start(person), "other": start(person), "desk": start(person, agent="refund-desk")}
        runs["child"] = start_child(runs["top"])
        runs["grandchild"] = start_child(runs["child"])
        attempts = {name: attempt_in(run, tool="list_requests") for name, run in runs.items()}
        kind, _, name = scope.partition(":")
        engage(f"run:{runs[name].pk}" if kind == "run" else scope, person)
        assert {name for name, run in runs.items() if switches.in_scope(run.pk)} == held
        assert {name for name, attempt in attempts.items() if not steps.may_go_on(attempt.pk)} == held
        assert {name for name, attempt in attempts.items() if not begins(attempt)} == held

    def test_a_tool_is_held_in_every_run_and_other_tools_go_on(self, run: Run) -> None:
        by = User.objects.get(username="ana")
        read, pay = attempt_in(run, "read_order"), attempt_in(run, "pay_once")
        engage("tool:pay_once", by)
        assert (begins(read), begins(pay)) == (True, False)
        assert (steps.may_go_on(read.pk), steps.may_go_on(pay.pk)) == (True, False)
        assert switches.in_scope(run.pk) is None

    @pytest.mark.parametrize(
        "scope", ["", "everything", "agent:", "tool:", "run:", "run:x", "run:-1", "run:1.5", "run:²"]
    )
    def test_what_is_no_scope_is_refused(self, person: User, scope: str) -> None:
        with transaction.atomic(), pytest.raises(Malformed):
            switches.engage(scope, reason="look first", by=person)
        assert not Switch.objects.exists()

    def test_what_names_nothing_is_refused_because_it_would_hold_nothing(self, run: Run, person: User) -> None:
        for scope in ("agent:scripte", "tool:refnd", f"run:{run.pk + 1000}"):
            with pytest.raises((NotFound, Malformed, Exception), match=r"no |There is"):
                engage(scope, person)
        assert not Switch.objects.exists()

    def test_a_switch_needs_a_reason(self, person: User) -> None:
        with pytest.raises(Malformed, match="needs a reason"):
            engage("all", person, reason="  ")

    def test_it_takes_the_right(self, run: Run) -> None:
        viewer = people.make_person("vera", Role.VIEWER)
        with pytest.raises(Forbidden):
            engage("all", viewer)

    def test_a_start_in_scope_is_refused_with_the_reason(self, person: User) -> None:
        engage("agent:scripted", person, reason="the shop is down")
        with pytest.raises(SwitchedOff, match="the shop is down"):
            start(person)
        start(person, agent="refund-desk")
        assert Run.objects.filter(agent="scripted").count() == 0

    def test_a_child_in_scope_is_refused_with_the_reason(self, run: Run, person: User) -> None:
        engage("agent:scripted", person, reason="the shop is down")
        with pytest.raises(SwitchedOff, match="the shop is down"):
            start_child(run)

    def test_engaged_twice_it_is_one_switch_and_both_people_are_in_the_journal(self, person: User) -> None:
        ben = User.objects.create_superuser("ben")
        assert engage("all", person).pk == engage("all", ben, reason="me too").pk
        entries = JournalEntry.objects.filter(kind__startswith="switch.").order_by("pk")
        assert [(e.kind, e.actor, e.why) for e in entries] == [
            ("switch.engaged", "person:ana", "look first"),
            ("switch.engaged_again", "person:ben", "me too"),
        ]


@pytest.mark.django_db
class TestHoldAndRelease:
    def test_a_held_run_keeps_its_state_says_why_and_is_not_spinning(self, run: Run, person: User) -> None:
        engage("all", person)
        assert claim_one() == Held(run=run.pk)
        assert claim_one() is None
        run.refresh_from_db()
        assert (run.state, run.held_by, run.epoch) == (RunState.QUEUED, "switch all: look first", 0)
        assert run.held_since is not None

    def test_a_held_run_is_looked_at_when_its_deadline_comes(self, run: Run, person: User) -> None:
        engage("all", person)
        claim_one()
        run.refresh_from_db()
        assert run.due_at is not None
        assert run.expires_at is not None
        assert run.due_at <= run.expires_at

    def test_a_release_queues_what_it_held_and_every_run_goes_on_once(self, person: User) -> None:
        runs = [start(person) for _ in range(3)]
        switch = engage("all", person)
        while claim_one():
            pass
        operations.release_switch(switch.pk, reason="it is fine", by=person)
        claimed = [claim_one() for _ in range(4)]
        assert {c.run for c in claimed if isinstance(c, Claim)} == {r.pk for r in runs}
        assert claimed[3] is None
        assert not Run.objects.filter(held_since__isnull=False).exists()

    def test_what_another_switch_or_a_pause_holds_stays_held(self, person: User) -> None:
        free, other, paused = start(person), start(person), start(person)
        wide, narrow = engage("all", person), engage(f"run:{other.pk}", person)
        while claim_one():
            pass
        operations.pause_run(paused.pk, reason="mine", by=person)
        operations.release_switch(wide.pk, reason="it is fine", by=person)
        assert set(Run.objects.filter(held_since__isnull=False)) == {other, paused}
        assert isinstance(first := claim_one(), Claim)
        assert first.run == free.pk
        assert claim_one() is None
        operations.release_switch(narrow.pk, reason="it is fine", by=person)
        assert isinstance(second := claim_one(), Claim)
        assert second.run == other.pk

    def test_a_release_wakes_the_calls_that_lay_for_their_tool(self, run: Run, person: User) -> None:
        tool = get_agent("scripted").tool("pay_once")
        assert tool is not None
        switch = engage("tool:pay_once", person)
        step = plan_act(run, tool, order="7", amount="5")
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            steps.wait(steps.lock(step.pk), WaitingFor.CAPACITY, note="held by the switch", on="switch.tool:pay_once")
            course.rest(locked)
        operations.release_switch(switch.pk, reason="it is fine", by=person)
        step.refresh_from_db()
        run.refresh_from_db()
        assert (step.state, run.state) == ("planned", "queued")

    def test_a_release_is_deliberate_and_once(self, person: User) -> None:
        switch = engage("all", person)
        operations.release_switch(switch.pk, reason="it is fine", by=person)
        with pytest.raises(WrongState):
            operations.release_switch(switch.pk, reason="again", by=person)
        entry = JournalEntry.objects.get(kind="switch.released")
        assert (entry.before, entry.why) == ({"scope": "all"}, "it is fine")
        assert engage("all", person).pk != switch.pk

    def test_a_held_run_can_be_stopped_and_then_stays_as_it_is_when_the_switch_is_released(
        self, run: Run, person: User
    ) -> None:
        switch = engage("all", person)
        claim_one()
        operations.stop_run(run.pk, reason="enough", by=person)
        operations.release_switch(switch.pk, reason="it is fine", by=person)
        run.refresh_from_db()
        assert (run.state, run.due_at, run.held_since) == (RunState.STOPPED, None, None)


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def test_a_claim_that_is_under_way_commits_before_the_switch_and_the_next_one_sees_it(self, person: User) -> None:
        first, second = start(person), start(person)
        with transaction.atomic():
            claimed = lifecycle.claim(uuid.uuid4(), lease_s=60.0)
            engaging = Thread(lambda: engage("all", person))
            until_blocked()
            assert not Switch.objects.exists()
        engaging.finish()
        assert claimed == Claim(run=first.pk, epoch=1)
        assert claim_one() == Held(run=second.pk)

    def test_a_claim_that_comes_while_the_switch_is_being_engaged_waits_and_sees_it(self, person: User) -> None:
        run = start(person)
        with transaction.atomic():
            switches.engage("all", reason="look first", by=person)
            claiming = Thread(claim_one)
            until_blocked()
        assert claiming.finish() == Held(run=run.pk)

    def test_engaged_and_claimed_at_once_over_and_over_no_claim_comes_after_the_switch(self, person: User) -> None:
        """By the transactions' own order: each claim's entry is older than the switch's, or the run is held."""
        chance = random.Random(7)
        for _ in range(40):
            run = start(person)
            delay = chance.random() * 0.004

            def engage_late(delay: float = delay) -> Switch:
                time.sleep(delay)
                return engage("all", person)

            claimed, switch = together(claim_one, engage_late)
            assert not errors([claimed, switch])
            engaged = JournalEntry.objects.filter(kind="switch.engaged").latest("pk")
            moved = JournalEntry.objects.filter(run=run, after__state="running").first()
            if isinstance(claimed, Claim):
                assert moved is not None
                assert moved.at < engaged.at
            else:
                assert moved is None
                run.refresh_from_db()
                assert run.held_since is not None
            operations.release_switch(switch.pk, reason="again", by=person)
            operations.stop_run(run.pk, reason="next", by=person)

    def test_two_that_engage_one_scope_at_once_make_one_switch(self, person: User) -> None:
        made: list[Any] = together(*([lambda: engage("all", person)] * 4))
        assert not errors(made)
        assert len({switch.pk for switch in made}) == 1
        assert Switch.objects.count() == 1

    def test_a_switch_does_not_wait_for_ever_for_one_that_is_stuck_in_a_take(self, person: User) -> None:
        """A stopped process keeps its transaction open: it is ended, and what it had taken is rolled back."""
        run = start(person)
        stuck, go_on = threading.Event(), threading.Event()

        def frozen() -> None:
            with transaction.atomic():
                lifecycle.claim(uuid.uuid4(), lease_s=60.0)
                stuck.set()
                assert go_on.wait(30)
            connection.close()

        worker = Thread(frozen)
        assert stuck.wait(20)
        began = time.monotonic()
        engage("all", person)
        took = time.monotonic() - began
        go_on.set()
        with pytest.raises(OperationalError):
            worker.finish()
        assert switches.END_HOLDERS_AFTER_S <= took < switches.END_HOLDERS_AFTER_S + 10
        run.refresh_from_db()
        assert (run.state, run.epoch) == (RunState.QUEUED, 0)
        assert claim_one() == Held(run=run.pk)

    def test_the_usual_patience_for_locks_comes_back_after_the_engagement(self, person: User) -> None:
        with transaction.atomic():
            sql.execute("SET LOCAL lock_timeout = '7s'")
            switches.engage("all", reason="look first", by=person)
            assert sql.fetch_row("SELECT current_setting('lock_timeout')") == ("7s",)

    def test_a_try_that_was_taken_before_the_switch_gives_up_at_its_last_look(self, person: User) -> None:
        run = start(person)
        claim(run)
        attempt = attempt_in(run)
        engage("all", person)
        assert Thread(lambda: begins(attempt)).finish() is False
        attempt.refresh_from_db()
        assert attempt.began_at is None

    def test_a_decision_that_was_chosen_before_the_switch_is_not_taken_after_it(self, engine: Engine) -> None:
        run = engine.start()
        held = claim(run)
        with transaction.atomic():
            step = think.plan_step(lifecycle.lock_held(held))
        switch = engage("all", engine.person)
        advance_decide(Hand(claim=held, worker=engine.worker.ident, tools=engine.worker.tools), step.pk)
        assert not Attempt.objects.exists()
        with transaction.atomic():
            course.rest(lifecycle.lock_held(held), holding=True)
        operations.release_switch(switch.pk, reason="it is fine", by=engine.person)
        assert engine.go(run).state == RunState.SUCCEEDED

    @pytest.mark.parametrize("scope", ["all", "tool:read_order"])
    def test_a_check_that_was_chosen_before_the_switch_is_not_taken_after_it(self, engine: Engine, scope: str) -> None:
        order = engine.order()
        run = engine.go(engine.start(*engine.read(order), [call("ask", question="Which?")]))
        operations.recheck_fact(Fact.objects.get(run=run).pk, by=engine.person)
        held = claim(run)
        step = Step.objects.get(run=run, kind=StepKind.CHECK)
        switch = engage(scope, engine.person)
        advance_check(Hand(claim=held, worker=engine.worker.ident, tools=engine.worker.tools), step.pk)
        assert not Attempt.objects.filter(step=step).exists()
        with transaction.atomic():
            course.rest(lifecycle.lock_held(held), holding=True)
        operations.release_switch(switch.pk, reason="it is fine", by=engine.person)
        engine.go(run)
        assert [made.outcome for made in Attempt.objects.filter(step=step)] == [AttemptOutcome.DONE]

    def test_a_built_in_tool_that_is_switched_off_starts_no_child_until_it_is_released(self, engine: Engine) -> None:
        run = engine.start([call("spawn", agent="scripted", goal="help")])
        with transaction.atomic():
            switch = switches.engage("tool:spawn", reason="look first", by=engine.person)
        engine.go(run)
        assert (run.state, run.waiting_for) == (RunState.WAITING, WaitingFor.CAPACITY)
        assert "look first" in run.why
        assert not Run.objects.filter(parent=run).exists()
        operations.release_switch(switch.pk, reason="it is fine", by=engine.person)
        engine.go(run)
        assert Run.objects.filter(parent=run).count() == 1
        assert run.state == RunState.SUCCEEDED

    def test_a_release_whose_wake_was_lost_is_made_good_by_the_sweep_though_another_switch_is_engaged(
        self, person: User
    ) -> None:
        run, other = start(person), start(person)
        wide, _ = engage("all", person), engage(f"run:{other.pk}", person)
        while claim_one():
            pass
        with transaction.atomic():
            switches.release(wide, reason="and its process died", by=person)
        sweep_once()
        assert set(Run.objects.filter(held_since__isnull=False)) == {other}
        assert claim_one() == Claim(run=run.pk, epoch=1)
