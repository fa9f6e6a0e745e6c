"""Writer of allowances: what many runs together may use in a period, and how many may be under way at once.

The reservations are those of the ledger (`lw_reserve`, `lw_settle`: see `runs.budgets`), last of all locks.
"""

import zoneinfo
from dataclasses import dataclass
from decimal import Decimal

from runs import sql
from runs.agents import Json
from runs.errors import Conflict, LimitTooLow, Malformed
from runs.journal import Actor, append, require_transaction
from runs.models import Allowance, AllowanceWindow, Run
from runs.models.allowance import DIMENSIONS, PERIODS
from runs.sanitise import clean_text


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an allowance says. period: hour, day or month of `zone`; "once" for the dimension `runs`."""

    scope: str
    dimension: str
    period: str
    hard: Decimal
    soft: Decimal | None = None
    zone: str = "UTC"


@dataclass(frozen=True, kw_only=True)
class Full:
    """No place is free: the allowance, and how many are under way."""

    allowance: int
    scope: str
    most: int


def create(terms: Terms, *, actor: Actor, why: str) -> Allowance:
    """Raises: Malformed; Conflict when there is one of this scope, dimension and period already."""
    require_transaction()
    _check(terms)
    row = sql.fetch_one(
        "INSERT INTO runs_allowance (scope, dimension, period, zone, soft, hard, version, set_by_id, set_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, 1, %s, lw_clock()) ON CONFLICT DO NOTHING RETURNING id",
        [clean_text(terms.scope), terms.dimension, terms.period, terms.zone, terms.soft, terms.hard, actor.user],
    )
    if row is None:
        raise Conflict("There is such an allowance already.", remedy="Change that one.")
    after: dict[str, Json] = {
        "allowance": row[0],
        "scope": terms.scope,
        "dimension": terms.dimension,
        "period": terms.period,
        "zone": terms.zone,
        "soft": _text(terms.soft),
        "hard": _text(terms.hard),
    }
    append("allowance.set", actor=actor, after=after, why=why)
    return Allowance.objects.get(pk=row[0])


def change(
    allowance: int, *, soft: Decimal | None, hard: Decimal, actor: Actor, why: str, version: int | None = None
) -> Allowance:
    """Set new limits, for the period that runs now too.

    Raises:
        Malformed; Conflict when it ended or `version` is old; LimitTooLow below what is used in this period.
    """
    require_transaction()
    found = Allowance.objects.select_for_update(of=("self",), no_key=True).get(pk=allowance)
    if found.ended_at is not None:
        raise Conflict("This allowance has ended.")
    if version is not None and version != found.version:
        raise Conflict(
            "This allowance was changed since you opened it.", remedy="Look at the fresh one and edit again."
        )
    terms = Terms(
        scope=found.scope, dimension=found.dimension, period=found.period, zone=found.zone, soft=soft, hard=hard
    )
    _check(terms)
    running = AllowanceWindow.objects.select_for_update(no_key=True).filter(allowance=found)
    for window in running.extra(where=["ends_at > lw_clock()"]):
        if hard < window.spent + window.reserved:
            raise LimitTooLow(found.dimension, hard, window.spent + window.reserved)
    before: dict[str, Json] = {"allowance": found.pk, "soft": _text(found.soft), "hard": _text(found.hard)}
    sql.execute(
        "UPDATE runs_allowance SET soft = %s, hard = %s, version = version + 1, set_by_id = %s, set_at = lw_clock()"
        " WHERE id = %s",
        [soft, hard, actor.user, found.pk],
    )
    sql.execute(
        "UPDATE runs_allowancewindow SET soft = %s, hard = %s, overrun = 0, soft_told_at = NULL,"
        " notice_due = (spent >= %s) IS TRUE WHERE allowance_id = %s AND ends_at > lw_clock()",
        [soft, hard, soft, found.pk],
    )
    after: dict[str, Json] = {"allowance": found.pk, "soft": _text(soft), "hard": _text(hard)}
    append("allowance.changed", actor=actor, before=before, after=after, why=why)
    found.refresh_from_db()
    return found


def end(allowance: int, *, actor: Actor, why: str) -> None:
    """It limits nothing any more; what was used under it stays. Raises: Conflict when it has ended already."""
    require_transaction()
    if not sql.execute(
        "UPDATE runs_allowance SET ended_at = lw_clock() WHERE id = %s AND ended_at IS NULL", [allowance]
    ):
        raise Conflict("This allowance has ended already.")
    append("allowance.ended", actor=actor, before={"allowance": allowance}, why=why)


def topic(allowance: int) -> str:
    """What a step that waits for an allowance waits on."""
    return f"allowance.{allowance}"


def admit(run: Run) -> Full | None:
    """Let a locked run that has not begun be under way, or say what is full.

    Runs that another run started have its place. Nothing is written where no allowance counts runs.
    """
    require_transaction()
    if run.parent_id is not None:
        return None
    counted = sql.fetch_all(
        "SELECT id, scope, hard FROM runs_allowance WHERE dimension = 'runs' AND ended_at IS NULL"
        " AND lw_in_scope(scope, %s, (SELECT labels FROM runs_run WHERE id = %s)) ORDER BY id FOR NO KEY UPDATE",
        [run.agent, run.pk],
    )
    for allowance, scope, hard in counted:
        (under_way,) = sql.fetch_row(
            "SELECT count(*) FROM runs_run r WHERE r.state IN ('queued', 'running', 'thinking', 'waiting') AND r.epoch > 0"
            " AND r.parent_id IS NULL AND NOT r.place_asked AND r.id <> %s AND lw_in_scope(%s, r.agent, r.labels)",
            [run.pk, scope],
        )
        if under_way >= hard:
            sql.execute("UPDATE runs_run SET place_asked = true WHERE id = %s AND NOT place_asked", [run.pk])
            return Full(allowance=allowance, scope=scope, most=int(hard))
    if run.place_asked:
        sql.execute("UPDATE runs_run SET place_asked = false WHERE id = %s", [run.pk])
    return None


def list_of_runs() -> list[int]:
    """The allowances that count how many runs are under way."""
    return [number for (number,) in sql.fetch_all(_OF_RUNS)]


def ask_of_runs() -> sql.Answer:
    """The same as of right after this transaction, in the message of its commit."""
    return sql.ask_after_commit(_OF_RUNS)


_OF_RUNS = "SELECT id FROM runs_allowance WHERE dimension = 'runs' AND ended_at IS NULL"


def tell_soft(window: int) -> None:
    """Journal once that the soft threshold of a period was passed."""
    require_transaction()
    row = sql.fetch_one(
        "UPDATE runs_allowancewindow w SET notice_due = false, soft_told_at = lw_clock() FROM runs_allowance a"
        " WHERE w.id = %s AND w.notice_due AND a.id = w.allowance_id"
        " RETURNING a.id, a.scope, a.dimension, a.period, w.spent, w.soft, w.hard",
        [window],
    )
    if row is None:
        return
    ident, scope, dimension, period, spent, soft, hard = row
    append(
        "allowance.soft_passed",
        after={"allowance": ident, "spent": str(spent), "soft": str(soft), "hard": str(hard)},
        why=f"{_text(spent)} {dimension} of {scope} in this {period}: above {_text(soft)}, at most {_text(hard)}",
    )


def mismatches() -> list[tuple[int, Decimal, Decimal]]:
    """(window, row says, entries say) of spent + reserved, wherever they differ. Empty when all is well.

    A window keeps what was used when the entries of runs are deleted (`runs.retention`): those that lie back differ then.
    """
    return [
        (int(window), row, entries)
        for window, row, entries in sql.fetch_all(
            "SELECT * FROM (SELECT w.id, w.spent + w.reserved, coalesce(sum(CASE e.kind WHEN 'reserve' THEN e.amount"
            " WHEN 'correct' THEN e.amount WHEN 'release' THEN -e.amount ELSE e.amount - (SELECT r.amount"
            "  FROM runs_allowanceentry r WHERE r.window_id = e.window_id AND r.attempt_id = e.attempt_id"
            "  AND r.kind = 'reserve') END), 0) AS told"
            " FROM runs_allowancewindow w LEFT JOIN runs_allowanceentry e ON e.window_id = w.id"
            " GROUP BY w.id) s (id, used, told)"
            " WHERE used <> told"
        )
    ]


def _check(terms: Terms) -> None:
    kind, _, name = terms.scope.partition(":")
    if not (terms.scope == "all" or (kind == "agent" and name) or (kind == "label" and "=" in name)):
        raise Malformed(f"{terms.scope!r} is no scope.", remedy="Write all, agent:NAME or label:KEY=VALUE.")
    if terms.dimension == "runs":
        if terms.period != "once":
            raise Malformed("Runs that are under way are counted at once.", remedy="Choose the period once.")
    elif terms.dimension not in DIMENSIONS or terms.period not in PERIODS:
        raise Malformed(f"An allowance is of {', '.join(DIMENSIONS)} per {', '.join(PERIODS)}; or of runs at once.")
    try:
        zoneinfo.ZoneInfo(terms.zone)
    except (KeyError, ValueError, OSError):
        raise Malformed(f"{terms.zone!r} is no time zone.", remedy="Write it as Europe/Berlin.") from None
    for amount in (terms.hard, terms.soft):
        if amount is not None and not (amount.is_finite() and 0 <= amount < 10**13):
            raise Malformed(f"{amount} is no possible limit.")
    if terms.soft is not None and terms.soft > terms.hard:
        raise Malformed("The soft threshold lies above the hard limit.")


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount.normalize():f}"
