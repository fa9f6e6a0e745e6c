"""W1: how many checkpointed steps a second. All runs are queued first; then two workers drain them."""

import time

from django.db import connection

from console.bench.agents import look, walker
from console.bench.house import Stage
from console.bench.limit import measure_limit
from console.bench.marks import Marks
from console.bench.sizes import Sizes
from console.bench.work import Starter, wait_until_ended, warm_up
from runs.states import StepState


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    runs, steps = sizes.runs or 200, sizes.steps or 20
    at_once = sizes.at_once or steps
    first = measure_limit(stage, clients=2, seconds=sizes.pgbench_s)
    starter = Starter(walker.name)
    stage.start_cluster()
    warm_up(starter, stage.workers)
    # Stopped while the work is queued, so that all of it is there when the first step begins.
    stage.freeze()
    marks, before = Marks(), stage.read_cost()
    queued = [starter.start(steps=steps, at_once=at_once) for _ in range(runs)]
    stage.thaw()
    ended_at = wait_until_ended(queued, within_s=30.0 + runs * steps * 0.2)
    began = [mark.at for mark in marks.read()]
    time.sleep(1.2)  # connections tell their transactions about once a second
    cost = stage.read_cost().since(before, steps=len(began))
    stage.stop()
    second = measure_limit(stage, clients=2, seconds=sizes.pgbench_s)
    per_s = len(began) / (ended_at - min(began))
    limit = (first.tps + second.tps) / 2
    return {
        "steps_per_s": round(per_s, 1),
        "pgbench_tps": round(limit, 1),
        "ratio_to_pgbench": round(per_s / limit, 3),
        "drain_s": round(ended_at - min(began), 2),
        "steps_run": len(began),
        "checkpoints_stored": _count_stored(queued),
        **cost,
        "settings": stage.describe()
        | {
            "runs": runs,
            "steps": steps,
            "calls_in_one_reply": at_once,
            "pgbench": f"2 clients, {sizes.pgbench_s} s before ({first.tps:.0f}) and after ({second.tps:.0f})",
        },
    }


def _count_stored(runs: list[int]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM runs_step WHERE run_id = ANY(%s) AND tool = %s AND state = %s AND result IS NOT NULL",
            [runs, look.name, StepState.DONE],
        )
        (stored,) = cursor.fetchone() or (0,)
    return int(stored)
