"""Must show: everything is switched off over two clusters, one of which stands still: it is named, and sends nothing more."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from runs import budgets, clock, operations
from runs.models import Attempt, Lock, Run, Switch
from runs.queries import find_switch
from runs.states import RUN_OPEN, AttemptOutcome, RunState
from tests.engine_tools import call
from tests.page_tools import client_of, read
from tests.second_cluster import SecondCluster
from tests.stage import Stage, fleet_on_stage, stage
from tests.waiting import wait_until

__all__ = ["fleet_on_stage", "stage"]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

DREAM = "of a long night"


@pytest.fixture
def second(stage: Stage) -> Iterator[SecondCluster]:
    made = SecondCluster(stage.fleet)
    try:
        yield made
    finally:
        made.close()


def warm_up(stage: Stage, second: SecondCluster) -> None:
    """Keep every worker at something at once, until that of the second cluster has its tool process."""
    while not second.has_tool_process:
        script = [[call("linger", for_s=2.0)]]
        runs = [stage.start("scripted", inputs={"script": script}) for _ in range(4)]
        for run in runs:
            stage.until_over(run)


def start_payer(stage: Stage, orders: Sequence[str], *, after_s: float) -> Run:
    """A run that waits until all are there, and then reads, records and pays its orders."""
    script = [[call("wait_until", seconds=after_s, reason="all begin together")]]
    for place, order in enumerate(orders):
        script += [
            [call("read_order", order=order)],
            [call("record_fact", name=f"order.{order}", from_step=4 + 6 * place)],
            [call("pay_keyed", order=order, amount="20.00")],
        ]
    return stage.start("scripted", inputs={"script": script})


def start_dreamer(stage: Stage, batch: str, number: int) -> Run:
    """A run whose model call streams until it is cut."""
    return stage.start("refund-desk", f"Dream {number} {DREAM}", inputs={"batch": batch})


def dreams(stage: Stage) -> list[dict[str, Any]]:
    return [made for made in stage.fleet.model("GET", "/calls")["calls"] if DREAM in made["goal"]]


def count_states(switch: Switch) -> Counter[str]:
    card = find_switch(switch.pk, agents={"*"})
    assert card is not None
    return Counter(each.state for each in card.participants)


def state_of(switch: Switch, pid: int) -> str:
    card = find_switch(switch.pk, agents={"*"})
    assert card is not None
    return next((each.state for each in card.participants if (each.kind, each.pid) == ("cluster", pid)), "")


def test_a_switch_for_everything_holds_two_clusters_of_which_one_stands_still(
    stage: Stage, second: SecondCluster, full_matrix: bool
) -> None:
    payers, dreamers = (150, 50) if full_matrix else (9, 3)
    # Other tests on this fleet put its clock on: what they took may be later than the switch.
    earlier = max(Run.objects.values_list("pk", flat=True), default=0)
    batch = stage.shop.create_batch(3)["batch"]
    stall = {"kind": "stall", "seconds": 900, "after": 4, "times": None, "match": {"text": DREAM}}
    stage.fleet.model("POST", "/faults", stall)
    stage.shop.add_fault("slow", match={"method": "POST", "path_regex": "/refunds$"}, seconds=0.3)
    warm_up(stage, second)
    dreaming = [start_dreamer(stage, batch, number).pk for number in range(dreamers)]
    wait_until(lambda: sum(c["open"] for c in dreams(stage)) == dreamers, what="every stream", timeout_s=120)
    pairs = [(stage.order(), stage.order()) for _ in range(payers)]
    paying = [start_payer(stage, pair, after_s=1 + payers * 0.05).pk for pair in pairs]
    for run in paying:
        second.arm(run, "pay_keyed")
    second.until_it_stands()
    second.freeze()
    # Taken, and not begun.
    stuck = Attempt.objects.filter(step__tool="pay_keyed", holder__in=second.holders()).latest("pk")
    assert stuck.began_at is None
    switch = operations.engage_switch("all", reason="look first", by=stage.person)
    active = Run.objects.filter(pk__in=[*paying, *dreaming], state__in=RUN_OPEN)
    assert active.count() == payers + dreamers

    # Its time is over, and nobody takes it for confirmed.
    stage.until_begin_by_is_over(stuck)
    wait_until(lambda: state_of(switch, second.pid) == "not_confirmed", what="it is named", timeout_s=30)
    wait_until(lambda: count_states(switch)["not_confirmed"] == 1, what="all others confirm", timeout_s=60)
    assert count_states(switch)["in_flight"] == 0
    words = read(client_of(stage.person).get("/switches"))
    assert "1 process not confirmed" in words
    assert re.search(rf"cluster {second.pid} \S+ Not confirmed", words), words
    assert all(made["client_gone"] for made in dreams(stage))
    sent_until = stage.shop.log(kind="arrived", last=1)[0]["seq"]

    # It wakes, and does nothing.
    second.disarm()
    second.thaw()
    wait_until(lambda: state_of(switch, second.pid) == "acknowledged", what="it confirms", timeout_s=60)
    assert stage.shop.log(kind="arrived", after=sent_until) == []
    stuck.refresh_from_db()
    assert (stuck.began_at, stuck.outcome == AttemptOutcome.OPEN) == (None, False)
    taken_after = Attempt.objects.filter(run__gt=earlier, taken_at__gt=switch.engaged_at).count()
    assert (taken_after, active.count()) == (0, payers + dreamers)
    assert len(dreams(stage)) == dreamers

    held_s = (clock.now() - switch.engaged_at).total_seconds()
    operations.release_switch(switch.pk, reason="it is fine", by=stage.person)
    runs = Run.objects.filter(pk__in=paying)
    wait_until(lambda: not runs.filter(state__in=RUN_OPEN).exists(), what="every run goes on", timeout_s=400)
    wait_until(lambda: sum(c["open"] for c in dreams(stage)) == dreamers, what="every dream goes on", timeout_s=60)
    assert set(runs.values_list("state", flat=True)) == {RunState.SUCCEEDED}
    paid = Counter(effect["order"] for effect in stage.shop.effects(kind="refund"))
    orders = [order for pair in pairs for order in pair]
    assert [paid[order] for order in orders] == [1] * len(orders)
    assert not Lock.objects.filter(run__in=runs).exists()
    assert not budgets.mismatches()
    print(
        f"{payers + dreamers} active runs, held {held_s:.0f} s, taken after the switch: {taken_after}, paid: {len(orders)}"
    )
