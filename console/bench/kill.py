"""Stops beside active runs: is anything taken after one, how soon is a stream cut, and how soon is nothing in flight."""

from collections import deque
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from console.bench.agents import dreamer, lingerer, walker
from console.bench.house import Stage, wait_for
from console.bench.readings import describe_ms, percentile, to_ms
from console.bench.sizes import Sizes
from console.bench.work import Starter, warm_up
from runs import operations
from runs.management.command import find_user
from runs.states import StepKind

ACTIVE = 50
# Longer than a stream lives until it is stopped, and shorter than the gateway lets one last.
REPLY_S = 400.0
# Of so many stops one is of a call that heeds none: it takes the whole grace time, and its tool process with it.
DEAF_EVERY = 10

# A stop is the moment at which its run ended: both are of the database's clock. Below zero the last call had ended by
# itself before the stop, and says nothing of it.
_STOPPED = """
    SELECT (SELECT extract(epoch FROM max(a.ended_at) - r.ended_at)::float8 FROM runs_attempt a WHERE a.run_id = r.id),
        extract(epoch FROM r.drained_at - r.ended_at)::float8
    FROM runs_run r WHERE r.id = %s AND r.drained_at IS NOT NULL
"""
# A take holds its run's lock, and so does a stop: their times say which came first. A last look holds no lock of the run:
# one that passes between the moment of a stop and its commit is right, and is not counted.
_VIOLATIONS = """
    SELECT count(*) FROM runs_run r JOIN runs_attempt a ON a.run_id = r.id
    WHERE r.state = 'stopped' AND a.taken_at > r.ended_at
"""


@dataclass(frozen=True, kw_only=True)
class Lingering:
    """A run whose call is at a worker; `heeds` a stop, or not."""

    run: int
    heeds: bool


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    stops = max(sizes.runs or 500, 4)
    user: User = find_user(None)
    stage.start_cluster()
    warm_up(Starter(walker.name), stage.workers)
    stage.start_gateway(provider_url=stage.start_model(pace_s=REPLY_S))
    dreamers, lingerers = Starter(dreamer.name), Starter(lingerer.name)
    streams = deque(dreamers.start() for _ in range(min(ACTIVE, max(stops, 2)) - stage.workers))
    calls = deque(Lingering(run=lingerers.start(heed=bool(n)), heeds=bool(n)) for n in range(stage.workers))
    cuts: list[float] = []
    drains: dict[bool, list[float]] = {True: [], False: []}

    def stop(run: int, kind: StepKind) -> tuple[float, float]:
        # One that streams or lingers, for a while already.
        wait_for("A call in flight", lambda: _is_in_flight(run, kind), within_s=120.0)
        operations.stop_run(run, reason="a benchmark", by=user)
        return wait_for("The end of what was in flight", lambda: _read(run), within_s=60.0 + settings.GRACE_S)

    for number in range(stops):
        if number % 2 == 0:
            after, _ = stop(streams.popleft(), StepKind.THINK)
            if after >= 0:
                cuts.append(after)
            streams.append(dreamers.start())
        else:
            call = calls.popleft()
            after, drained = stop(call.run, StepKind.ACT)
            if after >= 0:
                drains[call.heeds].append(drained)
            heeds = number % DEAF_EVERY != DEAF_EVERY - 1
            calls.append(Lingering(run=lingerers.start(heed=heeds), heeds=heeds))
    for run in [*streams, *(call.run for call in calls)]:  # what lingers would keep the workers of the next benchmark
        operations.stop_run(run, reason="the benchmark is over", by=user)
    with connection.cursor() as cursor:
        cursor.execute(_VIOLATIONS)
        (violations,) = cursor.fetchone() or (0,)
    return {
        "violations": int(violations),
        "stream_cut_p50_ms": to_ms(percentile(cuts, 50)),
        "stream_cut_p99_ms": to_ms(percentile(cuts, 99)),
        "drained_p50_ms": to_ms(percentile(drains[True], 50)),
        "drained_p99_ms": to_ms(percentile(drains[True], 99)),
        "deaf_drained_p99_ms": to_ms(percentile(drains[False], 99)),
        "distributions_ms": {
            "stream_cut": describe_ms(cuts),
            "drained": describe_ms(drains[True]),
            "deaf_drained": describe_ms(drains[False]),
        },
        "settings": stage.describe()
        | {
            "stops": stops,
            "active_runs": len(streams) + len(calls),
            "grace_s": settings.GRACE_S,
            "stream_cut": "until the cut call is booked",
            "drained": "of calls to a tool that heeds a stop; deaf: of one that heeds none, and is ended after the grace time",
        },
    }


def _is_in_flight(run: int, kind: StepKind) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM runs_attempt a JOIN runs_step s ON s.id = a.step_id"
            " WHERE a.run_id = %s AND a.outcome = 'open' AND s.kind = %s)",
            [run, kind],
        )
        (found,) = cursor.fetchone() or (False,)
    return bool(found)


def _read(run: int) -> tuple[float, float] | None:
    with connection.cursor() as cursor:
        cursor.execute(_STOPPED, [run])
        row: tuple[float, float] | None = cursor.fetchone()
    return row
