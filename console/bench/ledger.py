"""How often runs under one parent reserve and settle, each at its own pace and all at once: they share its budget.

Every one has a connection of its own, and a limit above it that is never reached: what counts is how long the parent's
budget is locked, and how long its locks are waited for.
"""

import multiprocessing
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from django.db import connection, transaction

from console.bench.agents import walker
from console.bench.house import CannotMeasure, Stage
from console.bench.limit import measure_limit
from console.bench.readings import percentile, to_ms
from console.bench.sizes import Sizes
from runs import budgets, lifecycle, operations, sql, steps
from runs.agents import get_agent
from runs.budgets import Amounts
from runs.journal import AGENT
from runs.management.command import find_user
from runs.models import Attempt
from runs.operations import Start
from runs.states import AttemptOutcome, StepKind

_AT_MOST_PER_S = 5000  # of all runs together: so many tries are made beforehand for each second
# Made by each process before it is watched: its connection then has its plans, as that of a gateway has.
_BEFORE = 6
_RESERVED, _SPENT = Amounts(usd=Decimal("0.02"), steps=1), Amounts(usd=Decimal("0.01"), steps=1)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one run's process did: seconds that each reservation, and each settlement with its wait for the disk, took."""

    reserved: list[float]
    settled: list[float]


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    runs, seconds = sizes.runs or 50, sizes.seconds or 5.0
    top, children = _plant(runs)
    each = int(seconds * _AT_MOST_PER_S / runs) + 1 + _BEFORE
    first = _make_attempts(children[0], runs * each)
    limit = measure_limit(stage, clients=2, seconds=sizes.pgbench_s)
    connection.close()
    fork = multiprocessing.get_context("fork")
    queue: SimpleQueue[Told] = fork.SimpleQueue()
    ready = fork.Barrier(runs)
    working = [
        fork.Process(
            target=_work,
            args=(run, range(first + n * each, first + (n + 1) * each), seconds, ready, queue),
            daemon=True,
        )
        for n, run in enumerate(children)
    ]
    for process in working:
        process.start()
    told = [queue.get() for _ in working]
    for process in working:
        process.join()
    pairs = sum(len(one.settled) for one in told)
    if budgets.mismatches():
        raise CannotMeasure("The ledger is not the sum of its entries.")
    (spent, reserved) = sql.fetch_row("SELECT usd_spent, usd_reserved FROM runs_budget WHERE run_id = %s", [top])
    if (spent, reserved) != ((pairs + runs * _BEFORE) * _SPENT.usd, 0):
        raise CannotMeasure(f"{pairs} were settled, and {spent} is spent, {reserved} reserved.")
    reserve = [took for one in told for took in one.reserved]
    settle = [took for one in told for took in one.settled]
    return {
        "pairs_per_s": round(pairs / seconds, 1),
        "pairs": pairs,
        "reserve_p50_ms": to_ms(percentile(reserve, 50)),
        "reserve_p99_ms": to_ms(percentile(reserve, 99)),
        "settle_p50_ms": to_ms(percentile(settle, 50)),
        "settle_p99_ms": to_ms(percentile(settle, 99)),
        "pgbench_tps": round(limit.tps, 1),
        "settings": stage.describe() | {"runs": runs, "seconds": seconds},
    }


def _work(run: int, attempts: Sequence[int], seconds: float, ready: Barrier, queue: "SimpleQueue[Told]") -> None:
    """In a process of its own: a model call takes its reservation, and its reply settles it."""
    told = Told(reserved=[], settled=[])
    connection.settings_dict["OPTIONS"]["prepare_threshold"] = 5  # as in a worker and a gateway
    for attempt in attempts[:_BEFORE]:
        _reserve(run, attempt)
        _settle(attempt)
    ready.wait()
    until = time.monotonic() + seconds
    for attempt in attempts[_BEFORE:]:
        began = time.monotonic()
        if began > until:
            break
        _reserve(run, attempt)
        reserved = time.monotonic()
        _settle(attempt)
        told.reserved.append(reserved - began)
        told.settled.append(time.monotonic() - reserved)
    queue.put(told)
    os._exit(0)


def _reserve(run: int, attempt: int) -> None:
    with transaction.atomic(durable=True):
        budgets.reserve(run, _RESERVED, attempt=attempt, at_once=True)


def _settle(attempt: int) -> None:
    with transaction.atomic(durable=True):
        budgets.settle(attempt, _SPENT)


def _plant(runs: int) -> tuple[int, list[int]]:
    """A parent with a limit, and its children."""
    parent, _ = operations.start_run(Start(agent=walker.name, goal="A benchmark", usd="1000000"), by=find_user(None))
    children = []
    for _ in range(runs):
        with transaction.atomic(durable=True):
            child = operations.create_child(
                lifecycle.lock(parent.pk),
                agent=get_agent(walker.name),
                goal="help",
                inputs={},
                usd="10000",
                actor=AGENT,
            )
        children.append(child.pk)
    return parent.pk, children


def _make_attempts(run: int, count: int) -> int:
    """Tries for the ledger to name, each once; the first of them. It asks only which one it is, not whose."""
    with transaction.atomic(durable=True):
        step = steps.plan(lifecycle.lock(run), steps.Asked(kind=StepKind.THINK))
        nobody = uuid.UUID(int=0)
        attempt = steps.open_attempt(
            step, epoch=0, holder=nobody, performer=nobody, lease_s=60.0, begin_within_s=60.0, timeout_s=60.0
        )
        steps.close_attempt(attempt, AttemptOutcome.LOST, error="a benchmark's")
        columns = ", ".join(str(f.column) for f in Attempt._meta.concrete_fields if f.column not in ("id", "number"))
        sql.execute(
            f"INSERT INTO runs_attempt (number, {columns}) SELECT n, {columns} FROM runs_attempt,"
            " generate_series(2, %s) n WHERE runs_attempt.id = %s",
            [count, attempt.pk],
        )
    return attempt.pk
