"""The sandbox shop keeps its promises: it is the receiver at which every other test counts."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from runs.examples.shop.client import Received, ShopClient, ShopRefused, ShopUnknown, ShopUnreachable
from tests.shop_process import PROJECT, ShopProcess, post_refund, wait_for


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ShopProcess]:
    process = ShopProcess(tmp_path / "shop")
    yield process
    if process.process.poll() is None:
        assert process.stop() == ""


@pytest.fixture
def shop(process: ShopProcess) -> ShopClient:
    return process.client()


@pytest.fixture
def order(shop: ShopClient) -> str:
    """A delivered order with nothing refunded."""
    return shop.create_batch(1, kinds=["plain"])["orders"][0]


# Idempotency


def test_the_same_key_and_body_get_the_original_answer_and_one_effect(shop: ShopClient, order: str) -> None:
    first = post_refund(shop, order, "k1")
    again = post_refund(shop, order, "k1", amount="1.0")  # the same amount, written otherwise
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed) == (201, True)
    assert again.body == first.body
    assert len(shop.effects(order=order)) == 1


@pytest.mark.parametrize(("amount", "memo"), [("2.00", ""), ("1.00", "another memo")])
def test_the_same_key_with_another_body_is_refused(shop: ShopClient, order: str, amount: str, memo: str) -> None:
    post_refund(shop, order, "k1")
    with pytest.raises(ShopRefused) as refusal:
        post_refund(shop, order, "k1", amount=amount, memo=memo)
    assert (refusal.value.status, refusal.value.code) == (422, "key_reused")
    assert len(shop.effects(order=order)) == 1


def test_the_same_key_on_another_order_is_refused(shop: ShopClient) -> None:
    one, two = shop.create_batch(2, kinds=["plain", "plain"])["orders"]
    post_refund(shop, one, "k1")
    with pytest.raises(ShopRefused, match="key_reused"):
        post_refund(shop, two, "k1")


def test_a_key_in_flight_is_reported_and_proves_nothing(shop: ShopClient, order: str) -> None:
    shop.add_fault("slow", match={"order": order}, seconds=1.0, times=1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post_refund, shop, order, "k1")
        wait_for(lambda: shop.log(kind="arrived", key="k1"))
        with pytest.raises(ShopUnknown) as unknown:
            post_refund(shop, order, "k1")
        with pytest.raises(ShopRefused, match="key_reused"):
            post_refund(shop, order, "k1", amount="2.00")
        assert unknown.value.status == 409
        assert first.result().status == 201
    assert len(shop.effects(order=order)) == 1


def test_eight_callers_with_one_key_make_one_effect(shop: ShopClient, order: str) -> None:
    barrier = threading.Barrier(8)
    statuses: set[int | None] = set()

    def ask(_: int) -> Received | None:
        barrier.wait()
        for _try in range(200):
            try:
                return post_refund(shop, order, "k1")
            except ShopUnknown as unknown:
                statuses.add(unknown.status)
        return None

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert statuses <= {409}
    assert None not in answers
    assert {str(answer.body) for answer in answers if answer} == {str(answers[0].body if answers[0] else "")}
    assert [answer.replayed for answer in answers if answer].count(False) == 1
    assert len(shop.effects(order=order)) == 1
    assert shop.read_order(order)["refunded"] == "1.00"


def test_a_refusal_is_not_stored_under_the_key(shop: ShopClient, order: str) -> None:
    shop.change_order(order, refundable=False)
    with pytest.raises(ShopRefused) as refusal:
        post_refund(shop, order, "k1")
    assert (refusal.value.status, refusal.value.code) == (402, "not_refundable")
    shop.change_order(order, refundable=True)
    assert post_refund(shop, order, "k1", amount="2.00").replayed is False
    assert [effect["amount"] for effect in shop.effects(order=order)] == ["2.00"]


def test_without_a_key_every_request_is_a_refund(shop: ShopClient, order: str) -> None:
    post_refund(shop, order, None)
    post_refund(shop, order, None)
    assert len(shop.effects(order=order)) == 2


def test_a_key_is_forgotten_after_its_lifetime(shop: ShopClient, order: str) -> None:
    shop.change_settings(key_lifetime_s=60)
    post_refund(shop, order, "k1")
    assert post_refund(shop, order, "k1").replayed is True
    shop.change_settings(clock_shift_s=61)
    assert post_refund(shop, order, "k1").replayed is False
    assert post_refund(shop, order, "k1").replayed is True
    assert len(shop.effects(order=order)) == 2


# Refusals


def test_never_more_is_refunded_than_was_paid_by_however_many_at_once(shop: ShopClient, order: str) -> None:
    paid = Decimal(shop.read_order(order)["paid"])
    third = f"{(paid / 3).quantize(Decimal('0.01')) + 1:.2f}"  # two fit, a third does not

    def ask(n: int) -> str:
        try:
            return str(post_refund(shop, order, f"k{n}", amount=third).status)
        except ShopRefused as refusal:
            return refusal.code

    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(ask, range(6)))
    assert sorted(said) == ["201"] * 2 + ["more_than_paid"] * 4
    assert Decimal(shop.read_order(order)["refunded"]) == Decimal(third) * 2


@pytest.mark.parametrize("amount", ["0.00", "-1.00", "1.001", "1e2", "", "NaN", "\u0661.00", 5, 1.5, None, ["1.00"]])
def test_an_amount_that_is_no_amount_is_refused(shop: ShopClient, order: str, amount: object) -> None:
    with pytest.raises(ShopRefused, match="malformed"):
        shop.call("POST", f"/orders/{order}/refunds", body={"amount": amount}, key="k1")
    assert shop.effects() == []


def test_what_the_shop_does_not_know_is_refused_for_certain(shop: ShopClient) -> None:
    for call, code in (
        (lambda: shop.refund("999999", "1.00", key="k1"), "unknown_order"),
        (lambda: shop.read_order("../orders"), "unknown_order"),
        (lambda: shop.list_requests("b99"), "unknown_batch"),
        (lambda: shop.close_request("r99", "refunded"), "unknown_request"),
        (lambda: shop.read_stock("MUG-99"), "unknown_sku"),
        (lambda: shop.call("GET", "/nothing"), "unknown_route"),
        (lambda: shop.call("DELETE", "/orders/1"), "unknown_route"),
        (lambda: shop.call("POST", "/faults", body={"kind": "explode"}), "malformed"),
        (lambda: shop.call("POST", "/batches", body=["seed"]), "malformed"),
    ):
        with pytest.raises(ShopRefused) as refusal:
            call()
        assert refusal.value.code == code


def test_a_shop_that_is_not_there_proves_that_nothing_happened(process: ShopProcess, shop: ShopClient) -> None:
    process.stop()
    with pytest.raises(ShopUnreachable):
        shop.refund("1", "1.00", key="k1")


def test_closing_a_request_again_changes_nothing_and_another_outcome_is_refused(shop: ShopClient) -> None:
    batch = shop.create_batch(3)
    name = batch["requests"][0]
    closed = shop.close_request(name, "refunded 12.00")
    assert (closed["state"], closed["outcome"]) == ("closed", "refunded 12.00")
    assert shop.close_request(name, "refunded 12.00") == closed
    with pytest.raises(ShopRefused, match="already_closed"):
        shop.close_request(name, "refused")
    assert [effect["request"] for effect in shop.effects(batch=batch["batch"], kind="close")] == [name]


# Killed


def test_an_effect_survives_a_kill_between_acting_and_answering(process: ShopProcess, order: str) -> None:
    shop = process.client()
    shop.add_fault("slow_after", match={"order": order}, seconds=60, times=1)
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(post_refund, shop, order, "k1")
        wait_for(lambda: shop.effects(order=order))
        process.kill()
        with pytest.raises(ShopUnknown):
            lost.result()
    process.start()
    kept = shop.list_refunds(order)["refunds"]
    again = post_refund(shop, order, "k1")
    assert again.replayed is True
    assert kept == [again.body]
    assert len(shop.effects(order=order)) == 1


def test_a_kill_before_acting_leaves_no_key_behind(process: ShopProcess, order: str) -> None:
    shop = process.client()
    shop.add_fault("slow", match={"order": order, "method": "POST"}, seconds=60, times=1)
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(post_refund, shop, order, "k1")
        wait_for(lambda: shop.log(kind="arrived", key="k1"))
        process.kill()
        with pytest.raises(ShopUnknown):
            lost.result()
    process.start()
    assert shop.effects(order=order) == []
    assert post_refund(shop, order, "k1").replayed is False


@pytest.mark.processes
def test_no_acknowledged_refund_is_lost_and_none_made_twice_over_many_kills(process: ShopProcess) -> None:
    shop = process.client(timeout_s=5)
    order = shop.create_batch(4, kinds=["large"])["orders"][0]
    acknowledged: dict[str, object] = {}
    asked: list[str] = []
    done = threading.Event()

    def ask_on(who: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            key = f"{who}-{number}"
            asked.append(key)
            while not done.is_set():
                try:
                    acknowledged[key] = post_refund(shop, order, key, amount="0.01").body
                    break
                except (ShopUnreachable, ShopUnknown):
                    done.wait(0.01)

    with ThreadPoolExecutor(4) as pool:
        for who in range(4):
            pool.submit(ask_on, who)
        for _ in range(8):
            before = len(acknowledged)
            wait_for(lambda enough=before + 5: len(acknowledged) > enough)  # type: ignore[misc]
            process.kill()
            process.start()
        done.set()
    refunds = {refund["key"]: refund for refund in shop.list_refunds(order)["refunds"]}
    effects = [effect["key"] for effect in shop.effects(order=order)]
    assert len(effects) == len(set(effects)) == len(refunds)
    assert acknowledged.items() <= refunds.items()
    assert set(effects) <= set(asked)


def test_two_shops_do_not_share_a_folder(process: ShopProcess) -> None:
    with pytest.raises(AssertionError, match="another shop works on"):
        ShopProcess(process.folder)


def test_the_shop_stops_in_the_middle_of_slow_requests(process: ShopProcess, order: str) -> None:
    shop = process.client()
    for kind in ("slow", "slow_after", "hang"):
        shop.add_fault(kind, match={"order": order, "key": kind}, seconds=60)
    with ThreadPoolExecutor() as pool:
        lost = [pool.submit(post_refund, shop, order, kind) for kind in ("slow", "slow_after", "hang")]
        wait_for(lambda: len(shop.log(kind="arrived", order=order)) == 3 and shop.effects(order=order))
        assert process.stop() == ""
        for one in lost:
            with pytest.raises(ShopUnknown):
                one.result(timeout=5)


# The log


def test_the_log_says_what_was_asked_read_done_and_changed_in_order(shop: ShopClient, order: str) -> None:
    caller = ShopClient(url=shop.url, caller="run 7")
    seen = caller.read_order(order)
    shop.change_order(order, paid="500.00")
    caller.refund(order, "400.00", memo="damaged", key="k1")
    (read,) = shop.log(kind="read", order=order)
    (changed,) = shop.log(kind="change", order=order)
    (effect,) = shop.effects(order=order)
    assert read["value"] == dict(seen)
    assert read["caller"] == effect["caller"] == "run 7"
    assert changed["value"] == {
        "what": f"orders/{order}",
        "before": {"paid": seen["paid"]},
        "after": {"paid": "500.00"},
    }
    assert read["seq"] < changed["seq"] < effect["seq"]
    assert (effect["amount"], effect["key"]) == ("400.00", "k1")
    (last,) = shop.log(kind="read", path=f"/orders/{order}", before=effect["seq"], last=1)
    assert last == read
    arrived, done, answered = shop.log(order=order, key="k1")
    assert [arrived["kind"], done["kind"], answered["kind"]] == ["arrived", "effect", "answered"]
    assert done["arrival"] == answered["arrival"] == arrived["seq"]
    assert arrived["value"] == {"body": {"amount": "400.00", "memo": "damaged"}, "faults": []}
    assert answered["status"] == 201


def test_the_log_is_read_to_its_end_over_many_pages(shop: ShopClient, order: str) -> None:
    for _ in range(5):
        shop.read_order(order)
    whole = shop.log(order=order)
    assert shop.log(order=order, limit=2) == whole
    assert len(whole) == 15


def test_the_log_cannot_be_rewritten(process: ShopProcess, order: str) -> None:
    process.stop()
    db = sqlite3.connect(process.folder / "shop.sqlite3")
    for sql in ("DELETE FROM log", "UPDATE log SET kind = 'read'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(sql)
    db.close()


def test_what_cannot_be_changed_is_refused(shop: ShopClient, order: str) -> None:
    for fields in (
        {"order": "1"},
        {"refunded": "1.00"},
        {"colour": "red"},
        {"paid": 12},
        {"paid": "-1.00"},
        {"refundable": "yes"},
        {"delivered_at": "yesterday"},
        {"delivered_at": "2026-01-01T00:00:00"},
        {"expected_at": None},
    ):
        with pytest.raises(ShopRefused, match="malformed"):
            shop.change_order(order, **fields)
    with pytest.raises(ShopRefused, match="malformed"):
        shop.change_settings(key_lifetime=1)
    assert shop.log(kind="change", order=order) == []


def test_policy_and_stock_change_and_a_policy_gets_its_next_version(shop: ShopClient) -> None:
    batch = shop.create_batch(5)
    policy = shop.read_policy(batch["batch"])
    shop.change_policy(batch["batch"], refund_window_days=7)
    shop.change_policy(batch["batch"], refund_window_days=7)  # no change, no version
    assert shop.read_policy(batch["batch"]) == policy | {"refund_window_days": 7, "version": 2}
    sku = batch["skus"][0]
    shop.change_stock(sku, price="99.00", in_stock=0)
    assert shop.read_stock(sku)["price"] == "99.00"


def test_a_customer_may_ask_once_more(shop: ShopClient) -> None:
    batch = shop.create_batch(6, kinds=["plain"])
    order = batch["orders"][0]
    filed = shop.file_request(batch["batch"], order=order, reason="damaged", amount="2.00", note="And the lid.")
    assert filed["request"] == f"r{order}-2"
    assert shop.list_requests(batch["batch"])["requests"][-1] == filed


@pytest.mark.processes
def test_the_shop_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    starter = """
import subprocess, sys
shop = subprocess.Popen([sys.executable, "-m", "runs.examples.shop", "--data", sys.argv[1], "--die-with-parent"],
                        stdout=subprocess.PIPE)
print(shop.stdout.readline().decode(), end="", flush=True)
shop.wait()
"""
    command = [sys.executable, "-c", starter, str(tmp_path / "shop")]
    parent = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    shop = ShopClient(url=json.loads(parent.stdout.readline())["url"], timeout_s=1)
    assert shop.call("GET", "/health").status == 200
    parent.kill()
    parent.communicate()

    def is_gone() -> bool:
        try:
            shop.call("GET", "/health")
        except (ShopUnreachable, ShopUnknown):
            return True
        return False

    wait_for(is_gone)
