"""W4: a worker is killed in the middle of an effect; when it is done again, by whom, and how often it happened."""

import os
import signal
import time

from django.db import connection

from console.bench.agents import actor, walker
from console.bench.house import Stage, wait_for
from console.bench.readings import percentile
from console.bench.receiver import Receiver
from console.bench.sizes import Sizes
from console.bench.work import Starter, wait_until_ended, warm_up

TAKE_S = 0.3


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    kills, steps = sizes.runs or 3, sizes.steps or 20
    starter, waits = Starter(actor.name), []
    stage.start_cluster()
    warm_up(Starter(walker.name), stage.workers)
    with Receiver() as receiver:
        for _ in range(kills):
            waits.append(_kill_one(starter, receiver, steps))
            warm_up(Starter(walker.name), stage.workers)  # the worker that took its place
        repeated = sum(arrival.repeated for arrival in receiver.arrivals)
        effects = receiver.effects
    described = stage.describe()
    return {
        "recovery_s": round(percentile(waits, 50), 2),
        "recovery_max_s": round(max(waits), 2),
        "lease_s": described["lease_s"],
        "ran_twice": repeated,
        "effects": effects,
        "expected": kills * steps,
        "settings": described | {"kills": kills, "steps": steps, "step_s": TAKE_S, "effect": "keyed"},
    }


def _kill_one(starter: Starter, receiver: Receiver, steps: int) -> float:
    """Kill the worker of a run in its middle; seconds until the receiver sees that step again."""
    middle = steps * 2 // 5
    run = starter.start(steps=steps, port=receiver.port, take_s=TAKE_S)
    wait_for("The middle of the run", lambda: receiver.find(run, middle), within_s=60.0, every_s=0.005)
    time.sleep(TAKE_S / 3)
    os.kill(_find_holder(run), signal.SIGKILL)
    killed_at = time.time()
    again = wait_for(
        "The second try", lambda: receiver.find(run, middle, after=killed_at), within_s=120.0, every_s=0.005
    )
    wait_until_ended([run], within_s=60.0 + steps)
    return again.at - killed_at


def _find_holder(run: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT p.pid FROM runs_run r JOIN runs_process p ON p.id = r.holder WHERE r.id = %s", [run])
        (pid,) = cursor.fetchone() or (0,)
    return int(pid)
