"""Starting a run, by a person, the API or its parent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction

from runs import access, agents, budgets, clock, lifecycle, sql, switches
from runs.access import Action
from runs.agents import Json, digest
from runs.errors import KeyReused, Malformed, NoLimit, RunDeleted, SwitchedOff
from runs.journal import Actor, person
from runs.models import Run, StartRequest
from runs.operations.amounts import check_amount, read_money

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
    calls: int | None = None
    effects: int | None = None
    steps: int | None = None
    working_s: float | None = None
    max_age_s: float | None = None
    deadline_at: datetime | None = None


def start_run(start: Start, *, by: AbstractBaseUser, idempotency_key: str = "") -> tuple[Run, bool]:
    """Start a run; (run, whether it is new). The same key and body of one caller give the same run.

    Raises: NotFound (a stranger), UnknownAgent, Forbidden, Malformed, NoLimit, SwitchedOff, KeyReused, RunDeleted.
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
    for name in ("tokens", "calls", "effects", "steps", "working_s", "max_age_s"):
        check_amount(name, getattr(start, name))
    if switch := switches.for_agent(agent.name):
        raise SwitchedOff(*switch)
    own = agent.budget
    most = replace(
        own,
        usd=read_money(start.usd) or own.usd,
        tokens=own.tokens if start.tokens is None else start.tokens,
        calls=own.calls if start.calls is None else start.calls,
        effects=own.effects if start.effects is None else start.effects,
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


def _known_start(by: AbstractBaseUser, key: str, body: str) -> Run | None:
    known = StartRequest.objects.filter(user_id=by.pk, key=key).first()
    if known is None:
        return None
    if known.body_digest != body:
        raise KeyReused
    run = Run.objects.filter(pk=known.run_id).first()
    if run is None:
        raise RunDeleted(known.run_id)
    return run


def _keep_start(by: AbstractBaseUser, key: str, body: str, run: Run) -> None:
    sql.execute(
        "INSERT INTO runs_startrequest (user_id, key, body_digest, run_id, at) VALUES (%s, %s, %s, %s, lw_clock())",
        [by.pk, key, body, run.pk],
    )
