"""What a policy means: the one place where the shop's seeds, the rehearsal model and the tests agree."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Literal

from runs.examples.shop.shapes import Order, Policy, Request

CENT = Decimal("0.01")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do about one request. `amount` is set for a refund, `until` for a wait; `why` is one sentence."""

    act: Literal["refund", "refuse", "wait"]
    why: str
    amount: str | None = None
    until: str | None = None


def decide(*, policy: Policy, order: Order, request: Request, now: datetime) -> Decision:
    """Judge a request by the order and the policy as they were read; `now` is the time of the judgement."""
    if not order["refundable"]:
        return Decision(act="refuse", why="the shop takes no refund on this order")
    if request["reason"] not in policy["covered_reasons"]:
        return Decision(act="refuse", why=f"the policy does not cover the reason {request['reason']}")
    if not policy["final_sale_refundable"] and any(line["final_sale"] for line in order["lines"]):
        return Decision(act="refuse", why="the order holds a final-sale article")
    if order["delivered_at"] is None:
        return Decision(act="wait", why="the parcel is still in transit", until=order["expected_at"])
    days = policy["refund_window_days"]
    if now > moment(order["delivered_at"]) + timedelta(days=days):
        return Decision(act="refuse", why=f"delivered more than {days} days ago")
    if policy["needs_return"] and request["reason"] not in policy["return_not_needed_for"] and not order["returned_at"]:
        return Decision(act="refuse", why="the goods have not come back")
    amount = allowed_amount(policy=policy, order=order, asked=Decimal(request["amount"]))
    if amount <= 0:
        return Decision(act="refuse", why="everything that the policy allows was refunded already")
    return Decision(act="refund", amount=f"{amount:.2f}", why=f"the policy allows {amount:.2f} for {request['reason']}")


def allowed_amount(*, policy: Policy, order: Order, asked: Decimal) -> Decimal:
    """The most that may be paid back now: what was asked, within the policy's share of what was paid."""
    share = (Decimal(order["paid"]) * Decimal(policy["max_share"])).quantize(CENT, rounding=ROUND_DOWN)
    return min(asked, share - Decimal(order["refunded"]))


def moment(text: str) -> datetime:
    """Read a time as the shop writes it; naive ones are refused."""
    read = datetime.fromisoformat(text)
    if read.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; the shop writes UTC with a Z")
    return read.astimezone(UTC)
