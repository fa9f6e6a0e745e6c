"""Plain reads, one after another: what returned is settled, and the next one taken, in one statement.

A read that needs no approval, rests on no fact and is tried for the first time is most of what agents do, and most of
what the general path (`act`, `settle`) would ask the database about cannot apply to it. `lw_read_on` (migration 0009)
does the same moves by the same rules, in one round trip and one commit; it says no wherever anything is out of the
ordinary, and then the general path decides. tests/test_reads.py holds the two against each other.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError

from runs import artifacts, clock, notify, sql
from runs.agents import Agent, Effect, Json, Tool
from runs.engine import failpoints
from runs.engine.act import Taken, perform
from runs.engine.hand import Hand
from runs.engine.persist import persist
from runs.engine.settle import settle_call
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Perform, Report, Said
from runs.models import Step
from runs.states import StepKind


@dataclass(frozen=True, kw_only=True)
class Read:
    """A planned step that is a plain read."""

    step: int
    number: int
    tool: Tool


@dataclass(frozen=True, kw_only=True)
class _Answer:
    settled: bool
    taken: Taken | None


_NOT_PLAIN = "LW001"  # raised by lw_read_on
_NO = _Answer(settled=False, taken=None)


def leading(agent: Agent, ready: Iterable[Step]) -> list[Read]:
    """The plain reads at the head of what can be worked on now."""
    found: list[Read] = []
    if agent.gate is not None:
        return found
    for step in ready:
        tool = agent.tool(step.tool) if step.kind == StepKind.ACT else None
        if tool is None or not _is_plain(tool) or step.tries or step.gated or step.rests_on:
            break
        if step.contract != tool.contract:
            break
        found.append(Read(step=step.pk, number=step.number, tool=tool))
    return found


def advance_reads(hand: Hand, agent: Agent, reads: list[Read]) -> bool:
    """Do these reads in order, as far as nothing comes between. False: the first one is for the general path."""
    taken = _read_on(hand, agent, None, None, reads[0]).taken
    if taken is None:
        return False
    following = iter(reads[1:])
    while taken is not None:
        call = taken.perform
        outcome = perform(hand, taken)
        taken = _settle(hand, agent, taken, outcome, None if hand.used_up else next(following, None))
        failpoints.reach("settled", run=call.run, tool=call.tool)
    return True


def _settle(hand: Hand, agent: Agent, taken: Taken, outcome: Outcome, following: Read | None) -> Taken | None:
    """Settle a try, and take the next one where nothing stands against it."""
    answers: list[_Answer] = []
    if (text := _inline(outcome)) is not None:
        persist(lambda: answers.append(_read_on(hand, agent, taken.attempt, text, following)))
        if answers[-1].settled:
            return answers[-1].taken
    persist(lambda: settle_call(hand.claim, taken.attempt, taken.tool, outcome))
    return None


def _read_on(hand: Hand, agent: Agent, settles: int | None, text: str | None, read: Read | None) -> _Answer:
    performer = hand.ready_tools() if read is not None else uuid.UUID(int=0)
    before = clock.boottime()
    try:
        settled, attempt, arguments, begin_within = sql.fetch_row(
            "SELECT settled, attempt, arguments, begin_within_s FROM lw_read_on("
            "%s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s)",
            [
                hand.claim.run,
                hand.claim.epoch,
                hand.worker,
                performer,
                settings.LEASE_S,
                settles,
                text,
                read.step if read else None,
                read.tool.contract if read else None,
                read.tool.timeout if read else None,
            ],
        )
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) != _NOT_PLAIN:
            raise
        return _NO
    if settled is None:
        return _NO
    notify.screen("runs", f"run.{hand.claim.run}")
    if attempt is None or read is None:
        return _Answer(settled=settled, taken=None)
    call = Perform(
        attempt=attempt,
        agent=agent.name,
        function=Function.CALL,
        tool=read.tool.name,
        arguments=json.loads(arguments),
        run=hand.claim.run,
        step=read.number,
        begin_by=before + float(begin_within),
        timeout_s=read.tool.timeout,
        look=False,
    )
    return _Answer(settled=settled, taken=Taken(attempt=attempt, tool=read.tool, perform=call))


def _is_plain(tool: Tool) -> bool:
    return (
        tool.effect is Effect.READ
        and tool.approval is None
        and not tool.irreversible
        and not tool.rests_on
        and not tool.locks
    )


def _inline(outcome: Outcome) -> str | None:
    """The JSON of a result that a step keeps as it is; None where the general path has to look at it."""
    if not isinstance(outcome, Report) or outcome.said is not Said.DONE or outcome.body is not None:
        return None
    result: Json = outcome.result
    text = json.dumps(result, ensure_ascii=False)
    return text if result is not None and len(text.encode()) <= artifacts.INLINE_BYTES else None
