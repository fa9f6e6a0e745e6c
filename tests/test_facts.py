"""A fact is as good as its last reading is young (case E1): judged when asked, by the database's clock, never stored."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs import clock, facts, lifecycle, operations, sql, steps
from runs.errors import Conflict, Malformed
from runs.journal import Actor
from runs.models import Attempt, Fact, FactCheck, FactUse, FactVersion, Run, Step
from runs.states import CheckOutcome, FactState, RunState, StepKind
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.writers import open_attempt, person, record, start

__all__ = ["engine", "person", "shop_process", "workers"]
pytestmark = pytest.mark.django_db

DAY_S = 24 * 3600.0
ANA = Actor(name="person:ana")
AT = datetime.fromisoformat("2026-11-29T19:30:00+00:00")


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


def ago(seconds: float | None) -> datetime | None:
    return None if seconds is None else AT - timedelta(seconds=seconds)


def state_of(observed: float | None, verified: float | None, max_age_s: float | None, **given: float | None) -> str:
    """lw_fact_state, by how many seconds ago each thing was (negative: in the future)."""
    (state,) = sql.fetch_row(
        "SELECT lw_fact_state(%s::timestamptz, %s::timestamptz, %s::float8, %s::timestamptz, %s::timestamptz, %s)",
        [ago(observed), ago(verified), max_age_s, ago(given.get("failed")), ago(given.get("contradicted")), AT],
    )
    return str(state)


@pytest.mark.parametrize(
    ("observed", "verified", "max_age_s", "given", "expected"),
    [
        (0, 0, 100, {}, "fresh"),
        (79.9, 79.9, 100, {}, "fresh"),
        (80, 80, 100, {}, "ageing"),
        (99.9, 99.9, 100, {}, "ageing"),
        (100, 100, 100, {}, "stale"),
        (5000, 100, 100, {}, "stale"),
        (5000, 10, 100, {}, "fresh"),
        (DAY_S - 60, DAY_S - 60, DAY_S, {}, "ageing"),
        (DAY_S + 240, DAY_S + 240, DAY_S, {}, "stale"),
        # A failed check says nothing of a fact that is young enough, and never erases its dates.
        (10, 10, 100, {"failed": 1}, "fresh"),
        (90, 90, 100, {"failed": 1}, "ageing"),
        (200, 200, 100, {"failed": 1}, "check_failed"),
        (0, 0, 100, {"contradicted": 1}, "contradicted"),
        (None, None, None, {"contradicted": 1}, "contradicted"),
        # Missing, future and impossible dates are never fresh.
        (None, 0, 100, {}, "unknown"),
        (0, None, 100, {}, "unknown"),
        (None, None, 100, {}, "unknown"),
        (-0.001, -0.001, 100, {}, "unknown"),
        (-3600, -3600, 100, {}, "unknown"),
        (0, -1, 100, {}, "unknown"),
        (10, 20, 100, {}, "unknown"),
        (0, 0, None, {}, "unknown"),
        (0, 0, 0, {}, "unknown"),
        (0, 0, -5, {}, "unknown"),
        (0, 0, float("nan"), {}, "unknown"),
        (0, 0, float("inf"), {}, "unknown"),
        (1, 1, 1e300, {}, "fresh"),
    ],
)
def test_the_state_by_dates(
    observed: float | None, verified: float | None, max_age_s: float | None, given: dict[str, float], expected: str
) -> None:
    assert state_of(observed, verified, max_age_s, **given) == expected


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    observed=st.none() | st.floats(-1e6, 1e6),
    verified=st.none() | st.floats(-1e6, 1e6),
    max_age_s=st.none() | st.floats(allow_nan=True, allow_infinity=True),
    failed=st.none() | st.floats(-1e6, 1e6),
)
def test_only_a_past_reading_younger_than_its_max_age_is_usable(
    observed: float | None, verified: float | None, max_age_s: float | None, failed: float | None
) -> None:
    state = state_of(observed, verified, max_age_s, failed=failed)
    usable = (
        observed is not None and verified is not None and max_age_s is not None
        and ago(verified) <= AT and ago(observed) <= ago(verified)  # type: ignore[operator]
        and (AT - ago(verified)).total_seconds() < max_age_s < float("inf")  # type: ignore[operator]
    )  # fmt: skip
    assert (state in ("fresh", "ageing")) == usable


def judge(run: Run, *names: str) -> dict[str, facts.Judged]:
    with transaction.atomic():
        lifecycle.lock(run.pk)
        return facts.judge(run.pk, names, lock_rows=True)


def state(run: Run, name: str) -> str:
    return str(judge(run, name)[name].state)


def wait(seconds: float) -> None:
    clock.shift(timedelta(seconds=seconds))


def check_step(run: Run) -> Step:
    return steps.plan(run, steps.Asked(kind=StepKind.CHECK, tool="read_order"))


def check(run: Run, fact: Fact, outcome: CheckOutcome, value: Any = None, *, began: datetime | None = None) -> None:
    with transaction.atomic():
        step = check_step(lifecycle.lock(run.pk))
        facts.lock([fact.pk])
        fresh = Fact.objects.get(pk=fact.pk)
        match outcome:
            case CheckOutcome.SAME:
                facts.check_same(fresh, began_at=began or clock.now(), step=step.pk)
            case CheckOutcome.CHANGED:
                facts.check_changed(fresh, value, began_at=began or clock.now(), step=step.pk)
            case _:
                facts.check_failed(fresh, outcome, "no answer", step=step.pk)


class TestCaseE1:
    def test_verified_almost_a_day_ago_it_is_stale_five_minutes_later_and_judged_at_use(self, run: Run) -> None:
        record(run, age_s=DAY_S - 60, max_age_s=DAY_S)
        assert judge(run, "order.1")["order.1"].usable
        wait(300)
        judged = judge(run, "order.1")["order.1"]
        assert (judged.state, judged.usable, judged.fresh_for_s) == (FactState.STALE, False, 0.0)
        assert judged.age_s == pytest.approx(DAY_S + 240, abs=60)

    def test_a_source_that_says_the_same_makes_it_fresh_as_of_when_that_reading_began(self, run: Run) -> None:
        fact = record(run, age_s=200)
        began = clock.now() - timedelta(seconds=30)
        check(run, fact, CheckOutcome.SAME, began=began)
        stored = Fact.objects.get(pk=fact.pk)
        assert (stored.verified_at, stored.observed_at, stored.version) == (began, fact.observed_at, 1)
        assert state(run, "order.1") == "fresh"

    def test_a_source_that_says_otherwise_makes_a_new_version_and_keeps_the_old_value(self, run: Run) -> None:
        fact = record(run, value={"paid": "1.00"}, age_s=200)
        check(run, fact, CheckOutcome.CHANGED, {"paid": "2.00"})
        stored = Fact.objects.get(pk=fact.pk)
        assert (stored.value, stored.version) == ({"paid": "2.00"}, 2)
        kept = FactVersion.objects.filter(fact=fact).order_by("version")
        assert [v.value for v in kept] == [{"paid": "1.00"}, {"paid": "2.00"}]
        assert kept[0].observed_at == fact.observed_at

    @pytest.mark.parametrize("outcome", [CheckOutcome.UNREACHABLE, CheckOutcome.MALFORMED])
    def test_a_source_that_cannot_say_changes_neither_value_nor_dates(self, run: Run, outcome: CheckOutcome) -> None:
        fact = record(run, age_s=200)
        check(run, fact, outcome)
        check(run, fact, outcome)
        stored = Fact.objects.get(pk=fact.pk)
        assert (stored.value, stored.verified_at, stored.observed_at) == (
            fact.value,
            fact.verified_at,
            fact.observed_at,
        )
        assert (state(run, "order.1"), stored.check_tries) == ("check_failed", 2)
        check(run, fact, CheckOutcome.SAME)
        stored.refresh_from_db()
        assert (state(run, "order.1"), stored.check_tries, stored.check_failed_at) == ("fresh", 0, None)
        outcomes = FactCheck.objects.filter(fact=fact).order_by("pk").values_list("outcome", flat=True)
        assert list(outcomes) == [outcome, outcome, "same"]

    def test_a_max_age_that_is_lowered_makes_it_stale_at_once(self, run: Run) -> None:
        record(run, age_s=50, max_age_s=100)
        assert state(run, "order.1") == "fresh"
        record(run, age_s=50, max_age_s=40)
        assert state(run, "order.1") == "stale"

    def test_a_date_in_the_future_is_unknown_until_the_clock_has_passed_it(self, run: Run) -> None:
        record(run, age_s=-1000)
        judged = judge(run, "order.1")["order.1"]
        assert (judged.state, judged.fresh_for_s) == (FactState.UNKNOWN, 0.0)

    def test_a_clock_that_jumps_back_makes_nothing_younger(self, run: Run) -> None:
        record(run, age_s=10)
        wait(-3600)
        assert state(run, "order.1") == "unknown"
        wait(3600)
        assert state(run, "order.1") == "fresh"

    def test_another_edit_does_not_verify(self, run: Run) -> None:
        fact = record(run, age_s=200)
        Fact.objects.filter(pk=fact.pk).update(source={"tool": "read_order", "note": "edited"})
        assert state(run, "order.1") == "stale"


class TestRecording:
    def test_re_signing_an_old_observation_does_not_make_it_fresh(self, run: Run) -> None:
        record(run, age_s=200)
        again = record(run, age_s=200)
        assert again.version == 1
        assert state(run, "order.1") == "stale"

    def test_the_same_value_read_again_is_verified_and_keeps_when_it_was_first_observed(self, run: Run) -> None:
        first = record(run, age_s=200)
        second = record(run, age_s=5)
        assert (second.version, second.observed_at) == (1, first.observed_at)
        assert second.verified_at is not None
        assert first.verified_at is not None
        assert second.verified_at > first.verified_at
        assert FactVersion.objects.filter(fact=first).count() == 1

    def test_an_older_reading_of_another_value_does_not_replace_a_newer_one(self, run: Run) -> None:
        fact = record(run, value="old", age_s=300)
        check(run, fact, CheckOutcome.SAME)
        with pytest.raises(Conflict, match="was read again later"):
            record(run, value="older still", age_s=100)
        assert Fact.objects.get(pk=fact.pk).value == "old"

    def test_a_value_without_a_date_is_unknown_and_does_not_blur_one_that_has_its_date(self, run: Run) -> None:
        dated = record(run, age_s=5)
        with transaction.atomic():
            facts.record(lifecycle.lock(run.pk), name="order.1", value=1, source={}, observed_at=None, max_age_s=100.0)
            facts.record(lifecycle.lock(run.pk), name="order.2", value=1, source={}, observed_at=None, max_age_s=100.0)
        assert Fact.objects.get(pk=dated.pk).verified_at == dated.verified_at
        assert (state(run, "order.1"), state(run, "order.2")) == ("fresh", "unknown")

    @pytest.mark.parametrize("name", ["", "x" * 201])
    def test_a_name_that_no_column_holds_is_refused_in_words(self, run: Run, name: str) -> None:
        with pytest.raises(Malformed, match="1 to 200 characters"):
            record(run, name)

    @pytest.mark.parametrize("max_age_s", [0.0, -1.0, float("nan"), float("inf"), 1e12])
    def test_a_max_age_that_is_none_is_refused_in_words(self, run: Run, max_age_s: float) -> None:
        with pytest.raises(Malformed, match="no max age"):
            record(run, max_age_s=max_age_s)

    def test_a_person_confirms_as_of_now_and_corrects_under_their_own_name(self, run: Run) -> None:
        fact = record(run, value=1, age_s=200)
        with transaction.atomic():
            lifecycle.lock(run.pk)
            facts.confirm(fact, actor=ANA)
        assert state(run, "order.1") == "fresh"
        wait(200)
        with transaction.atomic():
            lifecycle.lock(run.pk)
            facts.correct(Fact.objects.get(pk=fact.pk), 2, actor=ANA)
        assert state(run, "order.1") == "fresh"
        newest = FactVersion.objects.get(fact=fact, version=2)
        assert (newest.value, newest.source) == (2, {"person": "person:ana"})

    def test_what_an_act_rested_on_is_kept_with_its_age(self, run: Run) -> None:
        fact = record(run, age_s=50)
        with transaction.atomic():
            attempt = open_attempt(check_step(lifecycle.lock(run.pk)))
            facts.note_use(facts.judge(run.pk, ["order.1"]).values(), attempt=attempt.pk)
        use = FactUse.objects.get(fact=fact)
        assert (use.version, use.attempt_id) == (1, attempt.pk)
        assert use.age_s == pytest.approx(50, abs=20)


class TestDerived:
    def test_a_derived_fact_is_as_old_as_its_oldest_parent(self, run: Run) -> None:
        record(run, "order.1", age_s=10)
        record(run, "order.2", age_s=70, max_age_s=90)
        record(run, "sum", 3, source={"agent": "scripted"}, max_age_s=500, derived_from=["order.1", "order.2"])
        judged = judge(run, "sum")
        assert set(judged) == {"sum", "order.1", "order.2"}
        assert judged["sum"].state == FactState.FRESH
        assert judged["sum"].age_s == pytest.approx(70, abs=10)
        assert judged["sum"].fresh_for_s == pytest.approx(20, abs=10)
        wait(25)
        assert state(run, "sum") == "stale"

    def test_its_own_limit_counts_against_the_age_of_its_parents(self, run: Run) -> None:
        record(run, "order.1", age_s=60, max_age_s=1000)
        record(run, "sum", 3, source={"agent": "scripted"}, max_age_s=30, derived_from=["order.1"])
        assert state(run, "sum") == "stale"

    def test_it_lasts_no_longer_than_any_parent_and_longer_again_when_that_does(self, run: Run) -> None:
        parent = record(run, "order.1", age_s=10, max_age_s=90)
        record(run, "sum", 3, source={"agent": "scripted"}, max_age_s=500, derived_from=["order.1"])
        record(run, "tax", 1, source={"agent": "scripted"}, max_age_s=500, derived_from=["sum", "order.1"])
        names = ("order.1", "sum", "tax")
        for seconds, wanted in ((10, "fresh"), (60, "ageing"), (20, "stale")):
            wait(seconds)
            assert [state(run, name) for name in names] == [wanted] * 3
        with transaction.atomic():
            lifecycle.lock(run.pk)
            facts.extend(Fact.objects.get(pk=parent.pk), by_s=90, actor=ANA, why="it holds")
            with pytest.raises(Conflict, match="as long as what it follows from"):
                facts.extend(Fact.objects.get(run=run, name="sum"), by_s=9, actor=ANA, why="it holds")
        assert [state(run, name) for name in names] == ["fresh"] * 3
        record(run, "order.1", max_age_s=1000)
        assert judge(run, "tax")["tax"].fresh_for_s == pytest.approx(500, abs=10)

    def test_derived_from_what_is_contradicted_it_is_that_too(self, run: Run) -> None:
        parent = record(run, "order.1", 1, age_s=10)
        record(run, "sum", 3, source={"agent": "scripted"}, derived_from=["order.1"])
        check(run, parent, CheckOutcome.CHANGED, 2)
        record(run, "tax", 1, source={"agent": "scripted"}, derived_from=["sum"])
        assert state(run, "tax") == "contradicted"

    def test_when_its_parents_are_verified_again_it_is_verified_with_them(self, run: Run) -> None:
        parents = [record(run, name, age_s=10) for name in ("order.1", "order.2")]
        record(run, "sum", 3, source={"agent": "scripted"}, derived_from=["order.1", "order.2"])
        record(run, "tax", 1, source={"agent": "scripted"}, derived_from=["sum"])
        wait(1000)
        check(run, parents[0], CheckOutcome.SAME)
        assert [state(run, name) for name in ("order.1", "sum", "tax")] == ["fresh", "stale", "stale"]
        check(run, parents[1], CheckOutcome.SAME)
        assert [state(run, name) for name in ("order.2", "sum", "tax")] == ["fresh", "fresh", "fresh"]

    @pytest.mark.parametrize("how", ["check", "record", "correct"])
    def test_when_a_parent_has_another_value_what_follows_from_it_is_contradicted_until_it_is_derived_again(
        self, run: Run, how: str
    ) -> None:
        parent = record(run, "order.1", 1, age_s=10)
        record(run, "sum", 3, source={"agent": "scripted"}, derived_from=["order.1"])
        record(run, "tax", 1, source={"agent": "scripted"}, derived_from=["sum"])
        record(run, "other", 1)
        match how:
            case "check":
                check(run, parent, CheckOutcome.CHANGED, 2)
            case "record":
                record(run, "order.1", 2)
            case _:
                with transaction.atomic():
                    lifecycle.lock(run.pk)
                    facts.correct(parent, 2, actor=ANA)
        names = ("order.1", "sum", "tax", "other")
        assert [state(run, n) for n in names] == ["fresh", "contradicted", "contradicted", "fresh"]
        record(run, "sum", 4, source={"agent": "scripted"}, derived_from=["order.1"])
        assert [state(run, n) for n in names] == ["fresh", "fresh", "contradicted", "fresh"]
        record(run, "tax", 2, source={"agent": "scripted"}, derived_from=["sum"])
        assert [state(run, n) for n in names] == ["fresh", "fresh", "fresh", "fresh"]

    def test_deriving_it_again_from_a_reading_before_the_contradiction_does_not_settle_it(self, run: Run) -> None:
        parent = record(run, "order.1", 1, age_s=50)
        record(run, "sum", 3, derived_from=["order.1"], age_s=40)
        check(run, parent, CheckOutcome.CHANGED, 2)
        record(run, "sum", 3, derived_from=["order.1"], age_s=30)
        assert state(run, "sum") == "contradicted"

    def test_derived_from_something_unknown_or_from_itself_it_is_unknown(self, run: Run) -> None:
        record(run, "lost", derived_from=["nowhere"])
        record(run, "loop", derived_from=["loop"])
        record(run, "a")
        record(run, "b", derived_from=["a"])
        record(run, "a", derived_from=["b"])
        assert [state(run, name) for name in ("lost", "loop", "a", "b")] == ["unknown"] * 4

    def test_a_fact_of_another_run_is_not_a_parent(self, run: Run, person: User) -> None:
        record(start(person), "order.9")
        record(run, "sum", derived_from=["order.9"])
        assert state(run, "sum") == "unknown"


def test_the_last_look_sees_that_a_fact_changed_after_the_take(run: Run) -> None:
    fact = record(run)
    with transaction.atomic():
        attempts = [open_attempt(check_step(lifecycle.lock(run.pk))) for _ in range(2)]
        for attempt in attempts:
            facts.note_use(facts.judge(run.pk, ["order.1"]).values(), attempt=attempt.pk)
    with transaction.atomic():
        assert steps.begin(attempts[0].pk)
    check(run, fact, CheckOutcome.CHANGED, 2)
    with transaction.atomic():
        assert not steps.begin(attempts[1].pk)
    assert Attempt.objects.get(pk=attempts[1].pk).began_at is None


@pytest.mark.django_db(transaction=True)
class TestBeforeACall:
    def run_late(self, engine: Engine, order: str, *, amount: str) -> Run:
        """A call that rests on a fact which follows from an order, made when both are too old."""
        run = engine.start(
            *engine.read(order),
            [call("record_fact", name="total", value="5.00", derived_from=[f"order.{order}"], max_age_s=60)],
            [call("wait_until", seconds=300, reason="a parcel")],
            [call("pay_keyed", order=order, amount=amount, rests_on=["total"])],
        )
        engine.go(run)
        assert run.waiting_for == "timer"
        wait(400)
        return engine.go(run)

    def test_what_only_follows_from_others_is_freshened_by_checking_those_and_nobody_is_asked(
        self, engine: Engine
    ) -> None:
        order = engine.order()
        run = self.run_late(engine, order, amount="5.00")
        assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
        checked = FactCheck.objects.filter(fact__run=run).values_list("fact__name", "outcome")
        assert list(checked) == [(f"order.{order}", "same")]

    def test_when_one_of_those_has_changed_the_call_is_not_made(self, engine: Engine) -> None:
        order = engine.order()
        switch = operations.engage_switch("tool:pay_keyed", reason="wait", by=engine.person)
        run = engine.start(
            *engine.read(order),
            [call("record_fact", name="total", value="5.00", derived_from=[f"order.{order}"], max_age_s=60)],
            [call("pay_keyed", order=order, amount="5.00", rests_on=["total"])],
        )
        engine.go(run)
        engine.shop.change_order(order, paid="77.00")
        wait(400)
        operations.release_switch(switch.pk, reason="go on", by=engine.person)
        engine.go(run)
        assert engine.paid(order) == 0
        (step,) = engine.steps(run, "pay_keyed")
        assert step.state == "void"
        assert Fact.objects.get(run=run, name="total").contradicted_at is not None

    def test_a_name_that_is_too_long_is_told_to_the_model_and_the_run_goes_on(self, engine: Engine) -> None:
        run = engine.start([call("record_fact", name="x" * 300, value=1, max_age_s=60)])
        engine.go(run)
        (step,) = engine.steps(run, "record_fact")
        assert (step.state, run.state) == ("refused", RunState.SUCCEEDED)
        assert "1 to 200 characters" in step.error
