"""What has to be true of a database when its fleet has come to rest, whatever was done to it meanwhile.

Effects are counted at the receiver: the shop's own log. Each violation is one sentence; none is a clean bill.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from runs import budgets, sql
from runs.examples.shop.client import LogLine, ShopClient
from runs.models import Key
from runs.states import AttemptOutcome, KeyState

# What a step's newest journal entry says of its state.
_STEP_STATES = {"planned": "planned", "woken": "planned", "taken": "taken"}
_SAME_SECOND = timedelta(seconds=2)  # the shop's log has whole seconds


def find_violations(shop: ShopClient, *, tools: Collection[str] = ("refund",)) -> list[str]:
    """Check everything; `tools` are those that make refunds, whose effects are counted."""
    return [
        *_check_effects(shop, tools),
        *_check_nothing_ran_again(),
        *_check_arrivals(shop),
        *_check_ledger(),
        *_check_nothing_is_held(),
        *_check_journal(),
        *_check_everything_says_why(),
    ]


def list_doubts() -> list[str]:
    """What is not settled yet, and is shown to a person: explained, and so no violation."""
    rows = sql.fetch_all(
        "SELECT run_id, kind, title FROM runs_approval WHERE state = 'pending' AND kind IN ('verdict', 'failure') ORDER BY id"
    )
    return [f"run {run}: {kind}: {title}" for run, kind, title in rows]


def _check_effects(shop: ShopClient, tools: Collection[str]) -> Iterator[str]:
    """Each effect at the receiver has one key, each done key one effect, each failed key none.

    A tool whose receiver honours no keys sends what it has after its own: KEY~WHATEVER.
    """
    effects = list(shop.effects(kind="refund"))
    counted = Counter((effect["key"] or "").partition("~")[0] for effect in effects)
    known = {key.header: key for key in Key.objects.filter(tool__in=tools).select_related("step")}
    for header, times in counted.items():
        key = known.get(header)
        if key is None:
            yield f"a refund was made with the key {header}, which no run has taken"
        elif times != 1:
            yield f"the refund of step {key.step.number} of run {key.run_id} was made {times} times"
        elif key.state == KeyState.FAILED:
            yield f"key {header} says that it certainly did not happen, and it did"
    for header, key in known.items():
        if key.state == KeyState.DONE and counted[header] != 1:
            yield f"key {header} is done, and the shop has {counted[header]} such refunds"
        if key.state == KeyState.TAKEN:
            yield f"key {header} is neither settled nor in doubt"
    for (order, amount), times in Counter((e["order"], e["amount"]) for e in effects).items():
        if times != 1:
            yield f"order {order} was refunded {amount} {times} times"


def _check_nothing_ran_again() -> Iterator[str]:
    """By the journal, whose order within a run is that of the run's lock."""
    for run, number, final, taken in sql.fetch_all(
        "SELECT s.run_id, s.number, f.seq, t.seq FROM runs_step s"
        " JOIN runs_journalentry f ON f.step_id = s.id AND f.kind = 'step.' || s.state"
        " JOIN runs_journalentry t ON t.step_id = s.id AND t.kind = 'step.taken' AND t.seq > f.seq"
        " WHERE s.state = 'done'"
    ):
        yield f"step {number} of run {run} was done (entry {final}) and taken again (entry {taken})"


@dataclass(frozen=True, kw_only=True)
class _Tries:
    tries: int
    ended_at: datetime | None


def _check_arrivals(shop: ShopClient) -> Iterator[str]:
    """No call came to the shop more often than its step was tried, and none after its step was over."""
    rows = sql.fetch_all("SELECT run_id, number, tries, ended_at FROM runs_step WHERE kind IN ('act', 'check')")
    steps = {f"run {run} step {number}": _Tries(tries=t, ended_at=e) for run, number, t, e in rows}
    arrived: dict[str, list[LogLine]] = {}
    for line in shop.log(kind="arrived"):
        arrived.setdefault(line["caller"] or "", []).append(line)
    for caller, step in steps.items():
        lines = arrived.get(caller, [])
        if len(lines) > step.tries:
            yield f"{caller} was tried {step.tries} times and called the shop {len(lines)} times"
        late = [line for line in lines if step.ended_at and _at(line) > step.ended_at + _SAME_SECOND]
        if late:
            yield f"{caller} ended at {step.ended_at} and called the shop at {late[0]['at']}"


def _at(line: LogLine) -> datetime:
    return datetime.fromisoformat(line["at"])


def _check_ledger() -> Iterator[str]:
    for run, column, row, ledger in budgets.mismatches():
        yield f"budget of run {run}: {column} is {row}, its ledger says {ledger}"
    for (run,) in sql.fetch_all(
        "SELECT b.run_id FROM runs_budget b JOIN runs_run r ON r.id = b.run_id WHERE r.ended_at IS NOT NULL"
        " AND (b.usd_reserved, b.tokens_reserved, b.calls_reserved, b.effects_reserved, b.steps_reserved)"
        " <> (0, 0, 0, 0, 0)"
    ):
        yield f"run {run} has ended and something is still reserved"
    for attempt, kinds in sql.fetch_all(
        "SELECT attempt_id, array_agg(kind ORDER BY id) FROM runs_ledgerentry WHERE attempt_id IS NOT NULL"
        " GROUP BY attempt_id, budget_id HAVING count(*) FILTER (WHERE kind = 'reserve') <> 1"
        " OR count(*) FILTER (WHERE kind IN ('settle', 'release')) <> 1"
    ):
        yield f"attempt {attempt} has the ledger entries {kinds}"
    for (run,) in sql.fetch_all("SELECT run_id FROM runs_budget WHERE usd_limit IS NOT NULL AND usd_spent > usd_limit"):
        yield f"run {run} spent more than its limit"


def _check_nothing_is_held() -> Iterator[str]:
    for run, attempt in sql.fetch_all("SELECT run_id, id FROM runs_attempt WHERE outcome = 'open'"):
        yield f"attempt {attempt} of run {run} is still open"
    for run, name in sql.fetch_all(
        "SELECT l.run_id, l.name FROM runs_lock l JOIN runs_key k ON k.id = l.key_id"
        " WHERE k.state NOT IN ('taken', 'in_doubt')"
    ):
        yield f"run {run} still holds the lock {name}"
    for (run,) in sql.fetch_all("SELECT id FROM runs_run WHERE holder IS NOT NULL OR lease_until IS NOT NULL"):
        yield f"run {run} is still held by a worker"
    for (run,) in sql.fetch_all("SELECT id FROM runs_run WHERE ended_at IS NOT NULL AND drained_at IS NULL"):
        yield f"run {run} has ended and is not drained"
    for run, number, state in sql.fetch_all(
        "SELECT s.run_id, s.number, s.state FROM runs_step s JOIN runs_run r ON r.id = s.run_id"
        " WHERE r.ended_at IS NOT NULL AND s.state IN ('planned', 'waiting', 'taken')"
    ):
        yield f"run {run} has ended and its step {number} is {state}"
    for run, number, state in sql.fetch_all(
        "SELECT s.run_id, s.number, s.state FROM runs_step s WHERE s.state = 'taken'"
        " AND NOT EXISTS (SELECT FROM runs_attempt a WHERE a.step_id = s.id AND a.outcome = 'open')"
    ):
        yield f"step {number} of run {run} is {state}, and nobody is at it"
    for run, approval in sql.fetch_all(
        "SELECT a.run_id, a.id FROM runs_approval a JOIN runs_step s ON s.id = a.step_id"
        " WHERE a.state = 'approved' AND s.ended_at IS NOT NULL"
    ):
        yield f"approval {approval} of run {run} still allows a call of a step that is over"


def _check_journal() -> Iterator[str]:
    """Rows say what the newest entry about them says, and no entry is missing."""
    for run, seq, count, most in sql.fetch_all(
        "SELECT r.id, r.journal_seq, count(j.id), coalesce(max(j.seq), 0) FROM runs_run r"
        " LEFT JOIN runs_journalentry j ON j.run_id = r.id GROUP BY r.id HAVING count(j.id) <> r.journal_seq"
        " OR coalesce(max(j.seq), 0) <> r.journal_seq"
    ):
        yield f"the journal of run {run} counts {seq} and holds {count} entries up to {most}"
    for run, number, state, kind in sql.fetch_all(
        "SELECT DISTINCT ON (s.id) s.run_id, s.number, s.state, j.kind FROM runs_step s"
        " JOIN runs_journalentry j ON j.step_id = s.id WHERE j.kind LIKE 'step.%%'"
        " AND j.kind NOT IN ('step.gated', 'step.passed_gate') ORDER BY s.id, j.seq DESC"
    ):
        said = kind.partition(".")[2]
        fits = state in ("waiting", "in_doubt") if said == "waited" else state == _STEP_STATES.get(said, said)
        if not fits:
            yield f"step {number} of run {run} is {state}; its journal ends with {kind}"
    for run, state, kind, after in sql.fetch_all(
        "SELECT DISTINCT ON (r.id) r.id, r.state, j.kind, j.after->>'state' FROM runs_run r"
        " JOIN runs_journalentry j ON j.run_id = r.id"
        " WHERE j.kind = 'run.moved' OR j.kind IN ('run.succeeded', 'run.failed', 'run.stopped', 'run.expired')"
        " ORDER BY r.id, j.seq DESC"
    ):
        # A claim is not journalled: from queued or waiting a run may be running by now.
        if state != after and not (state == "running" and after in ("queued", "waiting")):
            yield f"run {run} is {state}; its journal ends with {kind} to {after}"
    for attempt, run, outcome in sql.fetch_all(
        "SELECT a.id, a.run_id, a.outcome FROM runs_attempt a WHERE a.outcome <> 'open' AND NOT EXISTS (SELECT FROM"
        " runs_journalentry j WHERE j.step_id = a.step_id AND j.kind = 'attempt.' || a.outcome"
        " AND (j.after->>'attempt')::int = a.number)"
    ):
        yield f"attempt {attempt} of run {run} is {AttemptOutcome(outcome)}, and no entry says so"


def _check_everything_says_why() -> Iterator[str]:
    """Every open run waits for something that is named, and is looked at again (G7)."""
    for run, state, why in sql.fetch_all(
        "SELECT r.id, r.state, r.why FROM runs_run r WHERE r.ended_at IS NULL AND r.paused_at IS NULL"
        " AND r.held_since IS NULL AND (r.state <> 'waiting' OR r.why = '' OR r.due_at IS NULL)"
    ):
        yield f"run {run} is {state} and nobody is at it; it says {why!r}"
