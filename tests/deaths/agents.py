"""Agents of the crash matrix: one tool per class of effect, each with a person before it, so that a test can set the stage.

The receiver is the sandbox shop. Only where the class says so is it told a key that it honours.
"""

import time
from decimal import Decimal
from typing import Any

from django.conf import settings

from runs.agents import (
    Agent,
    Ask,
    Briefing,
    Budget,
    Call,
    DidNotHappen,
    Effect,
    Found,
    Happened,
    Refused,
    Unknown,
    Unsure,
    always,
    days,
    tool,
)
from runs.examples.shop.client import ShopClient, ShopRefused, ShopUnknown, ShopUnreachable

TIMEOUT_S = 2.0
LAG_S = 0.6  # of a receiver whose look-ups lag; less than what each tool allows it
VISIBLE_S = 0.9
REST = ["order.{order}"]


def shop(call: Call) -> ShopClient:
    """A client that waits longer than the call may take: only its deadline ends it."""
    return ShopClient(url=settings.SHOP_URL, timeout_s=5 * TIMEOUT_S, caller=f"run {call.run} step {call.step}")


def pay(call: Call, order: str, amount: Decimal, *, key: str) -> Any:
    try:
        return shop(call).refund(order, amount, memo=call.key, key=key)
    except (ShopUnreachable, ShopUnknown) as unknown:
        raise Unknown(str(unknown)) from unknown
    except ShopRefused as refusal:
        raise Refused(str(refusal)) from refusal


def new_key(call: Call) -> str:
    """A key that the receiver has never seen: to it each try is a payment of its own."""
    return f"{call.key}~{time.time_ns()}"


def look_up(call: Call, order: str) -> Found:
    try:
        made = shop(call).list_refunds(order)["refunds"]
    except (ShopUnknown, ShopRefused) as failure:
        return Unsure(evidence=str(failure))
    found = [refund for refund in made if refund["memo"] == call.key]
    return Happened(result={"refund": found[0]["refund"]}) if found else DidNotHappen(evidence=len(made))


@tool(effect=Effect.READ, backoff=0.05, timeout=TIMEOUT_S)
def read_order(call: Call, order: str) -> Any:
    """Read an order."""
    return shop(call).read_order(order)


@tool(effect=Effect.READ, approval=always, backoff=0.05, timeout=TIMEOUT_S)
def look_at(call: Call, order: str) -> Any:
    """Read an order, after a person allowed it."""
    return shop(call).read_order(order)


@tool(effect=Effect.IDEMPOTENT, identity=["request"], approval=always, backoff=0.05, timeout=TIMEOUT_S)
def close(call: Call, request: str, order: str) -> Any:
    """Close a request; repeating is harmless."""
    try:
        return shop(call).close_request(request, f"closed for {order}")
    except (ShopUnreachable, ShopUnknown) as unknown:
        raise Unknown(str(unknown)) from unknown


@tool(effect=Effect.KEYED, irreversible=True, identity=["order"], approval=always, rests_on=REST, locks=REST,
      timeout=TIMEOUT_S, backoff=0.05)  # fmt: skip
def pay_keyed(call: Call, order: str, amount: Decimal) -> Any:
    """Pay; the receiver honours the key, and cannot be asked."""
    return pay(call, order, amount, key=call.key)


@tool(effect=Effect.KEYED, irreversible=True, identity=["order"], approval=always, rests_on=REST, locks=REST,
      timeout=TIMEOUT_S, visible_within=VISIBLE_S, backoff=0.05)  # fmt: skip
def pay_keyed_checkable(call: Call, order: str, amount: Decimal) -> Any:
    """Pay; the receiver honours the key, and can be asked."""
    return pay(call, order, amount, key=call.key)


@pay_keyed_checkable.reconcile
def find_keyed(call: Call, order: str, amount: Decimal) -> Found:
    return look_up(call, order)


@tool(effect=Effect.CHECKABLE, irreversible=True, identity=["order"], approval=always, rests_on=REST, locks=REST,
      timeout=TIMEOUT_S, visible_within=VISIBLE_S, backoff=0.05)  # fmt: skip
def pay_checkable(call: Call, order: str, amount: Decimal) -> Any:
    """Pay; the receiver knows no keys, and can be asked."""
    return pay(call, order, amount, key=new_key(call))


@pay_checkable.reconcile
def find_checkable(call: Call, order: str, amount: Decimal) -> Found:
    return look_up(call, order)


@tool(effect=Effect.ONCE, irreversible=True, identity=["order"], approval=always, rests_on=REST, locks=REST,
      timeout=TIMEOUT_S, backoff=0.05)  # fmt: skip
def pay_once(call: Call, order: str, amount: Decimal) -> Any:
    """Pay; the receiver knows no keys, and cannot be asked."""
    return pay(call, order, amount, key=new_key(call))


def follow(briefing: Briefing) -> list[Ask]:
    """The next round of `inputs["script"]`: each call of the rounds before has its line in the log by now."""
    told = sum(1 for line in briefing.log if "tool" in line)
    for calls in briefing.inputs["script"]:
        if told <= 0:
            return [Ask(**call, because="the script says so") for call in calls]
        told -= len(calls)
    return [Ask(tool="finish", arguments={"outcome": "the script is over", "evidence": []})]


doomed = Agent(
    name="doomed",
    instructions="Follows its script.",
    decide=follow,
    tools=[read_order, look_at, close, pay_keyed, pay_keyed_checkable, pay_checkable, pay_once],
    facts={"order.*": days(1)},
    budget=Budget(steps=500),
    max_age=days(1),
    recheck={"order.*": read_order},
)
