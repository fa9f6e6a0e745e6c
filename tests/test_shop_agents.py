"""The tools of the example agents say what is certain, and their checks find what is wrong at the shop."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

import pytest
from pytest_django import Settings

from runs.agents import (
    BadArguments,
    Briefing,
    Claim,
    CredentialExpired,
    DidNotHappen,
    Happened,
    Json,
    Refused,
    Unknown,
    Unsure,
    get_agent,
)
from runs.examples.agents import (
    check_refunds,
    close_request,
    find_refund,
    list_requests,
    read_order,
    read_policy,
    refund,
    watch_stock,
)
from runs.examples.shop.client import ShopClient, ShopRefused
from tests.shop_process import ShopProcess
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopProcess]:
    process = ShopProcess(tmp_path_factory.mktemp("shop"))
    yield process
    if process.process.poll() is None:
        assert process.stop() == ""


@pytest.fixture
def shop(process: ShopProcess, settings: Settings) -> ShopClient:
    settings.SHOP_URL = process.url
    shop = process.client(timeout_s=5)
    shop.clear_faults()
    return shop


@pytest.fixture
def order(shop: ShopClient) -> str:
    return shop.create_batch(1, kinds=["plain"])["orders"][0]


@dataclass(frozen=True, kw_only=True)
class Called:
    """A call as a tool gets it."""

    key: str = "k"
    run: int = 1
    step: int = 2
    timeout: float = 10.0

    def secret(self, name: str = "") -> str:
        return ""

    def stop_requested(self) -> bool:
        return False

    def heartbeat(self, progress: Json = None) -> None:
        """Nobody listens."""


# What the tools make certain


def test_the_reads_return_what_the_shop_answers(shop: ShopClient) -> None:
    batch = shop.create_batch(5)
    assert list_requests(Called(), batch=batch["batch"]) == shop.list_requests(batch["batch"])
    assert read_policy(Called(), batch=batch["batch"]) == shop.read_policy(batch["batch"])
    assert read_order(Called(), order=batch["orders"][0])["order"] == batch["orders"][0]
    assert [line["caller"] for line in shop.log(kind="read", path=f"/orders/{batch['orders'][0]}")] == ["run 1 step 2"]


def test_a_refund_carries_the_key_of_its_call(shop: ShopClient, order: str) -> None:
    first = refund(Called(key="k7"), order=order, amount=Decimal("1.00"), memo="m")
    assert refund(Called(key="k7"), order=order, amount=Decimal("1.00"), memo="m") == first
    assert [effect["key"] for effect in shop.effects(order=order)] == ["k7"]


def test_a_refusal_is_certain(shop: ShopClient, order: str) -> None:
    with pytest.raises(Refused, match="more_than_paid"):
        refund(Called(), order=order, amount=Decimal("9999.00"))
    with pytest.raises(Refused, match="unknown_order"):
        read_order(Called(), order="1")


@pytest.mark.parametrize("kind", ["act_and_drop", "act_and_fail", "garble", "drop_before", "hang", "fail"])
def test_what_may_have_happened_is_unknown(shop: ShopClient, order: str, kind: str) -> None:
    shop.add_fault(kind, match={"order": order}, times=1)
    with pytest.raises(Unknown):
        refund(Called(key=kind, timeout=1), order=order, amount=Decimal("1.00"))

    def pay_again() -> bool:
        with suppress(Unknown):  # the shop may not have noticed yet that nobody waits for the first try
            refund(Called(key=kind), order=order, amount=Decimal("1.00"))
            return True
        return False

    wait_until(pay_again, what="the second try with the same key")
    assert len(shop.effects(order=order)) == 1


def test_a_busy_shop_and_a_shop_that_is_gone_are_worth_another_try(shop: ShopClient, order: str) -> None:
    shop.add_fault("fail", match={"order": order}, status=429, times=1)
    with pytest.raises(Unknown):
        refund(Called(), order=order, amount=Decimal("1.00"))


def test_a_401_asks_for_a_credential_and_a_403_does_not(shop: ShopClient, order: str) -> None:
    shop.add_fault("fail", match={"order": order}, status=401, times=1)
    with pytest.raises(CredentialExpired):
        read_order(Called(), order=order)
    shop.add_fault("fail", match={"order": order}, status=403, times=1)
    with pytest.raises(Refused):
        read_order(Called(), order=order)


def test_a_call_gives_up_before_its_time_is_over(shop: ShopClient, order: str) -> None:
    shop.add_fault("slow_after", match={"order": order}, seconds=3, times=1)
    began = time.monotonic()
    with pytest.raises(Unknown):
        refund(Called(timeout=1), order=order, amount=Decimal("1.00"))
    assert time.monotonic() - began < 1


def test_without_a_shop_nothing_happened(settings: Settings) -> None:
    settings.SHOP_URL = ""
    with pytest.raises(Refused, match="LONGWATCH_SHOP_URL"):
        read_order(Called(), order="1")


# What the model may say


def test_one_amount_is_one_effect_however_it_is_written() -> None:
    said: list[dict[str, object]] = [
        {"order": "1101", "amount": amount} for amount in ("45", "45.0", "45.00", 45, 45.0)
    ]
    normal = [refund.normalise(arguments) for arguments in said]
    assert {str(refund.identity_of(arguments)) for arguments in normal} == {"{'order': '1101', 'amount': '45.00'}"}


@pytest.mark.parametrize("amount", ["0", "-1", "1.001", "NaN", "Infinity", "many", None, "1e12"])
def test_an_amount_that_is_none_is_refused_before_anything(amount: object) -> None:
    with pytest.raises(BadArguments):
        refund.normalise({"order": "1101", "amount": amount})


def test_above_two_hundred_a_person_is_needed() -> None:
    assert refund.gate({"order": "1101", "amount": "200.00"}) is None
    assert refund.gate({"order": "1101", "amount": "200.01"}) == "amount 200.01 is above 200"


def test_a_refund_rests_on_its_order_and_the_policy() -> None:
    agent = get_agent("refund-desk")
    arguments: dict[str, Json] = {"order": "1101", "amount": "45.00", "memo": ""}
    assert refund.bound_rests_on(arguments) == ["order.1101", "policy.refunds"]
    assert refund.bound_locks(arguments) == ["order.1101"]
    for fact in refund.bound_rests_on(arguments):
        assert agent.max_age_of(fact)
        assert agent.checker_of(fact)


# Looking an effect up


def test_a_refund_is_found_by_its_key_and_not_by_its_amount(shop: ShopClient, order: str) -> None:
    call, arguments = Called(key="mine"), {"order": order, "amount": Decimal("1.00"), "memo": ""}
    refund(Called(key="another"), **arguments)
    nothing = find_refund(call, **arguments)
    assert isinstance(nothing, DidNotHappen)
    made = refund(call, **arguments)
    found = find_refund(call, **arguments)
    assert isinstance(found, Happened)
    assert found.result == made


def test_a_look_up_that_fails_is_unsure(shop: ShopClient, order: str) -> None:
    shop.add_fault("fail", match={"order": order}, times=1)
    assert isinstance(find_refund(Called(), order=order, amount=Decimal("1.00")), Unsure)


# The claim at the end


def claim(shop: ShopClient, batch: str, *refunds: dict[str, object]) -> Claim:
    effects = [
        {
            "step": 10 + n,
            "tool": "refund",
            "arguments": {"order": made["order"], "amount": made["amount"]},
            "result": made,
        }
        for n, made in enumerate(refunds)
    ]
    return Claim(run=1, outcome="done", evidence=[], inputs={"batch": batch}, facts={}, effects=effects)


def test_a_claim_holds_when_each_refund_is_there_once_and_nothing_is_open(shop: ShopClient) -> None:
    batch = shop.create_batch(1, kinds=["plain"])
    made = refund(Called(key="claimed"), order=batch["orders"][0], amount=Decimal("2.00"))
    close_request(Called(), request=batch["requests"][0], outcome="refunded 2.00")
    verdict = check_refunds(claim(shop, batch["batch"], dict(made)))
    assert (verdict.holds, verdict.reason) == (True, "")
    assert verdict.evidence == {
        "refunds": [{"step": 10, "order": made["order"], "refund": made["refund"], "times": 1}],
        "open": [],
        "batches": [batch["batch"]],
    }


def test_a_claim_is_refuted_when_a_request_is_open(shop: ShopClient) -> None:
    batch = shop.create_batch(1, kinds=["plain"])
    verdict = check_refunds(claim(shop, batch["batch"]))
    assert (verdict.holds, verdict.reason) == (False, f"request {batch['requests'][0]} is still open")


def test_a_claim_is_refuted_when_a_refund_is_missing_or_there_twice(shop: ShopClient) -> None:
    batch = shop.create_batch(2, kinds=["plain", "plain"])
    one, two = batch["orders"]
    shop.add_fault("ignore_keys", match={"order": one})
    doubled, _ = (dict(refund(Called(key="doubled"), order=one, amount=Decimal("1.00"))) for _ in range(2))
    missing = {**doubled, "order": two, "refund": "rf999999", "key": "never sent"}
    for request in batch["requests"]:
        close_request(Called(), request=request, outcome="refunded 1.00")
    verdict = check_refunds(claim(shop, batch["batch"], doubled, missing))
    assert not verdict.holds
    assert f"order {one} exists 2 times" in verdict.reason
    assert f"order {two} exists 0 times" in verdict.reason


def test_a_claim_that_names_nothing_does_not_hold(shop: ShopClient) -> None:
    assert check_refunds(Claim(run=1, outcome="", evidence=[], inputs={}, facts={}, effects=[])).holds is False


def test_a_claim_cannot_be_judged_while_the_shop_fails(shop: ShopClient) -> None:
    batch = shop.create_batch(1)["batch"]
    shop.add_fault("fail", match={"batch": batch}, status=403, times=1)
    with pytest.raises(ShopRefused):
        check_refunds(claim(shop, batch))


# stock-watch


class World:
    """Plays the runtime for `watch_stock`: does what it asks and writes the log, without a database."""

    def __init__(self, **inputs: object) -> None:
        self.inputs = inputs
        self.log: list[dict[str, object]] = []
        self.facts: dict[str, object] = {}
        self.stock: dict[str, int] = {"MUG-1": 4, "TEA-1": 9}
        self.broken: set[str] = set()

    def think(self) -> list[str]:
        """One think and all its calls; answers the tools it asked for."""
        facts = [{"fact": name, "value": value} for name, value in self.facts.items()]
        asks = watch_stock(
            Briefing(
                run=1,
                uid="u",
                goal="watch",
                constraints=[],
                inputs=dict(self.inputs),
                log=list(self.log),
                facts=facts,
                work=[],
                notices=[],
                budget={},
                now={},
            )
        )
        assert asks, "it always knows what to do next"
        for ask in asks:
            step = len(self.log) + 1
            line: dict[str, object] = {"step": step, "tool": ask.tool, "with": dict(ask.arguments), "outcome": "done"}
            if ask.tool == "read_stock":
                sku = str(ask.arguments["sku"])
                if sku in self.broken:
                    line["outcome"] = "failed"
                elif sku not in self.stock:
                    line["outcome"] = "refused"
                else:
                    line["result"] = {"sku": sku, "in_stock": self.stock[sku], "price": "1.00"}
            elif ask.tool == "record_fact":
                self.facts[str(ask.arguments["name"])] = self.log[int(ask.arguments["from_step"]) - 1]["result"]
            self.log.append(line)
        return [ask.tool for ask in asks]


def test_stock_watch_reads_records_waits_reads_again_and_finishes() -> None:
    world = World(skus="MUG-1, TEA-1", rounds="2", every_s="1")
    assert world.think() == ["read_stock", "read_stock"]
    assert world.think() == ["record_fact", "record_fact"]
    assert world.think() == ["wait_until"]
    world.stock["MUG-1"] = 3
    assert world.think() == ["read_stock", "read_stock"]
    assert world.think() == ["record_fact", "record_fact"]
    assert world.think() == ["finish"]
    given = world.log[-1]["with"]
    assert given == {"outcome": "2 rounds. MUG-1: 3 at 1.00; TEA-1: 9 at 1.00.", "evidence": [6, 7]}


def test_stock_watch_comes_to_an_end_with_what_it_cannot_read() -> None:
    world = World(skus=["MUG-1", "NONE-1", "TEA-1"], rounds=2)
    world.broken.add("TEA-1")
    tools = [
        tool for _ in range(11) for tool in world.think() if "finish" not in [line["tool"] for line in world.log[:-1]]
    ]
    assert tools.count("finish") == 1
    assert tools.count("wait_until") == 1
    assert [line["with"] for line in world.log if line["outcome"] == "refused"] == [{"sku": "NONE-1"}]
    assert len([line for line in world.log if line["outcome"] == "failed"]) == 6
