"""Writer of budgets and the ledger: reserve before, settle after, for a run and all its ancestors, leaf to root.

Reserving and settling are functions in the database (`migrations/0019_budget_queue.sql`): one round trip each, so that
a budget which many share is locked as briefly as can be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from django.db import transaction

from runs import agents, sql
from runs.agents import Json
from runs.errors import Conflict, LimitTooLow, NoLimit, OverBudget, write_amount
from runs.journal import RUNTIME, Actor, append, require_transaction
from runs.models import Budget, Run
from runs.models.budget import DIMENSIONS
from runs.sanitise import clean_json, clean_text

THRESHOLDS = (50, 80)
GRANTABLE = (*DIMENSIONS, "working_s")
_LIMITS = [*(f"{d}_limit" for d in DIMENSIONS), "working_limit_s"]


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """usd in dollars; tokens, calls (model calls), effects and steps are counts."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    calls: int = 0
    effects: int = 0
    steps: int = 0

    def items(self) -> list[tuple[str, Decimal | int]]:
        return [(d, getattr(self, d)) for d in DIMENSIONS]


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """How a settlement came to its usd: kept with the entry, raw."""

    model: str = ""
    usage: Json = None
    price: Json = None
    unpriced: bool = False  # the model has no price: the usd are an estimate until there is one


def create(run: Run, limits: agents.Budget) -> Budget:
    require_transaction()
    created = sql.fetch_row(
        "INSERT INTO runs_budget (run_id, version, unlimited_because, usd_limit, tokens_limit, calls_limit,"
        " effects_limit, steps_limit, working_limit_s, ask_percent, "
        + ", ".join(f"{d}_{part}" for d in DIMENSIONS for part in ("spent", "reserved", "overrun"))
        + ") VALUES (%s, 1, %s, %s, %s, %s, %s, %s, %s, %s, "
        + ", ".join(["0"] * (3 * len(DIMENSIONS)))
        + f") RETURNING {sql.columns(Budget)}",
        [
            run.pk,
            clean_text(limits.unlimited),
            Decimal(limits.usd) if limits.usd is not None else None,
            limits.tokens,
            limits.calls,
            limits.effects,
            limits.steps,
            limits.working_s,
            limits.ask_percent,
        ],
    )
    (budget,) = sql.build(Budget, [created])
    return budget


def worked_s(run: int) -> float:
    """Seconds that a run and all below it have worked."""
    (worked,) = sql.fetch_row(_WORKED, [run])
    return float(worked)


def reserve(
    run: int,
    amounts: Amounts,
    *,
    attempt: int | None,
    pricing: Pricing | None = None,
    note: str = "",
    asked: bool = False,
    at_once: bool = False,
) -> None:
    """Reserve for a run and all its ancestors, or for none of them. The commit does not wait for the disk.

    attempt: None is the one that this transaction opened last, whose number need not be known yet.
    asked: a person was asked whether this step may take more than the set share.
    at_once: whoever goes on after this one finds it on the disk. Where no last look comes, whose commit would wait for it;
    and where only the number of the attempt says whose it is (see `steps.lock_try`).

    Raises:
        OverBudget.
    """
    if at_once:
        sql.run_after_commit(_FLUSH)
    ident = [_LATEST, []] if attempt is None else ["%s::bigint", [attempt]]
    _reserve(run, amounts, *ident, pricing=pricing or Pricing(), note=note, asked=asked)


def require_room(run: int, amounts: Amounts, *, asked: bool = False) -> None:
    """Judge whether a reservation fits, before there is an attempt. What it finds holds until the commit.

    So a step that waits for its budget cannot miss the grant: whoever raises a limit waits for these locks first.

    Raises:
        OverBudget.
    """
    _reserve(run, amounts, "NULL", [], pricing=Pricing(), note="", asked=asked)


def settle(
    attempt: int,
    amounts: Amounts,
    *,
    pricing: Pricing | None = None,
    estimated: bool = False,
    note: str = "",
    last: bool = True,
) -> None:
    """Replace an attempt's reservation by what was really used; or an estimate of it by the truth, once.

    What passes the reservation is booked as it is, and shown as overrun: the truth is never made to fit.
    last: nothing else is done in this transaction that changes a budget.
    """
    _settle(attempt, "settle", amounts, pricing=pricing or Pricing(), estimated=estimated, note=note, last=last)


def settle_as_reserved(attempt: int, *, note: str) -> None:
    """Book the reservation itself, as an estimate: it was used, and how much is not known. Never zero."""
    _settle(attempt, "reserved", Amounts(), pricing=Pricing(), estimated=True, note=note)


def release(attempt: int, *, note: str = "") -> None:
    """Give an attempt's reservation back: it is certain that nothing was used."""
    _settle(attempt, "release", Amounts(), pricing=Pricing(), estimated=False, note=note)


def set_limits(
    run: int,
    limits: Mapping[str, Decimal | int | float | None],
    *,
    actor: Actor,
    why: str,
    version: int | None = None,
    renew: bool = False,
) -> Budget:
    """Set new limits on a locked run's budget: {"usd": …, "tokens": …, …, "working_s": …}; None is no limit.

    "ask_percent" is the share of a limit above which a step is put before a person first. renew: it becomes another
    version also when nothing in it changes, since something that is set together with it did.

    Raises:
        LimitTooLow below what is spent or reserved; NoLimit when none would be left; Conflict when `version` is old.
    """
    require_transaction()
    budget = _lock(run)
    if version is not None and version != budget.version:
        raise Conflict("This budget was changed since you opened it.", remedy="Look at the fresh one and edit again.")
    before: dict[str, Json] = {}
    after: dict[str, Json] = {}
    deltas: dict[str, Decimal | int] = {}
    for name, wanted in limits.items():
        column = {"working_s": "working_limit_s", "ask_percent": "ask_percent"}.get(name, f"{name}_limit")
        old = getattr(budget, column)
        if old == wanted:
            continue
        uncovered = ""
        if name in DIMENSIONS:
            used = getattr(budget, f"{name}_spent") + getattr(budget, f"{name}_reserved")
            if wanted is not None:
                if wanted < used:
                    raise LimitTooLow(name, wanted, used)
                deltas[name] = Decimal(wanted) - (old or 0) if name == "usd" else int(wanted) - int(old or 0)
            # The new limit covers what the old one did not.
            uncovered = f", {name}_overrun = 0"
        elif name == "working_s" and wanted is not None:
            worked = worked_s(run)
            if wanted < worked:
                raise LimitTooLow(name, wanted, round(worked, 1))
        before[name], after[name] = clean_json(old), clean_json(wanted)
        sql.execute(f"UPDATE runs_budget SET {column} = %s{uncovered} WHERE run_id = %s", [wanted, run])
        setattr(budget, column, wanted)
    if not after:
        if renew:
            sql.execute("UPDATE runs_budget SET version = version + 1 WHERE run_id = %s", [run])
        return budget
    if not budget.unlimited_because and all(getattr(budget, column) is None for column in _LIMITS):
        raise NoLimit(Run.objects.values_list("agent", flat=True).get(pk=run))
    # Whoever changes a limit sees how full it is; the next threshold is told of again.
    sql.execute(
        "UPDATE runs_budget SET version = version + 1, told_percent = %s, notice_due = false WHERE run_id = %s",
        [max(_passed(budget).values(), default=0), run],
    )
    if deltas:
        _note_grant(run, deltas, why=why)
    append("budget.limits_set", actor=actor, run=run, before=before, after=after, why=why)
    budget.refresh_from_db()
    return budget


def ask_finish(run: int, *, actor: Actor, why: str) -> None:
    """A person let a locked run finish with what it has: it thinks once more, and ends."""
    require_transaction()
    _queue(run)
    if sql.execute(
        "UPDATE runs_budget SET finish_asked_at = lw_clock() WHERE run_id = %s AND finish_asked_at IS NULL", [run]
    ):
        append("budget.finish_asked", actor=actor, run=run, why=why)


def is_finishing(run: int) -> bool:
    """Whether a person has let this run finish with what it has."""
    return bool(ask_finishing(run).all())


def ask_finishing(run: int) -> sql.Answer:
    """The same, to be known later: a row where it is so."""
    return sql.ask("SELECT 1 FROM runs_budget WHERE run_id = %s AND finish_asked_at IS NOT NULL", [run])


def cover(run: int, amounts: Amounts, *, why: str) -> None:
    """Raise what is short, so that exactly these amounts fit. The run and all its ancestors are locked (child first)."""
    require_transaction()
    (chain,) = sql.fetch_row("SELECT lw_chain(%s)", [run])
    for link in chain:
        budget = _lock(link)
        short: dict[str, Decimal | int | float | None] = {}
        for dimension, amount in amounts.items():
            most = getattr(budget, f"{dimension}_limit")
            used = getattr(budget, f"{dimension}_spent") + getattr(budget, f"{dimension}_reserved")
            if amount and most is not None and used + amount > most:
                short[dimension] = used + amount
        if short:
            set_limits(link, short, actor=RUNTIME, why=why)


def tell_threshold(run: int) -> bool:
    """Journal that a locked run has used half, or four fifths, of a limit. False: nothing new is to be told."""
    require_transaction()
    budget = _lock(run)
    passed = {name: percent for name, percent in _passed(budget).items() if percent > budget.told_percent}
    highest = max(passed.values(), default=budget.told_percent)
    sql.execute("UPDATE runs_budget SET told_percent = %s, notice_due = false WHERE run_id = %s", [highest, run])
    if not passed:
        return False
    used: dict[str, Json] = {
        name: f"{write_amount(name, getattr(budget, f'{name}_spent'))} of"
        f" {write_amount(name, getattr(budget, f'{name}_limit'))}"
        for name in passed
    }
    told = ", ".join(f"{text}" for text in used.values())
    append("budget.threshold_passed", run=run, after={"percent": highest, **used}, why=f"{highest} % is spent: {told}")
    return True


def mismatches() -> list[tuple[int, str, Decimal, Decimal]]:
    """(run, column, row says, ledger says) wherever a budget row is not the sum of its ledger. Empty when all is well."""
    found: list[tuple[int, str, Decimal, Decimal]] = []
    for dimension in DIMENSIONS:
        for run, spent, reserved, settled, held in sql.fetch_all(
            f"SELECT * FROM (SELECT b.run_id, b.{dimension}_spent AS spent, b.{dimension}_reserved AS reserved,"
            f" coalesce(sum(e.{dimension}) FILTER (WHERE e.kind IN ('settle', 'correct')), 0) AS settled,"
            f" coalesce(sum(e.{dimension}) FILTER (WHERE e.kind = 'reserve' AND NOT EXISTS (SELECT FROM runs_ledgerentry x"
            "   WHERE x.budget_id = e.budget_id AND x.attempt_id = e.attempt_id AND x.kind IN ('settle', 'release'))), 0)"
            " AS held FROM runs_budget b LEFT JOIN runs_ledgerentry e ON e.budget_id = b.run_id GROUP BY b.run_id) s"
            " WHERE spent <> settled OR reserved <> held"
        ):
            if spent != settled:
                found.append((run, f"{dimension}_spent", spent, settled))
            if reserved != held:
                found.append((run, f"{dimension}_reserved", reserved, held))
    return found


def _lock(run: int) -> Budget:
    _queue(run)
    return Budget.objects.select_for_update(of=("self",), no_key=True).get(pk=run)


def _queue(run: int) -> None:
    """Wait for one's turn on a budget: everybody does before its row is locked (migration 0019)."""
    sql.execute("SELECT lw_queue_for_budget(%s)", [run])


def _reserve(
    run: int, amounts: Amounts, attempt: str, ident: list[int], *, pricing: Pricing, note: str, asked: bool
) -> None:
    """attempt: as the statement names it, with its number where it has one; of none, nothing is reserved."""
    require_transaction()
    short = sql.fetch_one(
        f"SELECT * FROM lw_reserve(%s, {attempt}, %s::numeric, %s::bigint, %s::bigint, %s::bigint, %s::bigint,"
        " %s::text, %s::jsonb, %s::text, %s)",
        [
            run,
            *ident,
            *(amount for _, amount in amounts.items()),
            clean_text(pricing.model)[:100],
            sql.jsonb(pricing.price),
            clean_text(note),
            asked,
        ],
    )
    if short is not None:
        budget, dimension, needed, left, by_siblings, percent, allowance, frees_at = short
        of = ("", "")
        if allowance is not None:
            scope, period = sql.fetch_row("SELECT scope, period FROM runs_allowance WHERE id = %s", [allowance])
            of = (scope, period)
        if attempt != "NULL":
            # What was written before it turned out to be short goes with the block that this leaves.
            transaction.set_rollback(True)
        raise OverBudget(
            dimension=dimension,
            needed=_amount(dimension, needed),
            left=_amount(dimension, left),
            run=budget,
            by_siblings=by_siblings,
            percent=percent,
            allowance=allowance,
            allowance_of=of,
            frees_at=frees_at,
        )


def _settle(
    attempt: int, how: str, amounts: Amounts, *, pricing: Pricing, estimated: bool, note: str, last: bool = True
) -> None:
    require_transaction()
    sql.run_after_commit(_FLUSH)
    sql.queue(
        "SELECT lw_settle(%s, %s::text, %s::numeric, %s::bigint, %s::bigint, %s::bigint, %s::bigint,"
        " %s::text, %s::jsonb, %s::jsonb, %s, %s, %s::text)",
        [
            attempt,
            how,
            *(amount for _, amount in amounts.items()),
            clean_text(pricing.model)[:100],
            sql.jsonb(pricing.usage),
            sql.jsonb(pricing.price),
            estimated,
            pricing.unpriced,
            clean_text(note),
        ],
        last=last,
    )


_LATEST = "currval(pg_get_serial_sequence('runs_attempt', 'id'))"

# Wait until everything that is committed is on the disk: the commit itself let the budgets go before that.
_FLUSH = "SELECT pg_logical_emit_message(true, 'longwatch', '')"


def _note_grant(run: int, deltas: Mapping[str, Decimal | int], *, why: str) -> None:
    sql.execute(
        "INSERT INTO runs_ledgerentry (budget_id, run_id, kind, usd, tokens, calls, effects, steps, estimated, unpriced,"
        " model, note, at) VALUES (%s, %s, 'grant', %s, %s, %s, %s, %s, false, false, '', %s, lw_clock())",
        [run, run, *(deltas.get(dimension, 0) for dimension in DIMENSIONS), clean_text(why)],
    )


def _passed(budget: Budget) -> dict[str, int]:
    """The highest threshold that each limited dimension has passed."""
    found: dict[str, int] = {}
    for dimension in DIMENSIONS:
        most, spent = getattr(budget, f"{dimension}_limit"), getattr(budget, f"{dimension}_spent")
        if most and (passed := [percent for percent in THRESHOLDS if spent * 100 >= most * percent]):
            found[dimension] = max(passed)
    return found


def _amount(dimension: str, amount: Decimal) -> Decimal | int:
    return amount if dimension == "usd" else int(amount)


_WORKED = """
    WITH RECURSIVE down AS (
        SELECT %s::bigint AS id UNION ALL SELECT c.id FROM runs_run c JOIN down d ON c.parent_id = d.id
    )
    SELECT coalesce(sum(
        r.working_s + CASE WHEN r.state IN ('running', 'thinking') AND r.held_since IS NULL
                      THEN greatest(extract(epoch FROM lw_clock() - r.clock_mark), 0) ELSE 0 END
    ), 0) FROM down d JOIN runs_run r ON r.id = d.id
"""
