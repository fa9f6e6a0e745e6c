"""Runs for the tests of the briefing, made through the writers, as the engine would."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.contrib.auth.models import User
from django.db import transaction

from runs import approvals, artifacts, budgets, clock, facts, lifecycle, steps
from runs.agents import Agent, Budget, Call, Effect, Json, get_agents, tool
from runs.approvals import Said
from runs.models import Approval, Fact, Run, Step, WorkItem
from runs.states import ApprovalKind, ApprovalState, StepKind, StepState, Verdict, WorkState


@tool(effect=Effect.READ)
def read_order(call: Call, order: str) -> Json:
    """Read an order."""
    return {"order": order}


@tool(effect=Effect.KEYED, irreversible=True, identity=["order", "amount"], rests_on=["order.{order}"])
def refund(call: Call, order: str, amount: Decimal, memo: str = "") -> Json:
    """Pay money back."""
    return {"order": order, "amount": str(amount)}


DESK = Agent(
    name="briefed-desk",
    instructions="Refund what is due.",
    model="claude-opus-5-5",
    tools=[read_order, refund],
    constraints=["Never refund twice."],
    facts={"order.*": 900.0},
    budget=Budget(usd="2.00", steps=100_000),
)


@dataclass(kw_only=True)
class Scene:
    """A run whose steps a test writes one by one, each in a transaction of its own."""

    run: Run
    _think: Step | None = field(default=None)

    def think(self, result: Json = None, *, settle: bool = True) -> Step:
        """Append a think step, settled as the gateway would."""
        with transaction.atomic():
            run = lifecycle.lock(self.run.pk)
            step = steps.plan(run, steps.Asked(kind=StepKind.THINK))
            if settle:
                steps.close(step, StepState.DONE, result=result or {"stop_reason": "tool_use", "text": ""})
                lifecycle.mark_thought(run.pk)
        self._think = step
        return step

    def act(
        self,
        name: str,
        arguments: dict[str, Json],
        *,
        state: StepState | None = StepState.DONE,
        result: Json = None,
        error: str = "",
        kind: StepKind = StepKind.ACT,
        first: Step | None = None,
        again: str = "",
    ) -> Step:
        """Append a step, closed in that state; None leaves it planned."""
        with transaction.atomic():
            run = lifecycle.lock(self.run.pk)
            asked = steps.Asked(
                kind=kind,
                tool=name,
                arguments=arguments,
                again=again,
                reply_to=self._think.pk if self._think else None,
            )
            step = steps.plan(run, asked)
            if state is not None:
                kept, artifact = artifacts.shorten(result)
                steps.close(
                    step,
                    state,
                    result=kept,
                    artifact=artifact.pk if artifact else None,
                    error=error,
                    replay_of=first.pk if first else None,
                )
        return step

    def read(self, order: str, result: Json = None) -> Step:
        return self.act("read_order", {"order": order}, result=result or {"order": order, "paid": "45.00"})

    def refund(self, order: str, amount: str = "45.00", **how: object) -> Step:
        how.setdefault("result", {"order": order, "amount": amount})
        return self.act("refund", {"order": order, "amount": amount, "memo": "as asked"}, **how)  # type: ignore[arg-type]

    def record(
        self,
        name: str,
        value: Json,
        *,
        step: Step | None = None,
        observed_at: datetime | None = None,
        max_age_s: float = 900.0,
        derived_from: tuple[str, ...] = (),
    ) -> Fact:
        source: dict[str, Json] = {"tool": step.tool, "step": step.number} if step else {"agent": self.run.agent}
        with transaction.atomic():
            return facts.record(
                lifecycle.lock(self.run.pk),
                name=name,
                value=value,
                source=source,
                observed_at=observed_at or clock.now(),
                max_age_s=max_age_s,
                step=step.pk if step else None,
                derived_from=derived_from,
            )

    def check(self, fact: Fact, value: Json = None, *, changed: bool = False) -> Step:
        """Append a check step that found the same, or another value."""
        with transaction.atomic():
            run = lifecycle.lock(self.run.pk)
            step = steps.plan(run, steps.Asked(kind=StepKind.CHECK, tool="read_order", fact=fact.pk))
            began = clock.now()
            if changed:
                facts.check_changed(fact, value, began_at=began, step=step.pk)
            else:
                facts.check_same(fact, began_at=began, step=step.pk)
            steps.close(step, StepState.DONE, result=value)
        return step

    def plan(self, *titles: str) -> list[WorkItem]:
        step = self.act("plan", {"add": list(titles)}, state=None)
        with transaction.atomic():
            lifecycle.lock(self.run.pk)
            items = lifecycle.add_work(self.run.pk, titles, step=step.pk)
            steps.close(steps.lock(step.pk), StepState.DONE, result={"added": [item.ref for item in items]})
        return items

    def close(self, item: WorkItem, outcome: str = "refunded") -> Step:
        step = self.act("plan", {"close": [{"item": item.ref, "outcome": outcome}]}, state=None)
        with transaction.atomic():
            lifecycle.lock(self.run.pk)
            lifecycle.close_work(item, state=WorkState.CLOSED, outcome=outcome, step=step.pk)
            steps.close(steps.lock(step.pk), StepState.DONE, result={"added": []})
        return step

    def ask(self, step: Step) -> Approval:
        with transaction.atomic():
            run = lifecycle.lock(self.run.pk)
            return approvals.ask(run, ApprovalKind.APPROVAL, title="Refund?", step=step, arguments=step.arguments)

    def decide(self, card: Approval, said: Said, by: User, to: ApprovalState) -> None:
        with transaction.atomic():
            lifecycle.lock(self.run.pk)
            approvals.decide(approvals.lock(card.pk), said, by=by, to=to)
            if to == ApprovalState.REJECTED and card.step_id:
                steps.close(steps.lock(card.step_id), StepState.REJECTED, error=said.comment)


def start(
    *,
    goal: str = "Settle the refund requests.",
    agent: Agent = DESK,
    constraints: tuple[str, ...] = ("Never refund twice.",),
    inputs: dict[str, Json] | None = None,
) -> Scene:
    with transaction.atomic():
        run = lifecycle.create(
            agent=agent.name,
            contract=agent.contract,
            goal=goal,
            constraints=constraints,
            inputs=inputs if inputs is not None else {"batch": "b7"},
        )
        budgets.create(run, agent.budget)
    return Scene(run=run)


def fill(run: Run, *, count: int, per_think: int = 4, result: Json = None, first: int = 1, items: bool = True) -> None:
    """Write many finished steps at once: thinks, reads and refunds, work items opened and closed along the way.

    Too many for one call each: the rows are as the writers would leave them.
    """
    now = clock.now()
    number = first
    rows: list[Step] = []
    case = 0
    while len(rows) < count:
        kinds = [("", StepKind.THINK), ("read_order", StepKind.ACT), ("refund", StepKind.ACT), ("plan", StepKind.ACT)]
        for name, kind in kinds[: per_think + 1]:
            order = str(10_000 + case)
            arguments: dict[str, Json] = {}
            plain: dict[str, Json] = {"order": order, "paid": "45.00"}
            if name == "read_order":
                arguments = {"order": order}
            elif name == "refund":
                arguments = {"order": order, "amount": "45.00"}
            elif name == "plan":
                arguments = {"close": [{"item": f"w{case + 1}", "outcome": "refunded"}]}
            rows.append(
                Step(
                    run=run,
                    number=number,
                    kind=kind,
                    state=StepState.DONE,
                    tool=name,
                    asked=arguments,
                    arguments=arguments,
                    result=result if name == "read_order" and result is not None else plain,
                    created_at=now,
                    ended_at=now,
                )
            )
            number += 1
        case += 1
    Step.objects.bulk_create(rows, batch_size=1000)
    Run.objects.filter(pk=run.pk).update(step_seq=number - 1)
    if items:
        by_number = {step.number: step for step in rows}
        opener = by_number[first]
        WorkItem.objects.bulk_create(
            [
                WorkItem(
                    run=run,
                    ref=f"w{place + 1}",
                    title=f"Request r{place}: order {10_000 + place}, damaged",
                    state=WorkState.CLOSED,
                    outcome="refunded 45.00",
                    opened_by=opener,
                    closed_by=by_number[first + 4 * place + 3],
                    created_at=now,
                    closed_at=now,
                )
                for place in range(case)
            ],
            batch_size=1000,
        )


def approver() -> User:
    return User.objects.create_user(f"anna-{uuid.uuid4().hex[:8]}")


def said(verdict: Verdict, comment: str = "") -> Said:
    return Said(verdict=verdict, comment=comment)


@contextmanager
def known(*agents: Agent) -> Iterator[None]:
    """Let these agents be found, as if an installed app had them."""
    registry = get_agents()
    registry.update({agent.name: agent for agent in agents})
    yield
    for agent in agents:
        del registry[agent.name]
