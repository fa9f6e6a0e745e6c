"""Where a run goes next, derived from its steps; what belongs to its end; what a changed fact takes with it.

Several writers together, below operations and engine. The caller has opened the transaction and locked the run.
"""

from collections.abc import Iterable
from datetime import datetime

from runs import approvals, facts, keys, lifecycle, sql, steps
from runs.agents import Json
from runs.journal import RUNTIME, Actor, append
from runs.models import Approval, Key, Run, Step
from runs.states import (
    KEY_OPEN,
    RUN_FINAL,
    WAIT_ORDER,
    ApprovalKind,
    ApprovalState,
    KeyState,
    RunState,
    StepKind,
    StepState,
    Verified,
    WaitingFor,
)

_HELD_BY_WORKER = frozenset({RunState.RUNNING, RunState.THINKING})


def workable(open_steps: list[Step]) -> list[Step]:
    """The open steps that can be worked on now, checks first. A finish waits until everything else is closed."""
    planned = [s for s in open_steps if s.state == StepState.PLANNED]
    others = [s for s in open_steps if s.kind != StepKind.FINISH]
    ready = [s for s in planned if s.kind != StepKind.FINISH or not others]
    first = (StepKind.CHECK, StepKind.RECONCILE)
    return sorted(ready, key=lambda s: (s.kind not in first, s.number))


def rest(run: Run, *, holding: bool = False, actor: Actor = RUNTIME) -> None:
    """Move a locked run to where its open steps put it: queued when something can be done, else waiting.

    holding: the caller holds the run. Otherwise a run that is held now is left alone: its holder reads its steps again,
    under the same lock, before it parks.
    """
    if run.state in RUN_FINAL or (run.state in _HELD_BY_WORKER and not holding):
        return
    open_steps = steps.open_steps(run)
    waiting = [s for s in open_steps if s.state != StepState.PLANNED]
    if not open_steps or workable(open_steps) or not waiting:
        if run.state == RunState.QUEUED:
            lifecycle.unhold(run)
        else:
            lifecycle.move(run, RunState.QUEUED, actor=actor)
        return
    first = min(waiting, key=_rank)
    waiting_for = WaitingFor(first.waiting_for) if first.waiting_for else WaitingFor.RETRY
    lifecycle.move(
        run,
        RunState.WAITING,
        due_at=next_due(run),
        waiting_for=waiting_for,
        why=_sentence(first, len(waiting)),
        actor=actor,
    )


def next_due(run: Run) -> datetime:
    """The earliest moment at which a waiting run has to be looked at. The one place that says so."""
    due: datetime = sql.fetch_row(
        "SELECT least(r.deadline_at, r.expires_at,"
        " (SELECT min(s.wake_at) FROM runs_step s WHERE s.run_id = r.id AND s.state IN ('waiting', 'in_doubt')),"
        " (SELECT min(a.expires_at) FROM runs_approval a WHERE a.run_id = r.id AND a.state IN ('pending', 'approved')"
        "   AND a.effective_at IS NULL),"
        # A run whose try is still under way elsewhere is looked at when that try's lease ends.
        " (SELECT min(t.lease_until - clock_timestamp() + lw_clock()) FROM runs_attempt t"
        "  WHERE t.run_id = r.id AND t.outcome = 'open'),"
        " lw_clock() + interval '1 day') FROM runs_run r WHERE r.id = %s",
        [run.pk],
    )[0]
    return due


def end(
    tree: list[Run],
    to: RunState,
    *,
    reason: str,
    outcome: Json = None,
    verified: Verified | str = "",
    actor: Actor = RUNTIME,
) -> list[str]:
    """End a run (the last of `tree`, from `lifecycle.lock_with_descendants`) and stop its open descendants.

    Returns what became free: the caller wakes who waits for it, in transactions of their own.
    """
    *descendants, run = tree
    freed: list[str] = []
    for descendant in descendants:
        if descendant.state not in RUN_FINAL:
            freed += _end_one(descendant, RunState.STOPPED, f"its run {run.pk} ended ({to})", None, "", actor)
    return [*freed, *_end_one(run, to, reason, outcome, verified, actor)]


def void_dependents(run: Run, names: Iterable[str], *, old: Json, new: Json, before: int | None = None) -> list[Step]:
    """A fact has another value now: drop the untaken steps that rest on it, with their cards, and say what changed.

    A step with a live key is left: its effect may have happened, and may be what changed the fact. One whose call is over
    and that only waits is left too.
    before: only steps of a smaller number: those after it were asked for by who knew the new value.
    """
    changed = set(names)
    dropped: list[Step] = []
    for step in steps.open_steps(run):
        if before is not None and step.number >= before:
            continue
        if step.kind != StepKind.ACT or not changed & set(step.rests_on) or step.state == StepState.TAKEN:
            continue
        if (
            step.keeps_wait
            or step.state == StepState.IN_DOUBT
            or Key.objects.filter(step=step, state__in=KEY_OPEN).exists()
        ):
            continue
        step = steps.lock(step.pk)
        void_changed(run, step, changed, old=old, new=new)
        dropped.append(step)
    return dropped


def void_changed(run: Run, step: Step, names: Iterable[str], *, old: Json, new: Json) -> None:
    """Drop a locked step, and its cards, because of what it rests on; the agent reads what changed."""
    changed = set(names)
    why = f"{', '.join(sorted(changed & set(step.rests_on) or changed))} changed"
    approvals.void_all(run.pk, step=step.pk, why=why)
    steps.close(
        step,
        StepState.VOID,
        error=why,
        result={"changed": list[Json](sorted(changed)), "old": old, "new": new},
        why=why,
    )


def wake_waiting(waiting_for: WaitingFor, on: str) -> list[int]:
    """Runs whose open steps wait for this. Wake each in a transaction of its own (`wake_run`)."""
    return list(
        Step.objects.filter(state=StepState.WAITING, waiting_for=waiting_for, waiting_on=on)
        .values_list("run_id", flat=True)
        .distinct()
    )


def wake_run(run: Run, waiting_for: WaitingFor, on: str | None = None, *, why: str, actor: Actor = RUNTIME) -> int:
    """Wake the steps of a locked run that wait for this (on this), and let it go on."""
    woken = 0
    for step in steps.open_steps(run):
        if step.state == StepState.WAITING and step.waiting_for == waiting_for and on in (None, step.waiting_on):
            steps.wake(steps.lock(step.pk), why=why, actor=actor)
            woken += 1
    if woken:
        rest(run, actor=actor)
    return woken


def wake_due(run: Run) -> None:
    """Wake the steps of a locked run whose moment has come."""
    due = "SELECT id FROM runs_step WHERE run_id = %s AND state = 'waiting' AND wake_at <= lw_clock() ORDER BY id"
    for (ident,) in sql.fetch_all(due, [run.pk]):
        steps.wake(steps.lock(ident), why="its moment has come")


def expire_cards(run: Run) -> int:
    """Expire the cards of a locked run whose time has passed, and do what each says happens then."""
    expired = approvals.due_to_expire(run.pk)
    for card in expired:
        was = card.state
        approvals.expire(card)
        step = steps.lock(card.step_id) if card.step_id else None
        if step is None or step.state not in (StepState.WAITING, StepState.PLANNED):
            continue
        if card.on_expiry != "reject":
            _ask_again(run, step, card)
        else:
            why = "the approval was not used in time" if was == ApprovalState.APPROVED else "nobody decided in time"
            steps.close(step, StepState.EXPIRED, error=why)
            close_if_nothing_happened(keys.open_key_of(step))
    return len(expired)


def _ask_again(run: Run, step: Step, card: Approval) -> None:
    """Nobody decided in time: the same card once more, of these people without an end, or of the next ones."""
    escalates = card.on_expiry == "escalate"
    note = "nobody decided in time"
    asked = f"asked of {', '.join(card.escalate_to) or 'everyone'}: {note}" if escalates else f"asked again: {note}"
    approvals.ask(
        run,
        ApprovalKind(card.kind),
        title=card.title,
        why=f"{card.why} ({asked})",
        step=step,
        key=card.key,
        fact=card.fact_id,
        because=card.because,
        contract=card.contract,
        arguments=card.arguments,
        facts=card.facts,
        options=card.options,
        evidence=card.evidence,
        verdicts=card.verdicts,
        needed=card.needed,
        groups=card.escalate_to if escalates else card.groups,
    )
    if escalates:
        append("approval.escalated", run=run.pk, step=step.pk, before={"approval": card.pk, "groups": card.groups})
    if step.state == StepState.PLANNED:
        steps.wait(step, WaitingFor.APPROVAL, note=f"{card.why} ({asked})", on="an approver")


def close_if_nothing_happened(key: Key | None) -> list[str]:
    """Close a locked key as failed when every try of it certainly did nothing; what became free."""
    if key is None or key.state != KeyState.TAKEN:
        return []
    past = steps.judge_past(key=key.pk)
    if past.open or past.may_have_acted:
        return []
    return keys.close(key, KeyState.FAILED, how="settled")


def _end_one(run: Run, to: RunState, reason: str, outcome: Json, verified: Verified | str, actor: Actor) -> list[str]:
    left = sql.ask(_LEFT, [run.pk])
    drained = lifecycle.finalise(run, to, reason=reason, outcome=outcome, verified=verified, actor=actor)
    why = f"run {to}"
    freed: list[str] = []
    has_steps, has_cards, has_keys = left.row()
    for step in steps.lock_open(run) if has_steps else ():
        # A taken step is closed by its attempt, a doubt by its verdict: what happened is still recorded.
        if step.state in (StepState.PLANNED, StepState.WAITING):
            steps.close(step, StepState.VOID, error=why)
    for card in sql.load(Approval, f"{_CARDS} ORDER BY id FOR NO KEY UPDATE", [run.pk]) if has_cards else ():
        approvals.void(card, why=why)
    for key in sql.load(Key, f"{_KEYS} ORDER BY id FOR NO KEY UPDATE", [run.pk]) if has_keys else ():
        freed += close_if_nothing_happened(key)
    facts.retire(run.pk)
    append("run.drained" if drained else "run.draining", run=run.pk)
    return freed


# What a run leaves behind when it ends; most runs nothing of it.
_CARDS = "run_id = %s AND state IN ('pending', 'approved') AND kind <> 'verdict'"
_KEYS = "run_id = %s AND state = 'taken'"
_LEFT = f"""
    SELECT EXISTS (SELECT FROM runs_step WHERE run_id = r.id AND state IN ({steps.OPEN})),
        EXISTS (SELECT FROM runs_approval WHERE {_CARDS.replace("%s", "r.id")}),
        EXISTS (SELECT FROM runs_key WHERE {_KEYS.replace("%s", "r.id")})
    FROM runs_run r WHERE r.id = %s
"""


def _rank(step: Step) -> tuple[int, int]:
    order = WAIT_ORDER.index(WaitingFor(step.waiting_for)) if step.waiting_for else len(WAIT_ORDER)
    return order, step.number


def _sentence(step: Step, waiting: int) -> str:
    what = f"Step {step.number}" + (f" ({step.tool})" if step.tool else "")
    note = step.wait_note or "its last try is still under way"
    stop = "" if note.endswith((".", "?", "!")) else "."
    more = f" And {waiting - 1} more." if waiting > 1 else ""
    return f"{what}: {note}{stop}{more}"
