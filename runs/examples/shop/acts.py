"""What the shop does: look-ups, refunds, closing a request, and the changes that the world makes.

Each function works inside the transaction it is given and writes its own log line there, so a line says
"effect" if and only if the effect was committed.
"""

import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from runs.examples.shop import seeds
from runs.examples.shop.rules import moment
from runs.examples.shop.shapes import Batch, Order, Policy, Refund, RefundList, Request, RequestList, Stock
from runs.examples.shop.storage import Arrival, Storage

MONEY = re.compile(r"\d{1,9}(\.\d{1,2})?", re.ASCII)
MEMO_MOST = 2000
FIND = {
    "order": "SELECT * FROM orders WHERE name = ?",
    "batch": "SELECT * FROM policy WHERE batch = ?",
    "request": "SELECT * FROM request WHERE name = ?",
    "sku": "SELECT * FROM stock WHERE sku = ?",
}
CHANGED = {"order": "orders", "batch": "policy", "sku": "stock"}  # as the log names it
CHANGE = {
    "order": "UPDATE orders SET body = ? WHERE name = ?",
    "batch": "UPDATE policy SET body = ? WHERE batch = ?",
    "sku": "UPDATE stock SET body = ? WHERE sku = ?",
}


class ShopError(Exception):
    """The shop says no, and did nothing. Becomes {"error": {"code", "message", …}} with this status."""

    def __init__(self, status: int, code: str, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"code": code, "message": message, **more}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back: a status, a JSON body, and whether it is the stored answer of an earlier request."""

    status: int
    body: object
    replayed: bool = False


# Look-ups. `seen_at` is the moment whose truth is shown: now, or earlier under `late_reads`.


def read_order(db: sqlite3.Connection, name: str, *, now: float, seen_at: float) -> Order:
    """Show an order: whether it arrived follows from the time, what was refunded from the refunds."""
    order: Order = json.loads(find(db, "order", name)["body"])
    if order["delivered_at"] is None and moment(order["expected_at"]).timestamp() <= now:
        order["delivered_at"] = order["expected_at"]
    order["status"] = "in_transit" if order["delivered_at"] is None else "delivered"
    order["refunded"] = money(refunded_cents(db, name, seen_at=seen_at))
    return order


def list_requests(db: sqlite3.Connection, batch: str, *, seen_at: float) -> RequestList:
    """Show all requests of a batch, open and closed."""
    find(db, "batch", batch)
    rows = db.execute("SELECT * FROM request WHERE batch = ? ORDER BY rowid", (batch,)).fetchall()
    return {"batch": batch, "requests": [show_request(row, seen_at=seen_at) for row in rows]}


def show_request(row: sqlite3.Row, *, seen_at: float) -> Request:
    """Show one request as it was at that moment."""
    request: Request = json.loads(row["body"])
    if row["closed_at"] is not None and row["closed_at"] <= seen_at:
        request["state"] = "closed"
        request["outcome"] = row["outcome"]
        request["closed_at"] = seeds.text(datetime.fromtimestamp(row["closed_at"], UTC))
    return request


def list_refunds(db: sqlite3.Connection, order: str, *, seen_at: float) -> RefundList:
    """Show the refunds of an order, oldest first."""
    find(db, "order", order)
    rows = db.execute(
        "SELECT body FROM refund WHERE order_name = ? AND created_at <= ? ORDER BY number", (order, seen_at)
    ).fetchall()
    return {"order": order, "refunds": [json.loads(row["body"]) for row in rows]}


def read_policy(db: sqlite3.Connection, batch: str) -> Policy:
    """Show the policy of a batch."""
    policy: Policy = json.loads(find(db, "batch", batch)["body"])
    return policy


def read_stock(db: sqlite3.Connection, sku: str) -> Stock:
    """Show price and stock of an article."""
    stock: Stock = json.loads(find(db, "sku", sku)["body"])
    return stock


# Effects


def fingerprint_refund(order: str, body: Mapping[str, object]) -> str:
    """Say what makes two refund requests the same one: the order, the amount as a number, the memo."""
    return hashlib.sha256(json.dumps([order, read_amount(body), read_memo(body)]).encode()).hexdigest()


def replay(db: sqlite3.Connection, storage: Storage, *, key: str, fingerprint: str) -> Answer | None:
    """Answer what this key was answered first, if it is known and has not lapsed.

    Raises:
        ShopError: 422, the key belongs to another request.
    """
    known = db.execute(
        "SELECT * FROM key WHERE name = ? AND stored_at > ?",
        (key, storage.now() - storage.settings()["key_lifetime_s"]),
    ).fetchone()
    if known is None:
        return None
    if known["fingerprint"] != fingerprint:
        raise ShopError(
            422, "key_reused", "this Idempotency-Key belongs to a refund with another order, amount or memo"
        )
    return Answer(status=known["status"], body=json.loads(known["answer"]), replayed=True)


def refund(
    db: sqlite3.Connection, storage: Storage, arrival: Arrival, *, order: str, body: Mapping[str, object], keyed: bool
) -> Answer:
    """Pay back, once per key. A refusal stores nothing under the key: the same key may succeed later.

    Raises:
        ShopError: malformed, unknown order, not refundable, more than paid, key used for something else.
    """
    amount, memo = read_amount(body), read_memo(body)
    fingerprint = fingerprint_refund(order, body)
    if keyed and arrival.key is not None:
        earlier = replay(db, storage, key=arrival.key, fingerprint=fingerprint)
        if earlier is not None:
            return earlier
    now = storage.now()
    shown = read_order(db, order, now=now, seen_at=math.inf)
    if not shown["refundable"]:
        raise ShopError(402, "not_refundable", f"order {order} takes no refunds", order=order)
    cents = int(Decimal(amount) * 100)
    already = refunded_cents(db, order, seen_at=math.inf)
    if already + cents > Decimal(shown["paid"]) * 100:
        message = (
            f"{amount} on top of {shown['refunded']} is more than the {shown['paid']} that was paid for order {order}"
        )
        raise ShopError(402, "more_than_paid", message, order=order, paid=shown["paid"], refunded=shown["refunded"])
    number = db.execute(
        "INSERT INTO refund (order_name, cents, created_at, body) VALUES (?, ?, ?, '')", (order, cents, now)
    ).lastrowid
    made: Refund = {
        "refund": f"rf{number}",
        "order": order,
        "batch": shown["batch"],
        "amount": amount,
        "memo": memo,
        "key": arrival.key,
        "created_at": seeds.text(datetime.fromtimestamp(now, UTC)),
    }
    db.execute("UPDATE refund SET body = ? WHERE number = ?", (json.dumps(made), number))
    if arrival.key is not None:
        # Under ignore_keys, or after the key lapsed, the latest answer is the one that a later replay gets.
        db.execute(
            "INSERT OR REPLACE INTO key (name, fingerprint, status, answer, stored_at) VALUES (?, ?, 201, ?, ?)",
            (arrival.key, fingerprint, json.dumps(made), now),
        )
    storage.note(db, arrival, kind="effect", value={"kind": "refund", **made, "request": None, "outcome": None})
    return Answer(status=201, body=made)


def close_request(
    db: sqlite3.Connection, storage: Storage, arrival: Arrival, *, name: str, body: Mapping[str, object]
) -> Answer:
    """Close a request with an outcome; again with the same outcome changes nothing and answers the same.

    Raises:
        ShopError: malformed, unknown request, closed with another outcome.
    """
    outcome = body.get("outcome")
    if not isinstance(outcome, str) or not 1 <= len(outcome) <= MEMO_MOST:
        raise ShopError(400, "malformed", f"outcome is a text of 1 to {MEMO_MOST} characters")
    row = find(db, "request", name)
    now = storage.now()
    if row["outcome"] is not None and row["outcome"] != outcome:
        raise ShopError(409, "already_closed", f"request {name} is closed: {row['outcome']}", outcome=row["outcome"])
    if row["outcome"] is None:
        db.execute("UPDATE request SET outcome = ?, closed_at = ? WHERE name = ?", (outcome, now, name))
        made = {"kind": "close", "request": name, "order": row["order_name"], "batch": row["batch"], "outcome": outcome}
        storage.note(db, arrival, kind="effect", value={**made, "refund": None, "amount": None, "key": arrival.key})
        row = find(db, "request", name)
    return Answer(status=200, body=show_request(row, seen_at=math.inf))


# The world moves: what customers, carriers and the shop's own people do. Each change is logged, before and after.


def create_batch(
    db: sqlite3.Connection, storage: Storage, arrival: Arrival, *, seed: int, options: seeds.Options
) -> Batch:
    """Open a batch: its orders, requests, stock and policy."""
    now = storage.now()
    number = db.execute("INSERT INTO batch (seed, created_at) VALUES (?, ?)", (seed, now)).lastrowid
    assert number is not None
    made = seeds.make_batch(number=number, seed=seed, options=options, now=datetime.fromtimestamp(now, UTC))
    db.execute("INSERT INTO policy (batch, body) VALUES (?, ?)", (made.batch, json.dumps(made.policy)))
    for order in made.orders:
        db.execute(
            "INSERT INTO orders (name, batch, body) VALUES (?, ?, ?)", (order["order"], made.batch, json.dumps(order))
        )
    for request in made.requests:
        add_request(db, request)
    for row in made.stock:
        db.execute("INSERT INTO stock (sku, batch, body) VALUES (?, ?, ?)", (row["sku"], made.batch, json.dumps(row)))
    batch = show_batch(db, made.batch)
    storage.note(db, arrival, kind="change", value={"what": f"batches/{made.batch}", "before": None, "after": batch})
    return batch


def show_batch(db: sqlite3.Connection, name: str) -> Batch:
    """List what is in a batch, by id."""
    find(db, "batch", name)
    row = db.execute("SELECT * FROM batch WHERE number = ?", (int(name[1:]),)).fetchone()
    return {
        "batch": name,
        "seed": row["seed"],
        "created_at": seeds.text(datetime.fromtimestamp(row["created_at"], UTC)),
        "orders": [r[0] for r in db.execute("SELECT name FROM orders WHERE batch = ? ORDER BY rowid", (name,))],
        "requests": [r[0] for r in db.execute("SELECT name FROM request WHERE batch = ? ORDER BY rowid", (name,))],
        "skus": [r[0] for r in db.execute("SELECT sku FROM stock WHERE batch = ? ORDER BY rowid", (name,))],
    }


def add_request(db: sqlite3.Connection, request: Request) -> None:
    """Store an open request."""
    db.execute(
        "INSERT INTO request (name, batch, order_name, body) VALUES (?, ?, ?, ?)",
        (request["request"], request["batch"], request["order"], json.dumps(request)),
    )


def file_request(
    db: sqlite3.Connection, storage: Storage, arrival: Arrival, *, batch: str, body: Mapping[str, object]
) -> Request:
    """Let a customer ask once more, about an order of this batch: the work is larger than it was.

    Raises:
        ShopError: malformed, unknown batch or order.
    """
    find(db, "batch", batch)
    order, reason, note = body.get("order"), body.get("reason"), body.get("note", "")
    row = find(db, "order", str(order))
    known = next((known for known in seeds.NOTES if known == reason), None)
    if row["batch"] != batch or known is None or not isinstance(note, str):
        raise ShopError(400, "malformed", "order is one of this batch, reason one of " + ", ".join(seeds.NOTES))
    count = db.execute("SELECT count(*) FROM request WHERE order_name = ?", (order,)).fetchone()[0]
    request: Request = {
        "request": f"r{order}" if count == 0 else f"r{order}-{count + 1}",
        "batch": batch,
        "order": str(order),
        "reason": known,
        "amount": read_amount(body),
        "note": note,
        "state": "open",
        "outcome": None,
        "closed_at": None,
    }
    add_request(db, request)
    value = {"what": f"requests/{request['request']}", "before": None, "after": request}
    storage.note(db, arrival, kind="change", value=value)
    return request


def change(
    db: sqlite3.Connection, storage: Storage, arrival: Arrival, *, what: str, name: str, body: Mapping[str, object]
) -> object:
    """Change fields of an order, a policy or an article; a policy gets its next version.

    Raises:
        ShopError: unknown thing, a field that cannot be changed, a value of the wrong type.
    """
    row = find(db, what, name)
    before: dict[str, object] = json.loads(row["body"])
    fixed = {"order", "batch", "sku", "version", "refunded", "status"}
    for field, value in body.items():
        if field not in before or field in fixed:
            able = ", ".join(sorted(set(before) - fixed))
            raise ShopError(400, "malformed", f"{field} cannot be changed here; these can: {able}")
        check_value(field, value)
    after = before | dict(body)
    if what == "batch" and after != before:
        after["version"] = int(str(before["version"])) + 1
    db.execute(CHANGE[what], (json.dumps(after), name))
    moved = {field: after[field] for field in after if after[field] != before[field]}
    value = {"what": f"{CHANGED[what]}/{name}", "before": {field: before[field] for field in moved}, "after": moved}
    storage.note(db, arrival, kind="change", value=value)
    return after


def check_value(field: str, value: object) -> None:
    """Refuse what the shop could not show afterwards.

    Raises:
        ShopError: 400, with what the field holds.
    """
    if field in ("paid", "price", "max_share"):
        right, holds = isinstance(value, str) and MONEY.fullmatch(value) is not None, "a decimal string"
    elif field in ("in_stock", "refund_window_days"):
        right, holds = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number from 0"
    elif field in ("needs_return", "final_sale_refundable", "refundable"):
        right, holds = isinstance(value, bool), "true or false"
    elif field.endswith("_at"):
        right, holds = (
            is_moment(value) or (value is None and field in ("delivered_at", "returned_at")),
            "a time with a zone",
        )
    elif field in ("return_not_needed_for", "covered_reasons"):
        right, holds = isinstance(value, list) and all(item in seeds.NOTES for item in value), "a list of reasons"
    elif field == "lines":
        right, holds = isinstance(value, list) and all(isinstance(item, dict) for item in value), "a list of lines"
    elif field == "customer":
        right, holds = isinstance(value, dict), "an object"
    else:
        right, holds = isinstance(value, str), "a text"
    if not right:
        raise ShopError(400, "malformed", f"{field} is {holds}")


def is_moment(value: object) -> bool:
    """Tell whether this is a time as the shop writes it."""
    try:
        return isinstance(value, str) and bool(moment(value))
    except ValueError:
        return False


# Small readers


def find(db: sqlite3.Connection, what: str, name: str) -> sqlite3.Row:
    """Get one row by its name.

    Raises:
        ShopError: 404 unknown_<what>.
    """
    row: sqlite3.Row | None = db.execute(FIND[what], (name,)).fetchone()
    if row is None:
        raise ShopError(404, f"unknown_{what}", f"there is no {what} {name!r}")
    return row


def refunded_cents(db: sqlite3.Connection, order: str, *, seen_at: float) -> int:
    """Add up what was paid back on an order until that moment."""
    sql = "SELECT coalesce(sum(cents), 0) FROM refund WHERE order_name = ? AND created_at <= ?"
    return int(db.execute(sql, (order, seen_at)).fetchone()[0])


def read_amount(body: Mapping[str, object]) -> str:
    """Read an amount of money; "29" and "29.00" are the same one.

    Raises:
        ShopError: 400, when it is no decimal string or not above zero.
    """
    amount = body.get("amount")
    if not isinstance(amount, str) or not MONEY.fullmatch(amount) or Decimal(amount) <= 0:
        raise ShopError(
            400, "malformed", 'amount is a decimal string above zero with at most two places, such as "29.00"'
        )
    return f"{Decimal(amount):.2f}"


def read_memo(body: Mapping[str, object]) -> str:
    """Read the memo, empty if there is none.

    Raises:
        ShopError: 400, when it is no text or too long.
    """
    memo = body.get("memo", "")
    if not isinstance(memo, str) or len(memo) > MEMO_MOST:
        raise ShopError(400, "malformed", f"memo is a text of at most {MEMO_MOST} characters")
    return memo


def money(cents: int) -> str:
    """Write cents as the shop writes money."""
    return f"{Decimal(cents) / 100:.2f}"
