"""An agent, its budget, and what passes between its own functions and the runtime."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

from runs.agents.calls import Secret
from runs.agents.mistakes import BadTool, read_seconds
from runs.agents.tools import Effect, Tool
from runs.agents.values import Json, days, digest


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a run and all its descendants. usd as a decimal string; None is no limit.

    ask_percent: a step that may take more than this share of the USD or token limit is put before a person first.
    """

    usd: str | None = None
    tokens: int | None = None
    calls: int | None = None
    effects: int | None = None
    steps: int | None = None
    working_s: float | None = None
    unlimited: str = ""  # a reason; without it an agent with no limit at all is refused
    ask_percent: int | None = 50

    def __post_init__(self) -> None:
        counts = (self.tokens, self.calls, self.effects, self.steps)
        try:
            fits = (
                (self.usd is None or (type(self.usd) is str and 0 <= Decimal(self.usd) < 10**10))
                and all(n is None or 0 <= n == int(n) for n in counts)
                and (self.working_s is None or 0 < self.working_s < math.inf)
                and (self.ask_percent is None or 1 <= self.ask_percent <= 100)
            )
        except (TypeError, ValueError, ArithmeticError):
            fits = False
        if not fits:
            raise BadTool(
                f"{self} cannot be a budget.",
                remedy='Write money as "2.00", counts as whole numbers from 0, ask_percent from 1 to 100.',
            )


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One call that an agent without a model asks for."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""
    rests_on: Sequence[str] = ()
    again: str = ""


@dataclass(frozen=True, kw_only=True)
class Briefing:
    """What an agent decides on: built from the tables at every think. The lists hold what the model sees."""

    run: int
    uid: str
    goal: str
    constraints: list[str]
    inputs: dict[str, Any]
    log: list[dict[str, Any]]
    facts: list[dict[str, Any]]
    work: list[dict[str, Any]]
    notices: list[dict[str, Any]]
    budget: dict[str, Any]
    now: dict[str, Any]
    # How many lines of the log each think added, the folded ones first: where a prompt cache may cut.
    log_blocks: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What `finish` claims, and what `verify` is given: the run's number, inputs, facts and finished effects."""

    run: int
    outcome: str
    evidence: list[int]
    inputs: dict[str, Any]
    facts: dict[str, Any]
    effects: list[dict[str, Any]]  # {"step", "tool", "arguments", "result"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What `verify` found at the outside system."""

    holds: bool
    evidence: Json = None
    reason: str = ""


BUILT_IN = ("record_fact", "plan", "recall", "ask", "wait_until", "wait_for", "spawn", "escalate", "finish")
"""The tools that every agent has (`runs.engine.builtin`)."""


MODEL_CREDENTIAL = "model provider"  # what the gateway signs in with


@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """An agent. `facts` maps a name pattern to a max age in seconds; the longest pattern that fits wins. `inputs` says
    for people what a run of it is given, by name.
    """

    name: str
    instructions: str
    tools: Sequence[Tool] = ()
    model: str = ""
    decide: Callable[[Briefing], list[Ask]] | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    max_age: float | None = days(7)
    max_tokens: int = 4096
    verify: Callable[[Claim], Verdict] | None = None
    recheck: Mapping[str, Tool] = field(default_factory=dict)
    # By the name of a credential: how a new one is got when it was refused. Called by one process at a time.
    refresh: Mapping[str, Callable[[Secret], Secret]] = field(default_factory=dict)
    spawns: Sequence[str] = ()
    approvers: Sequence[str] = ()  # groups whose members decide its cards; empty: everyone who may decide
    gate: Callable[[str, Mapping[str, Any]], str | None] | None = None  # (tool, arguments) → why a person is needed
    ask_first_use: bool = False  # a person sees the first call of each tool that acts
    priority: int = 0  # from -1000 to 1000: what is due with a higher one is worked on first
    patience: int = 8  # thinks without any progress before a person is asked

    def __post_init__(self) -> None:
        if bool(self.model) == (self.decide is not None):
            raise BadTool(f"Agent {self.name!r} needs either a model or a decide function.")
        if abs(self.priority) > 1000:
            raise BadTool(f"Agent {self.name!r}: its priority is from -1000 to 1000.")
        for each in [*self.tools, *self.recheck.values()]:
            if not isinstance(each, Tool):
                raise BadTool(f"Agent {self.name!r}: {each!r} is no tool.", remedy="Put @tool(effect=…) above it.")
            if each.effect is Effect.INTERNAL:
                raise BadTool(
                    f"Agent {self.name!r}: {each.name!r} cannot be internal, only the built-in tools are.",
                    remedy="Say what it does outside: Effect.READ if nothing, or Effect.IDEMPOTENT, KEYED, CHECKABLE, ONCE.",
                )
            if each.effect is Effect.CHECKABLE and each.reconciler is None:
                raise BadTool(
                    f"Agent {self.name!r}: {each.name!r} is checkable, but nothing says how it is looked up.",
                    remedy=f"Write a function under @{each.name}.reconcile above the agent, or say Effect.ONCE.",
                )
        names = [t.name for t in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadTool(
                f"Agent {self.name!r} has two tools of one name: {', '.join(twice)}.", remedy="Give one another name=…."
            )
        if taken := sorted({*names} & {*BUILT_IN}):
            raise BadTool(
                f"Agent {self.name!r}: {', '.join(taken)} is the name of a built-in tool.",
                remedy="Give it another name=….",
            )
        if self.max_age is not None:
            read_seconds(f"Agent {self.name!r}", "max_age", self.max_age)
        for pattern, seconds_old in self.facts.items():
            read_seconds(f"Agent {self.name!r}", f"facts[{pattern!r}]", seconds_old)
        for pattern, checker in self.recheck.items():
            if checker.effect is not Effect.READ:
                raise BadTool(f"Agent {self.name!r}: recheck of {pattern!r} must be a read tool.")

    def tool(self, name: str) -> Tool | None:
        """One of the tools that the model is offered."""
        return next((t for t in self.tools if t.name == name), None)

    def tool_or_checker(self, name: str) -> Tool | None:
        """Also one that only re-checks facts."""
        return next((t for t in [*self.tools, *self.recheck.values()] if t.name == name), None)

    def users_of_credentials(self) -> dict[str, list[str]]:
        """By name of a credential, the tools that sign in with it; the model's own has none."""
        users: dict[str, list[str]] = {MODEL_CREDENTIAL: []} if self.model else {}
        for each in [*self.tools, *self.recheck.values()]:
            if each.credential and each.name not in users.setdefault(each.credential, []):
                users[each.credential].append(each.name)
        return users | {name: [] for name in self.refresh if name not in users}

    def max_age_of(self, fact: str) -> float | None:
        return _longest(self.facts, fact)

    def checker_of(self, fact: str) -> Tool | None:
        return _longest(self.recheck, fact)

    def reader_of(self, fact: str, source_tool: str) -> Tool | None:
        """The read tool that can check a fact again: the agent's own for it, else the tool it came from."""
        if checker := self.checker_of(fact):
            return checker
        origin = self.tool(source_tool) if source_tool else None
        return origin if origin is not None and origin.effect is Effect.READ else None

    @cached_property
    def contract(self) -> str:
        """SHA-256 (hex) over the agent's tools: what a run that is under way relies on."""
        return digest({"agent": self.name, "tools": sorted((t.name, t.contract) for t in self.tools)})


def _longest[V](patterns: Mapping[str, V], name: str) -> V | None:
    """The value of the longest pattern that fits; `policy` fits `policy` and `policy.x`, `order.*` fits `order.1`."""
    fitting = [p for p in patterns if name == p or name.startswith(p + ".") or fnmatch.fnmatchcase(name, p)]
    return patterns[max(fitting, key=len)] if fitting else None
