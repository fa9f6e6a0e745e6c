"""The agents that do the work of the benchmarks. They decide in plain Python: what is measured is the engine."""

import time

from console.bench.marks import mark
from runs.agents import Agent, Ask, Briefing, Budget, Call, Effect, Json, days, tool

UNLIMITED = Budget(unlimited="a benchmark on a throwaway database")
TEXT = "x" * 225


@tool(effect=Effect.READ)
def look(call: Call, number: int, take_s: float = 0.0) -> Json:
    """Return a result of 300 bytes."""
    mark("began", call.run, number)
    if take_s:
        time.sleep(take_s)
    return {"ok": True, "run": call.run, "step": number, "tokens": 1234, "text": TEXT}


def walk(briefing: Briefing) -> list[Ask]:
    """`steps` looks, `at_once` of them in one reply, then the end."""
    done = sum(1 for line in briefing.log if line.get("tool") == look.name)
    wanted = int(briefing.inputs["steps"])
    if done >= wanted:
        return [Ask(tool="finish", arguments={"outcome": "done", "evidence": []})]
    upto = min(wanted, done + int(briefing.inputs["at_once"]))
    take_s = float(briefing.inputs.get("take_s", 0.0))
    return [Ask(tool=look.name, arguments={"number": number, "take_s": take_s}) for number in range(done, upto)]


walker = Agent(
    name="walker",
    instructions="Looks as often as it is told to.",
    decide=walk,
    tools=[look],
    budget=UNLIMITED,
    max_age=days(1),
)
