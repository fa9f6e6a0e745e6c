"""Must show: ten refund runs to the end while everything is killed at random; each refund once, nothing done twice."""

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from runs import sql
from runs.examples.shop.client import ShopClient
from tests.fleet import Fleet, Part
from tests.invariants import find_violations, list_doubts
from tests.stage import looking_at

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("LONGWATCH_CHAOS_SEED") or random.randrange(1_000_000))
RUNS = int(os.environ.get("LONGWATCH_CHAOS_RUNS") or 10)
KILLS = int(os.environ.get("LONGWATCH_CHAOS_KILLS") or 30)
GIVE_UP_S = 400.0 + 20.0 * KILLS  # on a machine that does much else besides

# How often each part is drawn. What takes everything with it is slow to come back, and so rare.
WEIGHTS = {
    Part.BUSY_WORKER: 8,
    Part.TOOL: 8,
    Part.GATEWAY: 5,
    Part.DATABASE: 3,
    Part.WEB: 2,
    Part.WATCH: 1,
    Part.MAIN: 1,
    Part.SENTINEL: 1,
    Part.PUSHER: 1,
    Part.MONITOR: 1,
    Part.SHOP: 2,
    Part.MODEL: 1,
}


@dataclass(kw_only=True)
class Chaos:
    """Starts runs, decides what they ask, and kills meanwhile."""

    fleet: Fleet
    dice: random.Random
    runs: dict[int, str] = field(default_factory=dict)  # run → its batch
    rejected: set[str] = field(default_factory=set)  # orders
    said: list[str] = field(default_factory=list)

    def start_run(self) -> None:
        number = len(self.runs)
        batch = self.fleet.surely(lambda: self.fleet.shop().create_batch(self.dice.randrange(10_000)))["batch"]
        body = {
            "agent": "refund-desk",
            "goal": "Decide the refund requests of this batch.",
            "inputs": {"batch": batch},
            # A call whose gateway was killed is booked as reserved: never as nothing.
            "budget": {"usd": "100.00", "steps": 2000},
        }
        # The key makes it one run, however often nobody answers.
        run = self.fleet.api_until("POST", "/runs", body, role="operator", key=f"chaos-{number}").body
        self.runs[run["id"]] = batch

    def decide(self) -> None:
        """Answer every card as it comes; of the refunds that ask, one in five is rejected."""
        cards = self.fleet.api("GET", "/approvals?state=pending")
        for card in cards.body["items"] if cards is not None and cards.status == 200 else []:
            answer = self.fleet.api("POST", f"/approvals/{card['id']}/decision", self._verdict(card))
            self.said.append(f"{card['kind']} {card['title']}: {answer.status if answer else 'nobody answered'}")

    def _verdict(self, card: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {"version": card["version"]}
        match card["kind"]:
            case "approval":
                order = str(card["arguments"]["order"])
                # By the order, so that a decision whose answer was lost is the same when it is made again.
                if int(order) % 5 == 0:
                    self.rejected.add(order)
                    return said | {"verdict": "reject", "comment": "not this one"}
                return said | {"verdict": "approve"}
            case "failure":
                return said | {"verdict": "retry"}
            case "question":
                return said | {"verdict": "respond", "answer": "Try again."}
            case "fact":
                return said | {"verdict": "confirm"}
            case _:
                raise AssertionError(f"nobody should have to decide this: {card}")

    def kill_one(self) -> None:
        parts, weights = [*WEIGHTS], [*WEIGHTS.values()]
        part = self.dice.choices(parts, weights)[0]
        if not self.fleet.kill_when_there(part, within_s=3.0, dice=self.dice):
            self.fleet.kill_when_there(Part.IDLE_WORKER, within_s=5.0, dice=self.dice)

    @property
    def killed(self) -> int:
        return sum(self.fleet.kills.values())

    def open_runs(self) -> list[tuple[Any, ...]]:
        """What is not over yet; unknown while the database is away."""
        rows = self.fleet.look("SELECT id, ended_at IS NULL, state, waiting_for, why FROM runs_run")
        return [row for row in rows if row[1]] if len(rows) >= len(self.runs) else [("unknown",)]

    def go_on(self) -> None:
        """Kill, decide and start until enough was killed and every run is over."""
        everything_at = {KILLS // 3, 2 * KILLS // 3}
        began = time.monotonic()
        kill_at = decide_at = began
        while True:
            if time.monotonic() >= decide_at:
                self.decide()
                decide_at = time.monotonic() + 1.0
            still_open = self.open_runs()
            if self.killed >= KILLS and not still_open:
                return
            assert time.monotonic() - began < GIVE_UP_S, f"not at rest: {still_open}\n{self.fleet.tell()}"
            if self.killed < KILLS and time.monotonic() >= kill_at:
                if len(still_open) < min(RUNS, 4):
                    self.start_run()  # never kill what does nothing
                if self.killed in everything_at:
                    everything_at.discard(self.killed)
                    self.fleet.kill(Part.EVERYTHING)
                else:
                    self.kill_one()
                kill_at = time.monotonic() + self.dice.uniform(0.3, 3.0)
            time.sleep(0.2)


def test_ten_runs_reach_their_end_while_everything_is_killed(
    scratch_folder: Path, django_db_blocker: DjangoDbBlocker, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(scratch_folder)
    chaos = Chaos(fleet=fleet, dice=random.Random(SEED))
    try:
        make_shop_difficult(fleet.shop())
        for _ in range(RUNS):
            chaos.start_run()
        chaos.go_on()
        with django_db_blocker.unblock(), looking_at(fleet.database_url):
            violations = find_violations(fleet.shop()) + check_outcomes(chaos)
            doubts = list_doubts()
        with capsys.disabled():
            told = ", ".join(f"{part} {times}" for part, times in sorted(fleet.kills.items()))
            effects = len(fleet.shop().effects(kind="refund"))
            print(f"\n[chaos] seed {SEED}: {len(chaos.runs)} runs, {chaos.killed} kills ({told}), {effects} refunds")
        assert not violations, "\n".join([f"seed {SEED}", *violations, *doubts, *chaos.said, fleet.tell()])
        assert chaos.killed >= KILLS
        assert len(chaos.runs) >= RUNS
    except BaseException:
        with capsys.disabled():
            print(f"\n[chaos] seed {SEED} failed after {fleet.kills}")
        raise
    finally:
        fleet.close()
    assert not fleet.left()


def make_shop_difficult(shop: ShopClient) -> None:
    """Widen the windows in which a death hurts, and let some answers never come."""
    refund = {"method": "POST", "path_regex": "/refunds$"}
    shop.add_fault("slow_after", match=refund, seconds=0.8, chance=0.6)
    shop.add_fault("slow", match=refund, seconds=0.4, chance=0.4)
    shop.add_fault("act_and_drop", match=refund, chance=0.1)
    shop.add_fault("slow", match={"method": "GET"}, seconds=0.3, chance=0.4)


def check_outcomes(chaos: Chaos) -> list[str]:
    """Every run succeeded and was verified; what was rejected was not paid, and all else that was asked, once."""
    wrong = [
        f"run {run} is {state}, {verified}: {reason}"
        for run, state, verified, reason in sql.fetch_all("SELECT id, state, verified, end_reason FROM runs_run")
        if (state, verified) != ("succeeded", "verified")
    ]
    known = {number for (number,) in sql.fetch_all("SELECT id FROM runs_run")}
    wrong += [f"there are {len(known)} runs, and {len(chaos.runs)} were started"] if known != set(chaos.runs) else []
    shop = chaos.fleet.shop()
    for batch in chaos.runs.values():
        paid = {effect["order"] for effect in shop.effects(batch=batch, kind="refund")}
        wrong += [f"order {order} was rejected and refunded" for order in paid & chaos.rejected]
        for request in shop.list_requests(batch)["requests"]:
            outcome = request["outcome"] or "nothing"
            if outcome.startswith("refunded") != (request["order"] in paid):
                wrong.append(f"request {request['request']} says {outcome!r}; paid: {request['order'] in paid}")
    return wrong
