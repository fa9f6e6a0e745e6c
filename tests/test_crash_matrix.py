"""Must show: every class of effect against every death at every point: once at the receiver, or in doubt.

`--full-matrix` plays every cell; otherwise a choice in which every pair of effect, point, death and receiver meets.
"""

import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from console.postgres import EmbeddedServer
from console.soak.fleet import Fleet
from console.soak.invariants import find_violations
from tests.conftest import make_scratch_folder
from tests.crash_matrix import (
    EXECUTED,
    LEASE_S,
    TOOLS,
    Cell,
    Death,
    Effect,
    Point,
    Receiver,
    Round,
    choose_all,
    choose_pairs,
    split,
)
from tests.stage import looking_at

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

AT_ONCE = 7
MOST_ROUNDS = 5
PAYING = [tool for tool in TOOLS.values() if tool.startswith("pay")]


@pytest.fixture(scope="module")
def doomed_fleet() -> Iterator[Fleet]:
    folder = make_scratch_folder()
    rules = [f"{point}=stop@{folder}/{point}.{{call}}" for point in (*Point, EXECUTED)]
    # One worker more than cells that stand still: an idle one has to be there to die.
    fleet = Fleet(
        folder,
        lease_s=LEASE_S,
        workers=AT_ONCE + 1,
        LONGWATCH_APPS="tests.deaths",
        LONGWATCH_FAIL_POINT=",".join(rules),
    )
    yield fleet
    fleet.close()
    EmbeddedServer(fleet.data).destroy()
    shutil.rmtree(folder)


@pytest.mark.parametrize("death", Death)
def test_each_effect_happens_once_or_is_in_doubt_whoever_dies(
    death: Death,
    doomed_fleet: Fleet,
    full_matrix: bool,
    django_db_blocker: DjangoDbBlocker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = choose_all(death) if full_matrix else choose_pairs(death)
    played: list[Cell] = []
    took_s: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS if full_matrix else 1):
        for together in split(wanted, AT_ONCE):
            round_ = Round(fleet=doomed_fleet, cells=together)
            round_.play()
            took_s.update(round_.took_s)
        played += wanted
        # On a busy machine not all stand at their points at one moment: those that did not are played again.
        wanted = [cell.anew() for cell in wanted if not cell.hit]
    wrong = [f"{cell} {what}" for cell in played for what in cell.wrong]
    with django_db_blocker.unblock(), looking_at(doomed_fleet.database_url):
        wrong += find_violations(doomed_fleet.shop(), tools=PAYING)
    hit = sum(cell.hit for cell in played)
    with capsys.disabled():
        doubted = sum(cell.doubted for cell in played)
        effects = sum(cell.effects for cell in played)
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took_s.items())
        print(
            f"\n[matrix] {death}: {len(played)} cells, {hit} at their point, {effects} effects, {doubted} in doubt ({took})"
        )
    assert not wrong, "\n".join([*wrong, doomed_fleet.tell()])
    assert hit, "nobody was where the death should have met him"
    assert not (full_matrix and wanted), f"not met in {MOST_ROUNDS} rounds: {[str(cell) for cell in wanted]}"


def test_the_choice_holds_every_pair() -> None:
    cells = [cell for death in Death for cell in choose_pairs(death)]
    for first, second in (
        ("effect", "point"),
        ("effect", "death"),
        ("point", "death"),
        ("effect", "receiver"),
        ("point", "receiver"),
        ("death", "receiver"),
    ):
        met = {(getattr(cell, first), getattr(cell, second)) for cell in cells}
        of = {"effect": Effect, "point": Point, "death": Death, "receiver": Receiver}
        assert len(met) == len(of[first]) * len(of[second]), f"{first} × {second}"
