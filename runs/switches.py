"""Writer of the kill switches, and the one lock that orders them against every claim, take and spawn."""

from django.contrib.auth.models import AbstractBaseUser

from runs import notify, sql
from runs.errors import Malformed, WrongState
from runs.journal import append, person, require_transaction
from runs.models import Switch

# Advisory lock: shared for a claim, a take or a spawn; exclusive to engage. So a take either commits before the
# engaging transaction or sees the switch.
SWITCH_LOCK = 0x4C57_0001

# A switch is in scope of a run (aliased r) for a tool (a parameter, '' for none).
IN_SCOPE = """
    SELECT s.scope, s.reason FROM runs_switch s
    WHERE s.released_at IS NULL AND (
        s.scope = 'all' OR s.scope = 'agent:' || r.agent OR (%(tool)s <> '' AND s.scope = 'tool:' || %(tool)s)
        OR s.scope IN (
            WITH RECURSIVE line AS (
                SELECT r.id AS id, r.parent_id AS parent_id
                UNION ALL SELECT p.id, p.parent_id FROM runs_run p JOIN line ON p.id = line.parent_id
            ) SELECT 'run:' || id FROM line
        )
    ) ORDER BY s.id LIMIT 1
"""


def lock_shared() -> None:
    require_transaction()
    sql.execute("SELECT pg_advisory_xact_lock_shared(%s)", [SWITCH_LOCK])


def lock_exclusive() -> None:
    require_transaction()
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
    lock_exclusive()
    _check_scope(scope)
    if not reason.strip():
        raise Malformed("A switch needs a reason.")
    existing = Switch.objects.filter(scope=scope, released_at__isnull=True).first()
    if existing:
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
            [by.pk, reason, switch.pk],
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
