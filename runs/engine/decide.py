"""A think step of an agent that decides in plain Python: its function runs in the tool process, on the same briefing."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import transaction

from runs import budgets, sql, steps
from runs.agents import Agent, Json
from runs.engine import briefing, harmless, reads, think
from runs.engine.hand import Hand, backoff, later
from runs.engine.harmless import Order
from runs.engine.persist import persist
from runs.engine.settle import finish_late
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Said
from runs.engine.waits import ask_about_failure
from runs.models import Run, Step
from runs.states import StepKind, WaitingFor

_DECIDE_S = 60.0
_TRIES = 3


def advance_decide(hand: Hand, step_id: int) -> None:
    """Let the agent's own function decide what comes next."""
    performed = harmless.perform(hand, step_id, lambda run, step, agent: _order(run))
    if performed is None:
        return
    attempt, outcome = performed

    def settle() -> None:
        _settle(hand, attempt, outcome)

    persist(settle)


def begin(
    hand: Hand, run: Run, *, performer: uuid.UUID, before: float, at_once: bool, asked: sql.Answer | None
) -> harmless.Taken:
    """Plan a decision of a run that the caller holds and of which no step is open, and take it.

    before: this machine's clock before the transaction began. at_once: it has something to say, besides, that has to be
    on the disk before anybody goes on. asked: see `briefing.build`.

    Raises: OverBudget; all of the transaction is given up then.
    """
    ordered = _order(run, asked)  # first: it may take its time, and budgets are locked until the commit

    def reserve() -> None:
        budgets.reserve(run.pk, budgets.Amounts(steps=1), attempt=None, at_once=at_once)

    step, attempt = steps.plan_taken(
        run,
        steps.Asked(kind=StepKind.THINK),
        holder=hand.worker,
        performer=performer,
        lease_s=settings.LEASE_S,
        timeout_s=ordered.timeout_s,
        reserve=reserve,
    )
    return harmless.as_taken(step, ordered, attempt=attempt, before=before)


def carry_out(hand: Hand, taken: harmless.Taken, agent: Agent) -> tuple[list[Step], reads.Begun | None]:
    """The same for a try that was taken with the choice of it. Returns what was decided.

    The plain reads at its head are taken in the same transaction, unless something stands against it.
    """
    outcome = harmless.carry_out(hand, taken)
    attempt, performer = taken.call.attempt, hand.tools.living()
    decided: list[Step] = []
    begin: list[Callable[[], reads.Begun]] = []

    def take(planned: Sequence[Step]) -> None:
        plain = reads.leading(agent, planned)
        if plain and performer is not None:
            begin.append(reads.begin(hand, agent, plain, performer=performer))

    def settle(then: think.Then | None) -> None:
        begin.clear()
        decided[:] = _settle(hand, attempt, outcome, then)

    try:
        with reads.refusing():
            persist(lambda: settle(take))
    except reads.NotPlain:
        persist(lambda: settle(None))
    try:
        return decided, begin[0]() if begin else None
    except reads.NotPlain:
        return decided, None


def _settle(hand: Hand, attempt: int, outcome: Outcome, then: think.Then | None = None) -> list[Step]:
    report = harmless.result_of(outcome)
    asks = None if report is None else _read_asks(report.result)
    if asks is not None:
        reply = think.Reply(
            calls=[_called(place, ask) for place, ask in enumerate(asks)],
            text="",
            stop_reason="tool_use" if asks else "end_turn",
            amounts=budgets.Amounts(steps=1),
            pricing=budgets.Pricing(),
        )
        return think.settle(attempt, reply, claim=hand.claim, then=then)
    if report is not None:
        # A try that failed like any other, so that it is counted.
        outcome = replace(report, said=Said.FAILED, error="its decide function did not return a list of Ask")
    with transaction.atomic(durable=True):
        settling = harmless.close(hand.claim, attempt, outcome)
        if settling is None:
            return []
        if settling.counts:
            _failed(settling.run, settling.step, harmless.told(outcome))
        finish_late(settling.run, late=settling.late)
    return []


def _order(run: Run, asked: sql.Answer | None = None) -> Order:
    """What the tool process is asked for a think step."""
    built: dict[str, Any] = briefing.build(run.pk, asked=asked).__dict__
    return Order(function=Function.DECIDE, asks=False, arguments=dict(built), timeout_s=_DECIDE_S)


def _read_asks(decided: Json) -> list[dict[str, Json]] | None:
    """What was decided; None where it is no list of Ask."""
    if not isinstance(decided, list):
        return None
    asks = [ask for ask in decided if isinstance(ask, dict) and isinstance(ask.get("tool"), str)]
    return asks if len(asks) == len(decided) else None


def _called(place: int, ask: dict[str, Json]) -> think.Called:
    """An Ask as the reply of a model would have it: what belongs to the call itself stands among its arguments."""
    given = ask.get("arguments")
    arguments = dict(given) if isinstance(given, dict) else {}
    for name in ("because", "rests_on", "again"):
        if ask.get(name):
            arguments[name] = ask[name]
    return think.Called(id=f"ask-{place}", name=str(ask.get("tool")), arguments=arguments)


def _failed(run: Run, step: Step, error: str) -> None:
    if steps.count_failures(step) < max(_TRIES, step.tries_granted):
        steps.wait(
            step,
            WaitingFor.RETRY,
            note=f"its decide function failed: {error}",
            wake_at=later(backoff(1.0, step.tries)),
            and_then="it is asked again",
        )
    else:
        ask_about_failure(run, step, f"its decide function failed {step.tries} times", error)
