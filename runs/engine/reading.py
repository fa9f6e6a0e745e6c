"""What a fact is recorded from: the result of a step that read it, and the moment that reading speaks of."""

import json
from dataclasses import dataclass
from datetime import datetime

from runs import clock
from runs.agents import Agent, Json, Tool
from runs.errors import LongwatchError
from runs.models import Attempt, Event, Run, Step
from runs.states import AttemptOutcome, StepKind, StepState

# Of the built-in tools, those whose result somebody else gave. The others only hand on what was read before them.
_ANSWERED = frozenset({"ask", "spawn", "wait_for"})


class NotNow(LongwatchError):
    """The call makes no sense here; the model reads why."""

    code = "not_now"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a step read. observed_at: None when the source was to say from when its data are, and did not."""

    step: Step
    value: Json
    observed_at: datetime | None
    source: dict[str, Json]


def read_result(run: Run, agent: Agent, number: int, pointer: str) -> Reading:
    """Take a value from the result of a step, with the date of that reading. Raises: NotNow."""
    step = Step.objects.filter(run=run, number=number).first()
    if step is None or step.state != StepState.DONE or step.kind not in (StepKind.ACT, StepKind.CHECK):
        raise NotNow(f"Step {number} has no result that a fact could come from.")
    tool = agent.tool_or_checker(step.tool)
    if tool is None and step.tool not in _ANSWERED:
        raise NotNow(
            f"Step {number} ({step.tool}) read nothing itself.", remedy="Cite the step whose tool read it, or read it."
        )
    whole = full_result(step)
    return Reading(
        step=step,
        value=resolve_pointer(whole, pointer),
        observed_at=observed_at(tool, whole, reading_began(step)),
        source={"tool": step.tool, "arguments": dict(step.arguments), "pointer": pointer, "step": step.number},
    )


def observed_at(tool: Tool | None, result: Json, began: datetime) -> datetime | None:
    """The moment that a reading speaks of: when it began, or the earlier one that the source itself names.

    None where a source that has to name it names none that can be read, or one that has not come yet.
    """
    if tool is None or not tool.as_of:
        return began
    try:
        told = datetime.fromisoformat(str(resolve_pointer(result, tool.as_of)))
    except (NotNow, ValueError):
        return None
    if told.tzinfo is None or told > clock.now():
        return None
    return min(told, began)


def full_result(step: Step) -> Json:
    """A step's result, from its artifact when the step keeps only a preview."""
    if step.artifact is not None and step.artifact.media_type == "application/json":
        whole: Json = json.loads(bytes(step.artifact.body))
        return whole
    if step.artifact is not None and step.artifact.media_type.startswith("text/"):
        return bytes(step.artifact.body).decode(errors="replace")
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
    """When the try that gave a step its result began, by the database's clock; a replayed one has an earlier step's.

    Where the result is what an event brought, when that was delivered.
    """
    origin = step.replay_of if step.replay_of is not None else step
    event = Event.objects.filter(step=origin).first()
    if event is not None:
        return event.received_at
    # Of two tries of a call that both brought a result nobody knows which came first; a check is closed by its last try.
    order = "-number" if origin.kind == StepKind.CHECK else "number"
    told = (AttemptOutcome.DONE, AttemptOutcome.PROVED)
    attempt = Attempt.objects.filter(step=origin, outcome__in=told).order_by(order).first()
    return origin.created_at if attempt is None else attempt.taken_at
