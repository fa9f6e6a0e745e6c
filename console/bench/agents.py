"""The agents that do the work of the benchmarks. They decide in plain Python: what is measured is the engine."""

import http.client
import json
import time

from console.bench.marks import mark
from runs.agents import Agent, Ask, Briefing, Budget, Call, Effect, Json, Refused, always, days, tool

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
    """`steps` looks, `at_once` of them in one reply; the end with the last of them, which it waits for."""
    looked = (line for line in briefing.log if (line.get("tool"), line.get("outcome")) == (look.name, "done"))
    done = max((int(line["with"]["number"]) + 1 for line in looked), default=0)
    wanted = int(briefing.inputs["steps"])
    if done >= wanted:
        return END
    upto = min(wanted, done + int(briefing.inputs["at_once"]))
    take_s = float(briefing.inputs.get("take_s", 0.0))
    looks = [Ask(tool=look.name, arguments={"number": number, "take_s": take_s}) for number in range(done, upto)]
    return looks + (END if upto == wanted else [])


walker = Agent(
    name="walker",
    instructions="Looks as often as it is told to.",
    decide=walk,
    tools=[look],
    budget=UNLIMITED,
    max_age=days(1),
)


def stroll(briefing: Briefing) -> list[Ask]:
    """A look now and then, without an end."""
    last = next((line.get("tool") for line in reversed(briefing.log) if "tool" in line), None)
    if last == look.name:
        return [Ask(tool="wait_until", arguments={"seconds": briefing.inputs["every_s"], "reason": "a stroll"})]
    return [Ask(tool=look.name, arguments={"number": len(briefing.log)})]


stroller = Agent(
    name="stroller",
    instructions="Looks now and then.",
    decide=stroll,
    tools=[look],
    budget=UNLIMITED,
    max_age=days(1),
)


def park(briefing: Briefing) -> list[Ask]:
    return [Ask(tool="wait_until", arguments={"seconds": days(0.9), "reason": "parked"})]


parker = Agent(name="parker", instructions="Waits for most of a day.", decide=park, budget=UNLIMITED, max_age=days(1))


@tool(effect=Effect.KEYED, identity=["number"], timeout=30, backoff=0.05)
def act(call: Call, number: int, port: int, take_s: float = 0.0) -> Json:
    """Send one request to the receiver, and take a while."""
    return send(call, number, port, take_s)


@tool(effect=Effect.KEYED, irreversible=True, identity=["number"], approval=always, timeout=30, backoff=0.05)
def pay(call: Call, number: int, port: int) -> Json:
    """Send one request to the receiver, with a person's approval."""
    return send(call, number, port, 0.0)


def send(call: Call, number: int, port: int, take_s: float) -> Json:
    outside = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        body = json.dumps({"run": call.run, "number": number})
        outside.request("POST", "/", body, {"Idempotency-Key": call.key})
        outside.getresponse().read()
    except ConnectionRefusedError as error:
        raise Refused(str(error)) from error
    finally:
        outside.close()
    time.sleep(take_s)
    return {"sent": number}


def do_acts(briefing: Briefing) -> list[Ask]:
    """`steps` effects in one reply, then the end."""
    if any(line.get("tool") == act.name for line in briefing.log):
        return END
    given = {"port": briefing.inputs["port"], "take_s": briefing.inputs["take_s"]}
    return [Ask(tool=act.name, arguments={"number": n, **given}) for n in range(int(briefing.inputs["steps"]))]


def ask_first(briefing: Briefing) -> list[Ask]:
    """A question; when it is answered one look, then the end."""
    told = [line.get("tool") for line in briefing.log]
    if look.name in told:
        return END
    if "ask" in told:
        return [Ask(tool=look.name, arguments={"number": 1})]
    return [Ask(tool="ask", arguments={"question": "Go on?", "options": ["yes"]})]


def pay_once(briefing: Briefing) -> list[Ask]:
    if any(line.get("tool") == pay.name for line in briefing.log):
        return END
    return [Ask(tool=pay.name, arguments={"number": 1, "port": briefing.inputs["port"]}, because="a benchmark")]


END = [Ask(tool="finish", arguments={"outcome": "done", "evidence": []})]

actor = Agent(
    name="actor",
    instructions="Acts as often as it is told to.",
    decide=do_acts,
    tools=[act],
    budget=UNLIMITED,
    max_age=days(1),
)
asker = Agent(
    name="asker",
    instructions="Asks, then looks once.",
    decide=ask_first,
    tools=[look],
    budget=UNLIMITED,
    max_age=days(1),
)
payer = Agent(
    name="payer",
    instructions="Pays once.",
    decide=pay_once,
    tools=[pay],
    budget=UNLIMITED,
    max_age=days(1),
)


@tool(effect=Effect.READ, timeout=120)
def linger(call: Call, for_s: float, heed: bool = True) -> Json:
    """Take its time; `heed`: give up when a stop is requested."""
    until = time.monotonic() + for_s
    while time.monotonic() < until and not (heed and call.stop_requested()):
        time.sleep(0.02)
    return {"heeded": heed}


def linger_long(briefing: Briefing) -> list[Ask]:
    return [Ask(tool=linger.name, arguments={"for_s": 100.0, "heed": bool(briefing.inputs.get("heed", True))})]


lingerer = Agent(
    name="lingerer",
    instructions="Lingers.",
    decide=linger_long,
    tools=[linger],
    budget=UNLIMITED,
    max_age=days(1),
)
dreamer = Agent(
    name="dreamer",
    model="claude-sonnet-5-5",
    instructions="Thinks for long.\n"
    'rehearsal: {"script": {"replies": [{"say": "' + "word " * 200 + '", "calls": [["linger", {"for_s": 0}]]}]}}',
    tools=[linger],
    budget=UNLIMITED,
    max_age=days(1),
)
ponderer = Agent(
    name="ponderer",
    model="claude-sonnet-5-5",
    instructions="Thinks once, and is done.\n"
    'rehearsal: {"script": {"replies": [{"say": "' + "word " * 200 + '", "calls": '
    '[["finish", {"outcome": "thought", "evidence": []}]]}]}}',
    tools=[],
    budget=UNLIMITED,
    max_age=days(1),
)
