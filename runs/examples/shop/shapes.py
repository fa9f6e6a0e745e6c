"""What the shop answers, and therefore what the agent's tools return and the model reads.

Money is a decimal string with two places (`"249.90"`), a moment is RFC 3339 in UTC with whole seconds
(`"2026-11-29T19:30:00Z"`), an id is a string that no other batch uses. Nothing in `Order`, `Policy` or
`RequestList` depends on when it is read, except what really changed: two reads of an unchanged order are equal,
so a fact can be compared by value.

The five tools of `refund-desk` return these bodies unchanged:

    list_requests(batch)            RequestList
    read_order(order)               Order
    read_policy(batch)              Policy
    refund(order, amount, memo)     Refund
    close_request(request, outcome) Request, closed

`rules.decide` is the meaning of a policy in code.
"""

from typing import Literal, NotRequired, TypedDict

type Reason = Literal["damaged", "wrong_item", "not_as_described", "changed_mind", "late"]
type Status = Literal["in_transit", "delivered"]


class Line(TypedDict):
    sku: str  # "MUG-7"
    title: str
    quantity: int
    price: str  # paid for one piece
    final_sale: bool


class Customer(TypedDict):
    name: str
    email: str


class Order(TypedDict):
    """GET /orders/{order}.

    {"order": "1701", "batch": "b7", "customer": {"name": "Ada Brandt", "email": "ada.brandt@example.com"},
     "lines": [{"sku": "MUG-7", "title": "Stoneware mug", "quantity": 2, "price": "14.50", "final_sale": false}],
     "paid": "29.00", "refunded": "0.00", "placed_at": "2026-11-02T08:11:00Z", "status": "delivered",
     "expected_at": "2026-11-05T08:11:00Z", "delivered_at": "2026-11-05T08:11:00Z", "returned_at": null,
     "refundable": true}

    In transit: `delivered_at` is null and `expected_at` says when it arrives (at that second the shop answers
    "delivered"). `refundable` false: the shop takes no refund on this order (402 `not_refundable`).
    """

    order: str
    batch: str
    customer: Customer
    lines: list[Line]
    paid: str
    refunded: str
    placed_at: str
    status: Status
    expected_at: str
    delivered_at: str | None
    returned_at: str | None
    refundable: bool


class Request(TypedDict):
    """One refund request; `note` is what the customer wrote: text from outside, to be read and never obeyed.

    {"request": "r1701", "batch": "b7", "order": "1701", "reason": "damaged", "amount": "29.00",
     "note": "One of them came in two pieces.", "state": "open", "outcome": null, "closed_at": null}
    """

    request: str
    batch: str
    order: str
    reason: Reason
    amount: str  # what the customer asks for
    note: str
    state: Literal["open", "closed"]
    outcome: str | None
    closed_at: str | None


class RequestList(TypedDict):
    """GET /batches/{batch}/requests: all of them, open and closed, oldest first."""

    batch: str
    requests: list[Request]


class Policy(TypedDict):
    """GET /batches/{batch}/policy.

    {"batch": "b7", "version": 1, "refund_window_days": 30, "max_share": "0.90", "needs_return": true,
     "return_not_needed_for": ["damaged", "wrong_item"], "covered_reasons": ["damaged", "wrong_item",
     "not_as_described", "late"], "final_sale_refundable": false}
    """

    batch: str
    version: int
    refund_window_days: int  # counted from delivered_at
    max_share: str  # of what was paid, all refunds of the order together
    needs_return: bool  # the goods must be back (`returned_at`) …
    return_not_needed_for: list[Reason]  # … except for these reasons
    covered_reasons: list[Reason]
    final_sale_refundable: bool  # false: an order with a final-sale line is refused


class Refund(TypedDict):
    """POST /orders/{order}/refunds. A replay answers the same body, with the header Idempotent-Replayed: true.

    {"refund": "rf12", "order": "1701", "batch": "b7", "amount": "26.10", "memo": "damaged",
     "key": "0192…", "created_at": "2026-11-29T19:30:04Z"}
    """

    refund: str
    order: str
    batch: str
    amount: str
    memo: str
    key: str | None
    created_at: str


class RefundList(TypedDict):
    """GET /orders/{order}/refunds: oldest first; may lag behind the truth when told to (`late_reads`)."""

    order: str
    refunds: list[Refund]


class Stock(TypedDict):
    """GET /stock/{sku}: {"sku": "MUG-7", "batch": "b7", "title": "Stoneware mug", "price": "14.50", "in_stock": 12}."""

    sku: str
    batch: str
    title: str
    price: str  # as of now; what an order paid stands in its lines
    in_stock: int


class Batch(TypedDict):
    """POST /batches {"seed": 7}, GET /batches/{batch}: what a run is started with is `batch`."""

    batch: str
    seed: int
    created_at: str
    orders: list[str]
    requests: list[str]
    skus: list[str]


class ErrorBody(TypedDict):
    """Inside {"error": …}. With this body and a 4xx status it is certain that nothing happened, with one
    exception: `key_in_flight` says that another request with the same key is still at work.

    404 unknown_order, unknown_batch, unknown_request, unknown_sku, unknown_route · 400 malformed
    402 more_than_paid, not_refundable · 409 key_in_flight, already_closed · 422 key_reused · 401 unauthorized
    """

    code: str
    message: str
    order: NotRequired[str]
    paid: NotRequired[str]
    refunded: NotRequired[str]
    outcome: NotRequired[str]


class Effect(TypedDict):
    """GET /effects?order=&batch=: {"count": n, "effects": [Effect]}: what really happened, never late, never faulty."""

    seq: int  # its line in the log
    at: str
    kind: Literal["refund", "close"]
    order: str
    batch: str
    request: str | None
    refund: str | None
    amount: str | None
    outcome: str | None
    key: str | None
    caller: str | None
