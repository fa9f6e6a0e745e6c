"""The tools that every agent has. They change only Longwatch's own tables, inside the transaction that settles them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from pydantic import BaseModel, Field

from runs import approvals, clock, facts, lifecycle, operations, steps
from runs.agents import Agent, Call, Effect, Json, Tool, get_agent, tool
from runs.errors import LongwatchError
from runs.journal import AGENT
from runs.models import Attempt, Run, Step, WorkItem
from runs.states import RUN_FINAL, ApprovalKind, StepKind, StepState, WaitingFor, WorkState

MAX_RECALL = 20


class Close(BaseModel):
    item: str
    outcome: str


class Drop(BaseModel):
    item: str
    reason: str


class NotNow(LongwatchError):
    """The call makes no sense here; the model reads why."""

    code = "not_now"


@tool(effect=Effect.INTERNAL)
def record_fact(
    call: Call,
    name: str,
    from_step: int | None = None,
    pointer: str = "",
    max_age_s: float | None = None,
    value: Any = None,
    derived_from: list[str] | None = None,
) -> None:
    """Record a fact that later calls rest on. Its value is taken from the result of step `from_step`, at the JSON
    pointer `pointer` ("" is the whole result, "/total" one field). Its age counts from when that reading began.
    Give `value` instead only for something that no step has read; name in `derived_from` the facts it follows from."""


@tool(effect=Effect.INTERNAL)
def plan(
    call: Call,
    add: list[str] | None = None,
    close: list[Close] | None = None,
    drop: list[Drop] | None = None,
) -> None:
    """Keep the list of outstanding work: add titles, close items with their outcome, drop items with a reason. The run
    cannot finish while an item is open."""


@tool(effect=Effect.INTERNAL)
def recall(call: Call, step: int | None = None, search: str | None = None) -> None:
    """Read any earlier step in full, or search all steps for a text."""


@tool(effect=Effect.INTERNAL)
def ask(call: Call, question: str, options: list[str] | None = None) -> None:
    """Ask a person, and wait for the answer."""


@tool(effect=Effect.INTERNAL)
def wait_until(
    call: Call, reason: str, time: str | None = None, seconds: Annotated[float, Field(ge=0)] | None = None
) -> None:
    """Wait until a time (RFC 3339, or a local time in the run's zone) or for some seconds. Nothing is spent meanwhile."""


@tool(effect=Effect.INTERNAL)
def spawn(
    call: Call, agent: str, goal: str, inputs: dict[str, Any] | None = None, budget_usd: str | None = None
) -> None:
    """Start a child run, and wait for its outcome. It draws on this run's budget."""


@tool(effect=Effect.INTERNAL)
def finish(call: Call, outcome: str, evidence: list[int] | None = None) -> None:
    """Claim that the goal is reached: what came of it, and the steps that prove it. The claim is verified."""


BUILTINS: dict[str, Tool] = {t.name: t for t in (record_fact, plan, recall, ask, wait_until, spawn, finish)}


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The step waits, and its function runs again when it is woken."""

    waiting_for: WaitingFor
    note: str
    on: str = ""
    until: datetime | None = None
    and_then: str = ""


type Outcome = Json | Wait


def execute(run: Run, step: Step, agent: Agent) -> Outcome:
    """Run a built-in for a locked run and step. Raises: LongwatchError, for the model to read."""
    return _EXECUTORS[step.tool](run, step, agent, dict(step.arguments))


def _record_fact(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    name = given["name"].strip()
    if not name:
        raise NotNow("A fact needs a name.")
    allowed = agent.max_age_of(name)
    wanted = given.get("max_age_s")
    if allowed is None and wanted is None:
        raise NotNow(f"No max age is known for {name}.", remedy="Give max_age_s.")
    if allowed is not None and wanted is not None and wanted > allowed:
        raise NotNow(f"{name} may be at most {allowed:g} s old; {wanted:g} s is longer than its policy allows.")
    max_age_s = float(wanted if wanted is not None else allowed or 0)
    if max_age_s <= 0:
        raise NotNow("max_age_s must be above 0.")
    parents = list(given.get("derived_from") or [])
    if missing := set(parents) - set(facts.judge(run.pk, parents)):
        raise NotNow(f"{', '.join(sorted(missing))} is not recorded, so nothing can be derived from it.")
    number = given.get("from_step")
    if number is None:
        source: dict[str, Json] = {"agent": agent.name}
        observed = clock.now()
        value = given.get("value")
        if value is None:
            raise NotNow("Give from_step, or a value.")
        origin = step.pk
    else:
        read = Step.objects.filter(run=run, number=number).first()
        if read is None or read.state != StepState.DONE or read.kind not in (StepKind.ACT, StepKind.CHECK):
            raise NotNow(f"Step {number} has no result that a fact could come from.")
        value = resolve_pointer(full_result(read), given.get("pointer") or "")
        observed = reading_began(read)
        source = {
            "tool": read.tool,
            "arguments": dict(read.arguments),
            "pointer": given.get("pointer") or "",
            "step": read.number,
        }
        origin = read.pk
        known = run.facts.filter(name=name).first()
        if known is not None and known.observed_at is not None and observed < known.observed_at:
            raise NotNow(f"{name} was read again after step {number}; the newer value is kept.")
    fact = facts.record(
        run,
        name=name,
        value=value,
        source=source,
        observed_at=observed,
        max_age_s=max_age_s,
        step=origin,
        derived_from=parents,
    )
    return {"fact": fact.name, "version": fact.version, "value": fact.value}


def _plan(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    open_items = {item.ref: item for item in WorkItem.objects.filter(run=run, state=WorkState.OPEN)}
    for entry in [*(given.get("close") or []), *(given.get("drop") or [])]:
        if entry["item"] not in open_items:
            raise NotNow(f"{entry['item']} is no open work item.", remedy=f"Open: {', '.join(open_items) or 'none'}.")
    added = lifecycle.add_work(run.pk, given.get("add") or [], step=step.pk)
    for entry in given.get("close") or []:
        item = open_items[entry["item"]]
        lifecycle.close_work(item, state=WorkState.CLOSED, outcome=entry["outcome"], step=step.pk)
    for entry in given.get("drop") or []:
        item = open_items[entry["item"]]
        lifecycle.close_work(item, state=WorkState.DROPPED, outcome=entry["reason"], step=step.pk)
    return {
        "added": [item.ref for item in added],
        "open": WorkItem.objects.filter(run=run, state=WorkState.OPEN).count(),
    }


def _recall(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    if given.get("step") is not None:
        found = Step.objects.filter(run=run, number=given["step"]).first()
        if found is None:
            raise NotNow(f"There is no step {given['step']}.")
        return {**_brief(found), "result": full_result(found)}
    if not given.get("search"):
        raise NotNow("Give a step or a text to search for.")
    text = given["search"]
    hits = (
        Step.objects.filter(run=run)
        .exclude(pk=step.pk)
        .extra(
            where=["(tool || ' ' || arguments::text || ' ' || coalesce(result::text, '') || ' ' || error) ILIKE %s"],
            params=[f"%{_like(text)}%"],
        )
        .order_by("-number")[:MAX_RECALL]
    )
    return {"found": [_brief(hit) for hit in hits]}


def _ask(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    approvals.ask(
        run,
        ApprovalKind.QUESTION,
        title=given["question"],
        step=step,
        because=step.because,
        options=given.get("options") or [],
        actor=AGENT,
    )
    return Wait(waiting_for=WaitingFor.QUESTION, note=f"the agent asks: {given['question']}", on="an approver")


def _wait_until(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    now = clock.now()
    if step.result is not None:
        until = datetime.fromisoformat(step.result["until"])
        if now >= until:
            return {"waited_until": until.isoformat()}
    elif given.get("time"):
        until = _moment(given["time"])
    elif given.get("seconds") is not None:
        until = now + timedelta(seconds=min(given["seconds"], 10 * 366 * 86400))
    else:
        raise NotNow("Give a time or a number of seconds.")
    steps.keep_result(step, {"until": until.isoformat()})
    return Wait(
        waiting_for=WaitingFor.TIMER,
        note=f"waits until {until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {given['reason']}",
        until=until,
        and_then="the agent goes on",
    )


def _spawn(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    if step.result is not None:
        child = Run.objects.get(pk=step.result["run"])
        if child.state in RUN_FINAL:
            return {
                "run": child.pk,
                "state": child.state,
                "outcome": child.outcome,
                "verified": child.verified,
                "reason": child.end_reason,
            }
    else:
        if given["agent"] not in agent.spawns:
            raise NotNow(
                f"{agent.name} may not start {given['agent']}.", remedy=f"It may: {', '.join(agent.spawns) or 'none'}."
            )
        child = operations.create_child(
            run,
            agent=get_agent(given["agent"]),
            goal=given["goal"],
            inputs=given.get("inputs") or {},
            usd=given.get("budget_usd"),
            actor=AGENT,
        )
        steps.keep_result(step, {"run": child.pk})
    return Wait(waiting_for=WaitingFor.CHILD, note=f"waits for its child, run {child.pk}", on=str(child.pk))


_EXECUTORS: dict[str, Callable[[Run, Step, Agent, dict[str, Any]], Outcome]] = {
    "record_fact": _record_fact,
    "plan": _plan,
    "recall": _recall,
    "ask": _ask,
    "wait_until": _wait_until,
    "spawn": _spawn,
}


def full_result(step: Step) -> Json:
    """A step's result, from its artifact when the step keeps only a preview."""
    if step.artifact is not None and step.artifact.media_type == "application/json":
        whole: Json = json.loads(bytes(step.artifact.body))
        return whole
    result: Json = step.result
    return result


def resolve_pointer(value: Json, pointer: str) -> Json:
    """RFC 6901. Raises: NotNow when nothing is there."""
    if pointer == "":
        return value
    if not pointer.startswith("/"):
        raise NotNow(f"{pointer!r} is no JSON pointer.", remedy='Write it as "/field", or "" for the whole result.')
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise NotNow(f"There is nothing at {pointer!r}.")
    return value


def reading_began(step: Step) -> datetime:
    """When the try that gave a step its result began, by the database's clock."""
    attempt = Attempt.objects.filter(step=step).order_by("-number").first()
    return step.created_at if attempt is None else attempt.taken_at


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NotNow(f"{text!r} is no time.", remedy="Write it as 2026-11-30T09:00:00Z.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(settings.RUN_ZONE))


def _brief(step: Step) -> dict[str, Json]:
    return {
        "step": step.number,
        "tool": step.tool,
        "with": dict(step.arguments),
        "outcome": step.state,
        "result": step.result,
        "error": step.error,
    }


def _like(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
