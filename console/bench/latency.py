"""W2 and W3: the gap between the steps of one run, and from the start of a run to its first step on idle workers."""

import random
import time
from itertools import pairwise

from console.bench.agents import walker
from console.bench.house import CannotMeasure, Stage, wait_for
from console.bench.limit import measure_limit
from console.bench.marks import Marks
from console.bench.readings import percentile, to_ms
from console.bench.sizes import Sizes
from console.bench.work import Starter, wait_until_ended, warm_up


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    runs, steps = sizes.runs or 100, sizes.steps or 300
    at_once = sizes.at_once or steps
    limit = measure_limit(stage, clients=1, seconds=sizes.pgbench_s)
    marks, starter = Marks(), Starter(walker.name)
    stage.start_cluster()
    warm_up(starter, stage.workers)
    run = starter.start(steps=steps, at_once=at_once)
    wait_until_ended([run], within_s=30.0 + steps * 0.5)
    began = [mark.at for mark in marks.read() if mark.run == run]
    if len(began) != steps:
        raise CannotMeasure(f"{len(began)} of {steps} steps began")
    gaps = [later - earlier for earlier, later in pairwise(began)]
    waits = [_start_one(starter, marks) for _ in range(runs)]
    stage.stop()
    return {
        "steps_run": len(began),
        "p50_ms": to_ms(percentile(gaps, 50)),
        "p99_ms": to_ms(percentile(gaps, 99)),
        "start_p50_ms": to_ms(percentile(waits, 50)),
        "start_p99_ms": to_ms(percentile(waits, 99)),
        "pgbench_ms": limit.latency_ms,
        "p50_to_pgbench": round(percentile(gaps, 50) * 1e3 / limit.latency_ms, 1),
        "settings": stage.describe()
        | {"steps": steps, "calls_in_one_reply": at_once, "starts": runs, "pgbench": f"1 client, {sizes.pgbench_s} s"},
    }


def _start_one(starter: Starter, marks: Marks) -> float:
    """Start a run of one step while the workers are idle; seconds until that step began."""
    time.sleep(random.uniform(0.02, 0.12))  # noqa: S311 - not in step with any poll
    asked_at = time.time()
    run = starter.start(steps=1, at_once=1)
    began = wait_for("The first step", lambda: marks.find("began", run), within_s=30.0, every_s=0.002)
    wait_until_ended([run], within_s=30.0)
    return began.at - asked_at
