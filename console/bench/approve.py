"""From the click on approve to the effect's request at the receiver, beside active runs, and from its last look to that."""

import http.client
import json
import random
import time

from django.db import connection

from console.bench.agents import payer, stroller, walker
from console.bench.house import CannotMeasure, Stage, wait_for
from console.bench.readings import describe_ms, percentile, to_ms
from console.bench.receiver import Receiver
from console.bench.sizes import Sizes
from console.bench.work import Decider, Starter, wait_until_ended, warm_up
from runs import operations
from runs.access import Role
from runs.journal import RUNTIME
from runs.management.command import find_user

ACTIVE = 50
# Each of the active runs looks at something about so often.
EVERY_S = 10.0
_AT_ONCE = 25

# The moment of the last look, as its own statement wrote it: its commit and the connection come after.
_LOOKED = """
    SELECT extract(epoch FROM a.began_at)::float8 FROM runs_attempt a JOIN runs_step s ON s.id = a.step_id
    WHERE a.run_id = %s AND s.tool = 'pay'
"""


class Clicker:
    """Approves over HTTP, as a program does, or the form of a page."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._token = operations.create_token("bench", Role.APPROVER, by=RUNTIME)

    def approve(self, card: int) -> None:
        head = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        body = json.dumps({"version": 1, "verdict": "approve"})
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30.0)
        try:
            line.request("POST", f"/api/v1/approvals/{card}/decision", body=body, headers=head)
            response = line.getresponse()
            told = response.read()
        finally:
            line.close()
        if response.status != 200:
            raise CannotMeasure(f"The approval was answered with {response.status}: {told[:300]!r}")


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    count = sizes.runs or 500
    active = min(ACTIVE, count)
    starter, strollers, decider = Starter(payer.name), Starter(stroller.name), Decider()
    stage.start_cluster()
    clicker = Clicker(stage.start_web())
    warm_up(Starter(walker.name), stage.workers)
    waits: list[float] = []
    windows: list[float] = []
    with Receiver() as receiver:
        others = [
            strollers.start(every_s=EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311 - not all at once
            for _ in range(active)
        ]
        while len(waits) < count:
            runs = [starter.start(port=receiver.port) for _ in range(min(_AT_ONCE, count - len(waits)))]
            for run, card in [(run, decider.wait_for_card(run)) for run in runs]:
                time.sleep(random.uniform(0.0, 0.1))  # noqa: S311 - not in step with any poll
                clicked_at = time.time()
                clicker.approve(card)
                arrival = wait_for("The effect", lambda run=run: receiver.find(run), within_s=60.0, every_s=0.002)  # type: ignore[misc]
                waits.append(arrival.at - clicked_at)
                windows.append(arrival.at - _read_look(run))
            wait_until_ended(runs, within_s=120.0)
        effects, requests = receiver.effects, len(receiver.arrivals)
    for run in others:
        operations.stop_run(run, reason="the benchmark is over", by=find_user(None))
    return {
        "p50_ms": to_ms(percentile(waits, 50)),
        "p99_ms": to_ms(percentile(waits, 99)),
        "max_ms": to_ms(max(waits)),
        "last_look_window_p99_ms": to_ms(percentile(windows, 99)),
        "effects": effects,
        "expected": count,
        "requests": requests,
        "distributions_ms": {"click_to_request": describe_ms(waits), "last_look_window": describe_ms(windows)},
        "settings": stage.describe() | {"clicks": count, "active_runs": active, "every_s": EVERY_S, "hold_s": 0},
    }


def _read_look(run: int) -> float:
    with connection.cursor() as cursor:
        cursor.execute(_LOOKED, [run])
        (looked_at,) = cursor.fetchone() or (0.0,)
    return float(looked_at)
