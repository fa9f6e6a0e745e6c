"""Stops beside active runs: is anything taken after one, how soon is a stream cut, and how soon is nothing in flight."""

from collections import deque

from django.contrib.auth.models import User
from django.db import connection

from console.bench.agents import dreamer, lingerer, walker
from console.bench.house import Stage, wait_for
from console.bench.readings import percentile, to_ms
from console.bench.sizes import Sizes
from console.bench.work import Starter, warm_up
from runs import operations
from runs.management.command import find_user
from runs.states import StepKind

ACTIVE = 50
REPLY_S = 120.0

# A stop is the moment at which its run ended: both are of the database's clock.
_STOPPED = """
    SELECT extract(epoch FROM a.ended_at - r.ended_at)::float8, extract(epoch FROM r.drained_at - r.ended_at)::float8
    FROM runs_run r JOIN runs_attempt a ON a.run_id = r.id AND a.ended_at >= r.ended_at
    WHERE r.id = %s AND r.drained_at IS NOT NULL
"""
# A take holds its run's lock, and so does a stop: their times say which came first. A last look holds no lock of the run:
# one that passes between the moment of a stop and its commit is right, and is not counted.
_VIOLATIONS = """
    SELECT count(*) FROM runs_run r JOIN runs_attempt a ON a.run_id = r.id
    WHERE r.state = 'stopped' AND a.taken_at > r.ended_at
"""


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    stops = sizes.runs or 500
    user: User = find_user(None)
    stage.start_cluster()
    warm_up(Starter(walker.name), stage.workers)
    stage.start_gateway(provider_url=stage.start_model(pace_s=REPLY_S))
    dreamers, lingerers = Starter(dreamer.name), Starter(lingerer.name)
    streams = deque(dreamers.start() for _ in range(min(ACTIVE, max(stops, 2)) - stage.workers))
    calls = deque(lingerers.start() for _ in range(stage.workers))
    cuts, drains = [], []
    for number in range(stops):
        streaming = number % 2 == 0
        active, starter = (streams, dreamers) if streaming else (calls, lingerers)
        kind = StepKind.THINK if streaming else StepKind.ACT
        run = active.popleft()
        # One that streams or lingers, for a while already.
        wait_for("A call in flight", lambda run=run, kind=kind: _is_in_flight(run, kind), within_s=120.0)  # type: ignore[misc]
        operations.stop_run(run, reason="a benchmark", by=user)
        after, drained = wait_for("The end of what was in flight", lambda run=run: _read(run), within_s=60.0)  # type: ignore[misc]
        if streaming:
            cuts.append(after)
        else:
            drains.append(drained)
        active.append(starter.start())
    with connection.cursor() as cursor:
        cursor.execute(_VIOLATIONS)
        (violations,) = cursor.fetchone() or (0,)
    return {
        "violations": int(violations),
        "stream_cut_p50_ms": to_ms(percentile(cuts, 50)),
        "stream_cut_p99_ms": to_ms(percentile(cuts, 99)),
        "drained_p50_ms": to_ms(percentile(drains, 50)),
        "drained_p99_ms": to_ms(percentile(drains, 99)),
        "settings": stage.describe()
        | {
            "stops": stops,
            "active_runs": len(streams) + len(calls),
            "stream_cut": "until the cut call is booked",
            "drained": "of calls to a tool that heeds a stop",
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
