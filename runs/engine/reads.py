"""Plain reads, one after another: what returned is settled, and the next one taken, in one statement.

A read that needs no approval, rests on no fact and is tried for the first time is most of what agents do, and most of
what the general path (`act`, `settle`) would ask the database about cannot apply to it. `lw_read_on` (migration 0026)
does the same moves by the same rules, in one round trip and one commit; it says no wherever anything is out of the
ordinary, and then the general path decides. tests/test_reads.py holds the two against each other.

While other runs wait for a worker, quick reads of one reply are taken several at a time: they run side by side, as all
calls of a reply do, and share the round trip and the commit.
"""

import json
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from runs import artifacts, clock, notify, sql, steps
from runs.agents import Agent, Effect, Json, Tool
from runs.engine import failpoints
from runs.engine.act import Taken
from runs.engine.hand import Hand
from runs.engine.persist import persist
from runs.engine.settle import settle_call
from runs.engine.toolhost import Outcome, Tick
from runs.engine.toolwire import Function, Perform, Report, Said
from runs.errors import Lost
from runs.models import Step
from runs.states import StepKind, StepState


@dataclass(frozen=True, kw_only=True)
class Read:
    """A planned step that is a plain read."""

    step: int
    number: int
    tool: Tool
    small: bool


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Reads of which the first are taken."""

    taken: Sequence[Taken]
    left: deque[Read]


class NotPlain(Exception):
    """Something stands against doing it like this: the general path decides."""


# Settles a try with the next statement, and returns what raises NotPlain where that was not to be.
type Settle = Callable[[], Callable[[], object]]
# Ends a run, if nothing stands against it, once its last tries are settled. Returns whether it ended.
type Ending = Callable[[Settle], bool]


@dataclass(frozen=True, kw_only=True)
class _Returned:
    taken: Taken
    outcome: Outcome


_NOT_PLAIN = "LW001"  # raised by lw_read_on
_NOBODY = uuid.UUID(int=0)
_MOST = 32  # reads that are taken together
_SMALL_BYTES = 2_000
# What a crash makes to be read again at most, and how long a read that was taken may lie behind others.
_TOGETHER_S = 0.02


def leading(agent: Agent, ready: Iterable[Step]) -> list[Read]:
    """The plain reads at the head of what can be worked on now."""
    found: list[Read] = []
    if agent.gate is not None:
        return found
    for step in ready:
        tool = agent.tool(step.tool) if step.kind == StepKind.ACT else None
        if tool is None or not _is_plain(tool) or step.tries or step.gated or step.rests_on:
            break
        if step.contract != tool.contract or step.state != StepState.PLANNED:
            break
        small = len(json.dumps(step.arguments)) <= _SMALL_BYTES
        found.append(Read(step=step.pk, number=step.number, tool=tool, small=small))
    return found


def advance_reads(hand: Hand, agent: Agent, reads: Sequence[Read]) -> bool:
    """Do these reads in order, as far as nothing comes between. False: the first one is for the general path."""
    performer = hand.ready_tools()
    try:
        with refusing():
            begun = begin(hand, agent, reads, performer=performer)()
    except NotPlain:
        return False
    carry_on(hand, agent, begun)
    return True


def begin(hand: Hand, agent: Agent, reads: Sequence[Read], *, performer: uuid.UUID) -> Callable[[], Begun]:
    """Take the first of some reads with the next statement, or with the commit. What came of it is known after that.

    Raises NotPlain then, and nothing was taken; where more was begun than may be, it is what runs the statement that is
    refused (see `refusing`).
    """
    left = deque(reads)
    chosen = _choose(hand, agent, left)
    before = clock.boottime()
    asked = _ask(hand, [], chosen, performer=performer)
    return lambda: Begun(left=left, taken=_taken(hand, agent, chosen, asked, before=before))


def carry_on(hand: Hand, agent: Agent, begun: Begun, *, ending: Ending | None = None) -> bool:
    """Do what was taken, and the reads after it as far as nothing comes between. True: the run has ended with the last.

    ending: what may follow the last one, in its transaction; it is told how to settle that, and whether it ended is its
    answer.
    """
    taken = begun.taken
    while taken:
        returned = _perform(hand, agent, taken)
        following = [] if hand.used_up else _choose(hand, agent, begun.left)
        if ending is not None and not (following or begun.left or hand.used_up) and _end(hand, agent, returned, ending):
            return True
        taken = _settle(hand, agent, returned, following)
    return False


def _choose(hand: Hand, agent: Agent, left: deque[Read]) -> list[Read]:
    """The next reads to be taken together: at least one, if any is left. Large arguments go alone (see `perform_each`).

    What is quick is not worth a commit of its own each while others wait for a worker.
    """
    chosen: list[Read] = []
    take_s = 0.0
    while left and len(chosen) < (_MOST if hand.claim.crowded else 1):
        take_s += hand.tools.usual_s(agent.name, left[0].tool.name)
        if chosen and not (take_s <= _TOGETHER_S and left[0].small and chosen[-1].small):
            break
        chosen.append(left.popleft())
    return chosen


def _perform(hand: Hand, agent: Agent, taken: Sequence[Taken]) -> list[_Returned]:
    """Have them performed one after another. When one takes its time, those before it are settled meanwhile."""
    returned: list[_Returned] = []
    under_way = {each.perform.attempt: each for each in taken}

    def tick(attempt: int) -> Tick:
        if returned:
            _settle(hand, agent, returned, [])
            returned.clear()
        return hand.tick(*under_way)  # in their order: this one is the first

    for each in taken:
        failpoints.reach("taken", run=each.perform.run, tool=each.perform.tool)
    for call, outcome in hand.tools.perform_each(
        [each.perform for each in taken], tick=tick, progress=steps.note_progress
    ):
        failpoints.reach("returned", run=call.run, tool=call.tool)
        returned.append(_Returned(taken=under_way.pop(call.attempt), outcome=outcome))
    return returned


def _end(hand: Hand, agent: Agent, returned: Sequence[_Returned], ending: Ending) -> bool:
    """Settle tries in the transaction that ends their run. False: whatever stood against it, they are settled by themselves."""
    back, odd = _sort(returned)
    if odd or not back:
        return False
    ended: list[bool] = []
    try:
        with refusing():
            persist(lambda: ended.append(ending(lambda: partial(_require, hand, _ask(hand, back, [])))))
    except (NotPlain, Lost):
        return False
    return ended[-1]


def _settle(hand: Hand, agent: Agent, returned: Sequence[_Returned], following: Sequence[Read]) -> Sequence[Taken]:
    """Settle tries, and take the next ones where nothing stands against it.

    What is settled does not wait for a tool process: where the last one is gone, nothing is taken.
    """
    performer = hand.tools.living()
    back, odd = _sort(returned)
    taken: Sequence[Taken] | None = None
    if back and not odd and performer is not None:
        taken = _persist(lambda: _read_on(hand, agent, back, following, performer=performer))
    if back and taken is None:
        taken = _persist(lambda: _read_on(hand, agent, back, []))
    for each in returned if taken is None else odd:
        persist(partial(settle_call, hand.claim, each.taken.attempt, each.taken.tool, each.outcome))
    for each in returned:
        failpoints.reach("settled", run=each.taken.perform.run, tool=each.taken.perform.tool)
    return taken or ()


def _sort(returned: Sequence[_Returned]) -> tuple[list[tuple[int, str]], list[_Returned]]:
    """The results that a step keeps as they are, with their tries; and what the general path has to look at."""
    back: list[tuple[int, str]] = []
    odd: list[_Returned] = []
    for each in returned:
        text = _inline(each.outcome)
        if text is None:
            odd.append(each)
        else:
            back.append((each.taken.attempt, text))
    return back, odd


def _persist(read_on: Callable[[], Sequence[Taken]]) -> Sequence[Taken] | None:
    """What was taken; None where it is for the general path."""
    found: list[Sequence[Taken]] = []
    try:
        persist(lambda: found.append(read_on()))
    except NotPlain:
        return None
    return found[-1]


def _read_on(
    hand: Hand,
    agent: Agent,
    back: Sequence[tuple[int, str]],
    reads: Sequence[Read],
    *,
    performer: uuid.UUID = _NOBODY,
) -> Sequence[Taken]:
    """Settle what came back, and take reads. Raises: NotPlain."""
    before = clock.boottime()
    with refusing():
        return _taken(hand, agent, reads, _ask(hand, back, reads, performer=performer), before=before)


def _taken(hand: Hand, agent: Agent, reads: Sequence[Read], asked: sql.Answer, *, before: float) -> Sequence[Taken]:
    """before: this machine's clock before they were taken. Raises: NotPlain."""
    attempts, arguments, begin_within = _require(hand, asked)
    return [
        Taken(
            attempt=attempt,
            tool=read.tool,
            perform=Perform(
                attempt=attempt,
                agent=agent.name,
                function=Function.CALL,
                tool=read.tool.name,
                arguments=given,
                run=hand.claim.run,
                step=read.number,
                begin_by=before + float(begin_within),
                timeout_s=read.tool.timeout,
                look=False,
            ),
        )
        for read, attempt, given in zip(reads, attempts or [], json.loads(arguments or "[]"), strict=True)
    ]


def _ask(
    hand: Hand, back: Sequence[tuple[int, str]], reads: Sequence[Read], *, performer: uuid.UUID = _NOBODY
) -> sql.Answer:
    return sql.ask(
        "SELECT settled, attempts, arguments, begin_within_s FROM lw_read_on("
        "%s, %s, %s, %s, %s, %s::bigint[], %s::jsonb, %s::jsonb)",
        [
            hand.claim.run,
            hand.claim.epoch,
            hand.worker,
            performer,
            settings.LEASE_S,
            sql.array(attempt for attempt, _ in back),
            f"[{','.join(text for _, text in back)}]",
            json.dumps([_write_wanted(read) for read in reads]),
        ],
    )


def _require(hand: Hand, answer: sql.Answer) -> tuple[Any, ...]:
    """What was taken: tries, their arguments, and within how many seconds each has to begin. Raises: NotPlain."""
    settled, *taken = answer.row()
    if settled is None:
        raise NotPlain
    notify.screen("runs", f"run.{hand.claim.run}")
    return tuple(taken)


@contextmanager
def refusing() -> Iterator[None]:
    """Raises: NotPlain, where lw_read_on had begun to change something that it may not."""
    try:
        yield
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) != _NOT_PLAIN:
            raise
        raise NotPlain from error


def _write_wanted(read: Read) -> dict[str, Json]:
    return {"step": read.step, "contract": read.tool.contract, "timeout_s": read.tool.timeout}


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
