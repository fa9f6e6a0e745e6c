"""What people do about a fact: have it checked, correct it, extend it."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, agents, approvals, course, facts, lifecycle, steps
from runs.access import Action
from runs.agents import Json, get_agent
from runs.errors import Conflict
from runs.journal import RUNTIME, append, person
from runs.models import Fact, Run, Step
from runs.states import ApprovalState, FactState, StepKind, WaitingFor


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
        correct(run, found, value, by)
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


def correct(run: Run, fact: Fact, value: Json, by: AbstractBaseUser) -> None:
    """Give a locked fact another value, and drop what rests on the old one."""
    old = fact.value
    facts.correct(fact, value, actor=person(by))
    course.void_dependents(run, facts.names_resting_on(run, fact.name), old=old, new=value)
    course.wake_run(run, WaitingFor.FACT, why=f"{fact.name} was corrected", actor=person(by))


def checker_of(fact: Fact) -> agents.Tool | None:
    """The read tool that can check a fact again, if there is one."""
    return get_agent(fact.run.agent).reader_of(fact.name, fact.source_tool)


def plan_check(run: Run, fact: Fact, checker: agents.Tool) -> Step:
    """Append a check step, unless one is open already. The caller holds the run's lock."""
    for step in steps.open_steps(run):
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
        actor=RUNTIME,
    )
