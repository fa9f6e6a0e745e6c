"""Writer of budgets and the ledger: reserve before, settle after, for a run and all its ancestors, leaf to root."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from runs import agents, sql
from runs.agents import Json
from runs.errors import Conflict, LimitTooLow, NoLimit, OverBudget
from runs.journal import Actor, append, require_transaction
from runs.models import Budget, LedgerEntry, Run
from runs.models.budget import DIMENSIONS
from runs.sanitise import clean_json, clean_text
from runs.states import EntryKind

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


def create(run: Run, limits: agents.Budget) -> Budget:
    require_transaction()
    sql.execute(
        "INSERT INTO runs_budget (run_id, version, unlimited_because, usd_limit, tokens_limit, calls_limit,"
        " effects_limit, steps_limit, working_limit_s, "
        + ", ".join(f"{d}_{part}" for d in DIMENSIONS for part in ("spent", "reserved", "overrun"))
        + ") VALUES (%s, 1, %s, %s, %s, %s, %s, %s, %s, "
        + ", ".join(["0"] * (3 * len(DIMENSIONS)))
        + ")",
        [
            run.pk,
            clean_text(limits.unlimited),
            Decimal(limits.usd) if limits.usd is not None else None,
            limits.tokens,
            limits.calls,
            limits.effects,
            limits.steps,
            limits.working_s,
        ],
    )
    return Budget.objects.get(pk=run.pk)


def check_working(run: Run) -> None:
    """Raises: OverBudget when a locked run has used up its working time."""
    (limit, used) = sql.fetch_row(
        "SELECT b.working_limit_s, r.working_s + CASE WHEN r.state IN ('running', 'thinking') AND r.held_since IS NULL"
        " THEN greatest(extract(epoch FROM lw_clock() - r.clock_mark), 0) ELSE 0 END"
        " FROM runs_run r JOIN runs_budget b ON b.run_id = r.id WHERE r.id = %s",
        [run.pk],
    )
    if limit is not None and used >= limit:
        raise OverBudget(dimension="working_s", needed="more", left=0, run=run.pk, by_siblings=False)


def reserve(run: int, amounts: Amounts, *, attempt: int, note: str = "") -> None:
    """Reserve for a run and all its ancestors, or for none of them. Raises: OverBudget."""
    chain = _lock_chain(run)
    _require_room(chain, amounts)
    for budget in chain:
        _add(budget, EntryKind.RESERVE, amounts, run=run, attempt=attempt, note=note)
        _change(budget, {f"{d}_reserved": amount for d, amount in amounts.items()}, judged=True)


def require_room(run: int, amounts: Amounts) -> None:
    """Judge whether a reservation fits, before there is an attempt. What it finds holds until the commit.

    So a step that waits for its budget cannot miss the grant: whoever raises a limit waits for these locks first.

    Raises:
        OverBudget.
    """
    _require_room(_lock_chain(run), amounts)


def settle(
    attempt: int, amounts: Amounts, *, pricing: Pricing | None = None, estimated: bool = False, note: str = ""
) -> None:
    """Replace an attempt's reservation by what was really used. Does nothing the second time.

    What passes the reservation is booked as it is, and shown as overrun: the truth is never made to fit.
    """
    for budget, held in _lock_reserved(attempt):
        _add(
            budget,
            EntryKind.SETTLE,
            amounts,
            run=held.run_id,
            attempt=attempt,
            pricing=pricing or Pricing(),
            estimated=estimated,
            note=note,
        )
        changes: dict[str, Decimal | int] = {}
        for dimension, amount in amounts.items():
            changes[f"{dimension}_spent"] = amount
            changes[f"{dimension}_reserved"] = -getattr(held, dimension)
        _change(budget, changes)


def settle_as_reserved(attempt: int, *, note: str) -> None:
    """Book the reservation itself, as an estimate: it was used, and how much is not known. Never zero."""
    entry = LedgerEntry.objects.filter(attempt_id=attempt, kind=EntryKind.RESERVE).first()
    if entry is None:
        return
    amounts = Amounts(usd=entry.usd, tokens=entry.tokens, calls=entry.calls, effects=entry.effects, steps=entry.steps)
    settle(attempt, amounts, estimated=True, pricing=Pricing(model=entry.model), note=note)


def release(attempt: int, *, note: str = "") -> None:
    """Give an attempt's reservation back: it is certain that nothing was used."""
    for budget, held in _lock_reserved(attempt):
        amounts = Amounts(usd=held.usd, tokens=held.tokens, calls=held.calls, effects=held.effects, steps=held.steps)
        _add(budget, EntryKind.RELEASE, amounts, run=held.run_id, attempt=attempt, note=note)
        _change(budget, {f"{d}_reserved": -amount for d, amount in amounts.items()})


def set_limits(
    run: int, limits: Mapping[str, Decimal | int | float | None], *, actor: Actor, why: str, version: int | None = None
) -> Budget:
    """Set new limits on a locked run's budget: {"usd": …, "tokens": …, …, "working_s": …}; None is no limit.

    Raises:
        LimitTooLow below what is spent or reserved; NoLimit when none would be left; Conflict when `version` is old.
    """
    require_transaction()
    budget = Budget.objects.select_for_update(of=("self",), no_key=True).get(pk=run)
    if version is not None and version != budget.version:
        raise Conflict("This budget was changed since you opened it.", remedy="Look at the fresh one and edit again.")
    before: dict[str, Json] = {}
    after: dict[str, Json] = {}
    deltas: dict[str, Decimal | int] = {}
    for name, wanted in limits.items():
        column = "working_limit_s" if name == "working_s" else f"{name}_limit"
        old = getattr(budget, column)
        if old == wanted:
            continue
        if name != "working_s" and wanted is not None:
            used = getattr(budget, f"{name}_spent") + getattr(budget, f"{name}_reserved")
            if wanted < used:
                raise LimitTooLow(name, wanted, used)
            deltas[name] = Decimal(wanted) - (old or 0) if name == "usd" else int(wanted) - int(old or 0)
        before[name], after[name] = clean_json(old), clean_json(wanted)
        # The new limit covers what the old one did not.
        uncovered = "" if name == "working_s" else f", {name}_overrun = 0"
        sql.execute(f"UPDATE runs_budget SET {column} = %s{uncovered} WHERE run_id = %s", [wanted, run])
        setattr(budget, column, wanted)
    if not after:
        return budget
    if not budget.unlimited_because and all(getattr(budget, column) is None for column in _LIMITS):
        raise NoLimit(Run.objects.values_list("agent", flat=True).get(pk=run))
    sql.execute("UPDATE runs_budget SET version = version + 1 WHERE run_id = %s", [run])
    _add(budget, EntryKind.GRANT, Amounts(**deltas), run=run, attempt=None, note=why)  # type: ignore[arg-type]
    append("budget.limits_set", actor=actor, run=run, before=before, after=after, why=why)
    budget.refresh_from_db()
    return budget


def mismatches() -> list[tuple[int, str, Decimal, Decimal]]:
    """(run, column, row says, ledger says) wherever a budget row is not the sum of its ledger. Empty when all is well."""
    found: list[tuple[int, str, Decimal, Decimal]] = []
    for dimension in DIMENSIONS:
        for run, spent, reserved, settled, held in sql.fetch_all(
            f"SELECT * FROM (SELECT b.run_id, b.{dimension}_spent AS spent, b.{dimension}_reserved AS reserved,"
            f" coalesce(sum(e.{dimension}) FILTER (WHERE e.kind = 'settle'), 0) AS settled,"
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


def _require_room(chain: list[Budget], amounts: Amounts) -> None:
    for budget in chain:
        for dimension, amount in amounts.items():
            limit = getattr(budget, f"{dimension}_limit")
            if limit is None or not amount:
                continue
            spent, reserved = getattr(budget, f"{dimension}_spent"), getattr(budget, f"{dimension}_reserved")
            if spent + reserved + amount > limit:
                raise OverBudget(
                    dimension=dimension,
                    needed=amount,
                    left=max(limit - spent - reserved, 0),
                    run=budget.run_id,
                    by_siblings=reserved > 0 and spent + amount <= limit,
                )


def _lock_chain(run: int) -> list[Budget]:
    """The budgets of a run and its ancestors, locked leaf to root: the order in which everyone locks them."""
    require_transaction()
    # A parent's number is below its child's, so descending order is leaf to root.
    chain = sorted(
        (
            row[0]
            for row in sql.fetch_all(
                "WITH RECURSIVE up AS (SELECT id, parent_id FROM runs_run WHERE id = %s"
                " UNION ALL SELECT p.id, p.parent_id FROM runs_run p JOIN up ON p.id = up.parent_id) SELECT id FROM up",
                [run],
            )
        ),
        reverse=True,
    )
    return [Budget.objects.select_for_update(of=("self",), no_key=True).get(pk=number) for number in chain]


def _lock_reserved(attempt: int) -> list[tuple[Budget, LedgerEntry]]:
    """The budgets that an attempt has a reservation on which nothing has replaced yet, locked leaf to root."""
    require_transaction()
    held = {e.budget_id: e for e in LedgerEntry.objects.filter(attempt_id=attempt, kind=EntryKind.RESERVE)}
    locked = [
        Budget.objects.select_for_update(of=("self",), no_key=True).get(pk=number)
        for number in sorted(held, reverse=True)
    ]
    ended = LedgerEntry.objects.filter(attempt_id=attempt, kind__in=[EntryKind.SETTLE, EntryKind.RELEASE])
    replaced = set(ended.values_list("budget_id", flat=True))
    return [(budget, held[budget.pk]) for budget in locked if budget.pk not in replaced]


def _add(
    budget: Budget,
    kind: EntryKind,
    amounts: Amounts,
    *,
    run: int,
    attempt: int | None,
    pricing: Pricing = Pricing(),
    estimated: bool = False,
    note: str = "",
) -> None:
    sql.execute(
        "INSERT INTO runs_ledgerentry (budget_id, run_id, attempt_id, kind, usd, tokens, calls, effects, steps,"
        " estimated, model, usage, price, note, at)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, lw_clock())",
        [
            budget.pk,
            run,
            attempt,
            kind,
            amounts.usd,
            amounts.tokens,
            amounts.calls,
            amounts.effects,
            amounts.steps,
            estimated,
            clean_text(pricing.model)[:100],
            sql.jsonb(pricing.usage),
            sql.jsonb(pricing.price),
            clean_text(note),
        ],
    )


def _change(budget: Budget, changes: Mapping[str, Decimal | int], *, judged: bool = False) -> None:
    """Change a locked budget. What its limit does not cover of the truth is shown as overrun: no less, no more.

    judged: it was found to fit before, and the CHECK refuses it otherwise.
    """
    kept = {column: amount for column, amount in changes.items() if amount}
    if not kept:
        return
    for column, amount in kept.items():
        setattr(budget, column, getattr(budget, column) + amount)
    if not judged:
        for dimension in DIMENSIONS:
            limit = getattr(budget, f"{dimension}_limit")
            used = getattr(budget, f"{dimension}_spent") + getattr(budget, f"{dimension}_reserved")
            overrun = 0 if limit is None else max(used - limit, 0)
            if overrun != (before := getattr(budget, f"{dimension}_overrun")):
                kept[f"{dimension}_overrun"] = overrun - before
    sql.execute(
        "UPDATE runs_budget SET " + ", ".join(f"{c} = {c} + %s" for c in kept) + " WHERE run_id = %s",
        [*kept.values(), budget.pk],
    )
