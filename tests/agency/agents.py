"""Agents for tests. `scripted` follows `inputs["script"]`: a list of rounds, each a list of calls; then it finishes.

Each tool plays one class of effect at the sandbox shop, where what really happened is counted.
"""

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings

from runs.agents import (
    Agent,
    Ask,
    Briefing,
    Budget,
    Call,
    Claim,
    CredentialExpired,
    DidNotHappen,
    Effect,
    Found,
    Happened,
    Json,
    Refused,
    Secret,
    Unknown,
    Unsure,
    Verdict,
    Wait,
    above,
    always,
    days,
    never,
    seconds,
    tool,
)
from runs.examples.shop.client import ShopClient, ShopRefused, ShopUnknown, ShopUnreachable

REST = ["order.{order}"]


def shop(call: Call) -> ShopClient:
    return ShopClient(url=settings.SHOP_URL, timeout_s=2.0, caller=f"run {call.run} step {call.step}")


def pay(call: Call, order: str, amount: Decimal, memo: str, key: str | None = None) -> Any:
    try:
        return shop(call).refund(order, amount, memo=memo, key=call.key if key is None else key)
    except ShopUnreachable as refusal:
        raise Refused(str(refusal)) from refusal
    except ShopUnknown as unknown:
        raise Unknown(str(unknown)) from unknown
    except ShopRefused as refusal:
        raise Refused(str(refusal)) from refusal


@tool(effect=Effect.READ, attempts=2, backoff=0.05)
def read_order(call: Call, order: str) -> Any:
    """Read an order."""
    return shop(call).read_order(order)


@tool(effect=Effect.KEYED, irreversible=True, identity=["order", "amount"], approval=above("amount", 200),
      rests_on=REST, locks=REST, timeout=5, visible_within=0.2, backoff=0.05)  # fmt: skip
def pay_keyed(call: Call, order: str, amount: Decimal, memo: str = "") -> Any:
    """Pay; the receiver honours the key."""
    return pay(call, order, amount, memo)


@tool(effect=Effect.KEYED, irreversible=True, identity=["order", "amount"], approval=never, timeout=5, backoff=0.05,
      credential="shop")  # fmt: skip
def pay_signed(call: Call, order: str, amount: Decimal) -> Any:
    """Pay, signed in; it repeats its token, as careless tools do."""
    token = call.secret()
    try:
        made = shop(call).refund(order, amount, memo="signed", key=call.key)
    except ShopRefused as refusal:
        if refusal.status == 401:
            raise CredentialExpired(f"401 for {token}") from refusal
        raise Refused(f"{refusal.status} for {token}") from refusal
    return {"refund": made, "headers": {"Authorization": f"Bearer {token}"}}


def refresh_shop(known: Secret) -> Secret:
    """The next token of the shop, unless its refresh token is dead."""
    if known.more.get("dead"):
        raise PermissionError("the refresh token is revoked")
    turn = int(known.more.get("turn", 0)) + 1
    return Secret(name=known.name, value=f"token-of-turn-{turn}", more={"turn": turn})


@tool(effect=Effect.CHECKABLE, irreversible=True, identity=["order", "amount"], approval=never,
      rests_on=REST, locks=REST, timeout=5, visible_within=0.2, backoff=0.05)  # fmt: skip
def pay_checkable(call: Call, order: str, amount: Decimal, memo: str = "") -> Any:
    """Pay; whether it happened can be looked up."""
    return pay(call, order, amount, call.key)


@pay_checkable.reconcile
def find_payment(call: Call, order: str, amount: Decimal, memo: str = "") -> Found:
    try:
        made = shop(call).list_refunds(order)["refunds"]
    except (ShopUnknown, ShopRefused) as failure:
        return Unsure(evidence=str(failure))
    for refund in made:
        if refund["memo"] == call.key:
            return Happened(result={"refund": refund["refund"], "amount": refund["amount"]})
    return DidNotHappen(evidence=len(made))


@tool(effect=Effect.ONCE, irreversible=True, identity=["order", "amount"], approval=never,
      rests_on=REST, locks=REST, timeout=5, backoff=0.05)  # fmt: skip
def pay_once(call: Call, order: str, amount: Decimal, memo: str = "") -> Any:
    """Pay; it can neither be repeated nor looked up."""
    return pay(call, order, amount, memo, key=f"{call.key}-{time.time_ns()}")


@tool(
    effect=Effect.KEYED, irreversible=True, identity=["order"], approval=never, rests_on=REST, timeout=5, backoff=0.05
)
def pay_and_tell_odd_things(call: Call, order: str) -> Any:
    """Pay, and return what no column can hold as it is."""
    pay(call, order, Decimal("20.00"), "")
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    return {
        "nul": "a\x00b", "lone": "\ud83d", "emoji": "\U0001f600", "nan": float("nan"), "inf": float("inf"),
        "decimal": Decimal("0.1"), "huge": 10**40, "bytes": b"\x00\xff", "at": datetime.now(UTC), "set": {3, 1},
        "deep": deep, "\u00e9": 1, "e\u0301": 2,
    }  # fmt: skip


@tool(effect=Effect.IDEMPOTENT, identity=["request"], backoff=0.05, timeout=5)
def close_request(call: Call, request: str, outcome: str) -> Any:
    """Close a request; repeating is harmless."""
    return shop(call).close_request(request, outcome)


@tool(effect=Effect.IDEMPOTENT, identity=["request"], approval=always, rests_on=["order.{order}"], timeout=5)
def note_request(call: Call, request: str, order: str) -> Any:
    """Note something; harmless, and yet a person is asked."""
    return shop(call).close_request(request, "noted")


@tool(effect=Effect.KEYED, irreversible=True, identity=["order", "amount"], approval=always, people=2, timeout=5,
      on_expiry="escalate", escalate_to=["managers"], valid_for=600)  # fmt: skip
def pay_by_two(call: Call, order: str, amount: Decimal, memo: str = "") -> Any:
    """Pay; two people have to approve it."""
    return pay(call, order, amount, memo)


@tool(effect=Effect.READ, attempts=3, backoff=0.05)
def die(call: Call) -> None:
    """Kill the process it runs in."""
    os.kill(os.getpid(), signal.SIGKILL)


@tool(effect=Effect.READ, attempts=2, backoff=0.05)
def fail(call: Call, word: str) -> None:
    """Fail."""
    raise ValueError(word)


@tool(effect=Effect.READ, attempts=2, backoff=0.05, timeout=10)
def speak(call: Call, how: str) -> Any:
    """Print, or log. Says of each output whether it is a file, which is never full."""
    match how:
        case "oddly":
            print("one\x1b[2J\rnothing", end="\n\n")
            subprocess.run(["sh", "-c", "echo two; echo three >&2"], check=True)
            logging.getLogger("agency").warning("four, %s", "logged")
            logging.getLogger("agency").warning("%d is no number", "five")
            os.write(1, b"six \xff")
        case "much":
            subprocess.run(["sh", "-c", "yes much | head -c 20000000"], check=True)
        case "much to the log":
            for _ in range(3000):
                logging.getLogger("agency").error("much")
            logging.getLogger("agency").error("more " * 100_000)
        case "as another":
            name = "runs.engine.sweep[1] all is well\n2026-12-01T00:00:00.000+00:00 INFO runs.engine.sweep"
            logging.getLogger(name).info("one\nrun 1, step 1, refund: two\x1b[2J")
        case "and dies":
            print("last words", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case file:
            subprocess.Popen(["sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done; echo late', file])
    return [stat.S_ISREG(os.fstat(fd).st_mode) for fd in (1, 2)]


@tool(effect=Effect.READ)
def give(call: Call, value: Any) -> Any:
    """Return what it is given."""
    return value


@tool(effect=Effect.READ, max_age=seconds(30), as_of="/at")
def give_copy(call: Call, value: Any) -> Any:
    """Return what it is given, from a copy that says how old it is."""
    return value


@tool(effect=Effect.READ, timeout=30)
def linger(call: Call, for_s: float, heed: bool = True) -> Json:
    """Take its time; `heed`: give up when a stop is requested."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        if heed and call.stop_requested():
            return {"stopped": True}
        call.heartbeat({"left_s": round(until - time.monotonic(), 1)})
        time.sleep(0.05)
    return {"stopped": False}


@tool(effect=Effect.READ, timeout=1, attempts=1)
def oversleep(call: Call, for_s: float) -> Json:
    """Sleep."""
    time.sleep(for_s)
    return None


@tool(effect=Effect.READ, timeout=90)
def be_deaf(call: Call, how: str) -> Json:
    """Return after a minute at the earliest, whatever is asked or sent meanwhile."""
    match how:
        case "reads":  # an answer that does not come
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.settimeout(60.0)
                ours.recv(1)
        case "catches":
            until = time.monotonic() + 60.0
            while time.monotonic() < until:
                with suppress(BaseException):
                    time.sleep(60.0)
        case "computes":  # in C, where no signal handler of Python's runs
            sum(range(10**11))
    return {"heard": False}


def pay_and_wait(call: Call, order: str, key: str, for_s: float | None, sent_key: str) -> Wait:
    """Pay 20, and wait for the shop to say so: under a name of the test's, or the call's own."""
    pay(call, order, Decimal("20.00"), call.key, key=sent_key)
    until = None if for_s is None else datetime.now(UTC) + timedelta(seconds=for_s)
    return Wait(event="paid", key=key, until=until, reason="the bank takes its time")


@tool(effect=Effect.KEYED, irreversible=True, identity=["order"], approval=never, rests_on=REST, locks=REST,
      timeout=5, backoff=0.05)  # fmt: skip
def order_keyed(call: Call, order: str, key: str = "", for_s: float | None = None) -> Wait:
    """Pay with a key that is honoured, and wait."""
    return pay_and_wait(call, order, key, for_s, call.key)


@tool(effect=Effect.IDEMPOTENT, identity=["order"], rests_on=REST, timeout=5, backoff=0.05)
def order_idempotent(call: Call, order: str, key: str = "", for_s: float | None = None) -> Wait:
    """Pay; done twice it is one payment."""
    return pay_and_wait(call, order, key, for_s, f"for {order}")


@tool(effect=Effect.CHECKABLE, irreversible=True, identity=["order"], approval=never, rests_on=REST, timeout=5,
      visible_within=0.2, backoff=0.05)  # fmt: skip
def order_checkable(call: Call, order: str, key: str = "", for_s: float | None = None) -> Wait:
    """Pay so that it can be looked up, and wait."""
    return pay_and_wait(call, order, key, for_s, f"{call.key}-{time.time_ns()}")


@order_checkable.reconcile
def find_ordered(call: Call, order: str, key: str = "", for_s: float | None = None) -> Found:
    found = find_payment(call, order, Decimal("20.00"))
    return Happened(result=Wait(event="paid", key=key)) if isinstance(found, Happened) else found


@tool(effect=Effect.ONCE, irreversible=True, identity=["order"], approval=never, rests_on=REST, timeout=5, backoff=0.05)
def order_once(call: Call, order: str, key: str = "", for_s: float | None = None) -> Wait:
    """Pay; it can neither be repeated nor looked up."""
    return pay_and_wait(call, order, key, for_s, f"{call.key}-{time.time_ns()}")


@tool(effect=Effect.READ, backoff=0.05)
def read_later(call: Call, order: str, key: str = "", for_s: float | None = None) -> Wait:
    """Ask for something that comes later."""
    until = None if for_s is None else datetime.now(UTC) + timedelta(seconds=for_s)
    return Wait(event="paid", key=key, until=until, reason="the bank takes its time")


@tool(effect=Effect.READ)
def pause_for(call: Call, for_s: float) -> Wait:
    """Wait for a moment alone."""
    return Wait(until=datetime.now(UTC) + timedelta(seconds=for_s), reason="it dries")


def follow(briefing: Briefing) -> list[Ask]:
    """The next round of the script: each call of the rounds before has its line in the log by now."""
    if asked := [notice for notice in briefing.notices if notice["notice"] == "explain"]:
        return [Ask(tool="explain", arguments={"text": f"You asked: {asked[-1]['question']}"})]
    told = sum(1 for line in briefing.log if "tool" in line)
    for calls in briefing.inputs.get("script", []):
        if told <= 0:
            return [Ask(**call) for call in calls]
        told -= len(calls)
    return [Ask(tool="finish", arguments={"outcome": "the script is over", "evidence": []})]


TOOLS = [
    pay_and_tell_odd_things,
    read_order,
    pay_keyed,
    pay_signed,
    pay_checkable,
    pay_once,
    pay_by_two,
    note_request,
    close_request,
    die,
    fail,
    speak,
    give,
    give_copy,
    linger,
    oversleep,
    be_deaf,
    order_keyed,
    order_idempotent,
    order_checkable,
    order_once,
    read_later,
    pause_for,
]

scripted = Agent(
    name="scripted",
    instructions="Follows its script.",
    decide=follow,
    tools=TOOLS,
    facts={"order.*": seconds(60)},
    budget=Budget(usd="1.00", steps=200),
    max_age=days(1),
    recheck={"order.*": read_order},
    refresh={"shop": refresh_shop},
    spawns=["scripted"],
)


def put_off(briefing: Briefing) -> Any:
    """Return what no decision can be."""
    return briefing.inputs["decided"] if "decided" in briefing.inputs else Wait(event="paid", key="k")


hesitant = Agent(
    name="hesitant",
    instructions="Never comes to a decision.",
    decide=put_off,
    tools=TOOLS,
    budget=Budget(usd="1.00", steps=200),
    max_age=days(1),
)


def mumble(claim: Claim) -> Any:
    """Return what no verdict can be."""
    return claim.inputs["found"]


mumbling = Agent(
    name="mumbling",
    instructions="Follows its script; what is found of its claim says nothing.",
    decide=follow,
    tools=TOOLS,
    budget=Budget(usd="1.00", steps=200),
    max_age=days(1),
    verify=mumble,
)


def accept(claim: Claim) -> Verdict:
    return Verdict(holds=True, evidence={"run": claim.run})


verified = Agent(
    name="verified",
    instructions="Follows its script; its claim is checked.",
    decide=follow,
    tools=TOOLS,
    facts={"order.*": seconds(60)},
    budget=Budget(usd="1.00", steps=200),
    max_age=days(1),
    recheck={"order.*": read_order},
    verify=accept,
)


@tool(effect=Effect.READ, backoff=0.05)
def read_stock(call: Call, sku: str) -> Any:
    """Read price and stock of an article."""
    return shop(call).read_stock(sku)


@tool(effect=Effect.READ, backoff=0.05)
def read_policy(call: Call, batch: str) -> Any:
    """Read the policy of a batch."""
    return shop(call).read_policy(batch)


@tool(effect=Effect.KEYED, irreversible=True, identity=["order"], approval=always,
      rests_on=["order", "stock", "policy"], locks=["order.{order}"], timeout=20, visible_within=0.2, backoff=0.05)  # fmt: skip
def buy_back(call: Call, order: str, price: Decimal, in_stock: int, policy: int, paid: Decimal) -> Any:
    """Pay the price of an article. The memo tells the shop what this rests on."""
    return pay(call, order, price, json.dumps([str(price), in_stock, policy, str(paid)]))


@buy_back.reconcile
def find_buying(call: Call, order: str, price: Decimal, in_stock: int, policy: int, paid: Decimal) -> Found:
    try:
        made = shop(call).list_refunds(order)["refunds"]
    except (ShopUnknown, ShopRefused) as failure:
        return Unsure(evidence=str(failure))
    for refund in made:
        if refund["key"] == call.key:
            return Happened(result={"refund": refund["refund"], "amount": refund["amount"]})
    return DidNotHappen(evidence=len(made))


# Short, so that what waits for a person is too old when it is approved.
BUYER_LIMIT_S = seconds(6)
_BUYING = {
    "script": {
        "replies": [
            {
                "calls": [
                    ["read_order", {"order": "$inputs.order"}],
                    ["read_stock", {"sku": "$inputs.sku"}],
                    ["read_policy", {"batch": "$inputs.batch"}],
                ]
            },
            {
                "calls": [
                    ["record_fact", {"name": name, "from_step": f"$step(read_{name}).step", "pointer": ""}]
                    for name in ("order", "stock", "policy")
                ]
            },
            # Asked for again, with what is known then, until it is done.
            {
                "calls": [
                    [
                        "buy_back",
                        {
                            "order": "$inputs.order",
                            "price": "$fact(stock).value.price",
                            "in_stock": "$fact(stock).value.in_stock",
                            "policy": "$fact(policy).value.version",
                            "paid": "$fact(order).value.paid",
                            "because": "it is what the article costs now",
                        },
                    ]
                ],
                "repeat": True,
                "when": {"no_line": {"tool": "buy_back", "outcome": "done"}},
            },
        ]
    }
}

buyer = Agent(
    name="buyer",
    model="claude-sonnet-5-5",
    instructions=f"Buy the article back.\nrehearsal: {json.dumps(_BUYING)}",
    tools=[read_order, read_stock, read_policy, buy_back],
    inputs={"batch": "The batch.", "order": "Its order.", "sku": "The article."},
    facts={"order": BUYER_LIMIT_S, "stock": BUYER_LIMIT_S, "policy": BUYER_LIMIT_S},
    budget=Budget(usd="5.00", steps=300),
    max_age=days(1),
    recheck={"order": read_order, "stock": read_stock, "policy": read_policy},
)


def look_closely(tool: str, arguments: Any) -> str | None:
    if arguments.get("outcome") == "raise":
        raise SystemExit("no policy today")
    return "the outcome is odd" if arguments.get("outcome") == "odd" else None


guarded = Agent(
    name="guarded",
    instructions="Follows its script; every first use is seen by its own approvers.",
    decide=follow,
    tools=TOOLS,
    facts={"order.*": seconds(60)},
    budget=Budget(usd="1.00", steps=200),
    max_age=days(1),
    recheck={"order.*": read_order},
    approvers=["finance"],
    gate=look_closely,
    ask_first_use=True,
)
