"""The crash matrix: class of effect × point of the protocol × death × receiver, counted at the receiver.

A round is one death and a handful of cells. Each cell is a run whose call waits for a person; its fail point is armed,
everybody says yes at once, and whoever comes to his point stands still there (SIGSTOP of himself). Then the death comes,
and who still lives goes on. Everything is seen from outside: the API, plain SQL, /proc, and the shop.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import product

from console.soak.fleet import Fleet
from console.soak.parts import Part, Victim
from tests.deaths.agents import LAG_S, TIMEOUT_S
from tests.waiting import wait_until


class Effect(StrEnum):
    READ = "read"
    INTERNAL = "internal"
    IDEMPOTENT = "idempotent"
    KEYED = "keyed"
    KEYED_CHECKABLE = "keyed, checkable"
    CHECKABLE = "checkable"
    ONCE = "once"


TOOLS = {
    Effect.READ: "look_at",
    Effect.INTERNAL: "record_fact",
    Effect.IDEMPOTENT: "close",
    Effect.KEYED: "pay_keyed",
    Effect.KEYED_CHECKABLE: "pay_keyed_checkable",
    Effect.CHECKABLE: "pay_checkable",
    Effect.ONCE: "pay_once",
}


class Point(StrEnum):
    """Where a call is when the death comes. Of an internal one: done, and its transaction not yet ended."""

    TAKEN = "taken"  # these two and `settled`: in the worker; all others: in its tool process
    RECEIVED = "received"
    LOOKED = "looked"
    PERFORMED = "performed"
    REPORTED = "reported"
    RETURNED = "returned"
    SETTLED = "settled"


IN_WORKER = (Point.TAKEN, Point.RETURNED, Point.SETTLED)
EXECUTED = "executed"


class Death(StrEnum):
    """Who dies. Where it names a `Part` it is the fleet's, and meets all cells of the round at once."""

    NOBODY = "nobody"
    WORKER = "its worker"
    TOOL = "its tool process"
    IDLE_WORKER = Part.IDLE_WORKER
    PUSHER = Part.PUSHER
    MONITOR = Part.MONITOR
    SENTINEL = Part.SENTINEL
    MAIN = Part.MAIN
    WATCH = Part.WATCH
    GATEWAY = Part.GATEWAY
    DATABASE = Part.DATABASE
    EVERYTHING = Part.EVERYTHING
    WORKER_FROZEN = "its worker, frozen past its lease, wakes"
    TOOL_FROZEN = "its tool process, frozen until its step went on elsewhere, wakes"


OWN = (Death.NOBODY, Death.WORKER, Death.TOOL, Death.WORKER_FROZEN, Death.TOOL_FROZEN)


class Receiver(StrEnum):
    HONEST = "answers"
    DROPS = "acts and drops the answer"
    LATE = "acts and answers after the deadline"
    LAGS = "acts, drops the answer, and shows it late"


@dataclass(kw_only=True)
class Cell:
    effect: Effect
    point: Point
    death: Death
    receiver: Receiver
    # What became of it.
    run: int = 0
    order: str = ""
    hit: bool = False  # it stood at its point when the death came
    doubted: bool = False
    effects: int = 0
    wrong: list[str] = field(default_factory=list)

    def anew(self) -> "Cell":
        return Cell(effect=self.effect, point=self.point, death=self.death, receiver=self.receiver)

    @property
    def can_be(self) -> bool:
        """Whether it comes to its point: whom its own timer kills while it waits for the answer does not return from it.

        Where it is tried again, or looked up, the second one comes.
        """
        waits_in_vain = self.effect is Effect.ONCE and self.receiver is Receiver.LATE
        return not (waits_in_vain and self.point in (Point.PERFORMED, Point.REPORTED))

    @property
    def tool(self) -> str:
        return TOOLS[self.effect]

    @property
    def waits_at(self) -> str:
        return EXECUTED if self.effect is Effect.INTERNAL else self.point

    @property
    def in_worker(self) -> bool:
        return self.effect is Effect.INTERNAL or self.point in IN_WORKER

    def __str__(self) -> str:
        where = f"{self.effect} at {self.waits_at}, {self.death}; the receiver {self.receiver}"
        return f"run {self.run} ({where})"


def choose_pairs(death: Death) -> list[Cell]:
    """One round: over all deaths every effect meets every point, and each of both every receiver."""
    turn = list(Death).index(death)
    points, receivers = list(Point), list(Receiver)
    return [
        Cell(
            effect=effect,
            point=points[(place + turn) % len(points)],
            death=death,
            receiver=receivers[(3 * place + turn) % len(receivers)],
        )
        for place, effect in enumerate(Effect)
    ]


def choose_all(death: Death) -> list[Cell]:
    """Every effect at every point; where nobody dies, with every receiver, else with one that answers."""
    receivers = list(Receiver) if death is Death.NOBODY else [Receiver.HONEST]
    cells = [
        Cell(effect=effect, point=point, death=death, receiver=receiver)
        for receiver, point, effect in product(receivers, Point, Effect)
        if effect is not Effect.INTERNAL or point is Point.TAKEN
    ]
    return [cell for cell in cells if cell.can_be]


@dataclass(frozen=True, kw_only=True)
class Hands:
    """Who has a run in hand."""

    worker: Victim
    tool: Victim | None


_HANDS = """
    SELECT w.pid, w.start_ticks, t.pid, t.start_ticks FROM runs_run r JOIN runs_process w ON w.id = r.holder
    LEFT JOIN LATERAL (SELECT pid, start_ticks FROM runs_process
        WHERE kind = 'tool' AND parent = w.id AND ended_at IS NULL ORDER BY started_at DESC LIMIT 1) t ON true
    WHERE r.id = %(run)s
"""
_STATES = """
    SELECT r.id, r.state, r.ended_at IS NOT NULL AND r.drained_at IS NOT NULL, r.why,
        (SELECT array_agg(a.kind::text) FROM runs_approval a WHERE a.run_id = r.id AND a.state = 'pending')
    FROM runs_run r WHERE r.id = ANY(%(runs)s)
"""
_UNKNOWN = """
    SELECT EXISTS (SELECT FROM runs_attempt a JOIN runs_step s ON s.id = a.step_id
    WHERE a.run_id = %(run)s AND s.tool = %(tool)s AND s.kind = 'act' AND a.began_at IS NOT NULL
      AND a.outcome IN ('unknown', 'lost', 'dead', 'proved', 'disproved'))
"""
LEASE_S = 2.0  # longer than a busy machine needs from take to look
TOGETHER_S = 1.4  # well within it: after that, what is taken and has not begun is over
REST_S = 120.0


@dataclass(kw_only=True)
class Round:
    """Cells that meet one death at once."""

    fleet: Fleet
    cells: Sequence[Cell]
    frozen: list[tuple[Cell, list[Victim]]] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)

    @property
    def death(self) -> Death:
        return self.cells[0].death

    def play(self) -> None:
        with self._timed("stage"):
            self._start()
            self._arm()
        try:
            with self._timed("strike"):
                self._strike()
            with self._timed("rest"):
                self._wait_for_rest()
        finally:
            self._thaw_all()
        with self._timed("judge"):
            for cell in self.cells:
                self._judge(cell)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.took_s[name] = time.monotonic() - began

    # Setting the stage

    def _start(self) -> None:
        """A run per cell, up to the card that asks for its call."""
        shop = self.fleet.shop()
        batch = shop.create_batch(7, size=len(self.cells))
        with ThreadPoolExecutor(len(self.cells)) as pool:
            list(pool.map(self._start_one, self.cells, batch["orders"], batch["requests"]))
        wait_until(lambda: all(self._cards(cell) for cell in self.cells), what="all cards", timeout_s=REST_S)

    def _start_one(self, cell: Cell, order: str, request: str) -> None:
        shop = self.fleet.shop()
        shop.change_order(order, paid="50.00", refundable=True)
        cell.order = order
        reads = {"tool": "read_order", "arguments": {"order": order}}
        records = {"tool": "record_fact", "arguments": {"name": f"order.{order}", "from_step": 2}}
        looks = {"tool": "look_at", "arguments": {"order": order}}
        pays = {"tool": cell.tool, "arguments": {"order": order, "amount": "20.00"}}
        script = {
            Effect.READ: [[looks]],
            Effect.INTERNAL: [[looks], [records]],
            Effect.IDEMPOTENT: [[{"tool": "close", "arguments": {"request": request, "order": order}}]],
        }.get(cell.effect, [[reads, records, pays]])
        body = {"agent": "doomed", "goal": str(cell.waits_at), "inputs": {"script": script}}
        started = self.fleet.api_until("POST", "/runs", body, role="operator", key=f"cell-{order}")
        assert started.status in (200, 201), started
        cell.run = started.body["id"]
        post, get = {"method": "POST", "order": order}, {"method": "GET", "order": order}
        match cell.receiver:
            case Receiver.DROPS:
                shop.add_fault("act_and_drop", match=post, times=1)
            case Receiver.LATE:
                shop.add_fault("slow_after", match=post, times=1, seconds=TIMEOUT_S + 0.6)
            case Receiver.LAGS:
                shop.add_fault("act_and_drop", match=post, times=1)
                shop.add_fault("late_reads", match=get, seconds=LAG_S)

    def _arm(self) -> None:
        for cell in self.cells:
            (self.fleet.folder / f"{cell.waits_at}.{cell.run}.{cell.tool}").touch()
        with ThreadPoolExecutor(len(self.cells)) as pool:
            list(pool.map(self._approve, self.cells))

    def _approve(self, cell: Cell) -> None:
        ((card, version, _),) = self._cards(cell)
        said = self.fleet.api("POST", f"/approvals/{card}/decision", {"version": version, "verdict": "approve"})
        assert said is not None
        assert said.status == 200, said

    def _cards(self, cell: Cell) -> list[tuple[int, int, str]]:
        return [
            (int(card), int(version), str(kind))
            for card, version, kind in self.fleet.look(
                "SELECT id, version, kind FROM runs_approval WHERE run_id = %(run)s AND state = 'pending'",
                {"run": cell.run},
            )
        ]

    # The death

    def _strike(self) -> None:
        """Wait until each stands at his point. What is the cell's own comes at once, the others when all are there."""
        there: dict[int, Hands] = {}
        until = time.monotonic() + REST_S
        first: float | None = None
        while len(there) < len(self.cells):
            over = self._find_resting(but="approval")
            for cell in self.cells:
                if cell.run in there or (self._armed(cell) and cell.run not in over):
                    continue
                hands = self._look_at_hands(cell)
                if hands is None:  # it is over there already, or never comes: killed by its own timer
                    there[cell.run] = Hands(worker=Victim(pid=0, start_ticks=0), tool=None)
                    continue
                first = first or time.monotonic()
                there[cell.run] = hands
                if cell.death in OWN:
                    self._strike_one(cell, hands)
            if first is not None and self.death not in OWN and time.monotonic() - first > TOGETHER_S:
                break
            assert time.monotonic() < until, self._tell("did not come to their points")
            time.sleep(0.005)
        if self.death in OWN:
            return
        for cell in self.cells:
            hands = there.get(cell.run)
            actor = None if hands is None else hands.worker if cell.in_worker else hands.tool
            cell.hit = actor is not None and actor.frozen
        assert self.fleet.kill_when_there(Part(self.death), within_s=5.0), f"there is no {self.death}"
        for hands in there.values():
            for victim in (hands.tool, hands.worker):
                if victim is not None:
                    victim.thaw()

    def _armed(self, cell: Cell) -> bool:
        return (self.fleet.folder / f"{cell.waits_at}.{cell.run}.{cell.tool}").exists()

    def _look_at_hands(self, cell: Cell) -> Hands | None:
        for worker, since, tool, tool_since in self.fleet.look(_HANDS, {"run": cell.run}):
            hands = Hands(
                worker=Victim(pid=worker, start_ticks=since),
                tool=None if tool is None else Victim(pid=tool, start_ticks=tool_since),
            )
            actor = hands.worker if cell.in_worker else hands.tool
            until = time.monotonic() + 0.3
            while actor is not None and actor.alive and time.monotonic() < until:
                if actor.frozen:
                    return hands
        return None

    def _strike_one(self, cell: Cell, hands: Hands) -> None:
        actor = hands.worker if cell.in_worker else hands.tool
        assert actor is not None
        cell.hit = actor.frozen
        match cell.death:
            case Death.WORKER:
                hands.worker.send(9)
            case Death.TOOL:
                if hands.tool is not None:
                    hands.tool.send(9)
                actor.thaw()
            case Death.WORKER_FROZEN:
                hands.worker.freeze()
                if actor is not hands.worker:
                    actor.thaw()
                self.frozen.append((cell, [hands.worker]))
            case Death.TOOL_FROZEN:
                asleep = [hands.worker] if hands.tool is None else [hands.tool, hands.worker]
                for victim in asleep:
                    victim.freeze()
                self.frozen.append((cell, asleep))
            case _:
                actor.thaw()

    # What becomes of it

    def _wait_for_rest(self) -> None:
        """Until every run has ended or asks a person; then whoever is frozen wakes, and what he says late is heard."""
        self._wait_until_resting()
        if self.frozen:
            self._thaw_all()
            self._wait_until_resting()

    def _wait_until_resting(self) -> None:
        until = time.monotonic() + REST_S
        while len(self._find_resting()) < len(self.cells) or any(self._is_in_flight(cell) for cell in self.cells):
            for cell in self.cells:  # who came to his point after the death
                if self.death not in OWN and not self._armed(cell) and (late := self._look_at_hands(cell)):
                    for victim in (late.tool, late.worker):
                        if victim is not None:
                            victim.thaw()
            assert time.monotonic() < until, self._tell("are not at rest")
            time.sleep(0.05)

    def _find_resting(self, *, but: str = "") -> set[int]:
        """The runs that have ended, or ask a person (not `but` by cards of this kind)."""
        rows = self.fleet.look(_STATES, {"runs": [cell.run for cell in self.cells]})
        return {run for run, _, over, _, cards in rows if over or {*(cards or [])} - {but}}

    def _thaw_all(self) -> None:
        """Wake who is frozen, and wait until each has done what he had in hand."""
        woken = [victims for _, victims in self.frozen]
        self.frozen.clear()
        for victim in (victim for victims in woken for victim in victims):
            victim.thaw()
        for *_, worker in woken:
            wait_until(partial(self._has_finished, worker), what="who was frozen has finished", timeout_s=60)

    def _has_finished(self, worker: Victim) -> bool:
        return not worker.alive or worker in self.fleet.find_resting_workers()

    def _is_in_flight(self, cell: Cell) -> bool:
        return bool(
            self.fleet.look("SELECT 1 FROM runs_attempt WHERE run_id = %(run)s AND outcome = 'open'", {"run": cell.run})
        )

    def _judge(self, cell: Cell) -> None:
        """Once, or in doubt: by the class of the effect, and by whether a try of it may have acted unheard."""
        cards = self._cards(cell)
        ((unknown,),) = self.fleet.look(_UNKNOWN, {"run": cell.run, "tool": cell.tool})
        may_doubt = cell.effect is Effect.ONCE and unknown
        cell.doubted = [kind for _, _, kind in cards] == ["verdict"]
        counted = self._count(cell)
        if cards and not cell.doubted:
            cell.wrong.append(f"asks for {[kind for _, _, kind in cards]}")
        if cell.doubted != may_doubt:
            cell.wrong.append("is in doubt" if cell.doubted else "may have acted, and is not in doubt")
        if cell.doubted and counted in (0, 1):
            self._settle_doubt(cell, "happened" if counted else "did_not_happen")
        cell.effects = self._count(cell)
        if cell.effects != 1:
            cell.wrong.append(f"happened {cell.effects} times")
        for _, state, _, why, _ in self.fleet.look(_STATES, {"runs": [cell.run]}):
            if state != "succeeded":
                cell.wrong.append(f"is {state}: {why}")

    def _settle_doubt(self, cell: Cell, verdict: str) -> None:
        """A person who looked at the receiver says what happened, and a second one is refused."""
        ((card, version, _),) = self._cards(cell)
        said = {"version": version, "verdict": verdict, "result": {"seen": verdict == "happened"}}
        self.fleet.api_until("POST", f"/approvals/{card}/decision", said)
        second = self.fleet.api("POST", f"/approvals/{card}/decision", said | {"verdict": "stop"})
        if second is None or second.status != 409:
            cell.wrong.append(f"took a second verdict: {second}")
        wait_until(lambda: cell.run in self._find_resting(), what=f"{cell} goes on", timeout_s=REST_S)
        if self._cards(cell):  # done again, and the receiver dropped that answer too
            self._settle_doubt(cell, "happened" if self._count(cell) else "did_not_happen")

    def _count(self, cell: Cell) -> int:
        match cell.effect:
            case Effect.READ:
                count = "SELECT count(*) FROM runs_step WHERE run_id = %(run)s AND tool = 'look_at' AND state = 'done'"
                return int(self.fleet.look(count, {"run": cell.run})[0][0])
            case Effect.INTERNAL:
                count = "SELECT count(*) FROM runs_journalentry WHERE run_id = %(run)s AND kind = 'fact.recorded'"
                return int(self.fleet.look(count, {"run": cell.run})[0][0])
            case Effect.IDEMPOTENT:
                return len(self.fleet.shop().effects(order=cell.order, kind="close"))
            case _:
                return len(self.fleet.shop().effects(order=cell.order, kind="refund"))

    def _tell(self, what: str) -> str:
        states = {row[0]: row[1:] for row in self.fleet.look(_STATES, {"runs": [cell.run for cell in self.cells]})}
        told = [f"{cell}: {states.get(cell.run)}" for cell in self.cells]
        return "\n".join([f"They {what}:", *told, self.fleet.tell()])


def split(cells: Sequence[Cell], size: int) -> Iterator[list[Cell]]:
    for start in range(0, len(cells), size):
        yield list(cells[start : start + size])
