"""The database refuses what no code may do: every CHECK, unique index and trigger, each against the statement it is for."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import CheckConstraint, UniqueConstraint

from runs import budgets, facts, lifecycle, limits, operations, processes, sql, steps, switches
from runs.allowances import Terms
from runs.approvals import Said
from runs.journal import Actor
from runs.models import Approval, Attempt, Fact, Key, LedgerEntry, Run, Step
from runs.models.price import RATES
from runs.models.rules import Rules
from runs.prices import NewPrice
from runs.states import CheckOutcome, ProcessKind, StepKind, Verdict
from tests import situations

pytestmark = pytest.mark.django_db


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One row of everything: a run with a call under way, a card that waits, one that was decided, an ended run."""

    person: User
    run: Run
    attempt: Attempt
    key: Key
    step: Step
    card: Approval
    decided: Approval
    fact: Fact
    ended: Run


@pytest.fixture
def scene(db: None) -> Scene:
    person = User.objects.create_superuser("ana")
    ended = situations.start(person)
    operations.stop_run(ended.pk, reason="enough", by=person)
    run = situations.start(person)
    terms = Terms(scope="all", dimension="steps", period="day", hard=Decimal(100))
    operations.create_allowance(terms, reason="the plan", by=person)
    rates = dict.fromkeys(RATES, Decimal(1))
    operations.set_price(NewPrice(model="m-new", rates=rates, reason="the page"), by=person)
    with transaction.atomic():
        limits.know("key-of-scene")
        locked = lifecycle.lock(run.pk)
        lifecycle.add_work(locked.pk, ["one"], step=steps.plan(locked, steps.Asked(kind=StepKind.THINK)).pk)
        sql.execute(
            "INSERT INTO runs_amendment (run_id, text, by_id, at) VALUES (%s, 'and more', %s, lw_clock())",
            [run.pk, person.pk],
        )
    attempt = situations.take(run)
    with transaction.atomic():
        lifecycle.lock(run.pk)
        budgets.reserve(run.pk, budgets.Amounts(steps=1), attempt=attempt.pk)
        sql.execute("INSERT INTO runs_lock (name, key_id, run_id, taken_at) SELECT 'order.7', id, run_id, lw_clock()"
                    " FROM runs_key WHERE id = %s", [attempt.key_id])  # fmt: skip
    asking = situations.ask_approval(run)
    with transaction.atomic():
        lifecycle.lock(run.pk)
        facts.note_use(facts.judge(run.pk, [asking.fact.name]).values(), attempt=attempt.pk)
        facts.check_failed(asking.fact, CheckOutcome.UNREACHABLE, "no answer", step=asking.step.pk)
    decided = situations.ask_approval(run, order="1002")
    operations.decide(decided.card.pk, Said(verdict=Verdict.APPROVE), by=person)
    processes.register(ProcessKind.WORKER)
    with transaction.atomic():
        switches.engage("tool:refund", reason="look first", by=person)
    run.refresh_from_db()
    decided.card.refresh_from_db()
    return Scene(
        person=person,
        run=run,
        attempt=attempt,
        key=situations.key_of(attempt),
        step=asking.step,
        card=asking.card,
        decided=decided.card,
        fact=asking.fact,
        ended=ended,
    )


def refused(statement: str, params: object = (), *, by: str) -> None:
    """The statement is refused, by the constraint or the words named."""
    with pytest.raises(IntegrityError, match=by), transaction.atomic():
        assert sql.execute(statement, params) > 0, "the statement met no row"  # type: ignore[arg-type]


def copy(table: str, ident: object, *, key: str = "id", **changed: str) -> str:
    """An INSERT of a row like the one with this id, but for these columns (SQL expressions)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND is_identity = 'NO'"
            " AND is_generated = 'NEVER' ORDER BY 1",
            [table],
        )
        columns = [name for (name,) in cursor.fetchall()]
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(changed.get(name, f'"{name}"') for name in columns)
    return f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} WHERE {key} = '{ident}'"


type Case = Callable[[Scene], tuple[str, str]]


def _change_budget(change: str) -> Callable[[Scene], str]:
    return lambda s: f"UPDATE runs_budget SET {change} WHERE run_id = {s.run.pk}"


def _change_run(column: str, value: str) -> Case:
    return lambda s: (f"UPDATE runs_run SET {column} = {value} WHERE id = {s.run.pk}", f"{column} of runs_run")


def _change_log(statement: str) -> Case:
    return lambda s: (statement, "append-only")


def _insert_notice(state: str, *, times: int = 1) -> Callable[[Scene], str]:
    return lambda s: (
        "INSERT INTO runs_notice (approval_id, event, channel, state, tries, created_at, due_at, error)"
        f" SELECT {s.card.pk}, 'told', 'mail', {state}, 0, lw_now(), lw_now(), '' FROM generate_series(1, {times})"
    )


# By the name of the constraint: the statement that it is for.
CHECKS: dict[str, Callable[[Scene], str]] = {
    "run_final_is_final": lambda s: f"UPDATE runs_run SET due_at = lw_now() WHERE id = {s.ended.pk}",
    "run_held_when_running": lambda s: f"UPDATE runs_run SET holder = NULL WHERE id = {s.run.pk}",
    "run_always_due": lambda s: (
        f"UPDATE runs_run SET state = 'queued', holder = NULL, lease_until = NULL, due_at = NULL WHERE id = {s.run.pk}"
    ),
    "run_waits_for_something": lambda s: (
        "UPDATE runs_run SET state = 'waiting', holder = NULL, lease_until = NULL, waiting_for = 'timer', why = ''"
        f" WHERE id = {s.run.pk}"
    ),
    "run_depth_matches_parent": lambda s: copy(
        "runs_run", s.run.pk, uid=f"'{uuid.uuid4()}'", parent_id=str(s.run.pk), depth="0"
    ),
    "run_ends_after_it_began": lambda s: copy(
        "runs_run", s.ended.pk, uid=f"'{uuid.uuid4()}'", ended_at="created_at - interval '1 s'"
    ),
    "run_counts_up": lambda s: f"UPDATE runs_run SET step_seq = -1 WHERE id = {s.run.pk}",
    "work_closed_has_time": lambda s: f"UPDATE runs_workitem SET state = 'closed' WHERE run_id = {s.run.pk}",
    "step_final_has_end": lambda s: f"UPDATE runs_step SET state = 'done' WHERE id = {s.attempt.step_id}",
    "step_waits_for_something": lambda s: f"UPDATE runs_step SET wait_note = '' WHERE id = {s.step.pk}",
    "event_matched_has_time": lambda s: (
        "INSERT INTO runs_event (name, key, source, delivery_id, agents, received_at, step_id)"
        f" VALUES ('paid', 'k', 'shop', 'd1', '[]', lw_now(), {s.step.pk})"
    ),
    "step_act_has_tool": lambda s: copy("runs_step", s.step.pk, number="99", tool="''"),
    "step_counts_up": lambda s: copy("runs_step", s.step.pk, number="0"),
    "attempt_counts_up": lambda s: copy("runs_attempt", s.attempt.pk, number="0", outcome="'lost'", ended_at="lw_clock()"),
    "attempt_outcome_known": lambda s: (
        f"UPDATE runs_attempt SET outcome = 'odd', ended_at = lw_clock() WHERE id = {s.attempt.pk}"
    ),
    "attempt_closed_has_end": lambda s: f"UPDATE runs_attempt SET outcome = 'done' WHERE id = {s.attempt.pk}",
    "attempt_not_begun_did_not_begin": lambda s: (
        "UPDATE runs_attempt SET outcome = 'not_begun', began_at = lw_clock(), ended_at = lw_clock()"
        f" WHERE id = {s.attempt.pk}"
    ),
    "key_state_known": lambda s: f"UPDATE runs_key SET state = 'odd', closed_at = lw_clock() WHERE id = {s.key.pk}",
    "key_closed_has_time": lambda s: f"UPDATE runs_key SET state = 'done' WHERE id = {s.key.pk}",
    "approval_state_known": lambda s: f"UPDATE runs_approval SET state = 'odd', closed_at = lw_clock() WHERE id = {s.card.pk}",
    "approval_closed_has_time": lambda s: f"UPDATE runs_approval SET state = 'approved' WHERE id = {s.card.pk}",
    "approval_held_is_pending": lambda s: f"UPDATE runs_approval SET effective_at = lw_clock() WHERE id = {s.decided.pk}",
    "approval_needs_someone": lambda s: copy("runs_approval", s.card.pk, step_id="NULL", needed="0"),
    "approval_on_expiry_known": lambda s: copy("runs_approval", s.card.pk, step_id="NULL", on_expiry="'odd'"),
    "fact_extended_by_something": lambda s: f"UPDATE runs_fact SET extended_from_s = max_age_s WHERE id = {s.fact.pk}",
    "fact_ages": lambda s: f"UPDATE runs_fact SET max_age_s = 'NaN' WHERE id = {s.fact.pk}",
    "ledger_entry_has_attempt": lambda s: (
        "INSERT INTO runs_ledgerentry (budget_id, run_id, kind, usd, tokens, calls, effects, steps, estimated, model,"
        f" note, at) VALUES ({s.run.pk}, {s.run.pk}, 'settle', 0, 0, 0, 0, 0, false, '', '', lw_clock())"
    ),
    "ledger_not_negative": lambda s: (
        "INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,"
        f" estimated, model, note, at) VALUES ({s.run.pk}, {s.run.pk}, {s.attempt.pk}, 'settle', -0.01, 0, 0, 0, 0,"
        " false, '', '', lw_clock())"
    ),
    "budget_counts_up": _change_budget("told_percent = -1"),
    "budget_ask_percent_of_hundred": _change_budget("ask_percent = 101"),
    "price_is_not_nothing": lambda s: copy("runs_price", "m-new", key="model", model="'m-newer'", output="0"),
    "notice_state_known": _insert_notice("'asleep'"),
    "allowance_runs_at_once": lambda s: "UPDATE runs_allowance SET period = 'once'",
    "allowance_not_negative": lambda s: "UPDATE runs_allowance SET hard = -1",
    "allowance_window_within_limit": lambda s: "UPDATE runs_allowancewindow SET spent = 200",
    "allowance_window_not_negative": lambda s: "UPDATE runs_allowancewindow SET spent = -1",
} | {
    f"budget_{d}_{rule}": _change_budget(change)
    for d in ("usd", "tokens", "calls", "effects", "steps")
    for rule, change in (
        ("within_limit", f"{d}_limit = 5, {d}_spent = 3, {d}_reserved = 3"),
        ("not_negative", f"{d}_spent = -1"),
    )
}  # fmt: skip

UNIQUE: dict[str, Callable[[Scene], str]] = {
    "agent_grant_once": lambda s: (
        "WITH g AS (INSERT INTO auth_group (name) VALUES ('night shift') RETURNING id)"
        " INSERT INTO runs_agentgrant (group_id, agent) SELECT id, 'a' FROM g UNION ALL SELECT id, 'a' FROM g"
    ),
    "start_request_once": lambda s: (
        "INSERT INTO runs_startrequest (user_id, key, body_digest, run_id, at)"
        f" SELECT {s.person.pk}, 'k', '', {s.run.pk}, lw_now() FROM generate_series(1, 2)"
    ),
    "work_ref_once_per_run": lambda s: copy("runs_workitem", s.run.pk, key="run_id"),
    "step_number_once_per_run": lambda s: copy("runs_step", s.step.pk),
    "step_one_open_think": lambda s: copy("runs_step", s.step.pk, number="99", kind="'think'"),
    "attempt_number_once": lambda s: copy("runs_attempt", s.attempt.pk, outcome="'lost'", ended_at="lw_clock()"),
    "attempt_one_open": lambda s: copy("runs_attempt", s.attempt.pk, number="2"),
    "key_once": lambda s: copy("runs_key", s.key.pk, state="'failed'", closed_at="lw_clock()"),
    "key_one_open": lambda s: copy("runs_key", s.key.pk, generation="2"),
    "approval_one_pending": lambda s: copy("runs_approval", s.card.pk),
    "approval_one_in_effect": lambda s: copy("runs_approval", s.decided.pk, state="'consumed'"),
    "event_delivered_once": lambda s: (
        "INSERT INTO runs_event (name, key, source, delivery_id, agents, received_at)"
        " SELECT 'paid', 'k', 'shop', 'd1', '[]', lw_now() FROM generate_series(1, 2)"
    ),
    "event_once_per_step": lambda s: (
        "INSERT INTO runs_event (name, key, source, delivery_id, agents, received_at, step_id, matched_at)"
        f" SELECT 'paid', 'k', 'shop', n, '[]', lw_now(), {s.step.pk}, lw_now() FROM generate_series(1, 2) n"
    ),
    "fact_once_per_run": lambda s: copy("runs_fact", s.fact.pk),
    "fact_version_once": lambda s: copy("runs_factversion", s.fact.pk, key="fact_id"),
    "journal_seq_once": lambda s: copy("runs_journalentry", s.ended.pk, key="seq = 1 AND run_id"),
    "ledger_one_reserve": lambda s: copy("runs_ledgerentry", s.attempt.pk, key="attempt_id"),
    "ledger_one_end": lambda s: (
        "INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,"
        f" estimated, model, note, at) SELECT {s.run.pk}, {s.run.pk}, {s.attempt.pk}, kind, 0, 0, 0, 0, 1, false, '',"
        " '', lw_clock() FROM unnest('{settle,release}'::text[]) kind"
    ),
    "ledger_one_correct": lambda s: (
        "INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,"
        f" estimated, model, note, at) SELECT {s.run.pk}, {s.run.pk}, {s.attempt.pk}, 'correct', -1, 0, 0, 0, 0, false,"
        " '', '', lw_clock() FROM generate_series(1, 2)"
    ),
    "notice_once": _insert_notice("'due'", times=2),
    "switch_ack_once": lambda s: (
        "INSERT INTO runs_switchack (switch_id, process_id, at)"
        " SELECT s.id, p.id, lw_now() FROM runs_switch s, runs_process p, generate_series(1, 2)"
    ),
    "price_once": lambda s: copy("runs_price", "m-new", key="model"),
    "allowance_once": lambda s: copy("runs_allowance", "all", key="scope"),
    "allowance_window_once": lambda s: "INSERT INTO runs_allowancewindow (allowance_id, starts_at, ends_at, spent, reserved,"
    " overrun, hard) SELECT allowance_id, starts_at, ends_at, 0, 0, 0, hard FROM runs_allowancewindow",
    "allowance_entry_one_reserve": lambda s: copy("runs_allowanceentry", s.attempt.pk, key="attempt_id"),
    "allowance_entry_one_end": lambda s: (
        "INSERT INTO runs_allowanceentry (window_id, attempt_id, kind, amount, at) SELECT window_id, attempt_id, k, 0, at"
        " FROM runs_allowanceentry, unnest('{settle,release}'::text[]) k"
    ),
    "provider_turn_once": lambda s: (
        f"INSERT INTO runs_providerturn (limit_id, step_id, at) SELECT id, {s.step.pk}, lw_clock() FROM runs_providerlimit,"
        " generate_series(1, 2)"
    ),
    "process_once": lambda s: copy(
        "runs_process", processes.register(ProcessKind.WORKER), id=f"'{uuid.uuid4()}'"
    ),
    "provider_limit_once": lambda s: (
        "INSERT INTO runs_providerlimit (credential, model, reason, strikes, changed_at)"
        " SELECT 'key', '', '', 0, lw_now() FROM generate_series(1, 2)"
    ),
    "switch_one_engaged": lambda s: copy("runs_switch", "tool:refund", key="scope"),
}  # fmt: skip

TRIGGERS: dict[str, Case] = {
    **{
        f"the {column} of a run is fixed": _change_run(column, value)
        for column, value in {
            "uid": "gen_random_uuid()",
            "agent": "'other'",
            "goal": "goal || '!'",
            "constraints": "'[]'",
            "inputs": "'{\"batch\": \"b9\"}'",
            "started_by_id": "NULL",
            "depth": "depth + 1",
            "origin": "gen_random_uuid()",
            "created_at": "created_at - interval '1 day'",
        }.items()
    },
    "a run does not change its parent": lambda s: (
        f"UPDATE runs_run SET parent_id = {s.ended.pk} WHERE id = {s.run.pk}", "parent_id of runs_run"
    ),
    "a run does not change its root": lambda s: (
        f"UPDATE runs_run SET root_id = {s.ended.pk} WHERE id = {s.run.pk}", "root_id of runs_run"
    ),
    "an ended run does not come back": lambda s: (
        f"UPDATE runs_run SET state = 'queued', ended_at = NULL, due_at = lw_now() WHERE id = {s.ended.pk}",
        "terminal is final",
    ),
    "an ended run does not end another way": lambda s: (
        f"UPDATE runs_run SET state = 'succeeded' WHERE id = {s.ended.pk}", "terminal is final"
    ),
    "an ended run keeps its outcome": lambda s: (
        f"UPDATE runs_run SET outcome = '1' WHERE id = {s.ended.pk}", "terminal is final"
    ),
    "the epoch only rises": lambda s: (
        f"UPDATE runs_run SET epoch = epoch - 1 WHERE id = {s.run.pk}", "the epoch only rises"
    ),
    "what the model asked is fixed": lambda s: (
        f"UPDATE runs_step SET asked = '{{}}' WHERE id = {s.step.pk}", "asked of runs_step"
    ),
    "a try's begin_by is not put off": lambda s: (
        f"UPDATE runs_attempt SET begin_by = begin_by + interval '1 h' WHERE id = {s.attempt.pk}", "begin_by of runs_attempt"
    ),
    "a price is not changed": lambda s: ("UPDATE runs_price SET output = 2", "output of runs_price"),
    "what a key stands for is fixed": lambda s: (
        f"UPDATE runs_key SET generation = 2 WHERE id = {s.key.pk}", "generation of runs_key"
    ),
    "the values that a card showed are fixed": lambda s: (
        f"UPDATE runs_approval SET facts = '[]' WHERE id = {s.card.pk}", "facts of runs_approval"
    ),
    "who decides a card is fixed": lambda s: (
        f"UPDATE runs_approval SET needed = 2 WHERE id = {s.card.pk}", "needed of runs_approval"
    ),
    "an approval in effect is not pending again": lambda s: (
        f"UPDATE runs_approval SET state = 'pending', closed_at = NULL WHERE id = {s.decided.pk}", "is closed"
    ),
    **{
        f"{table} does not change": _change_log(f"UPDATE {table} SET {change}")
        for table, change in {
            "runs_journalentry": "why = 'other'",
            "runs_ledgerentry": "usd = 0",
            "runs_allowanceentry": "amount = 0",
            "runs_decision": "verdict = 'reject'",
            "runs_factversion": "value = '1'",
            "runs_factuse": "age_s = 0",
            "runs_factcheck": "outcome = 'same'",
            "runs_amendment": "text = ''",
        }.items()
    },
    **{
        f"{table} does not lose a row": _change_log(f"DELETE FROM {table}")
        for table in (
            "runs_journalentry", "runs_ledgerentry", "runs_allowanceentry", "runs_decision", "runs_factversion", "runs_factuse",
            "runs_factcheck", "runs_amendment",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_refuses(scene: Scene, name: str) -> None:
    refused(CHECKS[name](scene), by=f'violates check constraint "{name}"')


@pytest.mark.parametrize("name", UNIQUE)
def test_a_unique_index_refuses(scene: Scene, name: str) -> None:
    refused(UNIQUE[name](scene), by=f'violates unique constraint "{name}"')


@pytest.mark.parametrize("rule", TRIGGERS)
def test_a_trigger_refuses(scene: Scene, rule: str) -> None:
    statement, words = TRIGGERS[rule](scene)
    refused(statement, by=words)


@pytest.mark.parametrize("table", ["runs_run", "runs_step"])
def test_a_state_that_nobody_knows_is_refused(scene: Scene, table: str) -> None:
    open_one = f"id = {scene.run.pk}" if table == "runs_run" else f"id = {scene.step.pk}"
    refused(f"UPDATE {table} SET state = 'asleep' WHERE {open_one}", by="violates check constraint")


def test_each_constraint_of_the_models_has_its_case() -> None:
    models = list(apps.get_app_config("runs").get_models())
    declared = {c.name: type(c) for m in models for c in m._meta.constraints}
    rules = {rule for m in models for c in m._meta.constraints if isinstance(c, Rules) for rule in c.rules}
    assert {n for n, kind in declared.items() if kind is CheckConstraint} | rules == set(CHECKS)
    assert {n for n, kind in declared.items() if kind is UniqueConstraint} == set(UNIQUE)


def test_each_trigger_of_the_migration_has_its_case(scene: Scene) -> None:
    found = {
        (table, name)
        for table, name in sql.fetch_all(
            "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal"
        )
    }
    append_only = {
        "amendment",
        "decision",
        "factcheck",
        "factuse",
        "factversion",
        "journalentry",
        "ledgerentry",
        "allowanceentry",
    }
    guarded = {"approval", "attempt", "key", "run", "step"}
    assert found == {(f"runs_{t}", "append_only") for t in append_only} | {
        (f"runs_{t}", name) for t in guarded for name in ("guard", "fixed")
    } | {("runs_price", "fixed"), ("runs_approval", "fixed_who")}


def test_a_settled_step_keeps_its_outcome_and_a_dropped_one_may_only_learn_its_own(scene: Scene) -> None:
    drop = "UPDATE runs_step SET state = %s, waiting_for = '', wait_note = '', ended_at = lw_clock() WHERE id = %s"
    sql.execute(drop, ["void", scene.step.pk])
    refused("UPDATE runs_step SET state = 'planned', ended_at = NULL WHERE id = %s", [scene.step.pk], by="its outcome")
    refused("UPDATE runs_step SET state = 'rejected' WHERE id = %s", [scene.step.pk], by="has its outcome")
    sql.execute("UPDATE runs_step SET state = 'done' WHERE id = %s", [scene.step.pk])
    refused("UPDATE runs_step SET state = 'failed' WHERE id = %s", [scene.step.pk], by="has its outcome")


def test_a_closed_try_keeps_its_outcome_and_one_that_was_not_known_may_become_known(scene: Scene) -> None:
    one = [scene.attempt.pk]
    sql.execute("UPDATE runs_attempt SET outcome = 'lost', ended_at = lw_clock() WHERE id = %s", one)
    refused("UPDATE runs_attempt SET outcome = 'open', ended_at = NULL WHERE id = %s", one, by="is closed")
    refused("UPDATE runs_attempt SET began_at = lw_clock() WHERE id = %s", one, by="whether it began")
    sql.execute("UPDATE runs_attempt SET outcome = 'proved' WHERE id = %s", one)
    refused("UPDATE runs_attempt SET outcome = 'disproved' WHERE id = %s", one, by="is closed")


def test_a_try_that_began_stays_begun(scene: Scene) -> None:
    one = [scene.attempt.pk]
    sql.execute("UPDATE runs_attempt SET began_at = lw_clock() WHERE id = %s", one)
    refused("UPDATE runs_attempt SET began_at = NULL WHERE id = %s", one, by="whether it began")
    refused("UPDATE runs_attempt SET began_at = lw_clock() WHERE id = %s", one, by="whether it began")


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_closed_key_stays_closed_with_its_result(scene: Scene, state: str) -> None:
    one = [scene.key.pk]
    sql.execute(f"UPDATE runs_key SET state = '{state}', result = '7', closed_at = lw_clock() WHERE id = %s", one)
    for change in ("state = 'taken', closed_at = NULL", "result = '8'", "arguments = '{}'", "closed_how = 'verdict'"):
        refused(f"UPDATE runs_key SET {change} WHERE id = %s", one, by="is closed")
    sql.execute("UPDATE runs_key SET replays = replays + 1 WHERE id = %s", one)


@pytest.mark.parametrize("state", ["rejected", "answered", "expired", "void"])
def test_a_closed_card_stays_closed(scene: Scene, state: str) -> None:
    sql.execute(f"UPDATE runs_approval SET state = '{state}', closed_at = lw_clock() WHERE id = %s", [scene.card.pk])
    for other in ("pending", "approved", "void", "answered", "consumed"):
        if other != state:
            refused(f"UPDATE runs_approval SET state = '{other}' WHERE id = %s", [scene.card.pk], by="is closed")


def test_with_its_whole_run_even_the_journal_may_go(scene: Scene) -> None:
    with transaction.atomic():
        sql.execute("SET LOCAL longwatch.retention = 'on'")
        assert sql.execute("DELETE FROM runs_journalentry WHERE run_id = %s", [scene.ended.pk]) > 0
    sql.execute("SET LOCAL longwatch.retention = 'off'")
    refused("DELETE FROM runs_journalentry WHERE run_id = %s", [scene.run.pk], by="append-only")


def test_a_grant_entry_may_lower_a_limit_and_needs_no_attempt(scene: Scene) -> None:
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        budgets.set_limits(scene.run.pk, {"steps": 7}, actor=Actor(name="person:ana"), why="fewer")
    entry = LedgerEntry.objects.get(run=scene.run, kind="grant")
    assert (entry.attempt_id, entry.steps < 0) == (None, True)


def test_the_business_clock_has_one_row(db: None) -> None:
    refused("INSERT INTO lw_clock_shift (one, shift) VALUES (true, '1 h')", by="lw_clock_shift_pkey")
    refused("INSERT INTO lw_clock_shift (one, shift) VALUES (false, '1 h')", by="lw_clock_shift_one_check")
