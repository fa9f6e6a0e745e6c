"""A call that returned `Wait` is over; its step goes on when the event that it named arrives, or at its moment.

Like a built-in that waits, the step keeps what it waits for as its result and is executed again whenever it is woken:
here, never by its tool.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runs import artifacts, clock, course, events, keys, steps
from runs.agents import Json
from runs.models import Event, Key, Run, Step
from runs.states import RUN_FINAL, STEP_FINAL, StepState, WaitingFor


@dataclass(frozen=True, kw_only=True)
class _Wait:
    """What a step keeps."""

    event: str
    key: str
    until: datetime | None
    reason: str
    since: datetime

    @classmethod
    def of(cls, step: Step) -> "_Wait":
        kept: Any = step.result
        until = datetime.fromisoformat(kept["until"]) if kept["until"] else None
        return cls(**{**kept, "until": until, "since": datetime.fromisoformat(kept["since"])})


def conclude(
    run: Run,
    step: Step,
    result: Any,
    *,
    waits: bool,
    since: datetime,
    artifact: int | None = None,
    why: str = "",
) -> None:
    """Give a locked step what its call returned: its result or, `waits`, what it waits for. An ended run waits for nothing.

    since: when the call was taken. An event that came before does not answer it.
    """
    if not waits or run.state in RUN_FINAL or step.state in STEP_FINAL:
        steps.close(step, StepState.DONE, result=result, artifact=artifact, why=why)
        return
    if step.state == StepState.IN_DOUBT:
        steps.wake(step, why="its call returned, and waits")
    steps.keep_result(step, {**result, "since": since.isoformat()})
    go_on(run, step)


def go_on(run: Run, step: Step) -> None:
    """Close a locked step that keeps its wait, if that is over; else let it wait."""
    wait = _Wait.of(step)
    event = _find_event(run, step, wait) if wait.event else None
    now = clock.now()
    if event is not None:
        told: Json = {
            "event": event.name,
            "payload": event.payload,
            "delivered_at": event.received_at.isoformat(),
            "waited_s": (event.received_at - wait.since).total_seconds(),
        }
        _close(run, step, told, why=f"the event {event.name} arrived")
    elif wait.until is None or now < wait.until:
        _let_wait(step, wait)
    elif wait.event:
        told = {
            "event": wait.event,
            "timed_out": True,
            "waited_until": wait.until.isoformat(),
            "waited_s": (wait.until - wait.since).total_seconds(),
        }
        _close(run, step, told, why=f"the event {wait.event} did not arrive in time")
    else:
        _close(run, step, {"waited_until": wait.until.isoformat()}, why="its moment has come")


def _find_event(run: Run, step: Step, wait: _Wait) -> Event | None:
    matched = Event.objects.filter(step=step).first()
    if matched is not None:
        return matched
    events.hold(name=wait.event, key=wait.key)
    found = events.find_arrived(run, name=wait.event, key=wait.key, since=wait.since, until=wait.until)
    if found is not None:
        events.match(found, step)
    return found


def _let_wait(step: Step, wait: _Wait) -> None:
    end = f" until {wait.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if wait.until else ""
    reason = f": {wait.reason}" if wait.reason else ""
    if wait.event:
        steps.wait(
            step,
            WaitingFor.EVENT,
            note=f"waits for the event {wait.event} ({wait.key}){end}{reason}",
            on="whoever delivers it",
            wake_at=wait.until,
            and_then="the agent is told that it did not come" if wait.until else "",
        )
    else:
        steps.wait(step, WaitingFor.TIMER, note=f"waits{end}{reason}", wake_at=wait.until, and_then="the agent goes on")


def _close(run: Run, step: Step, result: Json, *, why: str) -> None:
    kept, artifact = artifacts.shorten(result)
    steps.close(step, StepState.DONE, result=kept, artifact=artifact.pk if artifact else None, why=why)
    for key in Key.objects.filter(step=step):
        course.wake_run(run, WaitingFor.LOCK, keys.waited_on(key), why=f"step {step.number} has its result")
