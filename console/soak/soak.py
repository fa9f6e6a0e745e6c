"""Run a soak from nothing to its verdict, on a folder and a database of its own that are thrown away."""

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.db import connections

from console.databases import read_database_url
from console.postgres import EmbeddedServer
from console.soak.chaos import Chaos, make_shop_difficult
from console.soak.fleet import Fleet
from console.soak.invariants import find_violations, list_doubts
from console.soak.waiting import Overdue
from runs import sql

RUNS_AT_ONCE = 5
AT_A_BLOW = 3
TELL_EVERY_S = 30.0
REST_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a soak. `explained`: what waits for a person, because nobody else can know."""

    seed: int
    minutes: float
    kill_every_s: float
    kills: int
    killed: dict[str, int]
    runs: int
    steps: int
    attempts: int
    effects: int
    keys: int
    explained: list[str]
    violations: list[str]


def soak(*, minutes: float, kill_every_s: float, seed: int, say: Callable[[str], None]) -> Verdict:
    """Keep runs going and kill for so many minutes, let them come to rest, and judge."""
    folder = Path(tempfile.mkdtemp(prefix="longwatch-soak-"))
    folder.chmod(0o755)  # PostgreSQL's user has to get through
    try:
        fleet = Fleet(folder, workers=4)
        try:
            return _soak(fleet, minutes=minutes, kill_every_s=kill_every_s, seed=seed, say=say)
        finally:
            connections.close_all()
            fleet.close()
    finally:
        EmbeddedServer(folder / "data").destroy()
        shutil.rmtree(folder, ignore_errors=True)


def use_database(url: str) -> None:
    """Use the database of an installation, which may be another than this process was told of."""
    connections["default"].close()
    connections.databases["default"].update(read_database_url(url, engine_process=False, process_name="rehearse"))
    del connections["default"]


def _soak(fleet: Fleet, *, minutes: float, kill_every_s: float, seed: int, say: Callable[[str], None]) -> Verdict:
    chaos = Chaos(fleet=fleet, dice=random.Random(seed), at_a_blow=AT_A_BLOW, at_once=RUNS_AT_ONCE)  # noqa: S311
    between_s = kill_every_s * (1 + AT_A_BLOW) / 2
    chaos.pause_s = (0.5 * between_s, 1.5 * between_s)
    make_shop_difficult(fleet.shop())
    over_at = time.monotonic() + 60.0 * minutes
    told_at = time.monotonic()

    def enough() -> bool:
        nonlocal told_at
        if time.monotonic() - told_at >= TELL_EVERY_S:
            told_at = time.monotonic()
            say(f"{chaos.killed} kills, {len(chaos.runs)} runs, {len(chaos.open_runs())} of them open")
        return time.monotonic() >= over_at

    violations = []
    try:
        chaos.go_on(enough=enough, give_up_s=REST_S)
    except Overdue as overdue:
        violations += [str(overdue), fleet.tell()]
    use_database(fleet.database_url)
    violations += find_violations(fleet.shop()) + chaos.find_wrong_outcomes()
    steps, attempts, keys = sql.fetch_row(
        "SELECT (SELECT count(*) FROM runs_step), (SELECT count(*) FROM runs_attempt), (SELECT count(*) FROM runs_key"
        " WHERE tool = 'refund')"
    )
    return Verdict(
        seed=seed,
        minutes=minutes,
        kill_every_s=kill_every_s,
        kills=chaos.killed,
        killed={str(part): times for part, times in sorted(fleet.kills.items())},
        runs=len(chaos.runs),
        steps=steps,
        attempts=attempts,
        effects=len(fleet.shop().effects(kind="refund")),
        keys=keys,
        explained=list_doubts(),
        violations=violations,
    )
