"""The open keys of steps that are over: their run was stopped, or their step given up, while a call was not settled.

What can be looked up is looked up by a worker, in its tool process, as a step of its own: the run's state does not
change, and its budget is closed. What cannot, or was looked up in vain, is asked about.
"""

import time
import uuid
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, transaction

from runs import clock, course, keys, lifecycle, operations, sql, steps, switches
from runs.agents import Effect, Tool, find_tool
from runs.engine import check, doubt
from runs.engine.persist import forget_connection, persist
from runs.engine.toolhost import Tick, ToolHost
from runs.engine.toolwire import Function, Perform
from runs.lifecycle import Claim
from runs.models import Key, Run, Step
from runs.states import STEP_FINAL, STEP_OPEN, KeyState, StepKind, StepState

# A look-up that fails is made again a little later; one whose worker is lost each time must end too.
_PAUSE_S = 1.0
_MOST = 10

_FOUND = """
    SELECT k.id FROM runs_key k JOIN runs_step s ON s.id = k.step_id
    WHERE k.state = 'taken' AND s.ended_at IS NOT NULL ORDER BY random() LIMIT 1
"""


def settle(ident: int) -> None:
    """One of them, for the sweep: nothing happened, or a worker will look it up, or a person is asked."""
    with transaction.atomic(durable=True):
        run, step, key = _lock(ident)
        freed = course.close_if_nothing_happened(key)
        if key.state == KeyState.TAKEN:
            past = steps.judge_past(key=key.pk)
            asked = past.open or past.may_still_act_for_s > 0 or _tool_to_look_with(run, key) is not None
            if not asked:
                doubt.put_in_doubt(run, step, key)
    operations.wake_lock_waiters(freed)


def look_up_one(worker: uuid.UUID, tools: ToolHost) -> bool:
    """Look up one of them, as a worker. False: there is none that can be looked up now."""
    found = sql.fetch_one(_FOUND, [])
    if found is None:
        return False
    performer = tools.ready()
    before = clock.boottime()
    with transaction.atomic(durable=True):
        switches.lock_shared()
        run, step, key = _lock(found[0])
        tool = _tool_to_look_with(run, key)
        if tool is None or not _may_look(run, step, key):
            return False
        planned = steps.plan(run, doubt.ask_receiver(key, tool))
        attempt = steps.open_attempt(
            planned,
            epoch=run.epoch,
            holder=worker,
            performer=performer,
            lease_s=settings.LEASE_S,
            begin_within_s=settings.LEASE_S,
            timeout_s=tool.timeout,
        )
    outcome = tools.perform(
        Perform(
            attempt=attempt.pk,
            agent=run.agent,
            function=Function.RECONCILE,
            tool=tool.name,
            arguments=dict(key.arguments),
            key=key.header,
            run=run.pk,
            step=planned.number,
            begin_by=before + settings.LEASE_S,
            timeout_s=tool.timeout,
            look=False,
        ),
        tick=_make_tick(attempt.pk),
    )
    claim = Claim(run=run.pk, epoch=run.epoch)
    persist(lambda: check.settle(claim, attempt.pk, outcome))
    return True


def _lock(ident: int) -> tuple[Run, Step, Key]:
    found = Key.objects.get(pk=ident)
    return lifecycle.lock(found.run_id), steps.lock(found.step_id), keys.lock(ident)


def _tool_to_look_with(run: Run, key: Key) -> Tool | None:
    """The tool that can look this key up; None when it cannot, or has been tried often enough."""
    tool = find_tool(run.agent, key.tool)
    if tool is None or tool.reconciler is None or tool.effect not in (Effect.KEYED, Effect.CHECKABLE):
        return None
    before = Step.objects.filter(subject=key, kind=StepKind.RECONCILE)
    if before.filter(state=StepState.FAILED).count() >= check.TRIES or before.count() >= _MOST:
        return None
    return tool


def _may_look(run: Run, step: Step, key: Key) -> bool:
    if key.state != KeyState.TAKEN or step.state not in STEP_FINAL or switches.in_scope(run.pk, key.tool):
        return False
    past = steps.judge_past(key=key.pk)
    if past.open or not past.may_have_acted or past.may_still_act_for_s > 0 or past.visible_in_s > 0:
        return False
    looks = Step.objects.filter(subject=key, kind=StepKind.RECONCILE)
    if looks.filter(state__in=STEP_OPEN).exists():
        return False
    (rested,) = sql.fetch_row(
        "SELECT coalesce(max(ended_at) < lw_clock() - make_interval(secs => %s), true) FROM runs_step WHERE subject_id = %s",
        [_PAUSE_S, key.pk],
    )
    return bool(rested)


def _make_tick(attempt: int) -> Callable[[], Tick]:
    """Renew the lease of this try alone: nobody holds its run, and whoever stopped that wants to know what happened."""
    renewed = time.monotonic()

    def tick() -> Tick:
        nonlocal renewed
        try:
            if time.monotonic() - renewed >= settings.LEASE_S / 3:
                steps.renew_attempt(attempt, lease_s=settings.LEASE_S)
                renewed = time.monotonic()
        except DatabaseError:
            forget_connection()
        return Tick()

    return tick
