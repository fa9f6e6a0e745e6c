"""The journal has no gap within a run, whoever writes at once, and says which transaction wrote each entry."""

import threading

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from runs import course, journal, lifecycle, notify, sql
from runs.errors import OutsideTransaction
from runs.journal import AGENT, append, person
from runs.models import JournalEntry, Run
from runs.states import RunState
from tests.writers import Thread, claim, start, together
from tests.writers import person as ana

__all__ = ["ana"]


@pytest.fixture
def run(db: None) -> Run:
    return start(User.objects.create_superuser("ana"))


def entries(run: Run) -> list[tuple[int | None, str]]:
    return list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", "kind"))


def write_and_roll_back(run: Run) -> None:
    with transaction.atomic():
        append("never.happened", run=run.pk)
        transaction.set_rollback(True)


@pytest.mark.django_db
def test_entries_count_from_one_and_the_run_knows_the_last(run: Run) -> None:
    with transaction.atomic():
        lifecycle.lock(run.pk)
        append("note.made", run=run.pk)
    assert entries(run) == [(1, "run.started"), (2, "note.made")]
    run.refresh_from_db()
    assert run.journal_seq == 2


@pytest.mark.django_db
def test_what_is_rolled_back_leaves_no_gap(run: Run) -> None:
    with transaction.atomic():
        lifecycle.lock(run.pk)
        write_and_roll_back(run)
        append("note.made", run=run.pk)
    assert entries(run)[-1] == (2, "note.made")


@pytest.mark.django_db
def test_an_entry_of_no_run_has_no_number_and_one_of_an_unknown_run_is_refused(run: Run) -> None:
    with transaction.atomic():
        append("switch.engaged", why="all of it")
    with pytest.raises(IntegrityError, match="there is no run"), transaction.atomic():
        append("note.made", run=run.pk + 1000)
    entry = JournalEntry.objects.get(kind="switch.engaged")
    assert (entry.run_id, entry.seq) == (None, None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("undone", [True, False])
def test_entries_around_a_savepoint_are_in_the_order_of_what_they_tell(run: Run, undone: bool) -> None:
    with transaction.atomic():
        lifecycle.lock(run.pk)
        append("note.one", run=run.pk)
        with transaction.atomic():
            append("note.two", run=run.pk)
            transaction.set_rollback(undone)
        append("note.three", run=run.pk)
    told = [kind for _, kind in entries(run)]
    assert told == ["run.started", "note.one", *([] if undone else ["note.two"]), "note.three"]


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_shown_of_one_entry_leaves_the_others_as_they_are(run: Run) -> None:
    with transaction.atomic(), journal.together():
        lifecycle.lock(run.pk)
        append("note.made", run=run.pk, before={"a": 1}, after={"b": Unspeakable()}, why="one")
        append("note.made", run=run.pk, after={"b": 2}, why="two")
    kept = JournalEntry.objects.filter(run=run, kind="note.made").order_by("seq").values_list("before", "after", "why")
    assert list(kept) == [({"a": 1}, "… cannot be shown: dict (ValueError)", "one"), (None, {"b": 2}, "two")]


@pytest.mark.django_db
def test_who_what_before_after_and_why_are_kept(run: Run) -> None:
    user = User.objects.get(username="ana")
    with transaction.atomic():
        lifecycle.lock(run.pk)
        append("limit.changed", run=run.pk, actor=person(user), before={"usd": "1"}, after={"usd": "2"}, why="more")
        append("fact.recorded", run=run.pk, actor=AGENT)
    mine, agents = JournalEntry.objects.filter(run=run).order_by("seq")[1:3]
    assert (mine.actor, mine.user_id, mine.before, mine.after, mine.why) == (
        "person:ana", user.pk, {"usd": "1"}, {"usd": "2"}, "more"
    )  # fmt: skip
    assert (agents.actor, agents.user_id, agents.before) == ("agent", None, None)


@pytest.mark.django_db
def test_every_move_of_a_run_has_its_entry_with_the_state_before_and_after(run: Run) -> None:
    first = claim(run)
    with transaction.atomic():
        lifecycle.move(lifecycle.lock_held(first), RunState.THINKING)
        lifecycle.move(lifecycle.lock(run.pk), RunState.QUEUED)
    claim(run)
    with transaction.atomic():
        course.end(lifecycle.lock_with_descendants(run.pk), RunState.FAILED, reason="it could not")
    moves = [
        (entry.before["state"], entry.after["state"])
        for entry in JournalEntry.objects.filter(run=run, kind__startswith="run.").order_by("seq")
        if entry.before is not None and entry.after is not None
    ]
    assert moves == [
        ("queued", "running"),
        ("running", "thinking"),
        ("thinking", "queued"),
        ("queued", "running"),
        ("running", "failed"),
    ]


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_two_hundred_entries_from_eight_connections_have_no_gap_and_no_double(self, run: Run) -> None:
        def write() -> None:
            for n in range(25):
                with transaction.atomic():
                    lifecycle.lock(run.pk)
                    append("note.made", run=run.pk)
                    if n % 5 == 0:
                        append("note.made", run=run.pk)
                if n % 7 == 0:
                    write_and_roll_back(run)

        assert together(*[write] * 8) == [None] * 8
        found = entries(run)
        assert [seq for seq, _ in found] == list(range(1, 8 * 30 + 2))
        assert "never.happened" not in {kind for _, kind in found}
        assert Run.objects.get(pk=run.pk).journal_seq == len(found)

    def test_numbers_are_given_in_the_order_of_the_commits(self, run: Run) -> None:
        def write() -> None:
            for _ in range(20):
                with transaction.atomic():
                    append("note.made", run=run.pk)

        together(*[write] * 4)
        at = list(JournalEntry.objects.filter(run=run).order_by("seq").values_list("at", flat=True))
        assert at == sorted(at)

    def test_an_entry_names_its_transaction_so_that_a_reader_stays_below_the_oldest_writer(self, run: Run) -> None:
        wrote, go_on = threading.Event(), threading.Event()

        def slow() -> int:
            with transaction.atomic():
                append("slow.written")
                (xid,) = sql.fetch_row("SELECT pg_current_xact_id()::text::bigint")
                wrote.set()
                assert go_on.wait(20)
                return int(xid)

        writer = Thread(slow)
        assert wrote.wait(20)
        with transaction.atomic():
            append("quick.written")
        (oldest,) = sql.fetch_row("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        quick = JournalEntry.objects.get(kind="quick.written")
        assert quick.xid >= oldest, "a reader that stays below the oldest writer does not pass the slow entry"
        go_on.set()
        slow_xid = writer.finish()
        # Others on this server, in databases of their own, may have begun earlier still.
        assert oldest <= slow_xid
        slow_entry = JournalEntry.objects.get(kind="slow.written")
        assert slow_entry.xid == slow_xid
        assert slow_entry.pk < quick.pk, "by its number alone the reader would have skipped it"

    def test_outside_a_transaction_nothing_is_written(self, run: Run) -> None:
        with pytest.raises(OutsideTransaction):
            append("note.made", run=run.pk)
        with pytest.raises(OutsideTransaction):
            journal.require_transaction()
        assert entries(run) == [(1, "run.started")]

    def test_a_hint_is_sent_after_the_commit_and_none_after_a_rollback(self, run: Run) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {notify.SCREEN}")
        assert connection.connection is not None
        notify.flush()
        list(connection.connection.notifies(timeout=0.2))
        write_and_roll_back(run)
        assert list(connection.connection.notifies(timeout=0.1)) == []
        with transaction.atomic():
            append("note.made", run=run.pk)
        notify.flush()
        heard = {n.payload for n in connection.connection.notifies(timeout=2, stop_after=2)}
        assert f"run.{run.pk}" in heard
