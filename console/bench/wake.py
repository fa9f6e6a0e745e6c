"""W5: from the answer that a run waits for to its next step, on idle workers."""

import random
import time

from console.bench.agents import asker
from console.bench.house import Stage, wait_for
from console.bench.marks import Marks
from console.bench.readings import percentile, to_ms
from console.bench.sizes import Sizes
from console.bench.work import Decider, Starter, wait_until_ended
from runs.states import Verdict


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    count = sizes.runs or 100
    marks, starter, decider = Marks(), Starter(asker.name), Decider()
    stage.start_cluster()
    cards = [(run, decider.wait_for_card(run)) for run in [starter.start() for _ in range(count)]]
    waits = []
    for run, card in cards:
        time.sleep(random.uniform(0.02, 0.12))  # noqa: S311 - not in step with any poll
        asked_at = time.time()
        decider.decide(card, Verdict.RESPOND, answer="yes")
        began = wait_for("The next step", lambda run=run: marks.find("began", run), within_s=30.0, every_s=0.002)  # type: ignore[misc]
        waits.append(began.at - asked_at)
        wait_until_ended([run], within_s=30.0)
    return {
        "p50_ms": to_ms(percentile(waits, 50)),
        "p99_ms": to_ms(percentile(waits, 99)),
        "settings": stage.describe()
        | {"wakes": count, "woken_by": "a person's answer; the agent decides, then its step"},
    }
