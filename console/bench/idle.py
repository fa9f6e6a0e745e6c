"""W6: what parked runs cost at rest, over every process of an installation: cluster, gateway and web."""

import time

from django.db import connection

from console.bench.agents import parker
from console.bench.house import Stage, wait_for
from console.bench.readings import list_tree, read_cpu_s, read_memory_mb
from console.bench.sizes import Sizes
from console.bench.work import Starter
from runs.states import RunState

# What is idle tells its transactions within ten seconds.
_SETTLE_S = 12.0


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    runs, seconds = sizes.runs or 2000, sizes.seconds or 30.0
    starter = Starter(parker.name)
    for _ in range(runs):
        starter.start()
    began = time.monotonic()
    stage.start_cluster()
    stage.start_gateway()
    stage.start_web()
    wait_for("The parking of all runs", lambda: _count_parked() == runs, within_s=60.0 + runs, every_s=0.5)
    parked_s = time.monotonic() - began
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # else the server's own upkeep after so many inserts is what is counted
    time.sleep(_SETTLE_S if seconds > _SETTLE_S else seconds)
    first, cpu_s, postgres_s, began = (
        stage.read_transactions(),
        read_cpu_s(stage.pids()),
        _postgres(stage),
        time.monotonic(),
    )
    time.sleep(seconds)
    passed = time.monotonic() - began
    transactions = stage.read_transactions() - first
    rss_mb, pss_mb = read_memory_mb(stage.pids())
    return {
        "tx_per_s": round(transactions / passed, 2),
        "rss_mb": rss_mb,
        "pss_mb": pss_mb,
        "cpu_s_per_30s": round((read_cpu_s(stage.pids()) - cpu_s) / passed * 30, 2),
        "postgres_cpu_s_per_30s": round((_postgres(stage) - postgres_s) / passed * 30, 2),
        "parked": _count_parked(),
        "park_s": round(parked_s, 1),
        "processes": len(stage.pids()),
        "settings": stage.describe()
        | {"runs": runs, "watched_s": seconds, "parts": "cluster, gateway, web, nobody looking"},
    }


def _count_parked() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM runs_run WHERE state = %s", [RunState.WAITING])
        (parked,) = cursor.fetchone() or (0,)
    return int(parked)


def _postgres(stage: Stage) -> float:
    postmaster = stage.server.pid
    return read_cpu_s(list_tree(postmaster)) if postmaster else 0.0
