"""Agents for the tests of the gateway. Each one's script is what the rehearsal model answers."""

import json
from typing import Any

from runs.agents import Agent, Budget, Call, Effect, Json, days, tool


@tool(effect=Effect.READ)
def give(call: Call, value: Any) -> Json:
    """Return what it is given."""
    given: Json = value
    return given


@tool(effect=Effect.IDEMPOTENT, identity=["order"], rests_on=["order.{order}"])
def mark(call: Call, order: str, colour: str = "red") -> Json:
    """Mark an order."""
    return {"order": order, "colour": colour}


def write_script(*replies: dict[str, Any]) -> str:
    return f"You follow your script.\nrehearsal: {json.dumps({'script': {'replies': list(replies)}})}"


def make(name: str, *replies: dict[str, Any], model: str = "claude-sonnet-5-5", max_tokens: int = 1000) -> Agent:
    return Agent(
        name=name,
        model=model,
        max_tokens=max_tokens,
        instructions=write_script(*replies),
        tools=[give, mark],
        facts={"order.*": 60.0},
        budget=Budget(usd="5.00", steps=100),
        max_age=days(1),
    )


thinker = make("thinker", {"say": "I look first.", "calls": [["give", {"value": "$inputs.value"}]]})
unpriced = make("unpriced", model="m-new")
pondering = make("pondering", {"calls": [["give", {"value": 1}]]}, model="claude-opus-5-5")
talker = make("talker", {"say": "I would rather talk.", "calls": [], "repeat": True})
busy = make("busy", {"calls": [["give", {"value": 1}]], "repeat": True})
fumbler = make(
    "fumbler",
    {
        "calls": [
            ["no_such_tool", {"a": 1}],
            ["give", {"wrong": 1}],
            ["mark", {"order": "7", "because": "it is due", "rests_on": ["policy"], "again": "it was washed off"}],
            ["mark", {"order": "8", "rests_on": 5}],
            ["finish", {"outcome": "all marked", "evidence": []}],
            ["finish", {"outcome": "twice", "evidence": []}],
        ]
    },
)
# A request cannot be made of this: bytes are no JSON.
broken = Agent(
    name="broken",
    model="claude-sonnet-5-5",
    instructions=b"\xff",  # type: ignore[arg-type]
    tools=[give],
    budget=Budget(usd="1.00"),
)
