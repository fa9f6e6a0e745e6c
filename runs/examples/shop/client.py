"""Talk to the shop. What matters is what is known after a call: it was refused for certain, or nobody can say."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TypedDict, cast
from urllib.parse import quote, urlencode, urlsplit

from runs.examples.shop.shapes import (
    Batch,
    Effect,
    Order,
    Policy,
    Refund,
    RefundList,
    Request,
    RequestList,
    Stock,
)


class ShopRefused(Exception):
    """The shop said no, and it is certain that nothing happened."""

    def __init__(self, *, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status = status
        self.code = code
        self.retry_after = retry_after


class ShopUnreachable(ShopRefused):
    """No connection could be made, so nothing was sent and nothing happened."""

    def __init__(self, *, url: str, cause: OSError) -> None:
        super().__init__(status=0, code="unreachable", message=f"no connection to the shop at {url}: {cause}")


class ShopUnknown(Exception):
    """The request was sent and no answer that can be trusted came back: it may have happened."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class LogLine(TypedDict):
    """One line of GET /log. Kinds: arrived, read, effect, change, answered, dropped; `arrival` ties them together.

    `value` of a read is the body that was answered, of an effect its `Effect` fields, of a change {what, before,
    after}, of an arrival {body, faults}, of an answer {replayed}.
    """

    seq: int
    at: str
    kind: str
    arrival: int | None
    method: str | None
    path: str | None
    batch: str | None
    order: str | None
    key: str | None
    caller: str | None
    status: int | None
    value: dict[str, object] | None


@dataclass(frozen=True, kw_only=True)
class Received:
    """An answer as it came: `replayed` tells that the shop had it already."""

    status: int
    body: object
    replayed: bool


@dataclass(frozen=True, kw_only=True)
class ShopClient:
    """A client for one shop. `timeout_s` holds for connecting and for each wait; the shop logs `caller`."""

    url: str
    timeout_s: float = 10.0
    caller: str = ""

    # What an agent uses

    def list_requests(self, batch: str) -> RequestList:
        return cast(RequestList, self.call("GET", f"/batches/{quote(batch, safe='')}/requests").body)

    def read_policy(self, batch: str) -> Policy:
        return cast(Policy, self.call("GET", f"/batches/{quote(batch, safe='')}/policy").body)

    def read_order(self, order: str) -> Order:
        return cast(Order, self.call("GET", f"/orders/{quote(order, safe='')}").body)

    def list_refunds(self, order: str) -> RefundList:
        return cast(RefundList, self.call("GET", f"/orders/{quote(order, safe='')}/refunds").body)

    def read_stock(self, sku: str) -> Stock:
        return cast(Stock, self.call("GET", f"/stock/{quote(sku, safe='')}").body)

    def refund(self, order: str, amount: Decimal | str, *, memo: str = "", key: str | None = None) -> Refund:
        """Pay back; with a key, once however often it is asked. Raises: ShopRefused, ShopUnknown."""
        body = {"amount": str(amount), "memo": memo}
        return cast(Refund, self.call("POST", f"/orders/{quote(order, safe='')}/refunds", body=body, key=key).body)

    def close_request(self, request: str, outcome: str) -> Request:
        path = f"/requests/{quote(request, safe='')}/close"
        return cast(Request, self.call("POST", path, body={"outcome": outcome}).body)

    # How the world moves

    def create_batch(self, seed: int, /, **options: object) -> Batch:
        """Open a batch; options: size, kinds (plain, large, forbidden, in_transit), arrives_in_s, slow_s."""
        return cast(Batch, self.call("POST", "/batches", body={"seed": seed, **options}).body)

    def read_batch(self, batch: str) -> Batch:
        return cast(Batch, self.call("GET", f"/batches/{quote(batch, safe='')}").body)

    def file_request(self, batch: str, /, **fields: object) -> Request:
        return cast(Request, self.call("POST", f"/batches/{quote(batch, safe='')}/requests", body=fields).body)

    def change_order(self, order: str, /, **fields: object) -> Order:
        """Change fields of an order; answers its stored form, in which `status` and `refunded` are not computed."""
        return cast(Order, self.call("PATCH", f"/orders/{quote(order, safe='')}", body=fields).body)

    def change_policy(self, batch: str, /, **fields: object) -> Policy:
        return cast(Policy, self.call("PATCH", f"/batches/{quote(batch, safe='')}/policy", body=fields).body)

    def change_stock(self, sku: str, /, **fields: object) -> Stock:
        return cast(Stock, self.call("PATCH", f"/stock/{quote(sku, safe='')}", body=fields).body)

    def change_settings(self, **seconds: float) -> dict[str, float]:
        """Set key_lifetime_s or clock_shift_s."""
        return cast(dict[str, float], self.call("PATCH", "/settings", body=seconds).body)

    def add_fault(self, kind: str, /, *, match: Mapping[str, str] | None = None, **more: object) -> int:
        """Have the shop play a fault (`faults.FaultKind`); answers its number."""
        body = {"kind": kind, "match": dict(match or {}), **more}
        return cast(dict[str, int], self.call("POST", "/faults", body=body).body)["fault"]

    def clear_faults(self) -> None:
        self.call("DELETE", "/faults")

    # The truth, for proofs

    def effects(self, **filters: str) -> list[Effect]:
        """What really happened, oldest first; filters: order, batch, key, caller, kind, after, before."""
        body = self.call("GET", f"/effects?{urlencode(filters)}").body
        return cast(list[Effect], cast(dict[str, object], body)["effects"])

    def log(self, **filters: str | int) -> list[LogLine]:
        """All matching log lines, oldest first; filters: kind, order, batch, key, caller, path, method, after, before.

        `last=1` answers only the newest one: `log(kind="read", path="/orders/1701", before=effect["seq"], last=1)`
        is what the shop said about the order when it was last asked before that effect.
        """
        lines: list[LogLine] = []
        after: object = filters.pop("after", 0)
        while True:
            body = cast(dict[str, object], self.call("GET", f"/log?{urlencode({**filters, 'after': after})}").body)
            lines += cast(list[LogLine], body["entries"])
            after = body["next"]
            if after is None:
                return lines

    # The wire

    def call(self, method: str, path: str, *, body: object = None, key: str | None = None) -> Received:
        """Make one request over a connection of its own.

        Raises:
            ShopUnreachable: nothing was sent.
            ShopRefused: a 4xx with the shop's error body.
            ShopUnknown: everything else that is not a 2xx with JSON.
        """
        where = urlsplit(self.url)
        assert where.hostname is not None
        line = http.client.HTTPConnection(where.hostname, where.port, timeout=self.timeout_s)
        try:
            try:
                line.connect()
            except OSError as cause:
                raise ShopUnreachable(url=self.url, cause=cause) from cause
            head = {"Content-Type": "application/json", "Connection": "close"}
            head |= {"Idempotency-Key": key} if key is not None else {}
            head |= {"X-Caller": self.caller} if self.caller else {}
            try:
                line.request(method, path, body=None if body is None else json.dumps(body), headers=head)
                response = line.getresponse()
                raw = response.read()
            except (OSError, http.client.HTTPException) as cause:
                what = "no answer in time" if isinstance(cause, TimeoutError) else f"the connection broke: {cause!r}"
                raise ShopUnknown(f"{method} {path}: {what}") from cause
        finally:
            line.close()
        return judge(f"{method} {path}", response.status, raw, dict(response.headers))


def judge(what: str, status: int, raw: bytes, head: Mapping[str, str]) -> Received:
    """Tell an answer from a refusal, and both from what proves nothing.

    Raises:
        ShopRefused: a 4xx with the shop's error body, `key_in_flight` excepted: that other try may still succeed.
        ShopUnknown: a 5xx, a redirect, or bytes that are not the shop's JSON, whatever the status.
    """
    retry_after = read_seconds(head.get("Retry-After"))
    try:
        body = json.loads(raw)
    except ValueError:
        raise ShopUnknown(f"{what}: {status}, and no JSON", status=status, retry_after=retry_after) from None
    if 200 <= status < 300:
        return Received(status=status, body=body, replayed=head.get("Idempotent-Replayed") == "true")
    error = body.get("error") if isinstance(body, dict) else None
    if not (400 <= status < 500 and isinstance(error, dict)) or error.get("code") == "key_in_flight":
        raise ShopUnknown(f"{what}: {status} {raw[:200]!r}", status=status, retry_after=retry_after)
    code, message = str(error.get("code")), str(error.get("message"))
    raise ShopRefused(status=status, code=code, message=message, retry_after=retry_after)


def read_seconds(text: str | None) -> float | None:
    """Read a Retry-After in seconds; the shop writes no dates."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
