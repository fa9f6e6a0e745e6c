"""One step, whole: what was asked, what ran, on what it rested, each try, and what came of it."""

from dataclasses import dataclass
from datetime import datetime

from console.display.cards import say_outcome
from console.display.figures import write_took, write_usd
from console.display.marks import STEP, WAITING, Mark
from console.display.outside import Shown, show, show_value
from console.display.waits import say_until, say_whom
from runs.agents import Json
from runs.queries import StepRow

MOST_SHOWN = 100_000


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    value: Shown
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class TryOfStep:
    number: int
    words: str
    at: datetime
    took: str
    error: str
    late: bool


@dataclass(frozen=True, kw_only=True)
class StepView:
    number: int
    name: str
    kind: str
    mark: Mark
    because: Shown | None
    gate: str
    wait: str
    arguments: list[Part]
    edited: bool
    rests_on: list[str]
    result: Part | None
    artifact: str
    error: str
    replay_of: int | None
    reply_to: int | None
    tries: list[TryOfStep]
    cost: str
    created_at: datetime
    took: str


def show_step(step: StepRow, now: datetime) -> StepView:
    return StepView(
        number=step.number,
        name=show(step.tool) or step.kind,
        kind=step.kind,
        mark=STEP[step.state],
        because=show_value(step.because) if step.because else None,
        gate=show(step.gate_reason) if step.gated else "",
        wait=_say_wait(step, now),
        arguments=[_part(name, value) for name, value in step.arguments.items()],
        edited=bool(step.asked) and bool(step.arguments) and _differ(step),
        rests_on=[show(str(name)) for name in step.rests_on],
        result=None if step.result is None else _part("result", step.result),
        artifact=step.artifact or "",
        error=show(step.error),
        replay_of=step.replay_of,
        reply_to=step.reply_to,
        tries=[
            TryOfStep(
                number=made.number,
                words=say_outcome(made.outcome) + (f", signal {made.exit_signal}" if made.exit_signal else ""),
                at=made.began_at or made.taken_at,
                took=write_took(((made.ended_at or now) - made.taken_at).total_seconds()),
                error=show(made.error),
                late=made.late,
            )
            for made in step.attempts
        ],
        cost=write_usd(step.usd) if step.usd else "",
        created_at=step.created_at,
        took=write_took(
            ((step.ended_at or now) - min((m.taken_at for m in step.attempts), default=step.created_at)).total_seconds()
        ),
    )


def _differ(step: StepRow) -> bool:
    """Whether a person changed what the model had asked for; what a schema fills in is no change."""
    return any(name in step.arguments and step.arguments[name] != value for name, value in step.asked.items())


def _part(name: str, value: Json) -> Part:
    shown = show_value(value)
    if len(shown.text) <= MOST_SHOWN:
        return Part(name=show(name), value=shown)
    kept = Shown(text=shown.text[:MOST_SHOWN], length=shown.length, hidden=shown.hidden)
    return Part(name=show(name), value=kept, left_out=len(shown.text) - MOST_SHOWN)


def _say_wait(step: StepRow, now: datetime) -> str:
    if not step.waiting_for:
        return ""
    until = f", until {say_until(step.wake_at, now).moment}" if step.wake_at else ""
    then = f", then {show(step.and_then)}" if step.and_then else ""
    whom = say_whom(step.waiting_on, step.waiting_for)
    return f"for {WAITING[step.waiting_for].word}, on {whom}{until}{then}: {show(step.wait_note)}"
