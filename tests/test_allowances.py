"""Allowances hold many runs together: by agent, label or all, by the clock of a zone, with the reservations of the ledger."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from runs import allowances, budgets, clock, lifecycle, operations, sql, steps
from runs.access import Role
from runs.allowances import Terms
from runs.budgets import Amounts
from runs.errors import Conflict, Forbidden, LimitTooLow, Malformed, OverBudget
from runs.models import Allowance, AllowanceWindow, JournalEntry, Run
from runs.states import StepKind, WaitingFor
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.people import make_person
from tests.writers import errors, open_attempt, person, shifted, start, start_child, together, until_blocked

__all__ = ["engine", "person", "shop_process", "workers"]


type Money = Decimal | int


def allow(by: User, *, scope: str = "all", dimension: str = "usd", period: str = "day", **given: Any) -> Allowance:
    terms = Terms(scope=scope, dimension=dimension, period=period, **given)
    return operations.create_allowance(terms, reason="the plan", by=by)


def reserve(run: Run, **amounts: Any) -> int:
    with transaction.atomic():
        attempt = open_attempt(steps.plan(lifecycle.lock(run.pk), steps.Asked(kind=StepKind.CHECK, tool="read_order")))
        budgets.reserve(run.pk, Amounts(**amounts), attempt=attempt.pk, asked=True)
        return attempt.pk


def settle(attempt: int, *, estimated: bool = False, **amounts: Any) -> None:
    with transaction.atomic():
        budgets.settle(attempt, Amounts(**amounts), estimated=estimated)


def used(allowance: Allowance) -> tuple[Money, Money, Money]:
    """(spent, reserved, overrun)"""
    window = AllowanceWindow.objects.filter(allowance=allowance).latest("starts_at")
    return window.spent, window.reserved, window.overrun


def period_of(period: str, zone: str, at: str) -> tuple[str, str]:
    row = sql.fetch_row("SELECT * FROM lw_period(%s, %s, %s::timestamptz)", [period, zone, at])
    return tuple(f"{moment.astimezone(UTC):%m-%d %H:%M}" for moment in row)  # type: ignore[return-value]


@pytest.mark.django_db
class TestPeriods:
    def test_a_day_is_that_of_its_zone_and_has_23_hours_in_spring_and_25_in_autumn(self) -> None:
        assert period_of("day", "Europe/Berlin", "2026-03-28T23:30Z") == ("03-28 23:00", "03-29 22:00")
        assert period_of("day", "Europe/Berlin", "2026-10-25T12:00Z") == ("10-24 22:00", "10-25 23:00")
        assert period_of("day", "UTC", "2026-10-25T12:00Z") == ("10-25 00:00", "10-26 00:00")

    def test_the_hour_that_comes_twice_is_two_hours(self) -> None:
        assert period_of("hour", "Europe/Berlin", "2026-10-25T00:30Z") == ("10-25 00:00", "10-25 01:00")
        assert period_of("hour", "Europe/Berlin", "2026-10-25T01:30Z") == ("10-25 01:00", "10-25 02:00")

    def test_a_month_ends_by_the_clock_that_holds_then(self) -> None:
        assert period_of("month", "Europe/Berlin", "2026-03-15T12:00Z") == ("02-28 23:00", "03-31 22:00")
        assert period_of("month", "America/New_York", "2026-12-31T23:00Z") == ("12-01 05:00", "01-01 05:00")


@pytest.mark.django_db
class TestHolding:
    def test_what_runs_use_together_never_passes_the_hard_limit(self, person: User) -> None:
        allowance = allow(person, hard=Decimal("1.00"))
        one, other = start(person), start(person)
        first = reserve(one, usd=Decimal("0.70"))
        with pytest.raises(OverBudget) as waiting:
            reserve(other, usd=Decimal("0.40"))
        assert (waiting.value.allowance, waiting.value.by_siblings) == (allowance.pk, True)
        settle(first, usd=Decimal("0.65"))
        with pytest.raises(
            OverBudget, match=r"0.40 USD; the allowance of everything a day has 0.35 USD left until"
        ) as short:
            reserve(other, usd=Decimal("0.40"))
        assert short.value.by_siblings is False
        assert short.value.frees_at is not None
        reserve(other, usd=Decimal("0.35"))
        assert used(allowance) == (Decimal("0.65"), Decimal("0.35"), 0)
        assert budgets.mismatches() == []
        assert allowances.mismatches() == []

    def test_the_next_period_begins_anew_and_what_was_reserved_before_is_settled_there(self, person: User) -> None:
        allowance = allow(person, hard=Decimal("1.00"), period="hour")
        attempt = reserve(start(person), usd=Decimal("0.90"))
        with shifted(timedelta(hours=1)):
            reserve(start(person), usd=Decimal("0.80"))
            settle(attempt, usd=Decimal("0.50"))
        old, new = AllowanceWindow.objects.filter(allowance=allowance).order_by("starts_at")
        assert [old.spent, old.reserved, new.spent, new.reserved] == [Decimal("0.50"), 0, 0, Decimal("0.80")]

    def test_the_truth_about_an_estimate_and_a_release_reach_the_allowance(self, person: User) -> None:
        allowance = allow(person, hard=Decimal("5.00"))
        run = start(person)
        estimate, unused = reserve(run, usd=Decimal("0.40")), reserve(run, usd=Decimal("0.10"))
        with transaction.atomic():
            budgets.settle_as_reserved(estimate, note="cut")
            budgets.release(unused)
        assert used(allowance) == (Decimal("0.40"), 0, 0)
        settle(estimate, usd=Decimal("0.15"))
        assert used(allowance) == (Decimal("0.15"), 0, 0)
        assert allowances.mismatches() == []

    @pytest.mark.parametrize(
        ("scope", "held"),
        [
            ("all", True),
            ("agent:scripted", True),
            ("agent:other", False),
            ("label:team=a", True),
            ("label:team=b", False),
        ],
    )
    def test_it_holds_what_its_scope_names_and_the_tree_below_a_label(
        self, person: User, scope: str, held: bool
    ) -> None:
        allow(person, scope=scope, dimension="tokens", hard=Decimal(100))
        child = start_child(start(person, labels={"team": "a"}))
        if held:
            with pytest.raises(OverBudget):
                reserve(child, tokens=101)
        else:
            reserve(child, tokens=101)

    def test_the_soft_threshold_is_told_once(self, person: User) -> None:
        allow(person, soft=Decimal("0.50"), hard=Decimal("2.00"))
        run = start(person, usd="9.00")
        for _ in range(2):
            settle(reserve(run, usd=Decimal("0.60")), usd=Decimal("0.60"))
            for window in AllowanceWindow.objects.filter(notice_due=True):
                with transaction.atomic():
                    allowances.tell_soft(window.pk)
        told = JournalEntry.objects.get(kind="allowance.soft_passed")
        assert "0.6 usd of all in this day: above 0.5, at most 2" in told.why


@pytest.mark.django_db
class TestChanging:
    def test_a_raise_counts_at_the_next_reservation_and_is_journalled_with_old_and_new(self, person: User) -> None:
        allowance = allow(person, hard=Decimal("0.30"))
        run = start(person)
        with pytest.raises(OverBudget):
            reserve(run, usd=Decimal("0.40"))
        operations.change_allowance(
            allowance.pk, soft=None, hard=Decimal("0.50"), reason="month end", by=person, version=1
        )
        reserve(run, usd=Decimal("0.40"))
        entry = JournalEntry.objects.get(kind="allowance.changed")
        assert (entry.before, entry.after) == (
            {"allowance": allowance.pk, "soft": None, "hard": "0.3"},
            {"allowance": allowance.pk, "soft": None, "hard": "0.5"},
        )
        with pytest.raises(Conflict, match="changed since"):
            operations.change_allowance(allowance.pk, soft=None, hard=Decimal(9), reason="again", by=person, version=1)
        with pytest.raises(LimitTooLow):
            operations.change_allowance(allowance.pk, soft=None, hard=Decimal("0.39"), reason="less", by=person)
        operations.end_allowance(allowance.pk, reason="over", by=person)
        reserve(run, usd=Decimal("0.60"))

    @pytest.mark.parametrize(
        "terms",
        [
            {"scope": "agent:"},
            {"scope": "label:team"},
            {"zone": "Europe/Nowhere"},
            {"period": "once"},
            {"dimension": "runs"},
            {"hard": Decimal(-1)},
            {"soft": Decimal(9)},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, person: User, terms: dict[str, Any]) -> None:
        with pytest.raises(Malformed):
            allow(person, **{"hard": Decimal(1), **terms})

    def test_only_who_may_change_money_sets_one(self) -> None:
        with pytest.raises(Forbidden):
            allow(make_person("olga", Role.OPERATOR), hard=Decimal(1))


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_twenty_runs_at_once_never_pass_an_allowance(self, person: User) -> None:
        allowance = allow(person, hard=Decimal("1.00"))
        runs = [start(person) for _ in range(10)]
        results = together(*(lambda r=r: reserve(r, usd=Decimal("0.25")) for r in runs))
        assert len(errors(results)) == 6
        assert all(isinstance(error, OverBudget) for error in errors(results))
        assert used(allowance) == (0, Decimal("1.00"), 0)
        assert allowances.mismatches() == []

    def test_more_runs_than_are_allowed_at_once_wait_and_begin_when_one_ends(self, engine: Engine) -> None:
        allow(engine.person, scope="agent:scripted", dimension="runs", period="once", hard=Decimal(1))
        first = engine.start([call("ask", question="Which way?")])
        engine.go(first)
        second = engine.start([call("ask", question="And now?")])
        engine.go(second)
        assert (second.state, second.waiting_for) == ("waiting", WaitingFor.CAPACITY)
        assert "1 runs of agent:scripted are under way" in second.why
        operations.stop_run(first.pk, reason="enough", by=engine.person)
        engine.go(second)
        assert second.waiting_for == WaitingFor.QUESTION

    def test_a_run_that_is_short_of_an_allowance_waits_for_its_next_period_and_a_raise_wakes_it(
        self, engine: Engine
    ) -> None:
        allowance = allow(engine.person, dimension="steps", hard=Decimal(1))
        run = engine.start([call("ask", question="Which way?")])
        engine.go(run)
        assert (run.state, run.waiting_for) == ("waiting", WaitingFor.CAPACITY)
        assert run.due_at is not None
        assert run.due_at <= datetime.now(UTC) + timedelta(days=1)
        operations.change_allowance(allowance.pk, soft=None, hard=Decimal(100), reason="more", by=engine.person)
        engine.go(run)
        assert run.waiting_for == WaitingFor.QUESTION
        assert clock.now() < run.created_at + timedelta(hours=1)


@pytest.mark.django_db(transaction=True)
def test_reserving_and_settling_under_two_allowances_wait_for_each_other_in_one_order(person: User) -> None:
    """Also where the window of the older allowance is the newer one: its period began anew, or nothing used it before."""
    allow(person, scope="label:team=refunds", hard=Decimal(10))
    shared = allow(person, hard=Decimal(10))
    reserve(start(person), usd=Decimal("0.01"))
    settling, reserving = (start(person, labels={"team": "refunds"}) for _ in range(2))
    attempt = reserve(settling, usd=Decimal("0.01"))
    assert AllowanceWindow.objects.order_by("pk").values_list("allowance", flat=True)[0] == shared.pk

    def settle_first() -> int:
        settle(attempt, usd=Decimal("0.01"))
        return 1

    def reserve_then() -> int:
        until_blocked(1)  # the settlement
        return reserve(reserving, usd=Decimal("0.01"))

    def let_both() -> int:
        with transaction.atomic():
            sql.fetch_row("SELECT 1 FROM runs_allowancewindow WHERE allowance_id = %s FOR NO KEY UPDATE", [shared.pk])
            holding.set()
            until_blocked(2)
        return 1

    holding = threading.Event()

    def after_it(do: Callable[[], int]) -> int:
        assert holding.wait(10.0)
        return do()

    results = together(let_both, lambda: after_it(settle_first), lambda: after_it(reserve_then))
    assert errors(results) == []
    assert not allowances.mismatches()


@pytest.mark.django_db(transaction=True)
def test_a_limit_that_is_lowered_while_a_reservation_waits_holds_for_the_period_that_this_opens(person: User) -> None:
    allowance = allow(person, hard=Decimal(10))
    run = start(person, usd="50")
    asked = threading.Event()

    def hold_budget() -> int:
        with transaction.atomic():
            sql.execute("SELECT lw_queue_for_budget(%s)", [run.pk])
            asked.set()
            until_blocked()
            change = threading.Thread(target=lower)
            change.start()
            change.join(10.0)
        return 1

    def lower() -> None:
        operations.change_allowance(allowance.pk, soft=None, hard=Decimal(1), reason="less", by=person)
        connection.close()

    def reserve_meanwhile() -> int:
        assert asked.wait(10.0)
        return reserve(run, usd=Decimal("5.00"))

    results = together(hold_budget, reserve_meanwhile)
    assert [type(error) for error in errors(results)] == [OverBudget]
    reserve(run, usd=Decimal("1.00"))
    assert used(allowance) == (0, 1, 0)
