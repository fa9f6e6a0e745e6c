"""What nobody waits for an answer to goes with the next statement or with the commit (`sql.queue`): what is refused undoes the
transaction, what was queued in vain never runs, and the connection is as good as new afterwards."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus

from runs import budgets, sql, switches
from runs.agents import Json
from runs.budgets import Amounts, Pricing
from runs.models import LedgerEntry, Run
from tests.test_budgets import reserve, usd
from tests.writers import person, start

__all__ = ["person"]
pytestmark = pytest.mark.django_db(transaction=True)

HALF, TENTH = Decimal("0.50"), Decimal("0.10")
UNSETTLED, SETTLED = (0, HALF, 0), (TENTH, 0, 0)
HOSTILE = "'); COMMIT; DROP TABLE runs_run; -- \\'; $$ %s %% \\ \u2028 /* \U0001f600 \""


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


def write(run: Run) -> None:
    sql.execute("UPDATE runs_run SET end_reason = end_reason || 'x' WHERE id = %s", [run.pk])


def transact(*statements: Callable[[], object]) -> None:
    with transaction.atomic():
        for each in statements:
            each()


def fail() -> None:
    raise ZeroDivisionError


def refuse(run: Run) -> None:
    """A guarded statement that finds nothing to change."""
    sql.queue("UPDATE runs_run SET end_reason = '' WHERE id = %s", [-run.pk], refusal=ZeroDivisionError())


def seen(run: Run) -> str:
    """What others see of what `write` wrote."""
    with psycopg.connect(**sql.connection_parameters()) as other:
        row = other.execute("SELECT end_reason FROM runs_run WHERE id = %s", [run.pk]).fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def locked(run: Run) -> Iterator[psycopg.Connection]:
    """Somebody else has his turn on a budget."""
    with psycopg.connect(**sql.connection_parameters() | {"autocommit": False}) as other:
        other.execute("SELECT lw_queue_for_budget(%s)", [run.pk])
        yield other
        if not other.closed:
            other.rollback()


@contextmanager
def heard(listened: bool) -> Iterator[None]:
    """listened: somebody listens to the statements, so that each is run by itself."""
    connection.force_debug_cursor = listened
    try:
        yield
    finally:
        connection.force_debug_cursor = False


def expect_clean(run: Run) -> None:
    """The next transaction on this connection commits what it wrote, and nothing else."""
    before, booked = seen(run), usd(run)
    with transaction.atomic():
        write(run)
    assert seen(run) == before + "x"
    assert usd(run) == booked
    assert connection.get_autocommit()
    assert not connection.in_atomic_block
    assert connection.connection.pgconn.transaction_status == TransactionStatus.IDLE


class TestRefused:
    @pytest.mark.parametrize("asked_before", [True, False])
    @pytest.mark.parametrize("listened", [True, False])
    def test_a_last_statement_that_fails_undoes_its_transaction(
        self, run: Run, asked_before: bool, listened: bool
    ) -> None:
        with heard(listened), pytest.raises(DatabaseError, match="division by zero"):
            transact(
                *([lambda: write(run)] if asked_before else []),
                lambda: sql.queue("UPDATE runs_run SET end_reason = 'last' WHERE id = %s", [run.pk]),
                lambda: sql.queue("SELECT 1 / %s", [0], last=True),
            )
        assert seen(run) == ""
        expect_clean(run)

    def test_a_settlement_that_waits_too_long_is_refused_whole_and_can_be_written_again(self, run: Run) -> None:
        attempt = reserve(run, usd=HALF)
        with locked(run), pytest.raises(OperationalError, match="lock timeout"):
            transact(
                lambda: sql.execute("SET LOCAL lock_timeout = 50"),
                lambda: write(run),
                lambda: budgets.settle(attempt, Amounts(usd=TENTH)),
            )
        assert (seen(run), usd(run)) == ("", UNSETTLED)
        expect_clean(run)
        with transaction.atomic():
            budgets.settle(attempt, Amounts(usd=TENTH))
        assert usd(run) == SETTLED

    def test_a_settlement_whose_connection_is_cut_is_refused_whole_and_can_be_written_again(self, run: Run) -> None:
        attempt = reserve(run, usd=HALF)
        (pid,) = sql.fetch_row("SELECT pg_backend_pid()")
        with locked(run) as other, pytest.raises(OperationalError):
            transact(
                lambda: write(run),
                lambda: other.execute("SELECT pg_terminate_backend(%s)", [pid]),
                lambda: budgets.settle(attempt, Amounts(usd=TENTH)),
            )
        connection.close()
        assert (seen(run), usd(run)) == ("", UNSETTLED)
        expect_clean(run)
        with transaction.atomic():
            budgets.settle(attempt, Amounts(usd=TENTH))
        assert usd(run) == SETTLED

    def test_what_fails_after_the_commit_is_told_but_undoes_nothing(self, run: Run) -> None:
        with pytest.raises(DatabaseError, match="division by zero"):
            transact(lambda: write(run), lambda: sql.run_after_commit("SELECT 1 / 0"))
        assert seen(run) == "x"
        expect_clean(run)

    def test_what_cannot_be_written_down_undoes_its_transaction(self, run: Run) -> None:
        """It is no error of the database, after which Django would roll back."""
        with pytest.raises(UnicodeEncodeError):
            transact(
                lambda: write(run),
                lambda: sql.queue("UPDATE runs_run SET end_reason = %s WHERE id = %s", ["\ud800", run.pk]),
            )
        assert seen(run) == ""
        expect_clean(run)


class TestInVain:
    def test_an_exception_after_a_settlement_takes_it_back(self, run: Run) -> None:
        attempt = reserve(run, usd=HALF)
        with pytest.raises(ZeroDivisionError):
            transact(lambda: budgets.settle(attempt, Amounts(usd=TENTH)), fail)
        expect_clean(run)
        assert usd(run) == UNSETTLED

    def test_a_savepoint_that_is_rolled_back_takes_its_own_settlement_back_and_no_other(self, run: Run) -> None:
        kept, lost = reserve(run, usd=TENTH), reserve(run, usd=HALF)
        with transaction.atomic():
            budgets.settle(kept, Amounts(usd=TENTH))
            with pytest.raises(ZeroDivisionError):
                transact(lambda: budgets.settle(lost, Amounts(usd=TENTH)), fail)
        assert usd(run) == (TENTH, HALF, 0)
        expect_clean(run)

    def test_nothing_is_settled_in_a_block_that_will_be_rolled_back(self, run: Run) -> None:
        """Whoever settles there is told, as by any other statement."""
        attempt = reserve(run, usd=HALF)
        with transaction.atomic():
            write(run)
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                budgets.settle(attempt, Amounts(usd=TENTH))
        expect_clean(run)
        assert usd(run) == UNSETTLED

    def test_a_settlement_without_a_connection_is_told_and_does_not_join_another_transaction(self, run: Run) -> None:
        attempt = reserve(run, usd=HALF)
        with transaction.atomic():
            write(run)
            connection.close()
            with pytest.raises(TransactionManagementError):
                budgets.settle(attempt, Amounts(usd=TENTH))
        expect_clean(run)
        assert usd(run) == UNSETTLED


class TestBegun:
    @pytest.mark.parametrize("asked_before", [True, False])
    @pytest.mark.parametrize("listened", [True, False])
    def test_what_comes_after_it_is_undone_with_it(self, run: Run, asked_before: bool, listened: bool) -> None:
        with heard(listened), pytest.raises(ZeroDivisionError):
            transact(
                *([lambda: write(run)] if asked_before else []),
                switches.lock_shared,
                lambda: write(run),
                lambda: sql.queue("UPDATE runs_run SET end_reason = 'last' WHERE id = %s", [run.pk]),
                fail,
            )
        assert seen(run) == ""
        expect_clean(run)

    def test_a_savepoint_in_it_is_undone_alone(self, run: Run) -> None:
        with transaction.atomic():
            switches.lock_shared()
            write(run)
            with pytest.raises(ZeroDivisionError):
                transact(lambda: write(run), fail)
        assert seen(run) == "x"
        expect_clean(run)

    @pytest.mark.parametrize("listened", [True, False])
    def test_its_lock_is_held_until_the_end(self, run: Run, listened: bool) -> None:
        with psycopg.connect(**sql.connection_parameters()) as other:
            free = "SELECT pg_try_advisory_xact_lock(%s)"
            with heard(listened), transaction.atomic():
                switches.lock_shared()
                write(run)
                assert other.execute(free, [switches.SWITCH_LOCK]).fetchone() == (False,)
            assert other.execute(free, [switches.SWITCH_LOCK]).fetchone() == (True,)
        assert seen(run) == "x"

    def test_one_that_waits_too_long_begins_nothing(self, run: Run) -> None:
        with psycopg.connect(**sql.connection_parameters() | {"autocommit": False}) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", [switches.SWITCH_LOCK])
            sql.execute("SET lock_timeout = 50")
            try:
                with pytest.raises(OperationalError, match="lock timeout"):
                    transact(switches.lock_shared, lambda: write(run))
            finally:
                sql.execute("RESET lock_timeout")
            other.rollback()
        assert seen(run) == ""
        expect_clean(run)

    def test_one_whose_connection_is_cut_begins_nothing(self, run: Run) -> None:
        (pid,) = sql.fetch_row("SELECT pg_backend_pid()")
        with psycopg.connect(**sql.connection_parameters()) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(OperationalError):
            transact(switches.lock_shared, lambda: write(run))
        connection.close()
        assert seen(run) == ""
        expect_clean(run)

    def test_nothing_is_begun_in_a_block_that_will_be_rolled_back(self, run: Run) -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                switches.lock_shared()
        expect_clean(run)


class TestText:
    @pytest.mark.parametrize("standard", ["on", "off"])
    def test_hostile_texts_are_kept_as_they_are(self, run: Run, standard: str) -> None:
        sql.execute(f"SET standard_conforming_strings = {standard}")
        attempt = reserve(run, usd=HALF)
        deep: Json = {HOSTILE: [HOSTILE, {"long": HOSTILE * 10_000}]}
        try:
            with transaction.atomic():
                pricing = Pricing(model=HOSTILE, usage=deep, price=[HOSTILE])
                budgets.settle(attempt, Amounts(usd=TENTH), pricing=pricing, note=HOSTILE)
        finally:
            connection.close()
        entry = LedgerEntry.objects.get(attempt=attempt, kind="settle")
        assert (entry.note, entry.model, entry.usage, entry.price) == (HOSTILE, HOSTILE[:100], deep, [HOSTILE])


def test_a_connection_that_was_closed_is_forgotten(run: Run) -> None:
    """A web process makes one for each request."""
    sql.fetch_row("SELECT 1")
    sql.fetch_row("SELECT 1")
    closed = weakref.ref(connection.connection)
    connection.close()
    sql.fetch_row("SELECT 1")
    gc.collect()
    assert closed() is None


class TestQueued:
    def test_what_is_queued_goes_with_the_next_statement_and_before_it(self, run: Run) -> None:
        with transaction.atomic():
            sql.queue("UPDATE runs_run SET end_reason = 'queued' WHERE id = %s", [run.pk])
            assert connection.connection.pgconn.transaction_status == TransactionStatus.IDLE
            assert Run.objects.get(pk=run.pk).end_reason == "queued"
        assert seen(run) == "queued"
        expect_clean(run)

    def test_a_script_comes_after_it(self, run: Run) -> None:
        with transaction.atomic():
            sql.queue("UPDATE runs_run SET end_reason = 'a' WHERE id = %s", [run.pk])
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT 1; UPDATE runs_run SET end_reason = end_reason || 'b' WHERE id = {run.pk}")
        assert seen(run) == "ab"

    def test_rows_that_are_read_in_pieces_come_after_it(self, run: Run) -> None:
        with transaction.atomic():
            sql.queue("UPDATE runs_run SET end_reason = 'a' WHERE id = %s", [run.pk])
            rows = Run.objects.select_for_update(no_key=True).filter(pk=run.pk).iterator()
            assert [found.end_reason for found in rows] == ["a"]

    @pytest.mark.parametrize("listened", [True, False])
    @pytest.mark.parametrize("asked_after", [True, False])
    def test_one_that_changes_no_row_is_refused_and_undoes_its_transaction(
        self, run: Run, listened: bool, asked_after: bool
    ) -> None:
        with heard(listened), pytest.raises(ZeroDivisionError, match="nobody"):
            transact(
                lambda: write(run),
                lambda: sql.queue(
                    "UPDATE runs_run SET end_reason = '' WHERE id = %s", [-1], refusal=ZeroDivisionError("nobody")
                ),
                *([lambda: write(run)] if asked_after else []),
            )
        assert seen(run) == ""
        expect_clean(run)

    def test_what_is_refused_within_a_savepoint_is_raised_at_its_end(self, run: Run) -> None:
        with transaction.atomic():
            write(run)
            with pytest.raises(DatabaseError, match="division by zero"):
                transact(lambda: sql.queue("SELECT 1 / %s", [0]))
            write(run)
        assert seen(run) == "xx"
        expect_clean(run)

    def test_a_refusal_at_the_end_of_a_savepoint_undoes_it(self, run: Run) -> None:
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError):
                transact(lambda: write(run), lambda: refuse(run))
            sql.queue("UPDATE runs_run SET end_reason = end_reason || 'y' WHERE id = %s", [run.pk])
        assert seen(run) == "y"
        expect_clean(run)

    def test_a_refusal_before_a_savepoint_is_raised_before_it(self, run: Run) -> None:
        reached: list[bool] = []
        with pytest.raises(ZeroDivisionError):
            transact(lambda: refuse(run), lambda: transact(lambda: reached.append(True)))
        assert not reached
        assert seen(run) == ""
        expect_clean(run)

    def test_a_savepoint_that_is_given_up_takes_what_was_queued_in_it_and_no_more(self, run: Run) -> None:
        with transaction.atomic():
            sql.queue("UPDATE runs_run SET end_reason = 'kept' WHERE id = %s", [run.pk])
            with pytest.raises(ZeroDivisionError):
                transact(lambda: sql.queue("UPDATE runs_run SET end_reason = 'lost' WHERE id = %s", [run.pk]), fail)
        assert seen(run) == "kept"
        expect_clean(run)

    @pytest.mark.parametrize("asked_before", [True, False])
    def test_what_was_queued_in_a_savepoint_that_is_given_up_is_never_run(self, run: Run, asked_before: bool) -> None:
        with transaction.atomic():
            sql.queue("UPDATE runs_run SET end_reason = 'kept' WHERE id = %s", [run.pk])
            with pytest.raises(ZeroDivisionError):
                transact(*([lambda: write(run)] if asked_before else []), lambda: sql.queue("SELECT 1 / %s", [0]), fail)
            write(run)
        assert seen(run) == "keptx"
        expect_clean(run)

    def test_a_transaction_in_which_nothing_was_asked_is_not_begun(self, run: Run) -> None:
        with transaction.atomic():
            assert connection.connection.pgconn.transaction_status == TransactionStatus.IDLE
        with pytest.raises(ZeroDivisionError):
            transact(lambda: sql.queue("UPDATE runs_run SET end_reason = 'lost' WHERE id = %s", [run.pk]), fail)
        assert seen(run) == ""
        expect_clean(run)

    def test_one_that_waits_too_long_undoes_what_it_travelled_with(self, run: Run) -> None:
        with locked(run), pytest.raises(OperationalError, match="lock timeout"):
            transact(
                lambda: sql.execute("SET LOCAL lock_timeout = 50"),
                lambda: sql.queue("SELECT lw_queue_for_budget(%s)", [run.pk]),
                lambda: write(run),
            )
        assert seen(run) == ""
        expect_clean(run)


class TestAsked:
    """`sql.ask`: as what is queued, with an answer."""

    @pytest.mark.parametrize("listened", [True, False])
    def test_each_has_the_answer_of_its_place_whatever_is_asked_first(self, run: Run, listened: bool) -> None:
        reason = ("SELECT end_reason FROM runs_run WHERE id = %s", [run.pk])
        with heard(listened), transaction.atomic():
            before = sql.ask(*reason)
            sql.queue("UPDATE runs_run SET end_reason = 'a' WHERE id = %s", [run.pk])
            between = sql.ask(*reason)
            write(run)
            after = sql.ask(*reason)
            assert [after.row(), between.row(), before.row()] == [("ax",), ("a",), ("",)]
            assert after.all() == [("ax",)]
        assert seen(run) == "ax"
        expect_clean(run)

    def test_it_is_not_waited_for_before_somebody_wants_it(self, run: Run) -> None:
        with transaction.atomic():
            asked = sql.ask("SELECT 1")
            assert connection.connection.pgconn.transaction_status == TransactionStatus.IDLE
            assert asked.row() == (1,)
            assert connection.connection.pgconn.transaction_status == TransactionStatus.INTRANS
        expect_clean(run)

    def test_it_can_be_read_after_the_commit_with_which_it_went(self, run: Run) -> None:
        with transaction.atomic():
            write(run)
            asked = sql.ask("SELECT end_reason FROM runs_run WHERE id = %s", [run.pk])
        assert asked.row() == ("x",)
        expect_clean(run)

    def test_without_a_transaction_it_is_asked_at_once(self, run: Run) -> None:
        asked = sql.ask("SELECT end_reason FROM runs_run WHERE id = %s", [run.pk])
        write(run)
        assert asked.row() == ("",)

    def test_one_that_fails_undoes_its_transaction(self, run: Run) -> None:
        with pytest.raises(DatabaseError, match="division by zero"):
            transact(lambda: write(run), lambda: sql.ask("SELECT 1 / 0"), lambda: write(run))
        assert seen(run) == ""
        expect_clean(run)

    def test_of_a_savepoint_that_was_given_up_there_is_no_answer(self, run: Run) -> None:
        asked: list[sql.Answer] = []
        with transaction.atomic():
            write(run)
            with pytest.raises(ZeroDivisionError):
                transact(lambda: asked.append(sql.ask("SELECT 1")), fail)
            with pytest.raises(LookupError, match="never run"):
                asked[0].row()
        assert seen(run) == "x"
        expect_clean(run)

    @pytest.mark.parametrize("listened", [True, False])
    def test_what_is_asked_after_the_commit_sees_what_others_wrote_until_then(self, run: Run, listened: bool) -> None:
        name = "SELECT DISTINCT first_name FROM auth_user"
        with heard(listened), psycopg.connect(**sql.connection_parameters()) as other, transaction.atomic(durable=True):
            write(run)
            own = sql.ask_after_commit("SELECT end_reason FROM runs_run WHERE id = %s", [run.pk])
            written = sql.ask_after_commit(name)
            assert sql.fetch_row(name) == ("",)
            other.execute("UPDATE auth_user SET first_name = 'other'")
        assert own.row() == ("x",)
        assert written.row() == ("other",)
        expect_clean(run)

    def test_what_is_asked_after_a_commit_that_fails_has_no_answer(self, run: Run) -> None:
        asked: list[sql.Answer] = []
        with pytest.raises(ZeroDivisionError):
            transact(lambda: write(run), lambda: asked.append(sql.ask_after_commit("SELECT 1")), fail)
        with pytest.raises(LookupError, match="never run"):
            asked[0].row()
        expect_clean(run)
