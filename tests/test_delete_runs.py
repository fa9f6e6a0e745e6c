"""Runs that ended long ago are deleted as whole trees, with all that belongs to them and nothing else."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.db.models import ForeignKey

from runs import artifacts, budgets, clock, facts, lifecycle, limits, operations, retention, sql, steps
from runs.access import Role
from runs.allowances import Terms
from runs.approvals import Said
from runs.errors import Forbidden, Malformed, UnknownAgent
from runs.journal import RUNTIME
from runs.models import AllowanceWindow, Artifact, Event, JournalEntry, Run, Step
from runs.operations import Deletion
from runs.retention import DELETED, STAYS
from runs.states import CheckOutcome, StepKind, Verdict
from tests import situations
from tests.crowd import fill
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.page_tools import client_of
from tests.people import api_of, error_of, make_person
from tests.writers import Thread, errors, person, shifted, start, start_child, together, until_blocked

__all__ = ["engine", "person", "shop_process", "workers"]

DAYS = 86_400.0


def delete(by: User, *, days: float = 40, **given: Any) -> Deletion:
    total = Deletion()
    for done in operations.delete_runs(older_than_s=days * DAYS, by=by, **given):
        total.add(done)
    return total


def end(run: Run, by: User) -> None:
    operations.stop_run(run.pk, reason="enough", by=by)


def ended(by: User, **given: Any) -> Run:
    run = situations.start(by, **given)
    end(run, by)
    return run


def worked(by: User) -> Run:
    """A run with a step that is done."""
    run = situations.start(by)
    situations.finish(situations.take(run))
    change("UPDATE runs_run SET priority = -1 WHERE id = %(run)s", run)
    return run


def store(body: bytes, run: Run, *, table: str = "runs_step") -> int:
    """An artifact that the steps of a run have, or its keys."""
    with transaction.atomic():
        ident = artifacts.store(body, media_type="text/plain").pk
        change(f"UPDATE {table} SET artifact_id = {ident} WHERE run_id = %(run)s", run)
    return ident


def change(statement: str, run: Run) -> None:
    """As it cannot be done, or hardly: past the guards."""
    with transaction.atomic():
        sql.execute("SET LOCAL session_replication_role = replica")
        assert sql.execute(statement, {"run": run.pk}) > 0
        sql.execute("SET LOCAL session_replication_role = DEFAULT")


@pytest.fixture
def rich(person: User) -> Callable[[], Run]:
    """Makes an ended tree of two runs with a row in every table."""
    terms = Terms(scope="all", dimension="steps", period="day", hard=Decimal(100))
    operations.create_allowance(terms, reason="the plan", by=person)
    with transaction.atomic():
        limits.know("a-key")
    made = iter(range(1, 100))

    def make() -> Run:
        number = next(made)
        run, _ = operations.start_run(
            operations.Start(agent=situations.AGENT, goal="x"), by=person, idempotency_key=f"k{number}"
        )
        attempt = situations.take(run)
        with transaction.atomic():
            lifecycle.lock(run.pk)
            budgets.reserve(run.pk, budgets.Amounts(steps=1), attempt=attempt.pk)
            budgets.settle(attempt.pk, budgets.Amounts(steps=1))
        situations.finish(attempt, {"done": True})
        asking = situations.ask_approval(run)
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            facts.note_use(facts.judge(run.pk, [asking.fact.name]).values(), attempt=attempt.pk)
            facts.check_failed(asking.fact, CheckOutcome.UNREACHABLE, "no answer", step=asking.step.pk)
            think = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
            lifecycle.add_work(run.pk, ["one"], step=think.pk)
            given = {"run": run.pk, "step": think.pk, "card": asking.card.pk, "key": attempt.key_id, "n": number}
            for rows in (
                "runs_keptfold (run_id, think, rules, state) VALUES (%(run)s, 1, '', '')",
                "runs_keyalias (key_id, namespace, intent) SELECT id, namespace, 'x' FROM runs_key WHERE id = %(key)s",
                "runs_providerturn (limit_id, step_id, at) SELECT id, %(step)s, lw_now() FROM runs_providerlimit LIMIT 1",
                "runs_event (name, key, source, delivery_id, agents, received_at, step_id, matched_at)"
                " VALUES ('paid', 'k', 'shop', %(n)s, '[]', lw_now(), %(step)s, lw_now())",
                "runs_notice (approval_id, event, channel, state, tries, created_at, due_at, error)"
                " VALUES (%(card)s, 'new', 'mail', 'sent', 1, lw_now(), lw_now(), '')",
            ):
                sql.execute(f"INSERT INTO {rows}", given)
        start_child(run)
        operations.amend_run(run.pk, text="and more", by=person)
        operations.decide(asking.card.pk, Said(verdict=Verdict.REJECT, comment="no"), by=person)
        store(b"own %d" % number, run, table="runs_key")
        store(b"shared", run)
        end(run, person)
        return run

    return make


def rows_of(runs: Sequence[int]) -> dict[str, list[str]]:
    """The rows of runs that go with them, by table."""
    return {
        table: sorted(text for (text,) in sql.fetch_all(f"SELECT t::text FROM {table} t WHERE {rows}", {"runs": runs}))
        for table, rows in DELETED.items()
    }


def dump() -> dict[str, list[str]]:
    """Every row that there is, but for the journal."""
    return {
        table: sorted(text for (text,) in sql.fetch_all(f"SELECT t::text FROM {table} t"))
        for table in {*DELETED, "runs_artifact", "runs_startrequest", "runs_allowancewindow"} - {"runs_journalentry"}
    }


@pytest.mark.django_db
class TestWhatGoes:
    def test_all_of_a_tree_goes_and_another_one_keeps_every_row(self, rich: Callable[[], Run], person: User) -> None:
        gone = rich()
        tree = list(Run.objects.filter(root=gone).values_list("pk", flat=True))
        steps = Step.objects.filter(run__in=tree).count()
        assert {table for table, rows in rows_of(tree).items() if not rows} == set(), "each table has a row of it"
        with shifted(timedelta(days=41)):
            kept = list(Run.objects.filter(root=rich()).values_list("pk", flat=True))
            before = rows_of(kept)
            done = delete(person)
        assert done == Deletion(trees=1, runs=2, steps=steps, artifacts=1, bytes=len(b"own 1"))
        assert rows_of(kept) == before
        assert {table: rows for table, rows in rows_of(tree).items() if rows} == {}
        # Nothing is left that belongs to no run.
        for table in DELETED.keys() - {"runs_journalentry"}:
            assert sql.fetch_row(f"SELECT count(*) FROM {table}")[0] == len(before[table]), table
        assert {bytes(body) for (body,) in sql.fetch_all("SELECT body FROM runs_artifact")} == {b"own 2", b"shared"}
        assert list(AllowanceWindow.objects.values_list("spent", flat=True)) == [1, 1], "what was used stays used"

    def test_what_people_did_stays_and_who_deleted_it_is_in_the_journal(self, person: User) -> None:
        run = ended(person)
        other = situations.start(person)
        with shifted(timedelta(days=41)):
            delete(person)
            assert delete(person) == Deletion()
        kept = JournalEntry.objects.filter(run=run.pk).order_by("id").values_list("kind", "user")
        assert list(kept) == [("run.started", person.pk), ("run.stopped", person.pk)]
        (entry,) = JournalEntry.objects.filter(kind="runs.deleted")
        assert (entry.run_id, entry.actor) == (None, "person:ana")
        assert isinstance(entry.after, dict)
        assert {name: entry.after[name] for name in ("trees", "runs", "steps")} == {
            "trees": [run.pk], "runs": 1, "steps": 0,
        }  # fmt: skip
        assert "ended_before" in entry.after
        page = client_of(person).get("/journal").content.decode()
        assert f">{run.pk}</td>" in page
        assert f"/runs/{run.pk}" not in page
        assert f"/runs/{other.pk}" in page
        assert client_of(person).get("/admin/runs/journalentry/").status_code == 200

    def test_the_journal_is_append_only_again_after_it(self, person: User) -> None:
        ended(person)
        other = ended(person)
        with shifted(timedelta(days=41)):
            sql.execute("UPDATE runs_run SET drained_at = NULL WHERE id = %s", [other.pk])
            assert delete(person).runs == 1
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                sql.execute("DELETE FROM runs_journalentry WHERE run_id = %s", [other.pk])

    def test_a_switch_for_a_run_that_is_gone_is_shown_and_can_be_released(self, person: User) -> None:
        run = ended(person)
        switch = operations.engage_switch(f"run:{run.pk}", reason="look first", by=person)
        with shifted(timedelta(days=41)):
            assert delete(person).runs == 1
        assert f"run {run.pk}" in client_of(person).get("/switches").content.decode().lower()
        operations.release_switch(switch.pk, reason="looked", by=person)

    def test_an_artifact_goes_with_the_last_run_that_uses_it(self, person: User) -> None:
        first, second = worked(person), worked(person)
        assert store(b"both", first) == store(b"both", second)
        end(first, person)
        with shifted(timedelta(days=41)):
            assert delete(person, dry_run=True).artifacts == 0
            assert delete(person).artifacts == 0
            assert Artifact.objects.count() == 1
            end(second, person)
        with shifted(timedelta(days=82)):
            done = delete(person)
        assert (done.artifacts, done.bytes, Artifact.objects.count()) == (1, 4, 0)

    def test_a_delivery_that_ended_a_wait_goes_with_its_run(self, rich: Callable[[], Run], person: User) -> None:
        rich()
        with shifted(timedelta(days=41)):
            delete(person)
        assert Event.objects.count() == 0

    def test_a_start_with_the_key_of_a_deleted_run_is_refused_and_starts_nothing(self) -> None:
        ana = make_person("ana", Role.ADMIN)
        body = {"agent": situations.AGENT, "goal": "x"}
        headers = {"Idempotency-Key": "batch-b1"}
        run = Run.objects.get(pk=api_of(ana).post("/runs", body, **headers).json()["id"])
        end(run, ana)
        with shifted(timedelta(days=41)):
            assert delete(ana).runs == 1
        answer = api_of(ana).post("/runs", body, **headers)
        assert (answer.status_code, error_of(answer)["code"]) == (409, "run_deleted")
        assert str(run.pk) in error_of(answer)["message"]
        again = api_of(ana).post("/runs", body | {"goal": "y"}, **headers)
        assert (again.status_code, error_of(again)["code"]) == (422, "idempotency_key_reused")
        assert Run.objects.count() == 0


@pytest.mark.django_db
class TestWhatStays:
    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            ("UPDATE runs_run SET drained_at = NULL WHERE id = %(run)s", "open call"),
            ("UPDATE runs_attempt SET outcome = 'open', ended_at = NULL WHERE run_id = %(run)s", "open call"),
            ("UPDATE runs_key SET state = 'taken', closed_at = NULL WHERE run_id = %(run)s", "open call"),
            ("UPDATE runs_key SET state = 'in_doubt', closed_at = NULL WHERE run_id = %(run)s", "open call"),
            (
                "UPDATE runs_step SET state = 'in_doubt', ended_at = NULL, waiting_for = 'verdict', wait_note = 'which'"
                " WHERE run_id = %(run)s AND kind = 'act'",
                "open call",
            ),
            ("UPDATE runs_step SET state = 'planned', ended_at = NULL WHERE run_id = %(run)s", "open call"),
            (
                "INSERT INTO runs_lock (name, key_id, run_id, taken_at)"
                " SELECT 'order.7', id, run_id, lw_clock() FROM runs_key WHERE run_id = %(run)s",
                "open call",
            ),
            ("UPDATE runs_approval SET state = 'pending', closed_at = NULL WHERE run_id = %(run)s", "open card"),
            ("UPDATE runs_ledgerentry SET at = lw_clock() WHERE run_id = %(run)s AND kind = 'settle'", "open spend"),
            ("UPDATE runs_ledgerentry SET unpriced = true WHERE run_id = %(run)s AND kind = 'settle'", "open spend"),
        ],
    )
    @pytest.mark.parametrize("where", ["at the top", "below"])
    def test_a_tree_with_something_open_in_it_stays_whole_and_is_counted(
        self, rich: Callable[[], Run], person: User, statement: str, why: str, where: str
    ) -> None:
        run = rich()
        if where == "below":
            above = ended(person)
            change(
                f"UPDATE runs_run SET root_id = {above.pk}, depth = depth + 1,"
                f" parent_id = coalesce(parent_id, {above.pk}) WHERE root_id = %(run)s",
                run,
            )
        with shifted(timedelta(days=41)):
            change(statement, run)
            before = dump()
            assert delete(person, dry_run=True) == delete(person) == Deletion(kept={why: 1})
            assert dump() == before

    def test_it_is_judged_again_when_its_runs_are_locked(
        self, rich: Callable[[], Run], person: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = rich()
        judged = retention.list_ended

        def late(**given: Any) -> Any:
            found = judged(**given)
            sql.execute("UPDATE runs_run SET drained_at = NULL WHERE id = %s", [run.pk])
            return found

        monkeypatch.setattr(retention, "list_ended", late)
        with shifted(timedelta(days=41)):
            assert delete(person) == Deletion(kept={"open call": 1})
        assert Run.objects.count() == 2

    def test_a_tree_is_as_young_as_its_youngest_run(self, person: User) -> None:
        run = start(person)
        child = start_child(run)
        end(run, person)
        with shifted(timedelta(days=41)):
            change("UPDATE runs_run SET ended_at = lw_clock() - interval '39 days' WHERE id = %(run)s", child)
            assert delete(person) == Deletion()
            change(
                "UPDATE runs_run SET ended_at = NULL, drained_at = NULL, state = 'queued', due_at = lw_clock()"
                " WHERE id = %(run)s",
                child,
            )
            assert delete(person) == Deletion()
        assert Run.objects.count() == 2

    def test_open_runs_and_young_ones_stay(self, person: User) -> None:
        old, young, living = ended(person), start(person), start(person)
        with shifted(timedelta(days=41)):
            end(young, person)
            assert delete(person).runs == 1
        assert set(Run.objects.all()) == {young, living}
        assert old not in Run.objects.all()

    def test_only_those_of_an_agent(self, person: User) -> None:
        desk, scripted = ended(person), start(person)
        end(scripted, person)
        with shifted(timedelta(days=41)):
            assert delete(person, agent="scripted").runs == 1
            with pytest.raises(UnknownAgent):
                delete(person, agent="scriptd")
        assert set(Run.objects.all()) == {desk}

    def test_an_admin_deletes_the_runs_that_they_see_and_nobody_else_any(self, person: User) -> None:
        desk, scripted = ended(person), start(person)
        end(scripted, person)
        with shifted(timedelta(days=41)):
            with pytest.raises(Forbidden):
                delete(make_person("olga", Role.OPERATOR))
            for seconds in (0.0, 31 * DAYS, float("nan"), 1e30):
                with pytest.raises(Malformed):
                    list(operations.delete_runs(older_than_s=seconds, by=person))
            narrow = make_person("noor", Role.ADMIN, agents=("scripted",))
            with pytest.raises(Forbidden):
                delete(narrow, agent=situations.AGENT)
            assert delete(narrow).runs == 1
        assert set(Run.objects.all()) == {desk}


def run_command(*arguments: str) -> str:
    said = io.StringIO()
    call_command("deleteruns", *arguments, stdout=said)
    return said.getvalue()


@pytest.mark.django_db
def test_the_command_says_what_would_go_and_what_went(rich: Callable[[], Run], person: User) -> None:
    rich()
    rich()
    kept = rich()
    steps = Step.objects.exclude(run__root=kept).count()
    with shifted(timedelta(days=41)):
        sql.execute("UPDATE runs_run SET drained_at = NULL WHERE id = %s", [kept.pk])
        before = dump()
        of_it = f"4 runs with {steps} steps and 2 artifacts (10 bytes)"
        why = "1 trees of runs are kept: each has a call that is open or in doubt.\n"
        assert run_command("--older-than=40d", "--dry-run") == f"{of_it} would be deleted.\n{why}"
        assert dump() == before
        assert not JournalEntry.objects.filter(kind="runs.deleted").exists()
        assert json.loads(run_command("--older-than=40d", "--dry-run", "--json")) == {
            "dry_run": True, "trees": 2, "runs": 4, "steps": steps, "artifacts": 2, "bytes": 10, "kept": {"open call": 1},
        }  # fmt: skip
        assert run_command("--older-than=40d", "--as=ana") == f"{of_it} are deleted.\n{why}"
        assert run_command("--older-than=40d").startswith("0 runs with 0 steps")
    with pytest.raises(CommandError, match="32 days"):
        run_command("--older-than=1d")


def referring() -> Iterator[tuple[str, str, str]]:
    """(table, column, table that it refers to) of every reference that a model or the database knows."""
    for model in apps.get_app_config("runs").get_models():
        for each in model._meta.concrete_fields:
            if isinstance(each, ForeignKey):
                yield model._meta.db_table, each.column, each.related_model._meta.db_table
    yield from sql.fetch_all(
        "SELECT c.conrelid::regclass::text, a.attname, c.confrelid::regclass::text FROM pg_constraint c"
        " JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1] WHERE c.contype = 'f'"
    )


@pytest.mark.django_db
def test_whatever_refers_to_a_run_or_to_what_belongs_to_it_is_dealt_with() -> None:
    """A lock keeps its run: it goes with its key. Everything else is deleted, or named as what stays."""
    references = set(referring())
    assert len(references) > 50
    left = {
        f"{table}.{column}"
        for table, column, to in references
        if to in DELETED and table not in DELETED and f"{table}.{column}" not in STAYS
    }
    assert left == {"runs_lock.key_id", "runs_lock.run_id"}
    of_runs = {f"{table}.{column}" for table, column, to in references if to in DELETED}
    assert of_runs >= STAYS
    # Entries of people stay: nothing may hold them to what goes.
    held = sql.fetch_all(
        "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid IN"
        " ('runs_journalentry'::regclass, 'runs_startrequest'::regclass) AND confrelid::regclass::text = ANY(%s)",
        [[*DELETED]],
    )
    assert held == []
    owned = {table for table, column, _ in references if table in DELETED and column == "run_id"}
    assert owned <= set(DELETED)


@pytest.mark.django_db
def test_each_reference_to_what_goes_has_an_index() -> None:
    """PostgreSQL looks for who refers to each row that it deletes."""
    without = sql.fetch_all(
        "SELECT c.conrelid::regclass::text, a.attname FROM pg_constraint c"
        " JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]"
        " WHERE c.contype = 'f' AND c.confrelid::regclass::text = ANY(%s) AND NOT EXISTS (SELECT FROM pg_index i"
        "  WHERE i.indrelid = c.conrelid AND i.indkey[0] = a.attnum AND (i.indpred IS NULL"
        "   OR pg_get_expr(i.indpred, i.indrelid) = format('(%%I IS NOT NULL)', a.attname)))",
        [[*DELETED, "runs_artifact"]],
    )
    assert without == []


@pytest.mark.django_db(transaction=True)
class TestCrashes:
    def test_whoever_dies_at_any_statement_leaves_whole_trees(
        self, rich: Callable[[], Run], person: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rich()
        before = dump()
        really = sql.execute
        with shifted(timedelta(days=41)):
            for table in DELETED:

                def fail(statement: str, params: Any = (), *, table: str = table) -> int:
                    done = really(statement, params)
                    if statement.startswith(f"DELETE FROM {table} "):
                        raise KeyboardInterrupt
                    return done

                monkeypatch.setattr(sql, "execute", fail)
                with pytest.raises(KeyboardInterrupt):
                    delete(person)
                monkeypatch.setattr(sql, "execute", really)
                assert dump() == before, table
            assert delete(person).runs == 2

    def test_whoever_is_interrupted_between_batches_says_so_and_can_go_on(
        self, rich: Callable[[], Run], person: User, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            rich()
        monkeypatch.setattr(operations.retention, "_BATCH", 1)
        really = retention.delete
        done: list[object] = []

        def second(trees: Sequence[retention.Tree], **given: Any) -> Deletion:
            if done:
                raise KeyboardInterrupt
            done.append(trees)
            return really(trees, **given)

        monkeypatch.setattr(retention, "delete", second)
        said = io.StringIO()
        with shifted(timedelta(days=41)):
            with pytest.raises(CommandError, match="Interrupted"):
                call_command("deleteruns", "--older-than=40d", stdout=said)
            assert said.getvalue().startswith("2 runs with ")
            assert Run.objects.count() == 4
            monkeypatch.setattr(retention, "delete", really)
            assert (delete(person).runs, Run.objects.count()) == (4, 0)
        assert JournalEntry.objects.filter(kind="runs.deleted").count() == 3

    def test_two_at_once_delete_each_tree_and_each_artifact_once(self, rich: Callable[[], Run], person: User) -> None:
        for _ in range(4):
            rich()
        with shifted(timedelta(days=41)):
            results = together(*([lambda: delete(person)] * 2))
        assert errors(results) == []
        assert sum(each.runs for each in results) == 8
        assert (sum(each.artifacts for each in results), Artifact.objects.count()) == (5, 0)

    def test_of_two_deletions_the_second_takes_what_both_runs_used(self, person: User) -> None:
        runs = [worked(person), worked(person)]
        for run in runs:
            store(b"both", run)
            end(run, person)
        with shifted(timedelta(days=41)):
            before = clock.now() - timedelta(days=40)
            first, second = retention.list_ended(before=before, agents=["*"], limit=9)

            def delete_second() -> Deletion:
                with transaction.atomic():
                    return retention.delete([second], before=before, actor=RUNTIME)

            with transaction.atomic():
                assert retention.delete([first], before=before, actor=RUNTIME).artifacts == 0
                other = Thread(delete_second)
                until_blocked()
            assert other.finish().artifacts == 1
        assert not Artifact.objects.exists()

    def test_what_is_stored_again_while_it_is_deleted_is_there_afterwards(self, person: User) -> None:
        old, new = worked(person), worked(person)
        store(b"both", old)
        end(old, person)
        with shifted(timedelta(days=41)):
            with transaction.atomic():
                trees = retention.list_ended(before=clock.now() - timedelta(days=40), agents=["*"], limit=9)
                done = retention.delete(trees, before=clock.now() - timedelta(days=40), actor=RUNTIME)
                assert done.artifacts == 1
                storing = Thread(partial(store, b"both", new))
                until_blocked()
            kept = storing.finish()
        assert Step.objects.get(run=new).artifact_id == kept == Artifact.objects.get().pk

    def test_what_is_being_stored_again_is_not_deleted_nor_waited_for(self, person: User) -> None:
        old, new = worked(person), worked(person)
        store(b"both", old)
        end(old, person)
        with shifted(timedelta(days=41)), transaction.atomic():
            ident = artifacts.store(b"both", media_type="text/plain").pk
            assert Thread(lambda: delete(person)).finish().artifacts == 0
            sql.execute("UPDATE runs_step SET artifact_id = %s WHERE run_id = %s", [ident, new.pk])
        assert Step.objects.get(run=new).artifact_id == Artifact.objects.get().pk

    def test_beside_a_worker_live_runs_go_on_and_end(self, engine: Engine) -> None:
        for _ in range(6):
            end(engine.start([call("give", value=1)]), engine.person)
        with shifted(timedelta(days=41)):
            script = [[call("plan", add=["a"])], [call("spawn", agent="scripted", goal="help")], [call("plan", close=[{"item": "w1", "outcome": "done"}])]]  # fmt: skip # noqa: E501
            runs = [engine.start(*script) for _ in range(4)]

            def often() -> int:
                return sum(delete(engine.person).runs for _ in range(20))

            deleting = Thread(often)
            for run in runs:
                engine.until_rest(run, sweeps=2)
            assert deleting.finish() == 6
        assert {Run.objects.get(pk=run.pk).state for run in runs} == {"succeeded"}
        assert Run.objects.filter(parent=None).count() == 4
        assert budgets.mismatches() == []


FINISHED, OLD = 8_000, 40


@pytest.mark.django_db(transaction=True)
def test_finding_and_deleting_touches_what_goes_and_little_else(person: User) -> None:
    fill(finished=FINISHED, waiting=2_000, due=0)
    with transaction.atomic():
        sql.execute("SET LOCAL session_replication_role = replica")
        sql.execute("UPDATE runs_run SET ended_at = now() - interval '41 days', created_at = now() - interval '42 days'"
                    " WHERE id <= %s", [OLD])  # fmt: skip
        sql.execute("UPDATE runs_ledgerentry SET at = now() - interval '41 days' WHERE run_id <= %s", [OLD])
    before = read()
    assert delete(person).runs == OLD
    grown = {table: tuple(b - a for a, b in zip(before[table], now, strict=True)) for table, now in read().items()}
    assert {table: whole for table, (whole, _) in grown.items() if whole} == {}
    # A row is looked for by each table that may refer to it, and by what deletes it.
    assert {table: rows for table, (_, rows) in grown.items() if rows > 30 * OLD} == {}
    assert sum(rows for _, rows in grown.values()) > 10 * OLD, "it was counted"


def read() -> dict[str, tuple[int, int]]:
    """By table of many rows: how many were read by going through all of it, and through its indexes, so far."""
    sql.execute("SELECT pg_stat_force_next_flush()")
    return {
        table: (whole, rows)
        for table, whole, rows in sql.fetch_all(
            "SELECT relname, seq_tup_read, coalesce((SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i"
            " WHERE i.relid = t.relid), 0)::bigint FROM pg_stat_user_tables t WHERE n_live_tup > 1000"
        )
    }


def test_nothing_else_may_delete_what_is_append_only() -> None:
    """One module switches the trigger off, for its own transaction."""
    root = Path(retention.__file__).parent.parent
    named = {
        str(path.relative_to(root))
        for folder in ("runs", "console")
        for path in (root / folder).rglob("*.py")
        if "longwatch.retention" in path.read_text()
    }
    assert named == {"runs/retention.py"}
