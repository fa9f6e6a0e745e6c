"""What an agent is allowed by itself: its limits, its tools, and which of them wait for a person."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from console.display.figures import write_count, write_limit, write_usd
from console.display.outside import show
from runs.agents import Agent, Effect, Tool


@dataclass(frozen=True, kw_only=True)
class ToolLine:
    name: str
    words: str
    acts: bool
    irreversible: bool
    gated: bool


@dataclass(frozen=True, kw_only=True)
class AgentCard:
    name: str
    model: str
    inputs: list[tuple[str, str]]
    limits: list[tuple[str, str]]
    constraints: list[str]
    tools: list[ToolLine]


def show_agent(agent: Agent) -> AgentCard:
    return AgentCard(
        name=agent.name,
        model=agent.model or "plain Python",
        inputs=[(show(name), show(words)) for name, words in agent.inputs.items()],
        limits=_limits(agent),
        constraints=[show(constraint) for constraint in agent.constraints],
        tools=[_tool(tool) for tool in _acting_first(agent.tools)],
    )


def _acting_first(tools: Iterable[Tool]) -> list[Tool]:
    return sorted(tools, key=lambda tool: not tool.acts)


def _limits(agent: Agent) -> list[tuple[str, str]]:
    budget = agent.budget
    found = [("Age", write_limit(agent.max_age) if agent.max_age is not None else "no limit")]
    if budget.usd is not None:
        found.append(("Money", write_usd(Decimal(budget.usd))))
    for name, value in (
        ("Tokens", budget.tokens),
        ("Steps", budget.steps),
        ("Model calls", budget.calls),
        ("Effects", budget.effects),
    ):
        if value is not None:
            found.append((name, write_count(value)))
    if budget.working_s is not None:
        found.append(("Working time", write_limit(budget.working_s)))
    if budget.unlimited:
        found.append(("No further limit, because", show(budget.unlimited)))
    return found


def _tool(tool: Tool) -> ToolLine:
    return ToolLine(
        name=tool.name,
        words="only reads" if tool.effect is Effect.READ else tool.effect.value,
        acts=tool.acts,
        irreversible=tool.irreversible,
        gated=tool.approval is not None or tool.irreversible,
    )
