"""The tools that every agent has. They change only Longwatch's own tables, inside the transaction that settles them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from django.conf import settings
from pydantic import BaseModel, Field

from runs import approvals, clock, course, facts, lifecycle, operations, steps
from runs.agents import EVENT_CHARS, Agent, Call, Effect, Json, Tool, digest, get_agent, tool
from runs.engine.briefing_text import shorten, size
from runs.engine.reading import NotNow, full_result, read_result
from runs.journal import AGENT
from runs.models import Attempt, Fact, Run, Step, WorkItem
from runs.sanitise import clean_json
from runs.states import RUN_FINAL, ApprovalKind, WaitingFor, WorkState

MAX_RECALL = 20
FOUND_BYTES = 500  # of each result that a search found
PART_BYTES = 12_000  # of a recalled result; with what else the line says it stays below what the log shows in full


class Close(BaseModel):
    item: str
    outcome: str


class Drop(BaseModel):
    item: str
    reason: str


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
def recall(
    call: Call, step: int | None = None, search: str | None = None, offset: Annotated[int, Field(ge=0)] = 0
) -> None:
    """Read any earlier step in full, or search all steps for a text. A long result comes in parts, as text: go on at
    `next_offset`."""


@tool(effect=Effect.INTERNAL)
def ask(call: Call, question: str, options: list[str] | None = None) -> None:
    """Ask a person, and wait for the answer."""


@tool(effect=Effect.INTERNAL)
def wait_until(
    call: Call, reason: str, time: str | None = None, seconds: Annotated[float, Field(ge=0)] | None = None
) -> None:
    """Wait until a time (RFC 3339, or a local time in the run's zone) or for some seconds. Nothing is spent meanwhile."""


@tool(effect=Effect.INTERNAL)
def wait_for(
    call: Call,
    event: Annotated[str, Field(min_length=1, max_length=EVENT_CHARS)],
    key: Annotated[str, Field(min_length=1, max_length=EVENT_CHARS)],
    reason: str,
    from_step: int | None = None,
    time: str | None = None,
    seconds: Annotated[float, Field(ge=0)] | None = None,
) -> None:
    """Wait until the event of this name and key is delivered from outside; `key` says which one is meant, such as the job
    id that a tool gave you. Only an event that comes from now on counts, or from when step `from_step` was begun: name
    the step that started what you wait for. Give a time or some seconds after which to go on without it."""


@tool(effect=Effect.INTERNAL)
def spawn(
    call: Call, agent: str, goal: str, inputs: dict[str, Any] | None = None, budget_usd: str | None = None
) -> None:
    """Start a child run, and wait for its outcome. It draws on this run's budget."""


@tool(effect=Effect.INTERNAL)
def escalate(call: Call, what: str, why: str) -> None:
    """Say that the work is larger, or of another kind, than was stated, and wait until a person has agreed to it. Say
    what you would do, and why it goes beyond the goal. Nothing of it may be done before."""


@tool(effect=Effect.INTERNAL)
def finish(call: Call, outcome: str, evidence: list[int] | None = None) -> None:
    """Claim that the goal is reached: what came of it, and the steps that prove it. The claim is verified."""


BUILTINS: dict[str, Tool] = {
    t.name: t for t in (record_fact, plan, recall, ask, wait_until, wait_for, spawn, escalate, finish)
}


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The step waits, and its function runs again when it is woken."""

    waiting_for: WaitingFor
    note: str
    on: str = ""
    until: datetime | None = None
    and_then: str = ""


@dataclass(frozen=True, kw_only=True)
class Awaits:
    """The step waits for an event, as that of a tool which returned `Wait`. since: one that came before does not count."""

    wait: dict[str, Json]
    since: datetime


type Outcome = Json | Wait | Awaits


def execute(run: Run, step: Step, agent: Agent) -> Outcome:
    """Run a built-in for a locked run and step. Raises: LongwatchError, for the model to read."""
    return _EXECUTORS[step.tool](run, step, agent, dict(step.arguments))


def _record_fact(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    name = given["name"].strip()
    if not name:
        raise NotNow("A fact needs a name.")
    parents = list(given.get("derived_from") or [])
    if missing := set(parents) - set(facts.judge(run.pk, parents)):
        raise NotNow(f"{', '.join(sorted(missing))} is not recorded, so nothing can be derived from it.")
    known = run.facts.filter(name=name).first()
    number = given.get("from_step")
    if number is not None:
        read = read_result(run, agent, number, given.get("pointer") or "")
        if known is not None and known.observed_at and read.observed_at and read.observed_at < known.observed_at:
            raise NotNow(f"{name} was read again after step {number}; the newer value is kept.")
        value, source, observed, origin = read.value, read.source, read.observed_at, read.step.pk
        tool = agent.tool(read.step.tool)
    else:
        value, tool, origin = given.get("value"), None, step.pk
        source = {"agent": agent.name}
        observed = _claimed_at(agent, name, value, known, parents)
    fact = facts.record(
        run,
        name=name,
        value=value,
        source=source,
        observed_at=observed,
        max_age_s=_max_age_of(agent, name, tool, given.get("max_age_s")),
        step=origin,
        derived_from=parents,
    )
    if known is not None and fact.version != known.version:
        names = facts.names_resting_on(run, fact.name)
        course.void_dependents(run, names, old=known.value, new=fact.value, before=step.number)
    return {"fact": fact.name, "version": fact.version, "value": fact.value}


def _claimed_at(agent: Agent, name: str, value: Json, known: Fact | None, parents: list[str]) -> datetime | None:
    """From when a claim without a reading is: the first time it was made, unless it follows from other facts."""
    if value is None:
        raise NotNow("Give from_step, or a value.")
    if not parents and (agent.checker_of(name) is not None or (known is not None and known.source_tool)):
        raise NotNow(
            f"{name} is read, not said: saying it again makes nothing younger.", remedy="Read it, cite the step."
        )
    if known is not None and not parents and digest(clean_json(value)) == digest(known.value):
        verified: datetime | None = known.verified_at
        return verified
    return clock.now()


def _max_age_of(agent: Agent, name: str, tool: Tool | None, given: float | str | None) -> float:
    """The shortest of what the agent, the tool and the call allow. Raises: NotNow.

    given: JSON has no number for NaN and infinity, so those come as words.
    """
    wanted = None if given is None else float(given)
    limits = [limit for limit in (agent.max_age_of(name), tool.max_age if tool else None) if limit is not None]
    if not limits and wanted is None:
        raise NotNow(f"No max age is known for {name}.", remedy="Give max_age_s.")
    if wanted is not None and not wanted > 0:
        raise NotNow("max_age_s must be above 0.")
    if limits and wanted is not None and wanted > min(limits):
        raise NotNow(f"{name} may be at most {min(limits):g} s old; {wanted:g} s is longer than its policy allows.")
    return float(wanted if wanted is not None else min(limits))


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
        return {**_brief(found), **_part_of(full_result(found), given.get("offset") or 0)}
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
    return {"found": [{**_brief(hit), "result": shorten(hit.result, FOUND_BYTES)} for hit in hits]}


def _part_of(result: Json, offset: int) -> dict[str, Json]:
    """A result, whole where it fits into the log; else a part of its text, which the log shows unshortened."""
    if offset == 0 and size(result) <= PART_BYTES:
        return {"result": result}
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    if offset >= len(text):
        raise NotNow(f"The result has {len(text)} characters; there is nothing at {offset}.")
    length = PART_BYTES
    while size(text[offset : offset + length]) > PART_BYTES:
        length //= 2
    end = offset + length
    told: dict[str, Json] = {"result_text": text[offset:end], "offset": offset, "characters": len(text)}
    return {**told, "result": None, **({"next_offset": end} if end < len(text) else {})}


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
    else:
        asked = _read_until(given)
        if asked is None:
            raise NotNow("Give a time or a number of seconds.")
        until = asked
    steps.keep_result(step, {"until": until.isoformat()})
    return Wait(
        waiting_for=WaitingFor.TIMER,
        note=f"waits until {until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {given['reason']}",
        until=until,
        and_then="the agent goes on",
    )


def _wait_for(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    if step.result is not None:
        kept = dict(step.result)
        return Awaits(since=datetime.fromisoformat(kept.pop("since")), wait=kept)
    since = step.created_at
    if (number := given.get("from_step")) is not None:
        began = Attempt.objects.filter(run=run, step__number=number).order_by("number").first()
        if began is None:
            raise NotNow(f"Step {number} was not begun, so nothing can have come of it.")
        since = began.taken_at
    until = _read_until(given)
    wait = {
        "event": given["event"],
        "key": given["key"],
        "until": until.isoformat() if until else None,
        "reason": given["reason"],
    }
    return Awaits(wait=wait, since=since)


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


def _escalate(run: Run, step: Step, agent: Agent, given: dict[str, Any]) -> Outcome:
    approvals.ask(
        run,
        ApprovalKind.ESCALATION,
        title=given["what"],
        why="it is larger than was stated",
        step=step,
        because=given["why"],
        groups=agent.approvers,
        actor=AGENT,
    )
    return Wait(waiting_for=WaitingFor.APPROVAL, note=f"the work is larger: {given['what']}", on="an approver")


_EXECUTORS: dict[str, Callable[[Run, Step, Agent, dict[str, Any]], Outcome]] = {
    "record_fact": _record_fact,
    "plan": _plan,
    "recall": _recall,
    "ask": _ask,
    "wait_until": _wait_until,
    "wait_for": _wait_for,
    "spawn": _spawn,
    "escalate": _escalate,
}


def _read_until(given: dict[str, Any]) -> datetime | None:
    """The moment that a call names, by itself or in seconds from now."""
    if given.get("time"):
        return _moment(given["time"])
    if given.get("seconds") is not None:
        return clock.now() + timedelta(seconds=min(given["seconds"], operations.LONGEST_S))
    return None


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
