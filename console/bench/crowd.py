"""An installation with many runs in it, put there by SQL: for what a page or a statement touches, not for what it does."""

from django.db import connection

# What a column that must not be empty holds where nothing is said of it.
_PLAIN = {
    "uuid": "gen_random_uuid()",
    "jsonb": "'{}'",
    "boolean": "false",
    "timestamp with time zone": "now()",
    "text": "''",
    "character varying": "''",
}
_LISTS = frozenset({
    "changes", "constraints", "derived_from", "escalate_to", "explained", "facts", "groups", "options", "rests_on", "verdicts",
})  # fmt: skip


def fill(*, finished: int, waiting: int, due: int) -> None:
    """Finished runs with one of everything; waiting ones of every kind; and due ones, the last of them."""
    with connection.cursor() as cursor:
        # Only what is asked about has to be true of these rows; foreign keys and triggers would take most of the time.
        cursor.execute("SET session_replication_role = replica")
    add_runs(1, finished, state="'succeeded'", ended_at="now()", drained_at="now()", due_at="NULL", expires_at=_WEEK)
    add_done(1, finished)
    _insert(
        "runs_key", 1, finished, id="g", run_id="g", step_id="g", intent="g::text", state="'done'", closed_at="now()"
    )
    _add_history(1, finished)
    last = finished
    for share, waits_for in ((4, "timer"), (4, "approval"), (4, "child"), (4, "lock")):
        first, last = last + 1, last + waiting // share
        add_runs(
            first, last,
            state="'waiting'", waiting_for=f"'{waits_for}'", why="'it waits'", due_at=_DAY, expires_at=_WEEK,
        )  # fmt: skip
        _add_steps(
            first, last,
            state="'waiting'", waiting_for=f"'{waits_for}'", wait_note="'it waits'", wake_at=_DAY,
            # Each waits for another one of the crowd, which has not ended.
            waiting_on="(g + 1)::text" if waits_for == "child" else "''",
        )  # fmt: skip
        if waits_for == "approval":
            _insert(
                "runs_approval", first, last,
                id="g", run_id="g", step_id="g", kind="'approval'", state="'pending'", expires_at=_DAY,
                needed="1", on_expiry="'hold'",
            )  # fmt: skip
    first, last = last + 1, last + due
    add_runs(first, last, state="'queued'", due_at="now() - g * interval '1 ms'", expires_at=_WEEK)
    _add_steps(first, last, state="'planned'")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = DEFAULT")
        for table in ("run", "step", "attempt", "key", "approval", "fact", "factversion"):
            cursor.execute(f"SELECT setval(pg_get_serial_sequence('runs_{table}', 'id'), {last})")
        cursor.execute("VACUUM ANALYZE")


def add_done(first: int, last: int) -> None:
    _add_steps(first, last, state="'done'", ended_at="now()", result="'{}'")
    _insert(
        "runs_attempt", first, last,
        id="g", run_id="g", step_id="g", number="1", outcome="'done'", ended_at="now()", lease_until="now()", key_id="g",
    )  # fmt: skip


def _add_history(first: int, last: int) -> None:
    """What finished runs leave behind, besides."""
    _insert("runs_budget", first, last, run_id="g", version="1", unlimited_because="'a crowd'")
    for kind in ("reserve", "settle"):
        _insert("runs_ledgerentry", first, last, budget_id="g", run_id="g", attempt_id="g", kind=f"'{kind}'", steps="1")
    for place in range(1, 4):
        _insert("runs_journalentry", first, last, run_id="g", seq=str(place), kind="'step.done'", step_id="g", xid="1")
    _insert(
        "runs_fact", first, last,
        id="g", run_id="g", name="'order'", value="'1'", version="1", source_step_id="g", max_age_s="60",
        observed_at="now()", verified_at="now()",
    )  # fmt: skip
    _insert("runs_factversion", first, last, id="g", fact_id="g", version="1", value="'1'", step_id="g")
    _insert(
        "runs_workitem", first, last,
        run_id="g", ref="'w1'", state="'closed'", closed_at="now()", opened_by_id="g", closed_by_id="g",
    )  # fmt: skip
    _insert(
        "runs_approval", first, last,
        id="g", run_id="g", step_id="g", kind="'failure'", state="'answered'", needed="1", on_expiry="'hold'",
        closed_at="now()",
    )  # fmt: skip


_DAY = "now() + interval '1 day' + g * interval '1 ms'"
_WEEK = "now() + interval '7 days' + g * interval '1 ms'"


def add_runs(first: int, last: int, **columns: str) -> None:
    _insert("runs_run", first, last, id="g", root_id="g", agent="'desk'", verified="'unclaimed'", **columns)


def _add_steps(first: int, last: int, **columns: str) -> None:
    _insert("runs_step", first, last, id="g", run_id="g", number="1", kind="'act'", tool="'look'", **columns)


def _insert(table: str, first: int, last: int, **given: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s AND is_nullable = 'NO'"
            " AND column_default IS NULL AND is_identity = 'NO' AND NOT column_name = ANY(%s)",
            [table, list(given)],
        )
        plain = {name: "'[]'" if name in _LISTS else _PLAIN.get(kind, "0") for name, kind in cursor.fetchall()}
        values = plain | given
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(values.values())}"
            f" FROM generate_series({first}, {last}) AS g"
        )


def lengthen(run: int, *, first: int, count: int) -> None:
    """Give a run so many more steps that were done, each with its journal. first: a number above those of all steps."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
    last = first + count - 1
    place = f"(g - {first} + 2)"
    _insert(
        "runs_step", first, last,
        id="g", run_id=str(run), number=place, kind="'act'", tool="'look'", state="'done'", ended_at="now()", result="'{}'",
    )  # fmt: skip
    _insert("runs_journalentry", first, last, run_id=str(run), seq=place, kind="'step.done'", step_id="g", xid="1")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute("VACUUM ANALYZE")
