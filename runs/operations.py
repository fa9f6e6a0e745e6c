"""Every write that a person or the API makes: one function, one transaction, one journal entry: who, and why."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation

from django.contrib.auth.models import AbstractBaseUser, Group, User
from django.db import IntegrityError, transaction

from runs import (
    access,
    agents,
    allowances,
    approvals,
    budgets,
    clock,
    course,
    credentials,
    events,
    facts,
    keys,
    lifecycle,
    limits,
    locks,
    prices,
    sql,
    steps,
    switches,
    voting,
)
from runs.access import Action, Role
from runs.agents import Json, digest, get_agent, get_agents
from runs.approvals import Said
from runs.errors import (
    AlreadyDecided,
    Conflict,
    Forbidden,
    KeyReused,
    LongwatchError,
    Malformed,
    NoLimit,
    NotFound,
    SwitchedOff,
    say_dimension,
    write_amount,
)
from runs.journal import Actor, append, person
from runs.models import (
    AgentGrant,
    Allowance,
    Approval,
    Budget,
    Event,
    Fact,
    Key,
    Price,
    ProviderLimit,
    Run,
    StartRequest,
    Step,
    Switch,
)
from runs.queries.paging import EVERY_AGENT
from runs.states import (
    EXPLAIN,
    KEY_OPEN,
    RUN_OPEN,
    STEP_OPEN,
    ApprovalKind,
    ApprovalState,
    AttemptOutcome,
    FactState,
    KeyState,
    RunState,
    StepKind,
    StepState,
    Verdict,
    WaitingFor,
)

GOAL_CHARS = 20_000


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run is started with. Budget fields override the agent's own; max_age_s in seconds."""

    agent: str
    goal: str
    constraints: Sequence[str] = ()
    inputs: Mapping[str, Json] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    usd: str | None = None
    tokens: int | None = None
    steps: int | None = None
    working_s: float | None = None
    max_age_s: float | None = None
    deadline_at: datetime | None = None


def start_run(start: Start, *, by: AbstractBaseUser, idempotency_key: str = "") -> tuple[Run, bool]:
    """Start a run; (run, whether it is new). The same key and body of one caller give the same run.

    Raises: NotFound (a stranger), UnknownAgent, Forbidden, Malformed, NoLimit, SwitchedOff, KeyReused.
    """
    agent = access.get_agent(by, start.agent)
    access.require(by, Action.START, agent.name)
    body = digest(start.__dict__)
    if idempotency_key and (known := _known_start(by, idempotency_key, body)):
        return known, False
    try:
        with transaction.atomic(durable=True):
            switches.lock_shared()
            run = _create(start, agent, actor=person(by))
            if idempotency_key:
                _keep_start(by, idempotency_key, body, run)
    except IntegrityError:
        # Two at once with one key: the loser returns the winner's run.
        if idempotency_key and (known := _known_start(by, idempotency_key, body)):
            return known, False
        raise
    return run, True


def stop_run(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
    """Stop a run and its descendants, in one transaction. Raises: NotFound, Forbidden, Malformed, RunEnded."""
    _require_on_run(by, Action.STOP, run)
    if not reason.strip():
        raise Malformed("Stopping a run needs a reason.")
    with transaction.atomic(durable=True):
        tree = lifecycle.lock_with_descendants(run)
        freed = course.end(tree, RunState.STOPPED, reason=reason, actor=person(by))
    _wake_after_end(tree, freed)
    return tree[-1]


def pause_run(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
    """Let the step in hand of a run and its descendants finish, and claim nothing new, in one transaction.

    Raises: NotFound, Forbidden, Malformed, RunEnded, WrongState.
    """
    _require_on_run(by, Action.STOP, run)
    if not reason.strip():
        raise Malformed("Pausing a run needs a reason.")
    with transaction.atomic(durable=True):
        *below, top = lifecycle.lock_with_descendants(run)
        at = lifecycle.pause(top, reason=reason, actor=person(by))
        for child in below:
            # What was paused by itself before stays paused when this one is resumed.
            if child.state in RUN_OPEN and child.paused_at is None:
                lifecycle.pause(child, reason=f"{reason} (with run {run})", actor=person(by), at=at)
    top.refresh_from_db()
    return top


def resume_run(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
    """Let a run go on, with the descendants that were paused with it. Raises: NotFound, Forbidden, RunEnded, WrongState."""
    _require_on_run(by, Action.STOP, run)
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
    scope = _require_scope(scope, by)
    if not reason.strip():
        raise Malformed("Stopping runs needs a reason.")
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


def set_budget(
    run: int,
    wanted: Mapping[str, Decimal | int | float | None],
    *,
    reason: str,
    by: AbstractBaseUser,
    version: int | None = None,
) -> Run:
    """Set new limits; a run in its tree that waits for budget goes on by itself.

    Raises: NotFound, Forbidden, LimitTooLow, Conflict (a stale form).
    """
    _require_on_run(by, Action.BUDGET, run)
    if not reason.strip():
        raise Malformed("Changing a limit needs a reason.")
    for name, amount in wanted.items():
        _check_amount(name, amount)
    with transaction.atomic(durable=True):
        locked = lifecycle.lock(run)
        _close_budget_cards(locked, why="the limit was changed")
        course.wake_run(locked, WaitingFor.BUDGET, why="the limit was changed", actor=person(by))
        # Budgets last: every run below waits for this one.
        budgets.set_limits(run, wanted, actor=person(by), why=reason, version=version)
    _wake_descendants(run, WaitingFor.BUDGET, why=f"a limit of run {run} was changed")
    locked.refresh_from_db()
    return locked


def decide(approval: int, said: Said, *, by: AbstractBaseUser, hold_s: float = 0.0) -> Approval:
    """Decide a card: once, and only as it was shown. hold_s: seconds for which it can be undone before it takes effect.

    Raises: NotFound, Forbidden, AlreadyDecided, AnotherVersion, Conflict, Malformed, BadArguments.
    """
    card = access.get_approval(by, approval)
    access.require(by, Action.DECIDE, card.run.agent)
    late: AlreadyDecided | None = None
    freed: list[str] = []
    stopped: list[Run] = []
    with transaction.atomic(durable=True):
        stops = said.verdict == Verdict.STOP
        tree = lifecycle.lock_with_descendants(card.run_id) if stops else [lifecycle.lock(card.run_id)]
        run = tree[-1]
        if course.expire_cards(run):
            # What has expired by the clock cannot be decided any more, though no sweep has come by.
            course.rest(run)
        step = steps.lock(card.step_id) if card.step_id else None
        card = approvals.lock(approval)
        if said.verdict == Verdict.UNDO:
            approvals.undo(card, said, by=by)
        elif card.state != ApprovalState.PENDING or card.effective_at is not None:
            try:
                approvals.check(card, said)
            except AlreadyDecided as refusal:
                approvals.note_refused_decision(card, said, by=by, why=refusal.message)
                late = refusal
        else:
            voting.require_decider(card, run, said, by=by)
            if stops:
                approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
                why = said.comment or f"decided on approval {card.pk}"
                freed = course.end(tree, RunState.STOPPED, reason=why, actor=person(by))
                stopped = tree
                _ask_again_what_happened(run, step, card)
            elif said.verdict == Verdict.EXPLAIN:
                _ask_for_more(run, step, card, said, by)
            elif not voting.is_enough(card, said, by=by):
                _vote(run, step, card, said, by)
            elif hold_s > 0:
                _try_out(run, step, card, said, by)
                approvals.hold(card, said, by=by, hold_s=hold_s)
            else:
                _DECIDERS[ApprovalKind(card.kind)](run, step, card, said, by)
                course.rest(run, actor=person(by))
    if late is not None:
        raise late
    _wake_after_decision(card)
    if stopped:
        _wake_after_end(stopped, freed)
    card.refresh_from_db()
    return card


def apply_held_decision(approval: int) -> None:
    """Let a decision take effect whose hold is over. One that cannot any more leaves its card to be decided again."""
    found = Approval.objects.get(pk=approval)
    with transaction.atomic(durable=True):
        run = lifecycle.lock(found.run_id)
        step = steps.lock(found.step_id) if found.step_id else None
        card = approvals.lock(approval)
        if card.state != ApprovalState.PENDING or not approvals.is_due(card):
            return
        made = approvals.held_decision(card)
        said = Said(
            verdict=Verdict(made.verdict),
            arguments=made.arguments,
            answer=made.answer,
            result=made.result,
            grant=made.grant,
            comment=made.comment,
        )
        try:
            with transaction.atomic():
                _DECIDERS[ApprovalKind(card.kind)](run, step, card, said, made.by)
                course.rest(run, actor=person(made.by))
        except LongwatchError as refusal:
            approvals.drop_held(approvals.lock(approval), why=refusal.message)
            return
    _wake_after_decision(card)


def approve_batch(cards: Sequence[tuple[int, int]], *, comment: str, by: AbstractBaseUser) -> list[tuple[int, str]]:
    """Approve several cards of low risk with fresh facts: (approval, why it was not approved, or "") for each.

    cards: (approval, version as it was shown). Each is a transaction of its own, and stands or falls alone.
    """
    told: list[tuple[int, str]] = []
    for approval, version in cards:
        try:
            card = access.get_approval(by, approval)
            if why := why_not_in_batch(card):
                raise Conflict(why)
            decide(approval, Said(verdict=Verdict.APPROVE, version=version, comment=comment), by=by)
            told.append((approval, ""))
        except LongwatchError as refusal:
            told.append((approval, refusal.message))
    return told


def why_not_in_batch(card: Approval) -> str:
    """Why a card has to be looked at alone; "" when it need not: low risk, and every fact fresh and as it was shown."""
    tool = agents.get_agents()[card.run.agent].tool(card.tool) if card.run.agent in agents.get_agents() else None
    if card.kind != ApprovalKind.APPROVAL or card.state != ApprovalState.PENDING or card.effective_at is not None:
        return "only calls that wait for their approval are approved together"
    if tool is None or tool.irreversible or tool.effect is agents.Effect.ONCE:
        return "what cannot be undone is approved alone"
    if card.needed > 1:
        return "it takes more than one person"
    if card.changes or card.replaces_id is not None:
        return "it has changed since it was asked before"
    now = facts.judge(card.run_id, [str(shown["name"]) for shown in card.facts])
    for shown in card.facts:
        fact = now.get(str(shown["name"]))
        if fact is None or not fact.usable or fact.digest != shown["digest"]:
            return f"{shown['name']} is not fresh, or not what was shown"
    return ""


def claim_approval(approval: int, *, by: AbstractBaseUser) -> Approval:
    """Say that one is at a card, or take it over. Raises: NotFound, Forbidden, AlreadyDecided."""
    return _on_card(approval, lambda card: approvals.claim(card, by=by), by=by)


def release_approval(approval: int, *, by: AbstractBaseUser) -> Approval:
    """Give a claimed card back to everyone. Raises: NotFound, Forbidden, AlreadyDecided, Conflict."""
    return _on_card(approval, lambda card: approvals.release_claim(card, by=by), by=by)


def _on_card(approval: int, act: Callable[[Approval], None], *, by: AbstractBaseUser) -> Approval:
    card = access.get_approval(by, approval)
    access.require(by, Action.DECIDE, card.run.agent)
    if not voting.is_asked(by, card.groups):
        raise Forbidden(f"This card is for {', '.join(card.groups)}.")
    with transaction.atomic(durable=True):
        lifecycle.lock(card.run_id)
        act(approvals.lock(approval))
    card.refresh_from_db()
    return card


class _Tried(Exception):
    """Ends a trial: all that it did is rolled back."""


def _try_out(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """Refuse now what could not take effect later. What a trial leaves in these objects is read anew afterwards."""
    try:
        with transaction.atomic():
            _DECIDERS[ApprovalKind(card.kind)](run, step, card, said, by)
            raise _Tried
    except _Tried:
        for changed in (run, step, card):
            if changed is not None:
                changed.refresh_from_db()


def _vote(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """One of several people has said yes, or has changed the call: then all begin anew, with what it is now."""
    if said.verdict == Verdict.EDIT:
        assert step is not None
        tool, edited = _read_edit(run, step, said)
        approvals.vote(card, replace(said, arguments=edited), by=by)
        _rebind(run, step, card, tool, edited)
    else:
        approvals.vote(card, said, by=by)


def _ask_for_more(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """The agent explains in a think step of its own, which can do nothing else; the call goes on waiting."""
    if not (said.comment.strip() or said.answer.strip()):
        raise Malformed("Asking for more needs a question.", remedy="Say what you want to know.")
    assert step is not None
    approvals.ask_agent(card, said, by=by)
    asked = Step.objects.filter(run=run, kind=StepKind.THINK, reply_to=step, state__in=STEP_OPEN)
    if not asked.exists():
        steps.plan(run, steps.Asked(kind=StepKind.THINK, tool=EXPLAIN, reply_to=step.pk), actor=person(by))
    course.rest(run, actor=person(by))


def _read_edit(run: Run, step: Step, said: Said) -> tuple[agents.Tool, dict[str, Json]]:
    tool = get_agent(run.agent).tool(step.tool)
    if tool is None or said.arguments is None:
        raise Malformed("An edit needs arguments, for a tool that is still there.")
    edited = tool.normalise(said.arguments)
    _refuse_what_was_done(run, step, tool, edited)
    return tool, edited


def _rebind(run: Run, step: Step, card: Approval, tool: agents.Tool, edited: dict[str, Json]) -> None:
    steps.set_arguments(step, edited, tool.contract)
    approvals.rebind(card, run=run, step=step, arguments=edited, contract=tool.contract)


def engage_switch(scope: str, *, reason: str, by: AbstractBaseUser) -> Switch:
    """Hold everything in a scope at once. Raises: Forbidden, Malformed, NotFound and UnknownAgent (nothing to hold)."""
    scope = _require_scope(scope, by)
    with transaction.atomic(durable=True):
        return switches.engage(scope, reason=reason, by=by)


def release_switch(switch: int, *, reason: str, by: AbstractBaseUser, per_minute: int = 0) -> Switch:
    """Release a switch; what it held is queued again, at once or (per_minute) so many runs a minute.

    Raises: NotFound, Forbidden, WrongState.
    """
    found = Switch.objects.filter(pk=switch).first()
    if found is None:
        raise NotFound("switch", switch)
    _require_over(found.scope, by)
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
    held_on = f"switch.{released.scope}"
    for run in course.wake_waiting(WaitingFor.CAPACITY, held_on):
        with transaction.atomic(durable=True):
            course.wake_run(lifecycle.lock(run), WaitingFor.CAPACITY, held_on, why="the switch was released")
    return released


def set_price(new: prices.NewPrice, *, by: AbstractBaseUser) -> Price:
    """Set a price: what was used without one is priced, and what waited for it goes on.

    Raises: Forbidden, Malformed, Conflict.
    """
    access.require(by, Action.MONEY)
    with transaction.atomic(durable=True):
        made = prices.set_price(new, actor=person(by))
    for found in prices.recost():
        with transaction.atomic(durable=True):
            budgets.settle(
                found.attempt,
                budgets.Amounts(usd=found.usd, tokens=found.tokens, calls=1, steps=1),
                pricing=budgets.Pricing(model=found.model, usage=found.usage, price=found.price),
                note=f"priced when the price of {made.model} was set",
            )
    cards = Approval.objects.filter(
        kind=ApprovalKind.BUDGET, state=ApprovalState.PENDING, evidence__has_key="model", run__ended_at__isnull=True
    )
    for run in cards.values_list("run_id", flat=True).distinct():
        _wake_for_budget(run, why=f"the price of {made.model} was set", actor=person(by))
    return made


def withdraw_price(price: int, *, reason: str, by: AbstractBaseUser) -> None:
    """What was priced with it stays as it is. Raises: Forbidden, Malformed, Conflict."""
    access.require(by, Action.MONEY)
    if not reason.strip():
        raise Malformed("Withdrawing a price needs a reason.")
    with transaction.atomic(durable=True):
        prices.withdraw(price, actor=person(by), why=reason)


def create_allowance(terms: allowances.Terms, *, reason: str, by: AbstractBaseUser) -> Allowance:
    """Raises: Forbidden, Malformed, Conflict."""
    access.require(by, Action.MONEY)
    if not reason.strip():
        raise Malformed("An allowance needs a reason.")
    with transaction.atomic(durable=True):
        return allowances.create(terms, actor=person(by), why=reason)


def change_allowance(
    allowance: int,
    *,
    soft: Decimal | None,
    hard: Decimal,
    reason: str,
    by: AbstractBaseUser,
    version: int | None = None,
) -> Allowance:
    """What waits for it goes on by itself. Raises: Forbidden, Malformed, LimitTooLow, Conflict (a stale form)."""
    access.require(by, Action.MONEY)
    if not reason.strip():
        raise Malformed("Changing an allowance needs a reason.")
    with transaction.atomic(durable=True):
        changed = allowances.change(allowance, soft=soft, hard=hard, actor=person(by), why=reason, version=version)
    _wake_for_allowance(allowance, why="the allowance was changed")
    return changed


def end_allowance(allowance: int, *, reason: str, by: AbstractBaseUser) -> None:
    """Raises: Forbidden, Conflict."""
    access.require(by, Action.MONEY)
    with transaction.atomic(durable=True):
        allowances.end(allowance, actor=person(by), why=reason)
    _wake_for_allowance(allowance, why="the allowance has ended")


def set_rate(
    limit: int, calls_per_minute: int | None, *, reason: str, by: AbstractBaseUser, version: int | None = None
) -> ProviderLimit:
    """Set how often a credential may call; it counts from the next call on. Raises: Forbidden, Malformed, Conflict."""
    access.require(by, Action.MONEY)
    if not reason.strip():
        raise Malformed("Changing a rate needs a reason.")
    with transaction.atomic(durable=True):
        changed = limits.set_rate(limit, calls_per_minute, actor=person(by), why=reason, version=version)
    waiting = Step.objects.filter(state=StepState.WAITING, waiting_for=WaitingFor.PROVIDER)
    for run in waiting.values_list("run_id", flat=True).distinct():
        with transaction.atomic(durable=True):
            course.wake_run(lifecycle.lock(run), WaitingFor.PROVIDER, why="the rate of its credential was changed")
    return changed


def create_token(name: str, role: Role, *, by: Actor) -> str:
    """Make an API token; it is returned once."""
    with transaction.atomic(durable=True):
        return access.create_token(name, role, actor=by)


def revoke_token(token: int, *, by: AbstractBaseUser) -> None:
    """End an API token for good. Raises: Forbidden, WrongState."""
    access.require(by, Action.ACCESS)
    with transaction.atomic(durable=True):
        access.revoke_token(token, actor=person(by))


def set_grant(group: Group, agent: str, *, by: AbstractBaseUser, replaces: AgentGrant | None = None) -> AgentGrant:
    """Let a group see an agent. Raises: Forbidden."""
    access.require(by, Action.ACCESS)
    with transaction.atomic(durable=True):
        return access.set_grant(group, agent, actor=person(by), replaces=replaces)


def end_grant(grant: AgentGrant, *, by: AbstractBaseUser) -> None:
    """Raises: Forbidden."""
    access.require(by, Action.ACCESS)
    with transaction.atomic(durable=True):
        access.end_grant(grant, actor=person(by))


def spend_sign_in_token(token: str) -> User | None:
    """Sign in by a link, which works once; None when it does not."""
    with transaction.atomic(durable=True):
        return access.spend_sign_in_token(token)


def recheck_fact(fact: int, *, by: AbstractBaseUser) -> Step:
    """Queue a check of a fact through its own source. Raises: NotFound, Forbidden, Conflict."""
    found = access.get_fact(by, fact)
    access.require(by, Action.RECHECK, found.run.agent)
    checker = checker_of(found)
    if checker is None:
        raise Conflict(f"Nothing can check {found.name} again.", remedy="Confirm or correct it, or stop the run.")
    with transaction.atomic(durable=True):
        run = _lock_open_run_of(found)
        step = plan_check(run, found, checker)
        append("fact.recheck_asked", actor=person(by), run=run.pk, step=step.pk, after={"fact": found.name})
        course.rest(run, actor=person(by))
    return step


def recheck_card(approval: int, *, by: AbstractBaseUser) -> list[str]:
    """Queue checks of what an open card rests on and is not fresh any more; the names of those facts.

    Raises: NotFound, Forbidden.
    """
    card = access.get_approval(by, approval)
    access.require(by, Action.RECHECK, card.run.agent)
    queued: list[str] = []
    with transaction.atomic(durable=True):
        run = lifecycle.lock(card.run_id)
        card.refresh_from_db()
        if run.ended_at is not None or card.state != ApprovalState.PENDING:
            return []
        names = [str(shown["name"]) for shown in card.facts]
        aged = [fact.id for fact in facts.judge(run.pk, names).values() if fact.state != FactState.FRESH]
        for fact in Fact.objects.filter(pk__in=aged).select_related("run").order_by("pk"):
            if (checker := checker_of(fact)) is not None:
                plan_check(run, fact, checker)
                queued.append(fact.name)
        if queued:
            after: dict[str, Json] = {"approval": card.pk, "facts": list[Json](queued)}
            append("fact.recheck_asked", actor=person(by), run=run.pk, after=after, why="its card was opened")
            course.rest(run, actor=person(by))
    return queued


def correct_fact(fact: int, value: Json, *, by: AbstractBaseUser, version: int | None = None) -> Fact:
    """A person says what a fact really is; what rests on the old value is void.

    Raises: NotFound, Forbidden, Conflict (the run has ended, or the value is not the one that was shown).
    """
    found = access.get_fact(by, fact)
    access.require(by, Action.DECIDE, found.run.agent)
    with transaction.atomic(durable=True):
        run = _lock_open_run_of(found)
        facts.lock([fact])
        found.refresh_from_db()
        if version is not None and version != found.version:
            raise Conflict(f"{found.name} has another value by now.", remedy="Look at it again, then correct it.")
        _correct(run, found, value, by)
        approvals.void_about_fact(fact, why=f"corrected by {by.get_username()}")
        course.rest(run, actor=person(by))
    return found


def extend_fact(fact: int, *, by_s: float, reason: str, by: AbstractBaseUser) -> Fact:
    """Let a fact be used a while longer, once, until it is read again. Raises: NotFound, Forbidden, Malformed, Conflict."""
    found = access.get_fact(by, fact)
    access.require(by, Action.DECIDE, found.run.agent)
    with transaction.atomic(durable=True):
        run = _lock_open_run_of(found)
        facts.lock([fact])
        found.refresh_from_db()
        facts.extend(found, by_s=by_s, actor=person(by), why=reason)
        if facts.judge(run.pk, [found.name])[found.name].usable:
            approvals.void_about_fact(fact, why=f"extended by {by.get_username()}")
            course.wake_run(run, WaitingFor.FACT, found.name, why=f"{found.name} was extended", actor=person(by))
    return found


def _lock_open_run_of(fact: Fact) -> Run:
    run = lifecycle.lock(fact.run_id)
    if run.ended_at is not None:
        raise Conflict(f"Run {run.pk} has ended; nothing rests on its facts any more.")
    return run


def _correct(run: Run, fact: Fact, value: Json, by: AbstractBaseUser) -> None:
    """Give a locked fact another value, and drop what rests on the old one."""
    old = fact.value
    facts.correct(fact, value, actor=person(by))
    course.void_dependents(run, facts.names_resting_on(run, fact.name), old=old, new=value)
    course.wake_run(run, WaitingFor.FACT, why=f"{fact.name} was corrected", actor=person(by))


def store_event(
    *, name: str, key: str, payload: Json, source: str, delivery_id: str, by: AbstractBaseUser
) -> tuple[Event, bool]:
    """Keep an event from outside; (event, whether it is new)."""
    access.require(by, Action.EVENT)
    with transaction.atomic(durable=True):
        return events.store(name=name, key=key, payload=payload, source=source, delivery_id=delivery_id)


def checker_of(fact: Fact) -> agents.Tool | None:
    """The read tool that can check a fact again, if there is one."""
    return get_agent(fact.run.agent).reader_of(fact.name, fact.source_tool)


def plan_check(run: Run, fact: Fact, checker: agents.Tool) -> Step:
    """Append a check step, unless one is open already. The caller holds the run's lock."""
    for step in steps.open_steps(run.pk):
        if step.kind == StepKind.CHECK and step.fact_id == fact.pk:
            return step
    arguments = {
        k: v for k, v in dict(fact.source.get("arguments") or {}).items() if k in checker.arguments.model_fields
    }
    return steps.plan(
        run,
        steps.Asked(
            kind=StepKind.CHECK, tool=checker.name, arguments=arguments, contract=checker.contract, fact=fact.pk
        ),
        actor=Actor(name="runtime"),
    )


def create_child(
    parent: Run, *, agent: agents.Agent, goal: str, inputs: Mapping[str, Json], usd: str | None, actor: Actor
) -> Run:
    """Create a child under a locked, open parent; the caller holds the switch lock. Raises: as start_run."""
    start = Start(agent=agent.name, goal=goal, inputs=inputs, usd=usd)
    return _create(start, agent, actor=actor, parent=parent)


def _create(start: Start, agent: agents.Agent, *, actor: Actor, parent: Run | None = None) -> Run:
    if not start.goal.strip():
        raise Malformed("A run needs a goal.", remedy="Say in a sentence what it should reach.")
    if len(start.goal) > GOAL_CHARS:
        raise Malformed(
            f"The goal has {len(start.goal):,} characters, and may have {GOAL_CHARS:,}.",
            remedy="Say what to reach; give the rest as inputs or constraints.",
        )
    if start.steps == 0:
        raise Malformed("A run without a step can do nothing.", remedy="Allow at least 1 step.")
    if start.deadline_at is not None and start.deadline_at <= clock.now():
        raise Malformed(
            f"The deadline {start.deadline_at:%Y-%m-%d %H:%M:%S %Z} has passed already.", remedy="Name one ahead."
        )
    for name, wanted in (("tokens", start.tokens), ("steps", start.steps), ("working_s", start.working_s)):
        _check_amount(name, wanted)
    _check_amount("max_age_s", start.max_age_s)
    if switch := switches.for_agent(agent.name):
        raise SwitchedOff(*switch)
    own = agent.budget
    most = replace(
        own,
        usd=_money(start.usd) or own.usd,
        tokens=own.tokens if start.tokens is None else start.tokens,
        steps=own.steps if start.steps is None else start.steps,
        working_s=own.working_s if start.working_s is None else start.working_s,
    )
    if not most.unlimited and all(
        v is None for v in (most.usd, most.tokens, most.calls, most.effects, most.steps, most.working_s)
    ):
        raise NoLimit(agent.name)
    run = lifecycle.create(
        agent=agent.name,
        contract=agent.contract,
        goal=start.goal,
        constraints=[*agent.constraints, *start.constraints],
        inputs=start.inputs,
        labels=start.labels,
        parent=parent,
        max_age_s=start.max_age_s if start.max_age_s is not None else agent.max_age,
        deadline_at=start.deadline_at,
        priority=agent.priority,
        actor=actor,
    )
    budgets.create(run, most)
    return run


def _decide_approval(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    match said.verdict:
        case Verdict.APPROVE:
            approvals.decide(card, said, by=by, to=ApprovalState.APPROVED)
            steps.wake(step, why=f"approved by {by.get_username()}", actor=person(by))
        case Verdict.EDIT:
            tool, edited = _read_edit(run, step, said)
            approvals.decide(card, replace(said, arguments=edited), by=by, to=ApprovalState.APPROVED)
            _rebind(run, step, card, tool, edited)
            steps.wake(step, why=f"approved with changes by {by.get_username()}", actor=person(by))
        case Verdict.REJECT:
            approvals.decide(card, said, by=by, to=ApprovalState.REJECTED)
            why = said.comment or said.answer or "no reason given"
            steps.close(step, StepState.REJECTED, error=why, actor=person(by))
            course.close_if_nothing_happened(keys.open_key_of(step))
        case Verdict.RESPOND:
            if not said.answer.strip():
                raise Malformed("Responding needs an answer.")
            approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
            steps.close(
                step,
                StepState.REJECTED,
                error="answered instead of run",
                result={"answer": said.answer},
                actor=person(by),
            )
            course.close_if_nothing_happened(keys.open_key_of(step))
        case _:
            raise Malformed(f"{said.verdict} is not a verdict of an approval.")


def _refuse_what_was_done(run: Run, step: Step, tool: agents.Tool, edited: dict[str, Json]) -> None:
    """An edit must not make of a call one that another step has made: its key would not tell."""
    same = keys.find(run, tool, edited)
    if same is None or same.key.state == KeyState.FAILED or same.key.step_id == step.pk or step.again:
        return
    raise Conflict(
        f"Step {same.key.step.number} has made exactly this call ({same.key.state}).",
        remedy="Reject this one, or change it to something else.",
    )


def _ask_again_what_happened(run: Run, step: Step | None, card: Approval) -> None:
    """Stopping the run does not say whether the effect happened: that stays a question, and the locks stay held."""
    if card.kind != ApprovalKind.VERDICT or card.key is None or card.key.state != KeyState.IN_DOUBT:
        return
    approvals.ask(
        run,
        ApprovalKind.VERDICT,
        title=card.title,
        why=f"{card.why}; its run was stopped",
        step=step,
        key=card.key,
        because=card.because,
        contract=card.contract,
        arguments=card.arguments,
        evidence=card.evidence,
        verdicts=(Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN),
    )


def _decide_question(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    if not said.answer.strip():
        raise Malformed("A question needs an answer.")
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    steps.close(step, StepState.DONE, result={"answer": said.answer}, actor=person(by))


def _decide_verdict(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    assert card.key_id is not None
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    key = keys.lock(card.key_id)
    why = f"{by.get_username()}: {said.verdict}"
    if said.verdict == Verdict.HAPPENED:
        steps.settle_doubt(key.pk, AttemptOutcome.PROVED, why=why)
        keys.close(key, KeyState.DONE, how="verdict", result=said.result, actor=person(by))
        if step.state in (StepState.IN_DOUBT, StepState.VOID):
            steps.close(step, StepState.DONE, result=said.result, actor=person(by), why=why)
    else:
        steps.settle_doubt(key.pk, AttemptOutcome.DISPROVED, why=why)
        if step.state == StepState.IN_DOUBT and run.ended_at is None:
            # The same generation reopens: a receiver that knows the key still protects from a late arrival.
            keys.close(key, KeyState.TAKEN, how="", actor=person(by))
            steps.wake(step, why=why, actor=person(by))
        else:
            keys.close(key, KeyState.FAILED, how="verdict", actor=person(by))
            if step.state in (StepState.IN_DOUBT, StepState.VOID):
                steps.close(step, StepState.FAILED, error=why, actor=person(by))


def _decide_failure(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    if said.verdict == Verdict.RETRY:
        steps.grant_tries(step, 3)
        steps.wake(step, why=f"retried by {by.get_username()}", actor=person(by))
    else:
        steps.close(step, StepState.FAILED, error=said.answer or said.comment or step.error, actor=person(by))
        # One that may have acted is asked about by the sweep.
        course.close_if_nothing_happened(keys.open_key_of(step))


def _decide_budget(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    if said.verdict == Verdict.FINISH:
        _let_finish(run, card, said, by)
        return
    evidence: dict[str, Json] = card.evidence if isinstance(card.evidence, dict) else {}
    # What is short may be the budget of a run above: its lock comes after that of its child.
    short = int(str(evidence.get("run", run.pk)))
    granted = run if short == run.pk else lifecycle.lock(short)
    access.require(by, Action.DECIDE, granted.agent)
    limits = _read_grant(granted, said.grant or {}, evidence)
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    course.wake_run(run, WaitingFor.BUDGET, why=f"granted by {by.get_username()}", actor=person(by))
    budgets.set_limits(granted.pk, limits, actor=person(by), why=said.comment or f"granted on approval {card.pk}")


def _read_grant(
    granted: Run, grant: Mapping[str, str], evidence: Mapping[str, Json]
) -> dict[str, Decimal | int | float | None]:
    """The new limits that a grant makes. A card that only asks about a step's share may be granted nothing more.

    Raises:
        Malformed: it says nothing, or not what the card asks for, or so little that the step would ask again at once.
    """
    asked_for = str(evidence.get("dimension") or "")
    given = {name: amount for name, amount in grant.items() if name in budgets.GRANTABLE}
    if asked_for and given and asked_for not in given:
        raise Malformed(
            f"This card asks for {say_dimension(asked_for)}, not for {', '.join(map(say_dimension, given))}.",
            remedy=f"Say how much more {say_dimension(asked_for)}.",
        )
    by_share = "asked_above_percent" in evidence
    if not given and not by_share:
        raise Malformed('A grant says how much: {"usd": "1.00"}.')
    budget = granted.budget
    limits: dict[str, Decimal | int | float | None] = {}
    for name, amount in given.items():
        old = budget.working_limit_s if name == "working_s" else getattr(budget, f"{name}_limit")
        if old is None:
            limits[name] = None
        elif name == "usd":
            limits[name] = Decimal(old) + Decimal(_money(amount) or "0")
        else:
            limits[name] = old + _whole(name, amount)
        _check_amount(name, limits[name])
    if asked_for and not by_share:
        _require_enough(budget, asked_for, limits.get(asked_for), evidence)
    return limits


def _require_enough(
    budget: Budget, dimension: str, limit: Decimal | int | float | None, evidence: Mapping[str, Json]
) -> None:
    if limit is None:
        return
    if dimension == "working_s":
        old, needed = Decimal(budget.working_limit_s or 0), Decimal(1)
        used = Decimal(budgets.worked_s(budget.pk)).quantize(Decimal("0.1"))
    else:
        try:
            needed = Decimal(str(evidence.get("needed")).replace(",", ""))
        except InvalidOperation:
            return
        old = Decimal(getattr(budget, f"{dimension}_limit"))
        used = Decimal(getattr(budget, f"{dimension}_spent") + getattr(budget, f"{dimension}_reserved"))
    if used + needed > Decimal(limit):
        raise Malformed(
            f"That is not enough for the next step: run {budget.pk} would ask again at once.",
            remedy=f"Grant at least {write_amount(dimension, used + needed - old)}.",
        )


def _let_finish(run: Run, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    """The run thinks once more, is told so, and ends. Its last steps are paid for by raising what is short by just that."""
    for above in sql.fetch_all("SELECT agent FROM runs_run WHERE id = ANY (lw_chain(%s))", [run.pk]):
        access.require(by, Action.DECIDE, above[0])
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    why = f"it finishes with what it has, by {by.get_username()}"
    budgets.ask_finish(run.pk, actor=person(by), why=said.comment or why)
    for step in steps.open_steps(run.pk):
        if step.state not in (StepState.PLANNED, StepState.WAITING):
            continue
        locked = steps.lock(step.pk)
        if step.kind in (StepKind.THINK, StepKind.FINISH):
            if locked.state == StepState.WAITING:
                steps.wake(locked, why=why, actor=person(by))
        elif not Key.objects.filter(step=step, state__in=KEY_OPEN).exists():
            approvals.void_all(run.pk, step=step.pk, why=why)
            steps.close(locked, StepState.VOID, error=why, actor=person(by))


def _decide_fact(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert card.fact is not None
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    facts.lock([card.fact.pk])
    if said.verdict == Verdict.CONFIRM:
        facts.confirm(card.fact, actor=person(by))
        course.wake_run(run, WaitingFor.FACT, why=f"{card.fact.name} was confirmed", actor=person(by))
    else:
        _correct(run, card.fact, said.result, by)


def _decide_escalation(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    assert step is not None
    allowed = said.verdict == Verdict.APPROVE
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED if allowed else ApprovalState.REJECTED)
    if allowed:
        answer: Json = {"approved": True, "comment": said.comment}
        steps.close(step, StepState.DONE, result=answer, actor=person(by), why=said.comment)
    else:
        steps.close(step, StepState.REJECTED, error=said.comment or "no reason given", actor=person(by))


def _decide_other(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    if step is not None:
        steps.wake(step, why=f"{said.verdict} by {by.get_username()}", actor=person(by))


def _decide_credential(run: Run, step: Step | None, card: Approval, said: Said, by: AbstractBaseUser) -> None:
    approvals.decide(card, said, by=by, to=ApprovalState.ANSWERED)
    name = credential_of(card)
    if name:
        credentials.note_renewed(name, actor=person(by))
    why = f"{name or 'the credential'} was renewed"
    course.wake_run(run, WaitingFor.CREDENTIAL, name or None, why=why, actor=person(by))


def credential_of(card: Approval) -> str:
    """The name of the credential that a card asks for."""
    return str(card.evidence.get("credential") or "") if isinstance(card.evidence, dict) else ""


_DECIDERS = {
    ApprovalKind.APPROVAL: _decide_approval,
    ApprovalKind.QUESTION: _decide_question,
    ApprovalKind.VERDICT: _decide_verdict,
    ApprovalKind.FAILURE: _decide_failure,
    ApprovalKind.BUDGET: _decide_budget,
    ApprovalKind.FACT: _decide_fact,
    ApprovalKind.CREDENTIAL: _decide_credential,
    ApprovalKind.ESCALATION: _decide_escalation,
}


def _close_budget_cards(run: Run, *, why: str) -> None:
    cards = Approval.objects.select_for_update(of=("self",), no_key=True).filter(
        run=run, kind=ApprovalKind.BUDGET, state=ApprovalState.PENDING
    )
    for card in cards:
        approvals.void(card, why=why)


def _wake_for_budget(run: int, *, why: str, actor: Actor) -> None:
    with transaction.atomic(durable=True):
        locked = lifecycle.lock(run)
        _close_budget_cards(locked, why=why)
        course.wake_run(locked, WaitingFor.BUDGET, why=why, actor=actor)


def _wake_for_allowance(allowance: int, *, why: str, most: int | None = None) -> None:
    on = allowances.topic(allowance)
    for run in sorted(course.wake_waiting(WaitingFor.CAPACITY, on))[:most]:
        with transaction.atomic(durable=True):
            course.wake_run(lifecycle.lock(run), WaitingFor.CAPACITY, on, why=why)


def _wake_descendants(run: int, waiting_for: WaitingFor, *, why: str) -> None:
    """Other runs are woken in transactions of their own."""
    below = Run.objects.filter(root_id=Run.objects.values_list("root_id", flat=True).get(pk=run), ended_at__isnull=True)
    for number in below.filter(waiting_for=waiting_for).exclude(pk=run).values_list("pk", flat=True):
        with transaction.atomic(durable=True):
            locked = lifecycle.lock(number)
            _close_budget_cards(locked, why=why)
            course.wake_run(locked, waiting_for, why=why)


def _wake_after_end(tree: list[Run], freed: Sequence[str]) -> None:
    wake_lock_waiters(freed)
    for run in tree:
        wake_waiters_of_ended(run.pk)


def wake_waiters_of_ended(run: int) -> None:
    """Wake the step of the parent that waits for this child, and the run that waits longest for its place."""
    waiting = course.wake_waiting(WaitingFor.CHILD, str(run))
    for number in waiting:
        with transaction.atomic(durable=True):
            course.wake_run(lifecycle.lock(number), WaitingFor.CHILD, str(run), why=f"run {run} ended")
    for allowance in Allowance.objects.filter(dimension="runs", ended_at__isnull=True).values_list("pk", flat=True):
        _wake_for_allowance(allowance, why=f"run {run} ended", most=1)


def wake_lock_waiters(names: Sequence[str]) -> None:
    """Wake the runs that wait for these locks, each in a transaction of its own."""
    for name in names:
        for number in course.wake_waiting(WaitingFor.LOCK, name):
            with transaction.atomic(durable=True):
                course.wake_run(lifecycle.lock(number), WaitingFor.LOCK, name, why=f"{name} is free")


def _wake_after_decision(card: Approval) -> None:
    if card.step_id is not None:
        for key in Key.objects.filter(step_id=card.step_id, state__in=[KeyState.DONE, KeyState.FAILED]):
            wake_lock_waiters([*_lock_names(key), keys.waited_on(key)])
    card.refresh_from_db(fields=["verdict"])
    if card.kind == ApprovalKind.CREDENTIAL and card.verdict == Verdict.RENEWED:
        name = credential_of(card)
        for number in course.wake_waiting(WaitingFor.CREDENTIAL, name):
            with transaction.atomic(durable=True):
                course.wake_run(lifecycle.lock(number), WaitingFor.CREDENTIAL, name, why=f"{name} was renewed")
    if card.kind == ApprovalKind.BUDGET:
        _wake_descendants(card.run_id, WaitingFor.BUDGET, why=f"a limit was raised on approval {card.pk}")


def _lock_names(key: Key) -> list[str]:
    agent = agents.get_agents().get(key.run.agent)
    tool = agent.tool(key.tool) if agent else None
    return [locks.fit(name) for name in tool.bound_locks(key.arguments)] if tool else []


def _require_on_run(by: AbstractBaseUser, action: Action, run: int) -> Run:
    found = access.get_run(by, run)
    access.require(by, action, found.agent)
    return found


def _agent_of_scope(scope: str) -> str | None:
    kind, _, name = scope.partition(":")
    if kind == "agent":
        return name
    if kind == "run" and name.isdecimal():
        return Run.objects.filter(pk=int(name)).values_list("agent", flat=True).first()
    return None


def _require_scope(scope: str, by: AbstractBaseUser) -> str:
    """Return the scope as it is compared. One that is misspelt would hold nothing, and look as if it did."""
    kind, _, name = scope.partition(":")
    if kind == "agent" and not Run.objects.filter(agent=name).exists():
        access.get_agent(by, name)
    elif kind == "run" and name.isascii() and name.isdecimal():
        scope = f"run:{access.get_run(by, int(name)).pk}"
    elif kind == "tool":
        tools = {tool.name for agent in get_agents().values() for tool in agent.tools}
        if name not in tools and not Step.objects.filter(tool=name).exists():
            raise Malformed(f"There is no tool {name!r}.", remedy=f"Known: {', '.join(sorted(tools)) or 'none'}.")
    _require_over(scope, by)
    return scope


def _require_over(scope: str, by: AbstractBaseUser) -> None:
    """Only who may switch every agent that a scope reaches may switch it. Raises: Forbidden."""
    access.require(by, Action.SWITCH, _agent_of_scope(scope))
    kind, _, name = scope.partition(":")
    if kind not in ("all", "tool"):
        return
    rights = access.read_rights(by)
    if EVERY_AGENT in rights.agents:
        return
    reached = {agent.name for agent in get_agents().values() if agent.tool(name) is not None}
    if kind == "all" or not reached or not reached <= rights.agents:
        what = "Everything" if kind == "all" else f"The tool {name}"
        raise Forbidden(
            f"{what} reaches agents that you do not see.", remedy="Switch your own agents, or ask who sees them all."
        )


def _known_start(by: AbstractBaseUser, key: str, body: str) -> Run | None:
    known = StartRequest.objects.filter(user_id=by.pk, key=key).select_related("run").first()
    if known is None:
        return None
    if known.body_digest != body:
        raise KeyReused
    return known.run


def _keep_start(by: AbstractBaseUser, key: str, body: str, run: Run) -> None:
    sql.execute(
        "INSERT INTO runs_startrequest (user_id, key, body_digest, run_id, at) VALUES (%s, %s, %s, %s, lw_clock())",
        [by.pk, key, body, run.pk],
    )


def _money(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        value = Decimal(str(text))
    except InvalidOperation:
        raise Malformed(f"{text!r} is no amount.", remedy='Write it as "2.00".') from None
    _check_amount("usd", value)
    return str(value)


def _whole(name: str, text: str) -> int:
    try:
        amount = int(text)
    except ValueError:
        raise Malformed(f"{text!r} is no possible {name}.", remedy="Write a whole number.") from None
    _check_amount(name, amount)
    return amount


_BIGGEST = 2**63 - 1  # of a bigint column
_LONGEST_S = 10 * 366 * 86_400.0


def _check_amount(name: str, amount: Decimal | int | float | None) -> None:
    """Raises: Malformed, for what is no limit or does not fit its column."""
    if amount is None:
        return
    match name:
        case "usd":
            value = Decimal(amount)
            fits = value.is_finite() and 0 <= value < 10**10 and value == round(value, 10)
        case "ask_percent":
            fits = 1 <= amount <= 100 and amount == int(amount)
        case "working_s" | "max_age_s":
            fits = 0 < amount <= _LONGEST_S  # NaN compares false
        case _:
            fits = 0 <= amount <= _BIGGEST and amount == int(amount)
    if not fits:
        raise Malformed(
            f"{amount} is no possible {name}.", remedy='Write money as "2.00", counts and seconds as numbers.'
        )
