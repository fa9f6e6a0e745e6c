"""Spend never passes a limit (G5, case D1): reserved before, settled after, in the whole tree, whoever is at it at once."""

import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs import budgets, course, lifecycle, operations, sql, steps
from runs.agents import Budget as Limits
from runs.budgets import Amounts
from runs.errors import Conflict, LimitTooLow, NoLimit, OverBudget
from runs.journal import Actor
from runs.models import Budget, JournalEntry, LedgerEntry, Run
from runs.models.budget import DIMENSIONS
from runs.states import EntryKind, StepKind, WaitingFor
from tests.writers import errors, open_attempt, person, start, start_child, together

__all__ = ["person"]

ANA = Actor(name="person:ana")


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


def reserve(run: Run, *, asked: bool = True, **amounts: Any) -> int:
    """A try of a new step with its reservation; the id of the attempt. asked: whatever its share of a limit."""
    with transaction.atomic():
        attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.CHECK, tool="read_order")))
        budgets.reserve(run.pk, Amounts(**amounts), attempt=attempt.pk, asked=asked)
        return attempt.pk


def settle(attempt: int, *, estimated: bool = False, **amounts: Any) -> None:
    with transaction.atomic():
        budgets.settle(attempt, Amounts(**amounts), estimated=estimated)


def release(attempt: int) -> None:
    with transaction.atomic():
        budgets.release(attempt)


def set_limits(run: Run, limits: Mapping[str, Any], **given: Any) -> None:
    with transaction.atomic():
        lifecycle.lock(run.pk)
        budgets.set_limits(run.pk, limits, actor=ANA, why="because", **given)


type Money = Decimal | int


def usd(run: Run) -> tuple[Money, Money, Money]:
    """(spent, reserved, overrun)"""
    b = Budget.objects.get(pk=run.pk)
    return b.usd_spent, b.usd_reserved, b.usd_overrun


@pytest.mark.django_db
class TestReserveAndSettle:
    def test_a_commit_that_ends_the_locks_of_budgets_does_not_wait_for_the_disk(self, run: Run) -> None:
        sql.execute("SET LOCAL synchronous_commit = on")
        attempt = reserve(run, usd=Decimal("0.60"))
        assert sql.fetch_row("SHOW synchronous_commit") == ("off",)
        sql.execute("SET LOCAL synchronous_commit = on")
        settle(attempt, usd=Decimal("0.10"))
        assert sql.fetch_row("SHOW synchronous_commit") == ("off",)

    def test_a_reservation_counts_until_it_is_settled_to_what_was_used(self, run: Run) -> None:
        attempt = reserve(run, usd=Decimal("0.60"), calls=1)
        assert usd(run) == (0, Decimal("0.60"), 0)
        with pytest.raises(OverBudget, match=r"run \d+ has 0.40"):
            reserve(run, usd=Decimal("0.41"))
        settle(attempt, usd=Decimal("0.10"), calls=1)
        assert usd(run) == (Decimal("0.10"), 0, 0)
        reserve(run, usd=Decimal("0.90"))

    def test_what_does_not_fit_leaves_no_trace(self, run: Run) -> None:
        with pytest.raises(OverBudget):
            reserve(run, usd=Decimal("1.01"))
        assert usd(run) == (0, 0, 0)
        assert not LedgerEntry.objects.exists()

    def test_the_last_cent_can_be_spent_and_nothing_after_it(self, run: Run) -> None:
        settle(reserve(run, usd=Decimal("1.00")), usd=Decimal("1.00"))
        with pytest.raises(OverBudget):
            reserve(run, usd=Decimal("0.0000000001"))

    def test_what_certainly_used_nothing_is_given_back_whole(self, run: Run) -> None:
        release(reserve(run, usd=Decimal("0.70"), steps=1))
        assert usd(run) == (0, 0, 0)
        assert [e.kind for e in LedgerEntry.objects.order_by("pk")] == [EntryKind.RESERVE, EntryKind.RELEASE]

    @pytest.mark.parametrize("second", ["settle", "release", "estimate"])
    @pytest.mark.parametrize("first", ["settle", "release", "estimate"])
    def test_an_attempt_is_booked_once_but_that_the_truth_replaces_an_estimate(
        self, run: Run, first: str, second: str
    ) -> None:
        book: dict[str, Callable[[int], None]] = {
            "settle": lambda a: settle(a, usd=Decimal("0.20"), steps=1),
            "release": release,
            "estimate": lambda a: self.estimate(a),
        }
        attempt = reserve(run, usd=Decimal("0.70"), steps=1)
        book[first](attempt)
        after = usd(run)
        book[second](attempt)
        if (first, second) == ("estimate", "settle"):
            after = (Decimal("0.20"), 0, 0)
        assert usd(run) == after
        if first != "estimate" or second != "settle":
            assert after[0] == {"settle": Decimal("0.20"), "release": 0, "estimate": Decimal("0.70")}[first]
        assert budgets.mismatches() == []

    def estimate(self, attempt: int) -> None:
        with transaction.atomic():
            budgets.settle_as_reserved(attempt, note="cut")

    def test_what_is_not_known_is_booked_as_reserved_and_marked_and_never_zero(self, run: Run) -> None:
        self.estimate(reserve(run, usd=Decimal("0.70"), tokens=500, calls=1))
        entry = LedgerEntry.objects.get(kind=EntryKind.SETTLE)
        assert (entry.usd, entry.tokens, entry.calls, entry.estimated) == (Decimal("0.70"), 500, 1, True)

    def test_the_truth_about_an_estimate_is_booked_once_as_the_difference(self, run: Run) -> None:
        child = start_child(run)
        attempt = reserve(child, usd=Decimal("0.70"), tokens=500, calls=1)
        self.estimate(attempt)
        settle(attempt, usd=Decimal("0.25"), tokens=600, calls=1)
        settle(attempt, usd=Decimal("0.60"), tokens=1, calls=1)
        release(attempt)
        for each in (run, child):
            assert usd(each) == (Decimal("0.25"), 0, 0)
            correct = LedgerEntry.objects.get(kind=EntryKind.CORRECT, budget=each.pk)
            assert (correct.usd, correct.tokens, correct.calls, correct.estimated) == (Decimal("-0.45"), 100, 0, False)
        assert budgets.mismatches() == []

    def test_an_estimate_without_a_usage_gives_way_to_one_with_and_that_to_the_truth(self, run: Run) -> None:
        attempt = reserve(run, usd=Decimal("0.70"))
        self.estimate(attempt)
        unpriced = budgets.Pricing(model="m-new", usage={"input_tokens": 5}, unpriced=True)
        with transaction.atomic():
            budgets.settle(attempt, Amounts(usd=Decimal("0.60"), tokens=5), pricing=unpriced, estimated=True)
            budgets.settle(attempt, Amounts(usd=Decimal("0.50"), tokens=5), pricing=unpriced, estimated=True)
        assert usd(run)[0] == Decimal("0.60")
        settle(attempt, usd=Decimal("0.05"), tokens=5)
        assert usd(run)[0] == Decimal("0.05")
        assert budgets.mismatches() == []

    def test_settling_what_was_never_reserved_does_nothing(self, run: Run) -> None:
        with transaction.atomic():
            attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.THINK)))
            budgets.settle(attempt.pk, Amounts(usd=Decimal(1)))
            budgets.settle_as_reserved(attempt.pk, note="")
            budgets.release(attempt.pk)
        assert not LedgerEntry.objects.exists()

    def test_a_dimension_without_a_limit_is_counted_all_the_same(self, run: Run) -> None:
        settle(reserve(run, tokens=10**12), tokens=10**12)
        assert Budget.objects.get(pk=run.pk).tokens_spent == 10**12

    @pytest.mark.parametrize("dimension", DIMENSIONS)
    def test_each_dimension_has_its_limit(self, run: Run, dimension: str) -> None:
        set_limits(run, {dimension: Decimal(2) if dimension == "usd" else 2})
        two: dict[str, Any] = {dimension: 2}
        one: dict[str, Any] = {dimension: 1}
        reserve(run, **two)
        with pytest.raises(OverBudget) as short:
            reserve(run, **one)
        assert (short.value.dimension, short.value.run) == (dimension, run.pk)


@pytest.mark.django_db
class TestShare:
    """A step that would take much of a limit is a question first."""

    def test_a_step_above_the_set_share_is_asked_about_and_changes_nothing(self, run: Run) -> None:
        with pytest.raises(OverBudget, match=r"0\.51 USD, more than 50 % of what run \d+ may use") as share:
            reserve(run, asked=False, usd=Decimal("0.51"))
        assert (share.value.percent, share.value.by_siblings) == (50, False)
        assert usd(run) == (0, 0, 0)
        reserve(run, asked=False, usd=Decimal("0.50"))
        reserve(run, asked=True, usd=Decimal("0.50"))

    def test_the_share_of_a_run_above_counts_too_and_can_be_set(self, run: Run) -> None:
        child = start_child(run, usd="9.00")
        with pytest.raises(OverBudget) as share:
            reserve(child, asked=False, usd=Decimal("0.60"))
        assert (share.value.run, share.value.percent) == (run.pk, 50)
        set_limits(run, {"ask_percent": 60})
        reserve(child, asked=False, usd=Decimal("0.60"))
        set_limits(run, {"ask_percent": None, "usd": Decimal("9.00")})
        reserve(child, asked=False, usd=Decimal("4.00"))
        assert not LedgerEntry.objects.filter(kind=EntryKind.GRANT, usd=0).exists()

    def test_what_does_not_fit_is_short_and_no_question_of_share(self, run: Run) -> None:
        with pytest.raises(OverBudget) as short:
            reserve(run, asked=False, usd=Decimal("1.10"))
        assert short.value.percent is None


@pytest.mark.django_db
class TestThresholds:
    def test_half_and_four_fifths_are_told_once_and_again_when_a_limit_was_raised(self, run: Run) -> None:
        def spend(cents: int) -> None:
            settle(reserve(run, usd=Decimal(cents) / 100), usd=Decimal(cents) / 100)

        def tell() -> list[int]:
            with transaction.atomic():
                lifecycle.lock(run.pk)
                budgets.tell_threshold(run.pk)
            told = JournalEntry.objects.filter(run=run, kind="budget.threshold_passed").order_by("pk")
            return [int(after["percent"]) for after in told.values_list("after", flat=True) if after]

        spend(49)
        assert not Budget.objects.get(pk=run.pk).notice_due
        spend(1)
        assert Budget.objects.get(pk=run.pk).notice_due
        assert tell() == tell() == [50]
        spend(35)
        assert tell() == [50, 80]
        assert "0.85 USD of 1.00 USD" in JournalEntry.objects.latest("pk").why
        set_limits(run, {"usd": Decimal("2.00")})
        assert not Budget.objects.get(pk=run.pk).notice_due
        spend(40)
        assert tell() == [50, 80, 50]


@pytest.mark.django_db
class TestTruth:
    def test_what_passes_its_reservation_is_booked_as_it_is_and_shown_as_overrun(self, run: Run) -> None:
        settle(reserve(run, usd=Decimal("0.90")), usd=Decimal("1.30"))
        assert usd(run) == (Decimal("1.30"), 0, Decimal("0.30"))
        with pytest.raises(OverBudget):
            reserve(run, usd=Decimal("0.01"))

    def test_an_overrun_is_gone_once_what_siblings_had_reserved_was_not_used(self, run: Run) -> None:
        first, second = reserve(run, usd=Decimal("0.50")), reserve(run, usd=Decimal("0.50"))
        settle(first, usd=Decimal("0.80"))
        assert usd(run) == (Decimal("0.80"), Decimal("0.50"), Decimal("0.30"))
        release(second)
        assert usd(run) == (Decimal("0.80"), 0, 0)
        with pytest.raises(IntegrityError, match="budget_usd_within_limit"), transaction.atomic():
            sql.execute("UPDATE runs_budget SET usd_reserved = 0.25 WHERE run_id = %s", [run.pk])

    def test_a_raised_limit_covers_an_overrun(self, run: Run) -> None:
        settle(reserve(run, usd=Decimal("0.90")), usd=Decimal("1.30"))
        set_limits(run, {"usd": Decimal("1.50")})
        assert usd(run) == (Decimal("1.30"), 0, 0)
        reserve(run, usd=Decimal("0.20"))

    def test_no_entry_is_negative(self, run: Run) -> None:
        attempt = reserve(run, usd=Decimal("0.50"))
        with pytest.raises(IntegrityError):
            settle(attempt, usd=Decimal("-0.10"))
        assert usd(run) == (0, Decimal("0.50"), 0)


@pytest.mark.django_db
class TestTree:
    def test_a_child_draws_on_every_run_above_it(self, run: Run) -> None:
        child = start_child(run)
        grandchild = start_child(child)
        attempt = reserve(grandchild, usd=Decimal("0.40"), steps=1)
        assert [usd(r)[1] for r in (run, child, grandchild)] == [Decimal("0.40")] * 3
        settle(attempt, usd=Decimal("0.15"), steps=1)
        assert [usd(r)[:2] for r in (run, child, grandchild)] == [(Decimal("0.15"), 0)] * 3
        assert {e.run_id for e in LedgerEntry.objects.all()} == {grandchild.pk}
        assert LedgerEntry.objects.count() == 6

    def test_the_run_that_is_short_is_named(self, run: Run) -> None:
        child = start_child(run, usd="0.30")
        with pytest.raises(OverBudget) as own:
            reserve(child, usd=Decimal("0.31"))
        assert own.value.run == child.pk
        settle(reserve(run, usd=Decimal("0.80")), usd=Decimal("0.80"))
        with pytest.raises(OverBudget) as above:
            reserve(child, usd=Decimal("0.25"))
        assert (above.value.run, above.value.left, above.value.by_siblings) == (run.pk, Decimal("0.20"), False)
        assert usd(child) == (0, 0, 0)

    def test_short_because_of_what_siblings_have_reserved_is_told_apart(self, run: Run) -> None:
        one, other = start_child(run), start_child(run)
        held = reserve(one, usd=Decimal("0.80"))
        with pytest.raises(OverBudget) as short:
            reserve(other, usd=Decimal("0.30"))
        assert (short.value.run, short.value.by_siblings) == (run.pk, True)
        settle(held, usd=Decimal("0.20"))
        reserve(other, usd=Decimal("0.30"))

    def test_a_limit_that_even_an_empty_tree_would_pass_is_not_for_siblings(self, run: Run) -> None:
        reserve(start_child(run), usd=Decimal("0.80"))
        with pytest.raises(OverBudget) as short:
            reserve(start_child(run, usd="5.00"), usd=Decimal("1.10"))
        assert short.value.by_siblings is False

    def test_a_grant_to_the_top_reaches_its_children(self, run: Run) -> None:
        child = start_child(run, usd="9.00")
        with pytest.raises(OverBudget):
            reserve(child, usd=Decimal("2.00"))
        set_limits(run, {"usd": Decimal("5.00")})
        reserve(child, usd=Decimal("2.00"))


@pytest.mark.django_db
class TestLimits:
    def test_a_limit_is_not_set_below_what_is_spent_or_reserved(self, run: Run) -> None:
        settle(reserve(run, usd=Decimal("0.30")), usd=Decimal("0.30"))
        reserve(run, usd=Decimal("0.20"))
        with pytest.raises(LimitTooLow, match=r"0.50\d* is already spent or reserved"):
            set_limits(run, {"usd": Decimal("0.49")})
        set_limits(run, {"usd": Decimal("0.50")})
        assert Budget.objects.get(pk=run.pk).version == 2

    def test_each_change_is_in_the_ledger_and_the_journal_with_old_and_new(self, run: Run) -> None:
        set_limits(run, {"usd": Decimal("1.75"), "steps": 10, "tokens": 99})
        entry = LedgerEntry.objects.get()
        assert (entry.kind, entry.usd, entry.steps, entry.tokens) == (EntryKind.GRANT, Decimal("0.75"), -190, 99)
        journalled = JournalEntry.objects.get(kind="budget.limits_set")
        assert journalled.before == {"usd": "1.0000000000", "steps": 200, "tokens": None}
        assert journalled.after == {"usd": "1.75", "steps": 10, "tokens": 99}
        assert (journalled.actor, journalled.why) == ("person:ana", "because")
        assert budgets.mismatches() == []

    def test_a_change_that_changes_nothing_leaves_no_trace(self, run: Run) -> None:
        set_limits(run, {"usd": Decimal("1.00"), "steps": 200})
        assert Budget.objects.get(pk=run.pk).version == 1
        assert not LedgerEntry.objects.exists()

    def test_a_stale_form_is_refused(self, run: Run) -> None:
        set_limits(run, {"usd": Decimal("2.00")}, version=1)
        with pytest.raises(Conflict, match="changed since you opened it"):
            set_limits(run, {"usd": Decimal("3.00")}, version=1)

    def test_the_last_limit_does_not_go(self, run: Run) -> None:
        set_limits(run, {"usd": None})
        with pytest.raises(NoLimit):
            set_limits(run, {"steps": None})
        assert Budget.objects.get(pk=run.pk).steps_limit == 200

    def test_who_is_unlimited_for_a_reason_may_lose_the_last_limit(self, run: Run) -> None:
        sql.execute("UPDATE runs_budget SET unlimited_because = 'a rehearsal' WHERE run_id = %s", [run.pk])
        set_limits(run, {"usd": None, "steps": None})
        assert Budget.objects.get(pk=run.pk).steps_limit is None

    def test_a_budget_is_made_of_the_agents_limits(self, run: Run) -> None:
        sql.execute("DELETE FROM runs_budget WHERE run_id = %s", [run.pk])
        with transaction.atomic():
            made = budgets.create(run, Limits(usd="2.50", calls=7, working_s=60.0, unlimited=""))
        assert (made.usd_limit, made.calls_limit, made.steps_limit, made.working_limit_s) == (
            Decimal("2.50"), 7, None, 60.0
        )  # fmt: skip


@pytest.mark.django_db
def test_a_row_that_is_not_the_sum_of_its_ledger_is_found(run: Run) -> None:
    settle(reserve(run, usd=Decimal("0.30")), usd=Decimal("0.30"))
    reserve(run, usd=Decimal("0.20"))
    assert budgets.mismatches() == []
    sql.execute("UPDATE runs_budget SET usd_spent = 0.31, usd_reserved = 0.1 WHERE run_id = %s", [run.pk])
    assert [(found[0], found[1]) for found in budgets.mismatches()] == [
        (run.pk, "usd_spent"),
        (run.pk, "usd_reserved"),
    ]


def violations() -> list[Any]:
    """Every budget that is past its limit, or not the sum of its ledger, at this moment."""
    past = sql.fetch_all("SELECT run_id FROM runs_budget WHERE usd_spent + usd_reserved > usd_limit + usd_overrun")
    return [*past, *budgets.mismatches()]


cents = st.integers(0, 60).map(lambda n: Decimal(n) / 100)
operation = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 5), cents),
    st.tuples(st.just("settle"), st.integers(0, 20), cents),
    st.tuples(st.just("release"), st.integers(0, 20), cents),
    st.tuples(st.just("limit"), st.integers(0, 5), st.integers(0, 300).map(lambda n: Decimal(n) / 100)),
    st.tuples(st.just("spawn"), st.integers(0, 5), cents),
)


@pytest.mark.django_db
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(operation, max_size=25))
def test_no_sequence_passes_a_limit_or_loses_the_sum(person: User, operations_: list[tuple[str, int, Decimal]]) -> None:
    tree = [start(person)]
    attempts: list[tuple[int, Decimal]] = []
    truthful = True
    for what, which, amount in operations_:
        target = tree[which % len(tree)]
        try:
            match what:
                case "reserve":
                    attempts.append((reserve(target, usd=amount, steps=1), amount))
                case "settle" if attempts:
                    attempt, reserved = attempts[which % len(attempts)]
                    truthful = truthful and amount <= reserved
                    settle(attempt, usd=amount, steps=1)
                case "release" if attempts:
                    release(attempts[which % len(attempts)][0])
                case "limit":
                    set_limits(target, {"usd": amount})
                case "spawn" if target.depth < 3:
                    tree.append(start_child(target, usd=str(amount)))
        except (OverBudget, LimitTooLow):
            continue
        assert violations() == []
        if truthful:
            assert not Budget.objects.filter(usd_overrun__gt=0, run__in=tree).exists()
    for run in tree:
        assert usd(run)[0] + usd(run)[1] <= (Budget.objects.get(pk=run.pk).usd_limit or 0) + usd(run)[2]


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    """Case D1: real connections at once."""

    @pytest.mark.parametrize(("spent", "fit"), [("0.95", 0), ("0.55", 2)])
    def test_of_eight_calls_at_once_only_what_fits_starts_and_who_dies_with_one_has_used_it(
        self, person: User, spent: str, fit: int
    ) -> None:
        run = start(person, usd="1.00")
        settle(reserve(run, usd=Decimal(spent)), usd=Decimal(spent))
        children = [start_child(run) for _ in range(8)]
        started = together(*(lambda c=c: reserve(c, usd=Decimal("0.20")) for c in children))
        short = errors(started)
        assert len(short) == 8 - fit
        assert all(isinstance(error, OverBudget) for error in short)
        assert usd(run) == (Decimal(spent), fit * Decimal("0.20"), 0)
        attempts = [attempt for attempt in started if isinstance(attempt, int)]
        for attempt in attempts[:1]:
            settle(attempt, usd=Decimal("0.11"))
        for attempt in attempts[1:]:
            # Its holder died: nobody knows what it used, so it is all.
            with transaction.atomic():
                budgets.settle_as_reserved(attempt, note="its worker's lease ran out")
        left = {0: "0.95", 2: "0.86"}[fit]
        assert usd(run) == (Decimal(left), 0, 0)
        assert LedgerEntry.objects.filter(budget_id=run.pk, estimated=True).count() == len(attempts[1:])
        assert budgets.mismatches() == []

    def test_twenty_reservations_at_once_for_a_limit_of_ten_let_ten_through(self, person: User) -> None:
        run = start(person)
        results = together(*([lambda: reserve(run, usd=Decimal("0.10"))] * 20))
        assert len(errors(results)) == 10
        assert all(isinstance(error, OverBudget) for error in errors(results))
        assert usd(run) == (0, Decimal("1.00"), 0)

    def test_children_at_once_never_pass_the_limit_of_their_parent(self, person: User) -> None:
        run = start(person)
        children = [start_child(run) for _ in range(6)]
        results = together(*(lambda c=c: reserve(c, usd=Decimal("0.30")) for c in children))
        assert len(errors(results)) == 3
        assert usd(run) == (0, Decimal("0.90"), 0)
        assert budgets.mismatches() == []

    def test_a_limit_that_is_lowered_while_others_reserve_is_either_refused_or_kept(self, person: User) -> None:
        run = start(person)
        child = start_child(run)

        def reserve_often() -> int:
            through = 0
            for _ in range(10):
                try:
                    reserve(child, usd=Decimal("0.05"))
                    through += 1
                except OverBudget:
                    break
            return through

        def lower() -> str:
            for cent in range(90, 10, -10):
                try:
                    set_limits(run, {"usd": Decimal(cent) / 100})
                except LimitTooLow:
                    return "refused"
            return "lowered"

        results = together(reserve_often, lower)
        assert errors(results) == []
        spent, reserved, overrun = usd(run)
        assert spent + reserved <= (Budget.objects.get(pk=run.pk).usd_limit or 0)
        assert overrun == 0

    def test_an_attempt_that_two_settle_at_once_is_booked_once(self, person: User) -> None:
        run = start(person)
        attempt = reserve(run, usd=Decimal("0.50"))
        both: Sequence[Callable[[], None]] = (
            lambda: settle(attempt, usd=Decimal("0.20")),
            lambda: release(attempt),
            lambda: settle(attempt, usd=Decimal("0.30"), estimated=True),
        )
        assert errors(together(*both)) == []
        assert LedgerEntry.objects.filter(kind__in=[EntryKind.SETTLE, EntryKind.RELEASE]).count() == 1
        assert budgets.mismatches() == []

    def test_six_connections_at_random_over_a_tree_of_depth_three_pass_no_limit_and_never_deadlock(
        self, person: User
    ) -> None:
        top = start(person, usd="3.00")
        tree = [top]
        for parent in (0, 0, 1, 1, 2):
            tree.append(start_child(tree[parent], usd="1.50"))
        seen: list[Any] = []

        def work(seed: int) -> None:
            chance = random.Random(seed)
            held: list[tuple[int, Decimal]] = []
            for _ in range(30):
                run = chance.choice(tree)
                try:
                    match chance.randrange(5):
                        case 0 | 1:
                            amount = Decimal(chance.randrange(1, 40)) / 100
                            held.append((reserve(run, usd=amount), amount))
                        case 2 if held:
                            attempt, amount = held.pop(chance.randrange(len(held)))
                            settle(attempt, usd=amount * chance.randrange(0, 101) / 100)
                        case 3 if held:
                            release(held.pop(chance.randrange(len(held)))[0])
                        case _:
                            set_limits(run, {"usd": Decimal(chance.randrange(50, 400)) / 100})
                except (OverBudget, LimitTooLow):
                    continue
                seen.extend(sql.fetch_all("SELECT run_id FROM runs_budget WHERE usd_spent + usd_reserved > usd_limit"))

        results = together(*(lambda s=s: work(s) for s in range(6)))
        assert errors(results) == []
        assert seen == []
        assert violations() == []
        assert Budget.objects.get(pk=top.pk).usd_spent == sum(
            LedgerEntry.objects.filter(kind=EntryKind.SETTLE, budget=top.pk).values_list("usd", flat=True)
        )


@pytest.mark.django_db
def test_a_raised_limit_lets_who_waits_for_it_go_on(run: Run, person: User) -> None:
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        step = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
        steps.wait(step, WaitingFor.BUDGET, note="short")
        course.rest(locked)
    operations.set_budget(run.pk, {"usd": Decimal("5.00")}, reason="worth it", by=person)
    run.refresh_from_db()
    step.refresh_from_db()
    assert (run.state, step.state) == ("queued", "planned")
