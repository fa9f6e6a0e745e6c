"""From the click on approve to the effect's request at the receiver, beside active runs."""

import random
import time

from console.bench.agents import payer, walker
from console.bench.house import Stage, wait_for
from console.bench.readings import percentile, to_ms
from console.bench.receiver import Receiver
from console.bench.sizes import Sizes
from console.bench.work import Decider, Starter, wait_until_ended, warm_up
from runs.states import Verdict

ACTIVE = 50
_AT_ONCE = 25


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    count = sizes.runs or 500
    active = min(ACTIVE, count)
    starter, walkers, decider = Starter(payer.name), Starter(walker.name), Decider()
    stage.start_cluster()
    warm_up(walkers, stage.workers)
    waits: list[float] = []
    with Receiver() as receiver:
        # They wait for a model's share of the time and step in between, as active runs do.
        others = [walkers.start(steps=1, at_once=1) for _ in range(active)]
        while len(waits) < count:
            runs = [starter.start(port=receiver.port) for _ in range(min(_AT_ONCE, count - len(waits)))]
            for run, card in [(run, decider.wait_for_card(run)) for run in runs]:
                others.append(walkers.start(steps=1, at_once=1))
                time.sleep(random.uniform(0.0, 0.05))  # noqa: S311 - not in step with any poll
                clicked_at = time.time()
                decider.decide(card, Verdict.APPROVE)
                arrival = wait_for("The effect", lambda run=run: receiver.find(run), within_s=60.0, every_s=0.002)  # type: ignore[misc]
                waits.append(arrival.at - clicked_at)
            wait_until_ended(runs, within_s=120.0)
        effects, requests = receiver.effects, len(receiver.arrivals)
    return {
        "p50_ms": to_ms(percentile(waits, 50)),
        "p99_ms": to_ms(percentile(waits, 99)),
        "max_ms": to_ms(max(waits)),
        "effects": effects,
        "expected": count,
        "requests": requests,
        "settings": stage.describe() | {"clicks": count, "active_runs": active, "hold_s": 0},
    }
