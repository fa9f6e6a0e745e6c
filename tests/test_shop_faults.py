"""Each fault that the shop can be told to play is the fault it says, as often as it was told."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runs.examples.shop.client import ShopClient, ShopRefused, ShopUnknown
from tests.shop_process import ShopProcess, post_refund, wait_for


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopProcess]:
    process = ShopProcess(tmp_path_factory.mktemp("shop"))
    yield process
    if process.process.poll() is None:
        assert process.stop() == ""


@pytest.fixture
def shop(process: ShopProcess) -> ShopClient:
    shop = process.client(timeout_s=5)
    shop.clear_faults()
    return shop


@pytest.fixture
def order(shop: ShopClient) -> str:
    return shop.create_batch(1, kinds=["plain"])["orders"][0]


def test_slow_acts_late_and_answers(shop: ShopClient, order: str) -> None:
    shop.add_fault("slow", match={"order": order}, seconds=0.4)
    began = time.monotonic()
    assert post_refund(shop, order, "slow").status == 201
    assert time.monotonic() - began >= 0.4


def test_slow_acts_even_after_its_caller_gave_up(process: ShopProcess, shop: ShopClient, order: str) -> None:
    shop.add_fault("slow", match={"order": order}, seconds=0.6, times=1)
    with pytest.raises(ShopUnknown, match="no answer in time"):
        post_refund(process.client(timeout_s=0.2), order, "given up")
    assert shop.effects(order=order) == []
    wait_for(lambda: shop.effects(order=order))
    assert post_refund(shop, order, "given up").replayed is True


def test_slow_after_has_acted_before_it_waits(process: ShopProcess, shop: ShopClient, order: str) -> None:
    shop.add_fault("slow_after", match={"order": order}, seconds=2, times=1)
    with pytest.raises(ShopUnknown, match="no answer in time"):
        post_refund(process.client(timeout_s=0.3), order, "acted")
    assert len(shop.effects(order=order)) == 1
    assert post_refund(shop, order, "acted").replayed is True  # known, so no longer in flight


def test_fail_answers_its_status_without_acting(shop: ShopClient, order: str) -> None:
    shop.add_fault("fail", match={"order": order}, status=503, retry_after=7, times=1)
    with pytest.raises(ShopUnknown) as unknown:
        post_refund(shop, order, "fail")
    assert (unknown.value.status, unknown.value.retry_after) == (503, 7)
    shop.add_fault("fail", match={"order": order}, status=401, times=1)
    with pytest.raises(ShopRefused) as refusal:
        post_refund(shop, order, "fail")
    assert refusal.value.code == "unauthorized"
    assert shop.effects(order=order) == []
    assert post_refund(shop, order, "fail").replayed is False


def test_act_and_fail_has_acted(shop: ShopClient, order: str) -> None:
    shop.add_fault("act_and_fail", match={"order": order}, status=500, times=1)
    with pytest.raises(ShopUnknown):
        post_refund(shop, order, "act_and_fail")
    assert len(shop.effects(order=order)) == 1
    assert post_refund(shop, order, "act_and_fail").replayed is True


def test_act_and_drop_has_acted(shop: ShopClient, order: str) -> None:
    shop.add_fault("act_and_drop", match={"order": order}, times=1)
    with pytest.raises(ShopUnknown, match="the connection broke"):
        post_refund(shop, order, "act_and_drop")
    assert len(shop.effects(order=order)) == 1
    assert [line["kind"] for line in shop.log(order=order)][-1] == "dropped"
    assert post_refund(shop, order, "act_and_drop").replayed is True


def test_drop_before_has_not_acted(shop: ShopClient, order: str) -> None:
    shop.add_fault("drop_before", match={"order": order}, times=1)
    with pytest.raises(ShopUnknown, match="the connection broke"):
        post_refund(shop, order, "drop_before")
    assert shop.effects(order=order) == []
    assert post_refund(shop, order, "drop_before").replayed is False


def test_garble_answers_what_proves_nothing(shop: ShopClient, order: str) -> None:
    shop.add_fault("garble", match={"order": order}, times=1)
    with pytest.raises(ShopUnknown, match="no JSON"):
        post_refund(shop, order, "garble")
    assert len(shop.effects(order=order)) == 1


def test_hang_never_acts_and_lets_go_of_the_key_with_its_caller(
    process: ShopProcess, shop: ShopClient, order: str
) -> None:
    shop.add_fault("hang", match={"order": order}, times=1)
    with pytest.raises(ShopUnknown, match="no answer in time"):
        post_refund(process.client(timeout_s=0.3), order, "hang")
    wait_for(lambda: shop.log(order=order, kind="dropped"))
    assert shop.effects(order=order) == []
    assert post_refund(shop, order, "hang").replayed is False


def test_ignore_keys_makes_a_refund_of_every_request(shop: ShopClient, order: str) -> None:
    shop.add_fault("ignore_keys", match={"order": order})
    first, second = post_refund(shop, order, "ignored"), post_refund(shop, order, "ignored")
    assert first.body != second.body
    assert [effect["key"] for effect in shop.effects(order=order)] == ["ignored", "ignored"]


def test_late_reads_lag_behind_effects_and_the_truth_does_not(shop: ShopClient) -> None:
    batch = shop.create_batch(1, kinds=["plain"])
    order, request = batch["orders"][0], batch["requests"][0]
    shop.add_fault("late_reads", match={"batch": batch["batch"]}, seconds=1.0)
    post_refund(shop, order, "late")
    shop.close_request(request, "refunded")
    assert shop.list_refunds(order)["refunds"] == []
    assert shop.read_order(order)["refunded"] == "0.00"
    assert shop.list_requests(batch["batch"])["requests"][0]["state"] == "open"
    assert len(shop.effects(order=order)) == 2
    wait_for(lambda: shop.list_requests(batch["batch"])["requests"][0]["state"] == "closed")
    assert [refund["key"] for refund in shop.list_refunds(order)["refunds"]] == ["late"]
    assert shop.read_order(order)["refunded"] == "1.00"


def test_a_fault_meets_only_what_it_matches(shop: ShopClient) -> None:
    one, two = shop.create_batch(2, kinds=["plain", "plain"])["orders"]
    shop.add_fault("fail", match={"path": f"/orders/{one}", "method": "post"})
    shop.add_fault("fail", match={"path_regex": f"/{two}$"})
    assert shop.read_order(one)["order"] == one
    assert post_refund(shop, two, "other").status == 201
    for call in (lambda: post_refund(shop, one, "met"), lambda: shop.read_order(two)):
        with pytest.raises(ShopUnknown):
            call()


def test_a_fault_is_played_as_often_as_it_was_given_by_however_many_at_once(shop: ShopClient, order: str) -> None:
    shop.add_fault("fail", match={"order": order}, times=7)
    barrier = threading.Barrier(20)

    def ask(_: int) -> bool:
        barrier.wait()
        try:
            shop.read_order(order)
        except ShopUnknown:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sorted(pool.map(ask, range(20))) == [False] * 7 + [True] * 13
    assert shop.call("GET", "/faults").body == {"faults": []}


def test_faults_are_listed_taken_back_and_outlast_a_kill(process: ShopProcess, shop: ShopClient, order: str) -> None:
    kept = shop.add_fault("fail", match={"order": order}, times=2)
    taken_back = shop.add_fault("slow", seconds=9)
    shop.call("DELETE", f"/faults/{taken_back}")
    with pytest.raises(ShopUnknown):
        shop.read_order(order)
    process.kill()
    process.start()
    shown = {"fault": kept, "kind": "fail", "match": {"order": order}, "times": 1, "chance": 1.0}
    assert shop.call("GET", "/faults").body == {"faults": [shown | {"status": 500, "retry_after": None}]}


def test_faults_of_several_kinds_come_together(shop: ShopClient, order: str) -> None:
    shop.add_fault("slow", match={"order": order}, seconds=0.3)
    shop.add_fault("ignore_keys", match={"order": order})
    shop.add_fault("act_and_drop", match={"order": order})
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(ShopUnknown):
            post_refund(shop, order, "together")
        assert time.monotonic() - began >= 0.3
    assert len(shop.effects(order=order)) == 2


def test_what_no_fault_can_be_is_refused(shop: ShopClient) -> None:
    for body in (
        {"kind": "slow"},
        {"kind": "fail", "status": 200},
        {"kind": "fail", "times": 0},
        {"kind": "fail", "chance": 2},
        {"kind": "fail", "match": {"colour": "red"}},
        {"kind": "fail", "match": {"path_regex": "("}},
        {"kind": "fail", "match": "orders"},
    ):
        with pytest.raises(ShopRefused, match="malformed"):
            shop.call("POST", "/faults", body=body)
