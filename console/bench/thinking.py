"""What many model calls at once cost the gateway, and what the runtime adds to the time that the model takes."""

import time

from django.db import connection

from console.bench.agents import ponderer, walker
from console.bench.house import Stage
from console.bench.readings import describe_ms, percentile, read_memory_mb, to_ms
from console.bench.sizes import Sizes
from console.bench.work import Starter, wait_until_ended, warm_up
from runs.states import ProcessKind

_REPLY_S = 10.0

# From the moment at which a thought was planned to its reply being stored, and that of the call alone.
_TOOK = """
    SELECT extract(epoch FROM s.ended_at - s.created_at)::float8, extract(epoch FROM a.ended_at - a.taken_at)::float8
    FROM runs_step s JOIN runs_attempt a ON a.step_id = s.id WHERE s.run_id = ANY(%s) AND s.kind = 'think'
"""


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    runs, reply_s = sizes.runs or 200, sizes.seconds or _REPLY_S
    stage.start_cluster()
    warm_up(Starter(walker.name), stage.workers)
    stage.start_gateway(provider_url=stage.start_model(pace_s=reply_s))
    starter = Starter(ponderer.name)
    wait_until_ended([starter.start()], within_s=120.0 + reply_s)
    began = time.monotonic()
    started = [starter.start() for _ in range(runs)]
    most = rss_mb = pss_mb = 0.0
    # All of them at once, or as many as there are until the first replies have come.
    while most < runs and time.monotonic() < began + reply_s * 2:
        under_way = _count_under_way(started)
        if under_way > most:
            most = under_way
            rss_mb, pss_mb = read_memory_mb(stage.read_pids(ProcessKind.GATEWAY))
        time.sleep(0.05)
    wait_until_ended(started, within_s=120.0 + reply_s + runs)
    with connection.cursor() as cursor:
        cursor.execute(_TOOK, [started])
        took = cursor.fetchall()
    added = [whole - reply_s for whole, _ in took]
    calls = [call - reply_s for _, call in took]
    return {
        "runs": runs,
        "at_once": int(most),
        "rss_mb": rss_mb,
        "pss_mb": pss_mb,
        "overhead_p50_ms": to_ms(percentile(added, 50)),
        "overhead_p99_ms": to_ms(percentile(added, 99)),
        "call_overhead_p99_ms": to_ms(percentile(calls, 99)),
        "distributions_ms": {"overhead": describe_ms(added), "call_overhead": describe_ms(calls)},
        "settings": stage.describe()
        | {
            "reply_s": reply_s,
            "rss_mb": "of the gateway, while most calls were under way",
            "overhead": "from the plan of a thought to its stored reply, without the time of the model; all start at once",
        },
    }


def _count_under_way(runs: list[int]) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM runs_attempt WHERE run_id = ANY(%s) AND outcome = 'open'", [runs])
        (count,) = cursor.fetchone() or (0,)
    return int(count)
