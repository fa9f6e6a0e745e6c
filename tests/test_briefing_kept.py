"""What is kept of a fold: a briefing that goes on from it says what one worked out from the first step says."""

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from django.db import connection, transaction

from runs import clock, lifecycle, sql, steps
from runs.agents import Briefing
from runs.engine import briefing_kept
from runs.engine.briefing import Shares, build, request
from runs.models import KeptFold, Run, Step, WorkItem
from runs.states import StepKind, StepState, WorkState
from tests.briefing_runs import DESK, Scene, fill, known, start

pytestmark = pytest.mark.django_db

SMALL = Shares(log=1_000)
FINISHED = [StepState.DONE] * 12 + [StepState.FAILED, StepState.REFUSED, StepState.VOID, StepState.EXPIRED]


@pytest.fixture(autouse=True)
def _desk() -> Iterator[None]:
    with known(DESK):
        yield


def build_anew(run: Run, at: datetime, shares: Shares = SMALL) -> Briefing:
    """The briefing as it is when nothing is kept; what is kept stays."""
    kept = KeptFold.objects.filter(run=run).first()
    KeptFold.objects.filter(run=run).delete()
    built = build(run.pk, at=at, shares=shares, keep=False)
    assert not KeptFold.objects.filter(run=run).exists()
    if kept is not None:
        kept.save(force_insert=True)
    return built


def work(scene: Scene, chance: random.Random, *, plans: bool) -> None:
    """What one reply may ask for: calls that repeat each other, and items opened and closed."""
    scene.think()
    run = scene.run
    for _ in range(chance.randrange(1, 5)):
        order = str(1_000 + chance.randrange(30))
        state = chance.choice(FINISHED)
        error = "" if state == StepState.DONE else "no answer " * chance.randrange(1, 9)
        how: dict[str, Any] = {
            "state": state,
            "error": error,
            "result": {"order": order, "n": "<x>" * chance.randrange(30)},
        }
        match chance.randrange(8 if plans else 6) + (0 if plans else 3):
            case 0:
                scene.plan(
                    *(f"Request for order {1_000 + chance.randrange(30)}" for _ in range(chance.randrange(1, 4)))
                )
            case 1 | 2:
                items = list(
                    WorkItem.objects.filter(run=run, state=WorkState.OPEN).order_by(
                        "?" if chance.random() < 0.1 else "pk"
                    )
                )
                for item in items[: chance.randrange(3)]:
                    scene.close(item, f"refunded, {order}")
            case 3:
                done = Step.objects.filter(run=run, tool="refund", state=StepState.DONE).first()
                scene.refund(order, state=StepState.DONE, first=done if chance.random() < 0.3 else None)
            case 4:
                scene.refund(order, amount=chance.choice(["1.00", "45.00"]), **how)
            case 5:
                scene.act("finish", {"outcome": order}, kind=StepKind.FINISH, **how | {"state": StepState.REFUSED})
            case _:
                scene.act("read_order", {"order": order}, **how)


@pytest.mark.parametrize(("seed", "plans"), [(1, True), (2, True), (3, False)])
def test_a_briefing_that_goes_on_from_what_is_kept_says_the_same_as_one_from_the_first_step(
    seed: int, plans: bool
) -> None:
    scene, chance = start(), random.Random(seed)
    folds = set()
    for _ in range(120):
        work(scene, chance, plans=plans)
        if chance.random() < 0.04 and (dropped := Step.objects.filter(run=scene.run, state=StepState.VOID).first()):
            with transaction.atomic():
                lifecycle.lock(scene.run.pk)
                steps.close(steps.lock(dropped.pk), StepState.DONE, result={"found": "after all"})
        at = clock.now()
        built = build(scene.run.pk, at=at, shares=SMALL)
        assert built == build_anew(scene.run, at)
        assert request(DESK, built) == request(DESK, build_anew(scene.run, at))
        folds |= set(KeptFold.objects.filter(run=scene.run).values_list("think", flat=True))
    assert len(folds) > 5


def test_a_failure_that_was_made_good_in_work_that_is_folded_now_is_not_told_again() -> None:
    scene = start()
    scene.think()
    scene.plan("Something else, which stays open")
    failed = scene.act("read_order", {"order": "77"}, state=StepState.FAILED, error="no answer")
    for order in ("77", *map(str, range(1_000, 1_040))):
        scene.think()
        (item,) = scene.plan(f"Request for order {order}")
        scene.think()
        scene.read(order)
        scene.close(item)
    scene.think()
    at = clock.now()
    build(scene.run.pk, at=at, shares=SMALL)
    assert failed.number in briefing_kept.read(KeptFold.objects.get().state).shown
    built = build(scene.run.pk, at=at, shares=SMALL)
    assert built == build_anew(scene.run, at)
    assert [each for each in built.notices if each["notice"] == "failed"] == []


def count_read(table: str) -> int:
    """How many rows of a table this transaction has read so far."""
    return int(
        sql.fetch_row(
            "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = %s",
            [table],
        )[0]
    )


def test_what_a_briefing_reads_does_not_grow_with_the_run() -> None:
    """Of steps and work items, told by the database itself: of what is shown and closed last, some more than once."""
    scene = start()
    scene.think()
    fill(scene.run, count=4_000, first=2)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_step, runs_workitem")
        cursor.execute("SET LOCAL enable_seqscan = off")  # which tables this small would invite
    shares = Shares(log=10_000)
    build(scene.run.pk, shares=shares)
    before = count_read("runs_step"), count_read("runs_workitem")
    built = build(scene.run.pk, shares=shares)
    steps_read, items_read = count_read("runs_step") - before[0], count_read("runs_workitem") - before[1]
    shown = sum("step" in line for line in built.log)
    assert 0 < shown < steps_read < 3 * shown
    assert 0 < items_read < shown


def filled(count: int = 300) -> Scene:
    """A run that has folded, with a settled think at its end."""
    scene = start()
    scene.think()
    fill(scene.run, count=count, first=2)
    scene.think()
    return scene


def test_what_is_kept_is_written_when_more_has_folded_and_else_left_alone() -> None:
    scene = filled()
    build(scene.run.pk, shares=SMALL)
    kept = KeptFold.objects.get()
    KeptFold.objects.update(state=kept.state + " ")
    build(scene.run.pk, shares=SMALL)
    assert KeptFold.objects.get().state == kept.state + " "
    for order in range(40):
        scene.read(str(order))
        scene.think()
    build(scene.run.pk, shares=SMALL)
    assert KeptFold.objects.get().think > kept.think


def test_what_other_rules_have_folded_is_not_used() -> None:
    scene, at = filled(), clock.now()
    build(scene.run.pk, at=at, shares=SMALL)
    kept = KeptFold.objects.get()
    larger = Shares(log=2_000)
    assert build(scene.run.pk, at=at, shares=larger) == build_anew(scene.run, at, larger)
    assert KeptFold.objects.get().rules != kept.rules
    build(scene.run.pk, at=at, shares=SMALL)
    tools = {tool.name: tool for tool in DESK.tools}
    assert KeptFold.objects.get().rules == kept.rules == briefing_kept.name_rules({"refund": tools["refund"]}, 4_000)
    assert kept.rules != briefing_kept.name_rules(tools, 4_000)


def test_a_dropped_step_that_learns_what_it_did_ends_what_is_kept_of_it() -> None:
    scene = start()
    scene.think()
    dropped = scene.refund("777", state=StepState.VOID, result=None)
    scene.think()
    fill(scene.run, count=300, first=4)
    scene.think()
    build(scene.run.pk, shares=SMALL)
    last = scene.refund("778", state=StepState.VOID, result=None)
    scene.think()
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        steps.close(steps.lock(last.pk), StepState.DONE)
    assert KeptFold.objects.filter(think__lt=last.number).exists()
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        steps.close(steps.lock(dropped.pk), StepState.DONE)
    assert not KeptFold.objects.exists()


def test_nothing_is_kept_beyond_a_step_that_is_open() -> None:
    scene = start()
    scene.think()
    open_one = scene.refund("777", state=None)
    fill(scene.run, count=300, first=3)
    scene.think()
    build(scene.run.pk, shares=SMALL)
    assert not KeptFold.objects.exists()
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        steps.close(steps.lock(open_one.pk), StepState.DONE)
    build(scene.run.pk, shares=SMALL)
    assert KeptFold.objects.exists()


def test_what_was_read_before_something_happened_is_not_kept() -> None:
    scene = filled()
    build(scene.run.pk, shares=SMALL)
    kept = KeptFold.objects.get()
    KeptFold.objects.all().delete()
    seq = Run.objects.get(pk=scene.run.pk).journal_seq
    briefing_kept.write(scene.run.pk, briefing_kept.read(kept.state), rules=kept.rules, seq=seq - 1)
    assert not KeptFold.objects.exists()
    briefing_kept.write(scene.run.pk, briefing_kept.read(kept.state), rules=kept.rules, seq=seq)
    assert KeptFold.objects.get().state == kept.state
