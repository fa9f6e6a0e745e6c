"""The slice: one claimed run is advanced until it must wait, has used its share of time, or is not held any more."""

import logging
import uuid
from dataclasses import dataclass, fields
from enum import Enum, auto
from functools import partial

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction

from runs import allowances, clock, course, journal, lifecycle, operations, sql, steps, switches
from runs.agents import get_agent, get_agents
from runs.engine import act, briefing, check, decide, finish, freshen, harmless, progress, reads, think
from runs.engine.hand import Hand
from runs.engine.toolhost import CannotStart, ToolHost
from runs.engine.waits import ask_about_failure, wait_for_contract, wait_for_place
from runs.errors import Lost, OverBudget, UnknownAgent
from runs.lifecycle import Claim, Held
from runs.models import Run, Step
from runs.states import RUN_FINAL, RunState, StepKind, StepState

log = logging.getLogger(__name__)

# Not the step's fault, and over sooner or later.
_PASSING = (Lost, OperationalError, InterfaceError, CannotStart)


class Next(Enum):
    PARKED = auto()  # it waits, thinks, is held, or has ended: let go
    OVERDUE = auto()  # its max age or deadline has passed
    UNFINISHED = auto()  # it was to finish with what it had, and its last reply did not


type Chosen = list[Step] | harmless.Taken | Next


def claim(worker: uuid.UUID, tools: ToolHost) -> tuple[Hand, Chosen | None] | Held | None:
    """Claim a due run and choose what comes next in it, in one transaction. None: no run is due.

    What breaks while it is chosen breaks again by itself in `advance`, where a person is asked about it.
    """
    before = clock.boottime()
    try:
        with transaction.atomic(durable=True), journal.together():
            found = lifecycle.claim(worker, lease_s=settings.LEASE_S)
            if not isinstance(found, Claim):
                return found
            hand = Hand(claim=found, worker=worker, tools=tools)
            return hand, _judge(hand, tools.living(), before=before, claimed=True)
    except _PASSING:
        raise
    except OverBudget:
        pass  # the general path lets it wait
    except Exception:
        log.exception("A run cannot be claimed with what comes next in it")
    with transaction.atomic(durable=True):
        found = lifecycle.claim(worker, lease_s=settings.LEASE_S)
    return (Hand(claim=found, worker=worker, tools=tools), None) if isinstance(found, Claim) else found


def advance(hand: Hand, first: Chosen | None = None) -> None:
    """Advance a claimed run. A run that someone else holds by now is let go without a change.

    first: what was chosen when it was claimed.
    """
    try:
        while True:
            chosen, first = first or _choose_next(hand), None
            if chosen is Next.OVERDUE:
                expire(hand.claim.run)
                return
            if chosen is Next.UNFINISHED:
                _end_unfinished(hand)
                return
            if isinstance(chosen, Next):
                return
            step = chosen.step if isinstance(chosen, harmless.Taken) else chosen[0]
            try:
                if _work(hand, chosen):
                    return
            except _PASSING:
                raise
            except Exception as error:
                log.exception("Step %d of run %d cannot be worked on", step.number, hand.claim.run)
                _ask_about(hand, step.pk, error)
                return
            if hand.used_up:
                _let_others(hand)
                return
    except Lost as lost:
        log.info("%s", lost.message)


def _choose_next(hand: Hand) -> Chosen:
    """What comes next. What breaks when it is taken at once breaks again by itself, where a person is asked about it."""
    if (performer := hand.tools.living()) is not None:
        try:
            return _choose(hand, performer)
        except _PASSING:
            raise
        except OverBudget:
            pass  # the general path lets it wait
        except Exception:
            log.exception("The thought of run %d cannot be taken at once", hand.claim.run)
    return _choose(hand)


def _choose(hand: Hand, performer: uuid.UUID | None = None) -> Chosen:
    before = clock.boottime()
    with transaction.atomic(durable=True), journal.together():
        switches.lock_shared()
        return _judge(hand, performer, before=before)


def _judge(hand: Hand, performer: uuid.UUID | None, *, before: float, claimed: bool = False) -> Chosen:
    """Guard, then choose what can be done now, in order; or park the run, in the transaction that found nothing.

    performer: the tool process, where the think step of an agent that decides by itself is to be taken at once.
    before: this machine's clock before the transaction began. claimed: by this same transaction.
    """
    run = hand.claim.row if claimed and hand.claim.row is not None else lifecycle.lock_held(hand.claim)
    asked = briefing.ask(run.pk) if performer is not None and _decides(run.agent) else None
    look = _look_at(run)
    if look.overdue:
        return Next.OVERDUE
    if run.paused_at is not None:
        _hold(run, f"paused: {run.pause_reason}")
        return Next.PARKED
    if look.switch:
        _hold(run, f"switch {look.switch}")
        return Next.PARKED
    if look.cards:
        course.expire_cards(run)
    if look.wakes:
        course.wake_due(run)
    open_steps = steps.open_steps(run) if look.open else []
    try:
        agent = get_agent(run.agent)
    except UnknownAgent:
        _wait_for_agent(run, open_steps)
        course.rest(run, holding=True)
        return Next.PARKED
    if (run.place_asked or (look.rationed and run.step_seq == 0)) and (full := allowances.admit(run)):
        think_step = open_steps[0] if open_steps else steps.plan(run, steps.Asked(kind=StepKind.THINK))
        wait_for_place(steps.lock(think_step.pk), full)
        course.rest(run, holding=True)
        return Next.PARKED
    if not open_steps and look.away and freshen.check_ahead(run):
        open_steps = steps.open_steps(run)
    if not open_steps:
        if look.finishing and think.has_thought_last(run):
            return Next.UNFINISHED
        if stall := progress.find_stall(run, agent):
            ask_about_failure(run, steps.plan(run, steps.Asked(kind=StepKind.THINK)), "no progress", stall)
            course.rest(run, holding=True)
            return Next.PARKED
        if agent.decide is not None and performer is not None:
            fresh = None if look.open or look.cards or look.wakes or look.away else asked
            return decide.begin(hand, run, performer=performer, before=before, at_once=claimed, asked=fresh)
        opened = think.plan_step(run)
        return Next.PARKED if agent.decide is None else [opened]
    ready = course.workable(open_steps)
    if not ready:
        course.rest(run, holding=True)
        return Next.PARKED
    if ready[0].kind == StepKind.THINK and agent.decide is None:
        # It waited for a budget, a provider or its next try: the gateway has it again.
        lifecycle.move(run, RunState.THINKING)
        return Next.PARKED
    return ready


def _decides(agent: str) -> bool:
    found = get_agents().get(agent)
    return found is not None and found.decide is not None


def _end_unfinished(hand: Hand) -> None:
    with transaction.atomic(durable=True):
        tree = lifecycle.lock_with_descendants(hand.claim.run)
        run = lifecycle.lock_held(hand.claim)
        if steps.open_steps(run):
            return
        why = "it was to finish with what it had, and its last reply did not"
        freed = course.end(tree, RunState.FAILED, reason=why)
    operations.wake_after_end(tree, freed)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What stands against a run or is due in it, besides what its row says; `switch`: scope and reason, or ""."""

    overdue: bool
    switch: str
    open: bool
    cards: bool
    wakes: bool
    finishing: bool
    away: bool
    rationed: bool  # some allowance says how many runs may be under way


_LOOK = f"""
    SELECT coalesce(least(r.expires_at, r.deadline_at) <= lw_clock(), false),
        coalesce((SELECT s.scope || ': ' || s.reason FROM ({switches.in_scope_of("''")}) s), ''),
        EXISTS (SELECT FROM runs_step o WHERE o.run_id = r.id AND o.state IN ({steps.OPEN})),
        EXISTS (SELECT FROM runs_approval a WHERE a.run_id = r.id AND a.state IN ('pending', 'approved')
                AND a.effective_at IS NULL AND a.expires_at <= lw_clock()),
        EXISTS (SELECT FROM runs_step w WHERE w.run_id = r.id AND w.state = 'waiting' AND w.wake_at <= lw_clock()),
        EXISTS (SELECT FROM runs_budget b WHERE b.run_id = r.id AND b.finish_asked_at IS NOT NULL),
        coalesce(r.last_thought_at <= lw_clock() - make_interval(secs => {freshen.AWAY_S}), false),
        EXISTS (SELECT FROM runs_allowance l WHERE l.dimension = 'runs' AND l.ended_at IS NULL)
    FROM runs_run r WHERE r.id = %s
"""


_LOOKED_FOR = [field.name for field in fields(_Look)]


def _look_at(run: Run) -> _Look:
    return _Look(**dict(zip(_LOOKED_FOR, sql.fetch_row(_LOOK, [run.pk]), strict=True)))


def _work(hand: Hand, chosen: list[Step] | harmless.Taken) -> bool:
    """Do what was chosen, as far as it goes now. True: the run has ended with it."""
    if isinstance(chosen, harmless.Taken):
        return _decide(hand, chosen)
    step = chosen[0]
    match step.kind:
        case StepKind.ACT:
            if not _read(hand, chosen):
                act.advance_act(hand, step.pk)
        case StepKind.CHECK | StepKind.RECONCILE:
            check.advance_check(hand, step.pk)
        case StepKind.FINISH:
            return finish.advance_finish(hand, step.pk, get_agent(step.run.agent))
        case _:
            decide.advance_decide(hand, step.pk)
    return False


def _decide(hand: Hand, taken: harmless.Taken) -> bool:
    """Let an agent decide; the reads and the end that it decided on follow at once. True: the run has ended with it.

    What is judged before a choice is judged there too.
    """
    agent = get_agent(taken.step.run.agent)
    decided, begun = decide.carry_out(hand, taken, agent)
    last = decided[-1] if decided else None
    end = last if last and (last.kind, last.state) == (StepKind.FINISH, StepState.PLANNED) else None
    if begun is not None:
        ending = None if end is None or agent.verify is not None else partial(finish.end_after, hand, end.pk)
        if reads.carry_on(hand, agent, begun, ending=ending):
            return True
    elif len(decided) > 1:
        return False
    return end is not None and not hand.used_up and finish.advance_finish(hand, end.pk, agent)


def _read(hand: Hand, ready: list[Step]) -> bool:
    """Do the plain reads at the head of what is ready. False: there is none, or something stands against the first."""
    if not ready:
        return False
    agent = get_agent(ready[0].run.agent)
    plain = reads.leading(agent, ready)
    return bool(plain) and reads.advance_reads(hand, agent, plain)


def _ask_about(hand: Hand, step_id: int, error: Exception) -> None:
    """Ask a person about a step that breaks whoever works on it, before it does so with every worker in turn.

    What is in flight is left to its lease, and counted there.
    """
    with transaction.atomic(durable=True):
        run = lifecycle.lock_held(hand.claim)
        step = steps.lock(step_id)
        if step.state in (StepState.PLANNED, StepState.WAITING):
            ask_about_failure(run, step, "it cannot be worked on", f"{type(error).__name__}: {error}"[:1000])
        course.rest(run, holding=True)


def _let_others(hand: Hand) -> None:
    """The slice has had its share: queue the run again behind what is due."""
    with transaction.atomic(durable=True):
        run = lifecycle.lock_held(hand.claim)
        lifecycle.move(run, RunState.QUEUED)


def _hold(run: Run, why: str) -> None:
    """Put a held run where it belongs and let it lie until its next expiry."""
    course.rest(run, holding=True)
    lifecycle.hold(run.pk, why)


def _wait_for_agent(run: Run, open_steps: list[Step]) -> None:
    planned = [s for s in open_steps if s.state == StepState.PLANNED]
    for step in planned or ([] if open_steps else [steps.plan(run, steps.Asked(kind=StepKind.THINK))]):
        wait_for_contract(steps.lock(step.pk), run.agent)


def overdue(run: Run) -> bool:
    (passed,) = sql.fetch_row(
        "SELECT coalesce(least(expires_at, deadline_at) <= lw_clock(), false) FROM runs_run WHERE id = %s", [run.pk]
    )
    return bool(passed)


def expire(run: int) -> bool:
    """End a run whose max age or deadline has passed, with its tree. False: it has ended, or time is left."""
    with transaction.atomic(durable=True):
        tree = lifecycle.lock_with_descendants(run)
        last = tree[-1]
        if last.state in RUN_FINAL or not overdue(last):
            return False
        by_deadline = last.deadline_at is not None and (not last.expires_at or last.deadline_at < last.expires_at)
        reason = "its deadline passed" if by_deadline else "its max age passed"
        freed = course.end(tree, RunState.EXPIRED, reason=reason)
    operations.wake_after_end(tree, freed)
    return True
