"""A delivery starts one run, however often and at whatever moment it comes (case H2)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import User

from runs import agents, clock, operations
from runs.access import Role
from runs.agents import Agent, Ask, Briefing
from runs.errors import Forbidden, KeyReused, Malformed, NoLimit, NotFound, SwitchedOff, UnknownAgent
from runs.models import Budget, JournalEntry, Run, StartRequest
from runs.operations import Start
from runs.states import RunState
from tests import people
from tests.writers import errors, person, together

__all__ = ["person"]

ORDER = Start(agent="scripted", goal="Work off batch b1", inputs={"batch": "b1"}, labels={"customer": "acme"})


def deliver(by: User, delivery: str = "d-1", start: Start = ORDER) -> tuple[Run, bool]:
    return operations.start_run(start, by=by, idempotency_key=delivery)


def test_whoever_comes_while_the_agents_are_being_found_sees_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(agents.get_agents())
    seen: list[set[str]] = []

    def load(name: str) -> ModuleType:
        module = import_module(name)
        if not seen and name != "runs.examples.agents":  # by now some were found
            seen.append(set())
            with ThreadPoolExecutor() as pool:
                seen.append(set(pool.submit(agents.get_agents).result()))
        return module

    agents.get_agents.cache_clear()
    monkeypatch.setattr("importlib.import_module", load)
    assert set(agents.get_agents()) == known
    assert seen[1:] == [known]


@pytest.mark.django_db
class TestOneDelivery:
    def test_five_times_at_growing_distances_is_one_run_also_after_that_has_ended(self, person: User) -> None:
        first, new = deliver(person)
        assert new
        for wait_s in (0, 1, 61):
            clock.shift(timedelta(seconds=wait_s))
            assert deliver(person) == (first, False)
        operations.stop_run(first.pk, reason="it is done", by=person)
        clock.shift(timedelta(hours=1))
        again, new = deliver(person)
        assert (again.pk, again.state, new) == (first.pk, RunState.STOPPED, False)
        assert Run.objects.count() == 1
        assert JournalEntry.objects.filter(kind="run.started").count() == 1

    def test_the_same_key_with_another_body_is_refused(self, person: User) -> None:
        deliver(person)
        for other in (
            replace(ORDER, goal="another"),
            replace(ORDER, inputs={"batch": "b2"}),
            replace(ORDER, usd="0.50"),
            replace(ORDER, deadline_at=datetime(2027, 1, 1, tzinfo=UTC)),
        ):
            with pytest.raises(KeyReused):
                deliver(person, start=other)
        assert Run.objects.count() == 1

    def test_the_order_of_a_bodys_keys_does_not_matter(self, person: User) -> None:
        first, _ = deliver(person, start=replace(ORDER, inputs={"a": 1, "b": 2}))
        assert deliver(person, start=replace(ORDER, inputs={"b": 2, "a": 1})) == (first, False)

    def test_another_key_or_another_caller_is_another_run(self, person: User) -> None:
        ben = User.objects.create_superuser("ben")
        made = {deliver(person)[0].pk, deliver(person, "d-2")[0].pk, deliver(ben)[0].pk}
        assert len(made) == 3

    def test_without_a_key_every_start_is_a_run(self, person: User) -> None:
        assert {operations.start_run(ORDER, by=person)[1] for _ in range(2)} == {True}
        assert (Run.objects.count(), StartRequest.objects.count()) == (2, 0)

    def test_a_start_that_is_refused_does_not_use_up_its_key(self, person: User) -> None:
        switch = operations.engage_switch("agent:scripted", reason="the shop is down", by=person)
        with pytest.raises(SwitchedOff, match="the shop is down"):
            deliver(person)
        assert (Run.objects.count(), StartRequest.objects.count()) == (0, 0)
        operations.release_switch(switch.pk, reason="it is up", by=person)
        assert deliver(person)[1]


@pytest.mark.django_db(transaction=True)
def test_five_deliveries_at_once_are_one_run_and_each_is_answered_with_it(person: User) -> None:
    results = together(*([lambda: deliver(person)] * 5))
    assert errors(results) == []
    assert len({run.pk for run, _ in results}) == 1
    assert sorted(new for _, new in results) == [False] * 4 + [True]
    assert (Run.objects.count(), StartRequest.objects.count()) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_two_bodies_at_once_under_one_key_are_one_run_and_one_refusal(person: User) -> None:
    results = together(lambda: deliver(person), lambda: deliver(person, start=replace(ORDER, goal="another")))
    (lost,) = errors(results)
    assert isinstance(lost, KeyReused)
    assert Run.objects.count() == 1


def decide(briefing: Briefing) -> list[Ask]:
    return []


@pytest.fixture
def boundless(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Agents without any limit; one of them says why."""
    for name, budget in {
        "boundless": agents.Budget(),
        "free": agents.Budget(unlimited="a rehearsal costs nothing"),
    }.items():
        made = Agent(name=name, instructions="", decide=decide, budget=budget, max_age=None)
        monkeypatch.setitem(agents.get_agents(), name, made)


@pytest.mark.django_db
class TestLimits:
    def test_an_agent_without_any_limit_is_refused_unless_it_says_why(self, person: User, boundless: Any) -> None:
        with pytest.raises(NoLimit, match="without any limit"):
            operations.start_run(Start(agent="boundless", goal="go"), by=person)
        run, _ = operations.start_run(Start(agent="free", goal="go"), by=person)
        assert run.budget.unlimited_because == "a rehearsal costs nothing"
        assert run.expires_at is None

    def test_one_limit_at_the_start_is_enough(self, person: User, boundless: Any) -> None:
        for given in ({"usd": "1.00"}, {"tokens": 10}, {"steps": 3}, {"working_s": 60.0}):
            operations.start_run(Start(agent="boundless", goal="go", **given), by=person)
        assert Run.objects.count() == 4

    def test_what_is_given_at_the_start_goes_before_what_the_agent_says(self, person: User) -> None:
        run, _ = operations.start_run(Start(agent="scripted", goal="go", usd="0.25", max_age_s=60.0), by=person)
        budget = Budget.objects.get(pk=run.pk)
        assert (budget.usd_limit, budget.steps_limit) == (Decimal("0.25"), 200)
        assert run.expires_at == run.created_at + timedelta(seconds=60)

    @pytest.mark.parametrize(
        "given",
        [
            {"goal": "  "},
            {"usd": "-1"},
            {"usd": "NaN"},
            {"usd": "a lot"},
            {"usd": "1e30"},
            {"tokens": -1},
            {"steps": 2**63},
            {"working_s": 0.0},
            {"working_s": float("nan")},
            {"max_age_s": -5.0},
            {"max_age_s": float("inf")},
        ],
        ids=str,
    )
    def test_what_is_no_limit_is_refused_in_words(self, person: User, given: dict[str, Any]) -> None:
        with pytest.raises(Malformed):
            operations.start_run(Start(**({"agent": "scripted", "goal": "go"} | given)), by=person)
        assert Run.objects.count() == 0


@pytest.mark.django_db
class TestWho:
    def test_an_unknown_agent_is_named_with_those_that_are_known(self, person: User) -> None:
        with pytest.raises(UnknownAgent, match="scripted"):
            operations.start_run(Start(agent="nobody", goal="go"), by=person)

    def test_a_stranger_sees_no_agent_a_viewer_may_not_start_and_another_group_hears_of_nothing(self) -> None:
        stranger = people.make_stranger()
        viewer = people.make_person("vera", Role.VIEWER)
        with pytest.raises(NotFound):
            operations.start_run(ORDER, by=stranger)
        with pytest.raises(Forbidden, match="operator"):
            operations.start_run(ORDER, by=viewer)
        narrow = people.make_person("nora", Role.OPERATOR, agents=("refund-desk",))
        with pytest.raises(UnknownAgent):
            operations.start_run(ORDER, by=narrow)
        assert Run.objects.count() == 0

    def test_who_started_it_is_kept_and_journalled(self, person: User) -> None:
        run, _ = deliver(person)
        assert run.started_by == person
        entry = JournalEntry.objects.get(run=run)
        assert (entry.kind, entry.actor, entry.seq) == ("run.started", "person:ana", 1)
        assert (run.state, run.due_at) == (RunState.QUEUED, run.created_at)
