"""Stopping, pausing, resuming and amending runs, and the kill switches."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import course, lifecycle, switches
from runs.access import Action
from runs.agents import Json
from runs.errors import LongwatchError, Malformed, NotFound
from runs.journal import append, person
from runs.models import Run, Switch
from runs.operations.reasons import require_reason
from runs.operations.scopes import require_on_run, require_over, require_scope
from runs.operations.wakes import wake_after_end, wake_waiters
from runs.states import RUN_OPEN, RunState, WaitingFor


def stop_run(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
    """Stop a run and its descendants, in one transaction. Raises: NotFound, Forbidden, Malformed, RunEnded."""
    require_on_run(by, Action.STOP, run)
    require_reason(reason, "Stopping a run")
    with transaction.atomic(durable=True):
        tree = lifecycle.lock_with_descendants(run)
        freed = course.end(tree, RunState.STOPPED, reason=reason, actor=person(by))
    wake_after_end(tree, freed)
    return tree[-1]


def pause_run(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
    """Let the step in hand of a run and its descendants finish, and claim nothing new, in one transaction.

    Raises: NotFound, Forbidden, Malformed, RunEnded, WrongState.
    """
    require_on_run(by, Action.STOP, run)
    require_reason(reason, "Pausing a run")
    with transaction.atomic(durable=True):
        *below, top = lifecycle.lock_with_descendants(run)
        at = lifecycle.pause(top, reason=reason, actor=person(by))
        for child in below:
            # What was paused by itself before stays paused when this one is resumed.
            if child.state in RUN_OPEN and child.paused_at is None:
                lifecycle.pause(child, reason=f"{reason} (with run {run})", actor=person(by), at=at)
    top.refresh_from_db()
    return top


def amend_run(run: int, *, text: str, by: AbstractBaseUser) -> Run:
    """Add to the goal of a run, signed and dated; its agent reads it before the next decision.

    What was decided already goes on, until somebody rejects or stops it.

    Raises: NotFound, Forbidden, Malformed, RunEnded.
    """
    require_on_run(by, Action.STOP, run)
    if not text.strip():
        raise Malformed("An amendment needs words.")
    with transaction.atomic(durable=True):
        locked = lifecycle.lock(run)
        lifecycle.amend(locked, text, actor=person(by))
    return locked


def resume_run(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
    """Let a run go on, with the descendants that were paused with it. Raises: NotFound, Forbidden, RunEnded, WrongState."""
    require_on_run(by, Action.STOP, run)
    with transaction.atomic(durable=True):
        *below, top = lifecycle.lock_with_descendants(run)
        at = top.paused_at
        lifecycle.resume(top, reason=reason, actor=person(by))
        for child in below:
            if child.state in RUN_OPEN and child.paused_at is not None and child.paused_at == at:
                lifecycle.resume(child, reason=f"{reason} (with run {run})".strip(), actor=person(by))
    top.refresh_from_db()
    return top


def stop_scope(scope: str, *, reason: str, by: AbstractBaseUser) -> tuple[list[int], list[tuple[int, str]]]:
    """Stop every run in a scope for good: (stopped, [(left, why)]). A switch only holds them; this is an act of its own.

    Each run is stopped with its descendants in a transaction of its own; the journal has the whole of it, before and after.
    Raises: Forbidden, Malformed, NotFound and UnknownAgent.
    """
    scope = require_scope(scope, by)
    require_reason(reason, "Stopping runs")
    runs = list(switches.list_open_in(scope))
    with transaction.atomic(durable=True):
        append("bulk.stop_asked", actor=person(by), after={"scope": scope, "runs": runs}, why=reason)
    stopped: list[int] = []
    left: list[tuple[int, str]] = []
    for run in runs:
        try:
            stop_run(run, reason=reason, by=by)
            stopped.append(run)
        except LongwatchError as refusal:
            left.append((run, refusal.message))
    with transaction.atomic(durable=True):
        after: dict[str, Json] = {"scope": scope, "stopped": list[Json](stopped), "left": [[n, w] for n, w in left]}
        append("bulk.stopped", actor=person(by), after=after, why=reason)
    return stopped, left


def engage_switch(scope: str, *, reason: str, by: AbstractBaseUser) -> Switch:
    """Hold everything in a scope at once. Raises: Forbidden, Malformed, NotFound and UnknownAgent (nothing to hold)."""
    scope = require_scope(scope, by)
    with transaction.atomic(durable=True):
        return switches.engage(scope, reason=reason, by=by)


def release_switch(switch: int, *, reason: str, by: AbstractBaseUser, per_minute: int = 0) -> Switch:
    """Release a switch; what it held is queued again, at once or (per_minute) so many runs a minute.

    Raises: NotFound, Forbidden, WrongState.
    """
    found = Switch.objects.filter(pk=switch).first()
    if found is None:
        raise NotFound("switch", switch)
    require_over(found.scope, by)
    with transaction.atomic(durable=True):
        released = switches.release(found, reason=reason, by=by)
    pause_s = 60.0 / per_minute if per_minute > 0 else 0.0
    held = Run.objects.filter(held_since__isnull=False, paused_at__isnull=True, ended_at__isnull=True)
    freed = 0
    for run in held.order_by("-priority", "pk").values_list("pk", flat=True):
        with transaction.atomic(durable=True):
            locked = lifecycle.lock(run)
            # Another switch may still hold it.
            if locked.held_since is not None and switches.in_scope(run) is None:
                lifecycle.unhold(locked, after_s=freed * pause_s)
                freed += 1
    wake_waiters(WaitingFor.CAPACITY, f"switch.{released.scope}", why="the switch was released")
    return released
