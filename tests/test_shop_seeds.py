"""Seeded batches: the same seed is the same work, other seeds are other work, and each holds what a rehearsal needs."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from runs.examples.shop.client import ShopClient
from runs.examples.shop.rules import Decision, decide, moment
from runs.examples.shop.seeds import ASK_ABOVE, Options, Seeded, make_batch
from tests.shop_process import ShopProcess

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopClient]:
    process = ShopProcess(tmp_path_factory.mktemp("shop"))
    yield process.client()
    assert process.stop() == ""


def seeded(seed: int, number: int = 1, options: Options | None = None) -> Seeded:
    return make_batch(number=number, seed=seed, options=options or Options(), now=NOW)


def judged(batch: Seeded, *, now: datetime) -> list[Decision]:
    """What the policy says about each request once every parcel that was expected by then has arrived."""
    decisions = []
    for order, request in zip(batch.orders, batch.requests, strict=True):
        arrived = order["delivered_at"] or (order["expected_at"] if moment(order["expected_at"]) <= now else None)
        seen = {**order, "delivered_at": arrived}
        decisions.append(decide(policy=batch.policy, order=seen, request=request, now=now))  # type: ignore[arg-type]
    return decisions


def test_every_seed_holds_one_to_ask_about_one_to_refuse_one_to_wait_for() -> None:
    causes = set()
    for seed in range(400):
        batch = seeded(seed)
        assert 3 <= len(batch.requests) <= 6
        at_first, later = judged(batch, now=NOW), judged(batch, now=NOW + timedelta(seconds=10))
        assert [decision.act for decision in at_first].count("wait") == 1
        assert [decision.act for decision in later].count("refuse") == 1
        amounts = [Decimal(decision.amount) for decision in later if decision.amount is not None]
        assert len([amount for amount in amounts if amount > ASK_ABOVE]) == 1
        assert len(amounts) == len(later) - 1
        causes |= {decision.why.split()[0:3][-1] for decision in later if decision.act == "refuse"}
        for order, request in zip(batch.orders, batch.requests, strict=True):
            paid = sum(Decimal(line["price"]) * line["quantity"] for line in order["lines"])
            assert Decimal(order["paid"]) == paid
            assert Decimal(request["amount"]) <= paid
    assert len(causes) == 4, "every way in which a policy forbids a refund is met"


def test_a_batch_says_the_same_days_later() -> None:
    for seed in range(100):
        batch = seeded(seed)
        soon, later = (judged(batch, now=NOW + timedelta(days=days)) for days in (1, 5))
        assert soon == later


def test_the_same_seed_is_the_same_work_and_another_is_not() -> None:
    def work(batch: Seeded) -> list[object]:
        lines = [
            [(line["title"], line["quantity"], line["price"]) for line in order["lines"]] for order in batch.orders
        ]
        return [lines, [(request["reason"], request["amount"]) for request in batch.requests]]

    assert work(seeded(7)) == work(seeded(7, number=12))
    assert len({str(work(seeded(seed))) for seed in range(200)}) == 200
    assert len({len(seeded(seed).requests) for seed in range(50)}) == 4
    assert len({str(seeded(seed).policy) for seed in range(50)}) > 20


def test_ids_are_used_by_one_batch_only(shop: ShopClient) -> None:
    batches = [shop.create_batch(1, size=50) for _ in range(4)]
    for ids in (
        [batch["batch"] for batch in batches],
        [order for batch in batches for order in batch["orders"]],
        [request for batch in batches for request in batch["requests"]],
        [sku for batch in batches for sku in batch["skus"]],
    ):
        assert len(ids) == len(set(ids))


def test_a_parcel_arrives_at_the_second_that_the_shop_announced(shop: ShopClient) -> None:
    order = shop.create_batch(2, kinds=["in_transit"], arrives_in_s=3600)["orders"][0]
    on_its_way = shop.read_order(order)
    assert (on_its_way["status"], on_its_way["delivered_at"]) == ("in_transit", None)
    shop.change_settings(clock_shift_s=3601)
    arrived = shop.read_order(order)
    shop.change_settings(clock_shift_s=0)
    assert (arrived["status"], arrived["delivered_at"]) == ("delivered", on_its_way["expected_at"])


def test_an_order_that_nothing_happened_to_reads_the_same(shop: ShopClient) -> None:
    batch = shop.create_batch(3)
    for order in batch["orders"]:
        if shop.read_order(order)["status"] == "delivered":
            assert shop.read_order(order) == shop.read_order(order)
    assert shop.read_policy(batch["batch"]) == shop.read_policy(batch["batch"])
    assert shop.list_requests(batch["batch"]) == shop.list_requests(batch["batch"])
    assert shop.read_batch(batch["batch"]) == batch


def test_a_batch_of_a_chosen_mix_is_that_mix(shop: ShopClient) -> None:
    batch = shop.create_batch(8, kinds=["large", "large", "plain"])
    policy = shop.read_policy(batch["batch"])
    acts = [
        decide(policy=policy, order=shop.read_order(request["order"]), request=request, now=datetime.now(UTC))
        for request in shop.list_requests(batch["batch"])["requests"]
    ]
    amounts = sorted(Decimal(decision.amount or 0) > ASK_ABOVE for decision in acts)
    assert amounts == [False, True, True]
