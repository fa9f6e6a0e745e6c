"""Writer of the kill switches, and the one lock that orders them against every claim, take and spawn."""

import uuid

from django.contrib.auth.models import AbstractBaseUser
from django.db import OperationalError, transaction

from runs import notify, sql
from runs.errors import Malformed, WrongState
from runs.journal import append, person, require_transaction
from runs.models import Switch
from runs.queries.scope import reaches
from runs.queries.switches import open_runs_in
from runs.sanitise import clean_text

# Advisory lock: shared for a claim, a take or a spawn; exclusive to engage. So a take either commits before the
# engaging transaction or sees the switch.
SWITCH_LOCK = 0x4C57_0001
# Who holds it for longer is stuck or stopped, and a kill switch does not wait for that.
END_HOLDERS_AFTER_S = 2.0


def in_scope_of(tool: str) -> str:
    """SQL: the first engaged switch in scope of a run (aliased r) and of a tool (an expression, '' for none)."""
    return f"""
        SELECT s.scope, s.reason FROM runs_switch s
        WHERE s.released_at IS NULL AND {reaches("s.scope", tool)} ORDER BY s.id LIMIT 1
    """


IN_SCOPE = in_scope_of("%(tool)s")


def acknowledge(process: uuid.UUID) -> None:
    """This process has looked at the database since a switch was engaged, and holds nothing more in its scope.

    Written once per switch; what it says rests on the fence, which needs nobody's word: it is for people to see.
    """
    sql.execute(
        "INSERT INTO runs_switchack (switch_id, process_id, at) SELECT s.id, %(process)s, lw_clock() FROM runs_switch s"
        " WHERE s.released_at IS NULL AND EXISTS (SELECT FROM runs_process p WHERE p.id = %(process)s)"
        " AND NOT EXISTS (SELECT FROM runs_switchack k WHERE k.switch_id = s.id AND k.process_id = %(process)s)"
        " AND NOT EXISTS (SELECT FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id JOIN runs_step st"
        f" ON st.id = a.step_id WHERE a.holder = %(process)s AND a.outcome = 'open' AND {reaches('s.scope', 'st.tool')})"
        " ON CONFLICT DO NOTHING",
        {"process": process},
    )


def list_open_in(scope: str) -> list[int]:
    """The runs in a scope that have not ended, without those whose parent is among them: these end with it."""
    numbers = dict(open_runs_in(scope).order_by("pk").values_list("pk", "parent"))
    return [number for number, parent in numbers.items() if parent not in numbers]


def lock_shared() -> None:
    require_transaction()
    sql.queue(f"SELECT pg_advisory_xact_lock_shared({SWITCH_LOCK})")


def lock_exclusive() -> None:
    """Wait until no claim, take or spawn is under way; whoever still holds the lock after a short time is ended."""
    require_transaction()
    try:
        with transaction.atomic():
            (usual,) = sql.fetch_row("SELECT current_setting('lock_timeout')")
            sql.execute("SELECT set_config('lock_timeout', %s, true)", [f"{END_HOLDERS_AFTER_S * 1000:.0f}ms"])
            sql.execute("SELECT pg_advisory_xact_lock(%s)", [SWITCH_LOCK])
            sql.execute("SELECT set_config('lock_timeout', %s, true)", [usual])
    except OperationalError:
        # Their transactions are rolled back with all they took, as if they had been killed before the commit.
        sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = %s"
            " AND objsubid = 1 AND granted AND pid <> pg_backend_pid()"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [SWITCH_LOCK],
        )
        sql.execute("SELECT pg_advisory_xact_lock(%s)", [SWITCH_LOCK])


def in_scope(run: int, tool: str = "") -> tuple[str, str] | None:
    """(scope, reason) of an engaged switch that holds this run, or a call of this tool in it."""
    row = sql.fetch_one(
        f"SELECT s.* FROM runs_run r, LATERAL ({IN_SCOPE}) s WHERE r.id = %(run)s", {"run": run, "tool": tool}
    )
    return (row[0], row[1]) if row else None


def for_agent(agent: str) -> tuple[str, str] | None:
    """(scope, reason) of an engaged switch that refuses new runs of this agent."""
    switch = Switch.objects.filter(released_at__isnull=True, scope__in=["all", f"agent:{agent}"]).first()
    return (switch.scope, switch.reason) if switch else None


def engage(scope: str, *, reason: str, by: AbstractBaseUser) -> Switch:
    """Raises: Malformed (scope, or no reason)."""
    _check_scope(scope)
    reason = clean_text(reason).strip()
    if not reason:
        raise Malformed("A switch needs a reason.")
    lock_exclusive()
    existing = Switch.objects.filter(scope=scope, released_at__isnull=True).first()
    if existing:
        append("switch.engaged_again", actor=person(by), after={"scope": scope}, why=reason)
        return existing
    switch = Switch(scope=scope, reason=reason, engaged_by_id=by.pk)
    switch.pk, switch.engaged_at = sql.fetch_row(
        "INSERT INTO runs_switch (scope, reason, engaged_by_id, engaged_at, release_reason)"
        " VALUES (%s, %s, %s, lw_clock(), '') RETURNING id, engaged_at",
        [scope, reason, by.pk],
    )
    append("switch.engaged", actor=person(by), after={"scope": scope}, why=reason)
    notify.stop("*")
    notify.screen("switches", "runs")
    return switch


def release(switch: Switch, *, reason: str, by: AbstractBaseUser) -> Switch:
    """Raises: WrongState when it is released already."""
    lock_exclusive()
    if (
        sql.execute(
            "UPDATE runs_switch SET released_at = lw_clock(), released_by_id = %s, release_reason = %s"
            " WHERE id = %s AND released_at IS NULL",
            [by.pk, clean_text(reason), switch.pk],
        )
        == 0
    ):
        raise WrongState(f"Switch {switch.scope}", "released", "released again")
    append("switch.released", actor=person(by), before={"scope": switch.scope}, why=reason)
    notify.screen("switches", "runs")
    switch.refresh_from_db()
    return switch


def _check_scope(scope: str) -> None:
    kind, _, name = scope.partition(":")
    if (
        scope == "all"
        or (kind in ("agent", "tool") and name)
        or (kind == "run" and name.isascii() and name.isdecimal())
    ):
        return
    raise Malformed(f"{scope!r} is no scope.", remedy="Use all, agent:NAME, tool:NAME or run:ID.")
