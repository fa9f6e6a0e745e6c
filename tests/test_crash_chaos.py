"""Must show: ten refund runs to the end while everything is killed at random; each refund once, nothing done twice."""

import os
import random
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from console.soak.chaos import Chaos, make_shop_difficult
from console.soak.fleet import Fleet
from console.soak.invariants import find_violations, list_doubts
from console.soak.parts import Part
from tests.stage import looking_at

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("LONGWATCH_CHAOS_SEED") or random.randrange(1_000_000))
RUNS = 10
KILLS = 30
EVERYTHING = 2  # of them take all at once
BATCH_SIZE = 3  # one of each kind that is decided in its own way


def test_ten_runs_reach_their_end_while_everything_is_killed(
    scratch_folder: Path, django_db_blocker: DjangoDbBlocker, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(scratch_folder)
    chaos = Chaos(
        fleet=fleet,
        dice=random.Random(SEED),
        pause_s=(0.2, 1.0),
        everything_every=KILLS // EVERYTHING,
        batch_size=BATCH_SIZE,
    )
    try:
        make_shop_difficult(fleet.shop())
        for _ in range(RUNS):
            chaos.start_run()
        # On a machine that does much else besides.
        chaos.go_on(
            enough=lambda: chaos.killed >= KILLS and fleet.kills.get(Part.EVERYTHING) == EVERYTHING, give_up_s=600
        )
        with django_db_blocker.unblock(), looking_at(fleet.database_url):
            violations = find_violations(fleet.shop()) + chaos.find_wrong_outcomes()
            doubts = list_doubts()
        with capsys.disabled():
            told = ", ".join(f"{part} {times}" for part, times in sorted(fleet.kills.items()))
            effects = len(fleet.shop().effects(kind="refund"))
            print(f"\n[chaos] seed {SEED}: {len(chaos.runs)} runs, {chaos.killed} kills ({told}), {effects} refunds")
        assert not violations, "\n".join([f"seed {SEED}", *violations, *doubts, *chaos.said, fleet.tell()])
        assert not doubts, "the receiver honours keys and can be asked: nothing may be left in doubt"
        assert len(chaos.runs) >= RUNS
    except BaseException:
        with capsys.disabled():
            print(f"\n[chaos] seed {SEED} failed after {fleet.kills}\n{fleet.tell()}")
        raise
    finally:
        fleet.close()
    assert not fleet.left()
