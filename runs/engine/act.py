"""An act step: resolve, gate, freshen, take; then perform and settle. Each phase in architecture order; see README."""

import uuid
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from runs import approvals, budgets, clock, course, facts, journal, keys, lifecycle, locks, sql, steps, switches
from runs.agents import Agent, BadArguments, Effect, Tool, get_agent
from runs.engine import awaiting, builtin, doubt, failpoints, freshen, gate
from runs.engine.hand import Hand, later
from runs.engine.persist import persist
from runs.engine.settle import settle_call
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Perform
from runs.engine.waits import wait_for_budget, wait_for_contract, wait_for_lock, wait_for_switch
from runs.errors import LongwatchError, OverBudget
from runs.facts import Judged
from runs.models import Approval, Attempt, Key, Run, Step
from runs.states import (
    KEY_OPEN,
    ApprovalState,
    AttemptOutcome,
    KeyState,
    StepState,
    WaitingFor,
)

# Shorter than this, what was judged would run out before the tool process could look.
_LEAST_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A try that was taken: what the tool process is asked to do."""

    attempt: int
    tool: Tool
    perform: Perform


def advance_act(hand: Hand, step_id: int) -> None:
    """Work on a planned act step as far as it goes now."""
    taken = _take(hand, step_id)
    if taken is None:
        return
    outcome = perform(hand, taken)
    persist(lambda: settle_call(hand.claim, taken.attempt, taken.tool, outcome))
    failpoints.reach("settled", run=taken.perform.run, tool=taken.perform.tool)


def perform(hand: Hand, taken: Taken) -> Outcome:
    """Have a taken call performed; the leases are renewed meanwhile, and a stop is heard."""
    call = taken.perform
    failpoints.reach("taken", run=call.run, tool=call.tool)
    outcome = hand.tools.perform(
        call,
        tick=lambda: hand.tick(taken.attempt),
        progress=lambda progress: steps.note_progress(taken.attempt, progress),
    )
    failpoints.reach("returned", run=call.run, tool=call.tool)
    return outcome


def _take(hand: Hand, step_id: int) -> Taken | None:
    """One transaction, lock then judge: everything that allows the call, and the call taken. None: not now."""
    performer = hand.ready_tools()
    before = clock.boottime()
    with transaction.atomic(durable=True), journal.together():
        switches.lock_shared()
        run = lifecycle.lock_held(hand.claim)
        step = steps.lock(step_id)
        if step.state != StepState.PLANNED or run.paused_at is not None:
            return None
        agent = get_agent(run.agent)
        if step.tool in builtin.BUILTINS:
            # Engaged since this step was chosen: no child is started any more.
            if switch := switches.in_scope(run.pk, step.tool):
                wait_for_switch(step, *switch)
            else:
                _execute_builtin(hand, run, step, agent)
            return None
        if step.keeps_wait:
            awaiting.go_on(run, step)
            return None
        tool = agent.tool(step.tool)
        if tool is None:
            wait_for_contract(step, agent.name)
            return None
        key = keys.open_key_of(step)
        if key is None:
            if not _fits_contract(run, step, tool) or not _is_new_intent(run, step, tool):
                return None
        elif doubt.resolve(run, step, tool, key) is None:
            return None
        judged = _rests_on(run, step, tool)
        if judged is None or _has_changed(run, step, key):
            return None
        approval = gate.pass_gate(run, step, agent, tool, key, judged)
        if isinstance(approval, gate.NotNow):
            return None
        return _take_now(hand, run, step, tool, judged, approval, performer=performer, before=before)


def _execute_builtin(hand: Hand, run: Run, step: Step, agent: Agent) -> None:
    """A built-in runs inside this transaction: done, counted and settled in one.

    Counted last: the budgets of all ancestors are locked until the commit. What does not fit has not been done.
    """
    first = step.tries == 0
    try:
        with transaction.atomic(), journal.together():
            attempt = _count_builtin(hand, run, step) if first else None
            _do_builtin(run, step, agent)
            if attempt is not None:
                budgets.reserve(run.pk, budgets.Amounts(steps=1), attempt=attempt.pk)
                budgets.settle(attempt.pk, budgets.Amounts(steps=1))
    except OverBudget as short:
        run.refresh_from_db()
        step.refresh_from_db()
        wait_for_budget(run, step, short)
        return
    failpoints.reach("executed", run=run.pk, tool=step.tool)


def _count_builtin(hand: Hand, run: Run, step: Step) -> Attempt:
    """A try that is over before it is done: nobody else ever sees it open."""
    attempt = steps.open_attempt(
        step,
        epoch=run.epoch,
        holder=hand.worker,
        performer=hand.worker,
        lease_s=settings.LEASE_S,
        begin_within_s=settings.LEASE_S,
        timeout_s=settings.LEASE_S,
    )
    steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.DONE)
    return attempt


def _do_builtin(run: Run, step: Step, agent: Agent) -> None:
    try:
        with transaction.atomic(), journal.together():
            outcome = builtin.execute(run, step, agent)
    except LongwatchError as refusal:
        steps.close(step, StepState.REFUSED, error=str(refusal))
        return
    if isinstance(outcome, builtin.Awaits):
        awaiting.conclude(run, step, outcome.wait, waits=True, since=outcome.since)
    elif isinstance(outcome, builtin.Wait):
        steps.wait(
            step,
            outcome.waiting_for,
            note=outcome.note,
            on=outcome.on,
            wake_at=outcome.until,
            and_then=outcome.and_then,
        )
    else:
        steps.close(step, StepState.DONE, result=outcome)


def _fits_contract(run: Run, step: Step, tool: Tool) -> bool:
    """Whether the step was planned for this very tool; a changed one is asked again, with its cards void."""
    if step.contract == tool.contract:
        return True
    try:
        arguments = tool.normalise(step.asked)
    except BadArguments as wrong:
        approvals.void_all(run.pk, step=step.pk, why="the tool changed")
        steps.close(step, StepState.REFUSED, error=f"the tool changed since this was asked: {wrong}")
        return False
    approvals.void_all(run.pk, step=step.pk, why="the tool changed")
    steps.set_arguments(step, arguments, tool.contract)
    steps.reset_gate(step)
    return True


def _is_new_intent(run: Run, step: Step, tool: Tool) -> bool:
    """Whether no earlier call of this run had the same intent, or that one certainly failed, or `again` says why."""
    if not tool.acts:
        return True
    same = keys.find(run, tool, step.asked)
    if same is None or same.key.state == KeyState.FAILED:
        return True
    first = same.key.step
    if same.key.state in KEY_OPEN or first.keeps_wait:
        if same.key.step_id == step.pk:
            return True
        steps.wait(
            step,
            WaitingFor.LOCK,
            note=f"the same call is still open in step {first.number}",
            on=keys.waited_on(same.key),
            wake_at=later(30),
            and_then="it is looked at again",
        )
        return False
    if step.again:
        return True
    if same.other_values:
        steps.close(
            step,
            StepState.REFUSED,
            error=f"step {first.number} did this with other values of {', '.join(same.other_values)}."
            " For a deliberate second time say `again` with the reason.",
        )
        return False
    keys.count_replay(same.key)
    # The key has what the call returned; a step that waited then has what came of it.
    told = first if first.state == StepState.DONE else same.key
    steps.close(
        step,
        StepState.DONE,
        result=told.result,
        artifact=told.artifact_id,
        replay_of=first.pk,
        why=f"done already in step {first.number}; this is its result",
    )
    return False


def _rests_on(run: Run, step: Step, tool: Tool) -> dict[str, Judged] | None:
    """The facts that the call rests on, each fresh; else they are checked first, and None."""
    names = sorted({*step.rests_on, *tool.bound_rests_on(step.arguments)})
    judged = facts.judge(run.pk, names, lock_rows=True)
    if missing := [name for name in names if name not in judged]:
        steps.close(
            step,
            StepState.REFUSED,
            error=f"read it first: no fact {', '.join(missing)} is recorded. Read it, record it, then ask again.",
        )
        return None
    if stale := [f for f in judged.values() if not f.usable or f.fresh_for_s < _LEAST_S]:
        freshen.freshen(run, step, stale)
        return None
    return judged


def _has_changed(run: Run, step: Step, key: Key | None) -> bool:
    """Whether a try before this one rested on another value; then the agent thinks again.

    While the step was taken, nobody could drop it for that. A call that may have acted is past this: it is done again
    because it is harmless, or because `doubt.resolve` found its facts unchanged.
    """
    if step.tries == 0 or (key is not None and steps.judge_past(key=key.pk).may_have_acted):
        return False
    changed = facts.changed_since_tried(step.pk)
    if changed is None:
        return False
    doubt.give_back_approval(run, step)
    course.void_changed(run, step, [changed.name], old=changed.old, new=changed.new)
    course.close_if_nothing_happened(key)
    return True


def _take_now(
    hand: Hand,
    run: Run,
    step: Step,
    tool: Tool,
    judged: dict[str, Judged],
    approval: Approval | None,
    *,
    performer: uuid.UUID,
    before: float,
) -> Taken | None:
    if switch := switches.in_scope(run.pk, tool.name):
        wait_for_switch(step, *switch)
        return None
    begin_within = _begin_within(run, approval, judged)
    if begin_within < _LEAST_S:
        steps.wait(step, WaitingFor.RETRY, note="what allows it is about to run out", wake_at=later(0.1))
        return None
    amounts, looks = budgets.Amounts(steps=1, effects=int(tool.acts)), tool.effect is not Effect.READ
    try:
        with transaction.atomic(), journal.together():
            if approval is not None and approval.state == ApprovalState.APPROVED:
                approvals.consume(approval)
            key = keys.take(run, step, tool, approval=approval.pk if approval else None) if tool.acts else None
            if key is not None:
                locks.take(tool.bound_locks(step.arguments), key=key.pk, run=run.pk)
            attempt = steps.open_attempt(
                step,
                epoch=run.epoch,
                holder=hand.worker,
                performer=performer,
                lease_s=settings.LEASE_S,
                begin_within_s=begin_within,
                timeout_s=tool.timeout,
                visible_within_s=tool.visible_within,
                key=key.pk if key else None,
                approval=approval.pk if approval else None,
            )
            facts.note_use(judged.values(), attempt=attempt.pk)
            budgets.reserve(run.pk, amounts, attempt=attempt.pk, at_once=not looks)
    except locks.Blocked as blocked:
        step.refresh_from_db()
        wait_for_lock(step, blocked)
        return None
    except OverBudget as short:
        step.refresh_from_db()
        wait_for_budget(run, step, short)
        return None
    perform = Perform(
        attempt=attempt.pk,
        agent=run.agent,
        function=Function.CALL,
        tool=tool.name,
        arguments=dict(step.arguments),
        key=key.header if key else "",
        run=run.pk,
        step=step.number,
        begin_by=before + begin_within,
        timeout_s=tool.timeout,
        look=looks,
    )
    return Taken(attempt=attempt.pk, tool=tool, perform=perform)


def _begin_within(run: Run, approval: Approval | None, judged: dict[str, Judged]) -> float:
    """Seconds for which everything that was judged holds: the effect begins before that, or not at all.

    An approval that this call's key has used up already stands or falls with the key (`doubt.resolve`), not with time.
    """
    expiring = approval.pk if approval is not None and approval.state == ApprovalState.APPROVED else None
    (left,) = sql.fetch_row(
        "SELECT extract(epoch FROM least(r.deadline_at, r.expires_at, a.expires_at) - lw_clock())"
        " FROM runs_run r LEFT JOIN runs_approval a ON a.id = %s WHERE r.id = %s",
        [expiring, run.pk],
    )
    ends = [settings.LEASE_S, *(f.fresh_for_s for f in judged.values())]
    return float(min([*ends, float(left)] if left is not None else ends))
