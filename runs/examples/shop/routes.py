"""The shop's routes: each parses, does one act, answers."""

import math
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from runs.examples.shop import acts, seeds
from runs.examples.shop.acts import Answer, ShopError
from runs.examples.shop.faults import BadFault, Fault, read_fault
from runs.examples.shop.storage import LOG_FILTERS, SETTINGS, Arrival, Storage

LOG_MOST = 5000


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One parsed request, as the route functions get it."""

    storage: Storage
    arrival: Arrival
    name: str  # the id in the path, empty if there is none
    query: Mapping[str, str]
    body: Mapping[str, object]
    keyed: bool = True
    lag_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method and path. `about` says what the id in the path names; a quiet route is neither
    logged nor faulty; a keyed one honours Idempotency-Key."""

    method: str
    pattern: re.Pattern[str]
    act: Callable[[Ask], Answer]
    about: str | None = None
    quiet: bool = False
    faulty: bool = True
    keyed: bool = False


def find_route(method: str, path: str) -> tuple[Route, str]:
    """Find the route of a request, and the id in its path.

    Raises:
        ShopError: 404 or 405.
    """
    wrong_method = False
    for route in ROUTES:
        if found := route.pattern.fullmatch(path):
            if route.method == method:
                return route, unquote(found.group(1)) if route.pattern.groups else ""
            wrong_method = True
    if wrong_method:
        raise ShopError(405, "unknown_route", f"{path} does not take {method}")
    raise ShopError(404, "unknown_route", f"there is nothing at {path}")


# Routes: parse, one act, answer.


def get_order(ask: Ask) -> Answer:
    return look(ask, lambda db: acts.read_order(db, ask.name, now=ask.storage.now(), seen_at=seen_at(ask)))


def get_requests(ask: Ask) -> Answer:
    return look(ask, lambda db: acts.list_requests(db, ask.name, seen_at=seen_at(ask)))


def get_refunds(ask: Ask) -> Answer:
    return look(ask, lambda db: acts.list_refunds(db, ask.name, seen_at=seen_at(ask)))


def get_policy(ask: Ask) -> Answer:
    return look(ask, lambda db: acts.read_policy(db, ask.name))


def get_stock(ask: Ask) -> Answer:
    return look(ask, lambda db: acts.read_stock(db, ask.name))


def get_batch(ask: Ask) -> Answer:
    return look(ask, lambda db: acts.show_batch(db, ask.name))


def seen_at(ask: Ask) -> float:
    """The moment whose truth a look-up shows: everything there is, unless it was told to lag."""
    return ask.storage.now() - ask.lag_s if ask.lag_s else math.inf


def look(ask: Ask, read: Callable[[sqlite3.Connection], object]) -> Answer:
    """Look something up and log the value in the same transaction: this is what the shop said, at that point."""
    with ask.storage.looking() as db:
        value = read(db)
        ask.storage.note(db, ask.arrival, kind="read", value=value)
    return Answer(status=200, body=value)


def post_refund(ask: Ask) -> Answer:
    with ask.storage.acting() as db:
        return acts.refund(db, ask.storage, ask.arrival, order=ask.name, body=ask.body, keyed=ask.keyed)


def post_close(ask: Ask) -> Answer:
    with ask.storage.acting() as db:
        return acts.close_request(db, ask.storage, ask.arrival, name=ask.name, body=ask.body)


def post_batch(ask: Ask) -> Answer:
    seed, options, slow_s = read_options(ask.body)
    with ask.storage.acting() as db:
        batch = acts.create_batch(db, ask.storage, ask.arrival, seed=seed, options=options)
    if slow_s:
        ask.storage.add_fault(Fault(kind="slow", match={"batch": batch["batch"]}, seconds=slow_s))
    return Answer(status=201, body=batch)


def read_options(body: Mapping[str, object]) -> tuple[int, seeds.Options, float]:
    """Read the body of POST /batches: seed, and the options size, kinds, arrives_in_s, slow_s.

    Raises:
        ShopError: 400, with what is wrong.
    """
    if unknown := set(body) - {"seed", "size", "kinds", "arrives_in_s", "slow_s"}:
        raise ShopError(400, "malformed", f"a batch has no {', '.join(sorted(unknown))}")
    seed, size, kinds = body.get("seed"), body.get("size"), body.get("kinds")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ShopError(400, "malformed", "seed is a whole number")
    if size is not None and (not isinstance(size, int) or not 1 <= size <= seeds.MOST):
        raise ShopError(400, "malformed", f"size is between 1 and {seeds.MOST}")
    if kinds is not None and (
        not isinstance(kinds, list)
        or not 1 <= len(kinds) <= seeds.MOST
        or not all(kind in seeds.KINDS for kind in kinds)
    ):
        raise ShopError(400, "malformed", f"kinds is a list of {', '.join(seeds.KINDS)}")
    seconds: dict[str, float | None] = {}
    for name in ("arrives_in_s", "slow_s"):
        value = body.get(name)
        if value is not None and (not isinstance(value, int | float) or not 0 <= value < 1e8):
            raise ShopError(400, "malformed", f"{name} is a number of seconds")
        seconds[name] = value
    chosen = None if kinds is None else tuple(kinds)
    options = seeds.Options(size=size, kinds=chosen, arrives_in_s=seconds["arrives_in_s"])
    return seed, options, seconds["slow_s"] or 0.0


def post_request(ask: Ask) -> Answer:
    with ask.storage.acting() as db:
        made = acts.file_request(db, ask.storage, ask.arrival, batch=ask.name, body=ask.body)
    return Answer(status=201, body=made)


def changer(what: str) -> Callable[[Ask], Answer]:
    """Make the route that changes fields of such a thing."""

    def patch(ask: Ask) -> Answer:
        with ask.storage.acting() as db:
            after = acts.change(db, ask.storage, ask.arrival, what=what, name=ask.name, body=ask.body)
        return Answer(status=200, body=after)

    return patch


def post_fault(ask: Ask) -> Answer:
    try:
        fault = ask.storage.add_fault(read_fault(ask.body))
    except BadFault as wrong:
        raise ShopError(400, "malformed", str(wrong)) from wrong
    return Answer(status=201, body=fault.as_json())


def get_faults(ask: Ask) -> Answer:
    return Answer(status=200, body={"faults": [fault.as_json() for fault in ask.storage.list_faults()]})


def delete_faults(ask: Ask) -> Answer:
    if ask.name and not ask.name.isdecimal():
        raise ShopError(404, "unknown_fault", f"there is no fault {ask.name!r}")
    return Answer(status=200, body={"cleared": ask.storage.clear_faults(int(ask.name) if ask.name else None)})


def get_settings(ask: Ask) -> Answer:
    return Answer(status=200, body=ask.storage.settings())


def patch_settings(ask: Ask) -> Answer:
    for name, value in ask.body.items():
        if name not in SETTINGS or not isinstance(value, int | float) or isinstance(value, bool):
            raise ShopError(400, "malformed", f"the settings are {', '.join(SETTINGS)}, each a number of seconds")
        ask.storage.change_setting(name, value)
    return get_settings(ask)


def get_log(ask: Ask) -> Answer:
    filters = {name: value for name, value in ask.query.items() if name in LOG_FILTERS}
    limit, last = ask.query.get("limit", str(LOG_MOST)), ask.query.get("last")
    if not (limit.isdecimal() and (last is None or last.isdecimal())):
        raise ShopError(400, "malformed", "limit and last are whole numbers")
    if last is not None:
        lines = ask.storage.read_log(filters=filters, limit=min(int(last), LOG_MOST), newest=True)
        return Answer(status=200, body={"entries": lines, "next": None})
    most = min(int(limit), LOG_MOST)
    lines = ask.storage.read_log(filters=filters, limit=most)
    return Answer(
        status=200, body={"entries": lines, "next": lines[-1]["seq"] if lines and len(lines) == most else None}
    )


def get_effects(ask: Ask) -> Answer:
    filters = {
        name: ask.query[name] for name in ("order", "batch", "key", "caller", "after", "before") if name in ask.query
    }
    lines = ask.storage.read_log(filters={"kind": "effect", **filters}, limit=1_000_000)
    effects = [
        {"seq": line["seq"], "at": line["at"], "caller": line["caller"], **line["value"]}
        for line in lines
        if isinstance(line["value"], dict) and ask.query.get("kind", line["value"]["kind"]) == line["value"]["kind"]
    ]
    return Answer(status=200, body={"count": len(effects), "effects": effects})


def get_health(ask: Ask) -> Answer:
    ask.storage.fetch("SELECT 1")
    return Answer(status=200, body={"status": "ok"})


SILENT = Arrival(seq=0, method="", path="", batch=None, order=None, key=None, caller=None)
ID = "([^/]+)"


def route(
    method: str,
    path: str,
    act: Callable[[Ask], Answer],
    *,
    about: str | None = None,
    quiet: bool = False,
    faulty: bool = True,
    keyed: bool = False,
) -> Route:
    """Write a route in one line."""
    pattern = re.compile(path.replace("{}", ID))
    return Route(method=method, pattern=pattern, act=act, about=about, quiet=quiet, faulty=faulty, keyed=keyed)


ROUTES: tuple[Route, ...] = (
    # What an agent uses: logged, and open to faults.
    route("GET", "/batches/{}/requests", get_requests, about="batch"),
    route("GET", "/batches/{}/policy", get_policy, about="batch"),
    route("GET", "/orders/{}", get_order, about="order"),
    route("GET", "/orders/{}/refunds", get_refunds, about="order"),
    route("POST", "/orders/{}/refunds", post_refund, about="order", keyed=True),
    route("POST", "/requests/{}/close", post_close, about="request"),
    route("GET", "/stock/{}", get_stock, about="sku"),
    # How the world moves: logged, never faulty.
    route("POST", "/batches", post_batch, faulty=False),
    route("POST", "/batches/{}/requests", post_request, about="batch", faulty=False),
    route("PATCH", "/orders/{}", changer("order"), about="order", faulty=False),
    route("PATCH", "/batches/{}/policy", changer("batch"), about="batch", faulty=False),
    route("PATCH", "/stock/{}", changer("sku"), about="sku", faulty=False),
    route("POST", "/faults", post_fault, faulty=False),
    route("DELETE", "/faults", delete_faults, faulty=False),
    route("DELETE", "/faults/{}", delete_faults, faulty=False),
    route("PATCH", "/settings", patch_settings, faulty=False),
    # What tests look at: the truth, not logged, never faulty.
    route("GET", "/batches/{}", get_batch, quiet=True),
    route("GET", "/faults", get_faults, quiet=True),
    route("GET", "/settings", get_settings, quiet=True),
    route("GET", "/log", get_log, quiet=True),
    route("GET", "/effects", get_effects, quiet=True),
    route("GET", "/health", get_health, quiet=True),
)
