"""Keep runs of the refund desk going while everything below them is killed at random, decide what they ask, and judge."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from console.soak.fleet import Fleet
from console.soak.parts import Part
from console.soak.waiting import Overdue
from runs import sql
from runs.examples.shop.client import ShopClient

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
# Cards that say what cannot be settled without somebody who knows: they explain why a run is not over.
EXPLAINING = ("verdict",)


@dataclass(kw_only=True)
class Chaos:
    """Starts runs, decides what they ask, and kills meanwhile.

    pause_s: from one strike to the next, as (least, most). at_a_blow: how many parts one strike kills at most.
    everything_every: after so many kills one takes all at once. batch_size: of how many requests a run decides.
    """

    fleet: Fleet
    dice: random.Random
    pause_s: tuple[float, float] = (0.3, 3.0)
    at_a_blow: int = 3
    everything_every: int = 40
    at_once: int = 4
    batch_size: int | None = None
    runs: dict[int, str] = field(default_factory=dict)  # run → its batch
    rejected: set[str] = field(default_factory=set)  # orders
    said: list[str] = field(default_factory=list)
    _everything_at: int = 0

    def __post_init__(self) -> None:
        self._everything_at = self.everything_every - 1

    def start_run(self) -> None:
        number = len(self.runs)
        size = {} if self.batch_size is None else {"size": self.batch_size}
        batch = self.fleet.surely(lambda: self.fleet.shop().create_batch(self.dice.randrange(10_000), **size))["batch"]
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

    def go_on(self, *, enough: Callable[[], bool], give_up_s: float) -> None:
        """Kill, decide and start until it is enough; then decide until every run is over, or says why it cannot be.

        Raises:
            Overdue: some are not at rest so long after the last kill.
        """
        over_at = 0.0
        kill_at = decide_at = time.monotonic()
        while True:
            if time.monotonic() >= decide_at:
                self._decide()
                decide_at = time.monotonic() + 1.0
            still_open = self.open_runs()
            if enough():
                over_at = over_at or time.monotonic() + give_up_s
                if not still_open:
                    return
                if time.monotonic() > over_at:
                    raise Overdue(f"not at rest {give_up_s:g} s after the last kill: {still_open}")
            elif time.monotonic() >= kill_at:
                if len(still_open) < self.at_once:
                    self.start_run()  # never kill what does nothing
                self._strike()
                kill_at = time.monotonic() + self.dice.uniform(*self.pause_s)
            time.sleep(0.1)

    @property
    def killed(self) -> int:
        return sum(self.fleet.kills.values())

    def open_runs(self) -> list[tuple[Any, ...]]:
        """What is neither over nor waits for somebody who knows; unknown while the database is away."""
        rows = self.fleet.look(
            "SELECT r.id, r.ended_at IS NULL OR r.drained_at IS NULL, r.state, r.waiting_for, r.why,"
            " EXISTS (SELECT FROM runs_approval a WHERE a.run_id = r.id AND a.state = 'pending'"
            "  AND a.kind = ANY(%(kinds)s)) FROM runs_run r",
            {"kinds": [*EXPLAINING]},
        )
        if len(rows) < max(len(self.runs), 1):
            return [("unknown",)]
        return [row for row in rows if row[1] and not (row[2] == "waiting" and row[5])]

    def _decide(self) -> None:
        """Answer every card as it comes; of the refunds that ask, one in five is rejected."""
        cards = self.fleet.api("GET", "/approvals?state=pending")
        for card in cards.body["items"] if cards is not None and cards.status == 200 else []:
            if card["kind"] in EXPLAINING:
                continue
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

    def _strike(self) -> None:
        """Kill one part, or several one right after the other, or everything at once."""
        if self.killed >= self._everything_at:
            self._everything_at += self.everything_every
            self.fleet.kill(Part.EVERYTHING)
            return
        for part in self.dice.choices([*WEIGHTS], [*WEIGHTS.values()], k=self.dice.randint(1, self.at_a_blow)):
            if not self.fleet.kill_when_there(part, within_s=1.0, dice=self.dice):
                self.fleet.kill_when_there(Part.IDLE_WORKER, within_s=5.0, dice=self.dice)

    def find_wrong_outcomes(self) -> list[str]:
        """Every run succeeded and was verified, or waits for who knows; what was rejected was not paid, and what a
        request says is what was paid."""
        explained = {
            run
            for (run,) in sql.fetch_all(
                "SELECT run_id FROM runs_approval WHERE state = 'pending' AND kind = ANY(%s)", [[*EXPLAINING]]
            )
        }
        rows = sql.fetch_all("SELECT id, state, verified, end_reason FROM runs_run")
        wrong = [
            f"run {run} is {state}, {verified}: {reason}"
            for run, state, verified, reason in rows
            if run not in explained and (state, verified) != ("succeeded", "verified")
        ]
        if {row[0] for row in rows} != set(self.runs):
            wrong.append(f"there are {len(rows)} runs, and {len(self.runs)} were started")
        shop = self.fleet.shop()
        for run, batch in self.runs.items():
            paid = {effect["order"] for effect in shop.effects(batch=batch, kind="refund")}
            wrong += [f"order {order} was rejected and refunded" for order in paid & self.rejected]
            for request in shop.list_requests(batch)["requests"]:
                outcome = request["outcome"] or "nothing"
                if run not in explained and outcome.startswith("refunded") != (request["order"] in paid):
                    wrong.append(f"request {request['request']} says {outcome!r}; paid: {request['order'] in paid}")
        return wrong


def make_shop_difficult(shop: ShopClient) -> None:
    """Widen the windows in which a death hurts, and let some answers never come."""
    refund = {"method": "POST", "path_regex": "/refunds$"}
    shop.add_fault("slow_after", match=refund, seconds=0.8, chance=0.6)
    shop.add_fault("slow", match=refund, seconds=0.4, chance=0.4)
    shop.add_fault("act_and_drop", match=refund, chance=0.1)
    shop.add_fault("slow", match={"method": "GET"}, seconds=0.3, chance=0.4)
