"""A long log: its prefix stays as it is from one think to the next, and it never outgrows its share."""

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runs import clock, lifecycle, steps
from runs.agents import Briefing, Json
from runs.engine import builtin
from runs.engine.briefing import Request, Shares, build, parts, request
from runs.engine.reading import NotNow
from runs.examples.model.usage import PromptCache, divide_prompt
from runs.models import Run, Step
from runs.states import StepKind, StepState
from tests.briefing_runs import DESK, Scene, fill, known, start

pytestmark = pytest.mark.django_db

SMALL = Shares(log=2_000, facts=2_000)


@pytest.fixture(autouse=True)
def _desk() -> Iterator[None]:
    with known(DESK):
        yield


def stable(sent: Request) -> str:
    return "\n".join(block["text"] for block in sent.messages[0]["content"][:-1])


def common(one: str, other: str) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def told_steps(briefing: Briefing) -> set[int]:
    """Every step that the log tells, by itself or within a folded line."""
    told: set[int] = set()
    for line in briefing.log:
        told |= {line["step"]} if "step" in line else numbers(line.get("steps", ""))
    return told


def finished(run: Run) -> set[int]:
    rows = Step.objects.filter(run=run, ended_at__isnull=False).exclude(kind=StepKind.THINK)
    return set(rows.values_list("number", flat=True))


def work_on(scene: Scene, case: int, *, result: Json = None) -> None:
    """One request from its opening to its end: three thinks."""
    order = str(10_000 + case)
    scene.think()
    (item,) = scene.plan(f"Request r{case}: order {order}")
    scene.think()
    scene.read(order, result)
    scene.think()
    scene.refund(order)
    scene.close(item)


def test_the_same_tables_give_the_same_bytes() -> None:
    scene = start()
    for case in range(20):
        work_on(scene, case)
    first, second = build(scene.run.pk, shares=SMALL), build(scene.run.pk, shares=SMALL)
    assert stable(request(DESK, first)) == stable(request(DESK, second))
    assert request(DESK, first).tools == request(DESK, second).tools


def test_from_one_think_to_the_next_the_stable_part_only_grows_except_where_it_folds() -> None:
    """At least nine tenths of the stable bytes stay, over all thinks together, and each fold comes long after the last."""
    scene = start()
    before, kept, sent_bytes = "", 0, 0
    folds: list[int] = []
    for case in range(60):
        work_on(scene, case)
        scene.think()
        now = stable(request(DESK, build(scene.run.pk, shares=SMALL)))
        if before:
            same = common(before, now)
            if same < len(before):
                folds.append(case)
            else:
                kept, sent_bytes = kept + same, sent_bytes + len(before)
        before = now
    assert kept == sent_bytes
    assert 1 <= len(folds) <= 10
    assert all(later - earlier >= 5 for earlier, later in pairwise(folds))


def test_lines_that_are_shown_one_by_one_never_change() -> None:
    scene = start()
    seen: dict[int, dict[str, object]] = {}
    for case in range(40):
        work_on(scene, case)
        for line in build(scene.run.pk, shares=SMALL).log:
            if "step" in line:
                assert seen.setdefault(line["step"], line) == line


def test_a_prompt_cache_that_knows_whole_blocks_reads_all_but_the_news() -> None:
    scene = start()
    cache = PromptCache()
    shares = Shares()
    read: list[float] = []
    for case in range(25):
        work_on(scene, case)
        scene.think()
        sent = request(DESK, build(scene.run.pk, shares=shares))
        body = json.loads(json.dumps({"system": sent.system, "tools": sent.tools, "messages": sent.messages}))
        usage = cache.account(key="k", model="m", blocks=divide_prompt(body), now=float(case))
        stable_tokens = sum(part.tokens * part.cacheable for part in parts(sent))
        read.append(usage.read / stable_tokens)
    assert min(read[1:]) > 0.9


def test_closed_work_folds_into_one_line_per_item_with_its_effects_and_open_work_stays() -> None:
    scene = start()
    scene.think()
    (lasting,) = scene.plan("Request r900: order 99900")
    scene.read("99900")
    for case in range(40):
        work_on(scene, case)
    briefing = build(scene.run.pk, shares=SMALL)
    folded = [line for line in briefing.log if "item" in line]
    assert folded
    assert folded[-1]["title"].startswith("Request r")
    assert folded[-1]["effects"][0]["tool"] == "refund"
    assert set(folded[-1]["effects"][0]["with"]) == {"order", "amount"}
    assert {"order": "99900"} in [line.get("with") for line in briefing.log]
    assert any(each["item"] == lasting.ref and each["state"] == "open" for each in briefing.work)
    assert told_steps(briefing) >= finished(scene.run)


def test_what_one_reply_has_just_asked_for_is_shown_one_by_one_whatever_it_takes() -> None:
    scene = start()
    scene.think()
    for order in range(12):
        scene.read(str(order), result={"rows": ["x" * 900]})
    briefing = build(scene.run.pk, shares=SMALL)
    assert [line["step"] for line in briefing.log] == list(range(2, 14))


def test_a_run_without_work_items_folds_its_oldest_steps() -> None:
    scene = start()
    fill(scene.run, count=400, items=False)
    briefing = build(scene.run.pk, shares=SMALL)
    sizes = {part.name: part.tokens for part in parts(request(DESK, briefing))}
    assert sizes["log"] <= SMALL.log
    assert told_steps(briefing) >= finished(scene.run)


def test_text_that_grows_by_escaping_keeps_to_the_share() -> None:
    scene = start()
    fill(scene.run, count=200, result={"note": "<\u202e\u200b>" * 200})
    briefing = build(scene.run.pk, shares=Shares(log=10_000))
    assert {p.name: p.tokens for p in parts(request(DESK, briefing))}["log"] <= 10_000


def test_large_facts_are_shortened_from_the_largest_on_and_all_are_named() -> None:
    scene = start()
    step = scene.read("1")
    for place in range(30):
        scene.record(f"order.{place}", {"paid": "45.00"}, step=step)
    scene.record("order.big", {"rows": "x" * 12_000}, step=step)
    briefing = build(scene.run.pk, shares=SMALL)
    told = {fact["fact"]: fact["value"] for fact in briefing.facts}
    assert len(told) == 31
    assert told["order.7"] == {"paid": "45.00"}
    assert told["order.big"]["shortened"] is True
    assert {p.name: p.tokens for p in parts(request(DESK, briefing))}["facts"] <= SMALL.facts


def test_of_more_facts_than_can_be_told_the_last_verified_are_and_how_many_more_there_are() -> None:
    scene = start()
    now = clock.now()
    for place in range(120):
        scene.record(f"order.{place:03}", "x" * 100, observed_at=now - timedelta(seconds=place))
    *told, more = build(scene.run.pk, shares=SMALL).facts
    assert [fact["fact"] for fact in told] == [f"order.{place:03}" for place in range(len(told))]
    assert more["and"] == 120 - len(told) > 0


def test_the_number_of_queries_does_not_grow_with_the_run() -> None:
    small, large = start(), start()
    for scene, steps_there, facts_there in ((small, 10, 1), (large, 2_000, 50)):
        fill(scene.run, count=steps_there)
        for place in range(facts_there):
            scene.record(f"order.{place}", {"paid": "45.00"})

    def count(scene: Scene) -> int:
        with CaptureQueriesContext(connection) as queries:
            build(scene.run.pk, shares=SMALL)
        return len(queries)

    assert count(large) == count(small) + 1 <= 12  # what it has folded is kept
    assert count(large) == count(small)


def test_five_thousand_steps_and_three_hundred_facts_keep_to_their_shares() -> None:
    scene = start(constraints=("Never refund twice.", "Nothing above 200 without a person. \u20ac"))
    scene.think()
    first = request(DESK, build(scene.run.pk))
    fill(scene.run, count=5_000, first=2)
    step = Step.objects.get(run=scene.run, number=3)
    for place in range(300):
        scene.record(f"order.{10_000 + place}", {"order": str(10_000 + place), "paid": "45.00"}, step=step)
    briefing = build(scene.run.pk)
    last = request(DESK, briefing)
    sizes = {part.name: part.tokens for part in parts(last)}
    assert sizes["log"] <= Shares.log
    assert sizes["facts"] <= Shares.facts
    line = '<constraints>["Never refund twice.","Nothing above 200 without a person. \u20ac"]</constraints>'
    assert line in stable(first)
    assert line in stable(last)
    assert len(briefing.facts) == 300
    assert told_steps(briefing) >= finished(scene.run)
    before = stable(last)
    scene.think()
    scene.read("99999")
    now = stable(request(DESK, build(scene.run.pk)))
    assert common(before, now) >= 0.9 * len(before)


def test_a_result_of_any_length_is_recalled_whole_in_parts_that_the_log_shows_unshortened() -> None:
    scene = start()
    scene.think()
    whole: Json = {"rows": [f"<row {n}> \u20ac" for n in range(3_000)]}
    step = scene.read("1001", result=whole)

    def recall(offset: int) -> dict[str, Any]:
        asked: dict[str, Json] = {"step": step.number, "search": None, "offset": offset}
        with transaction.atomic():
            run = lifecycle.lock(scene.run.pk)
            recalled = steps.plan(run, steps.Asked(kind=StepKind.ACT, tool="recall", arguments=asked))
            part: Any = builtin.execute(run, recalled, DESK)
            steps.close(recalled, StepState.DONE, result=part)
        return dict(part)

    text, offset = "", 0
    while offset >= 0:
        part = recall(offset)
        assert build(scene.run.pk).log[-1]["result"] == part
        text, offset = text + part["result_text"], part.get("next_offset", -1)
    assert json.loads(text) == whole
    with pytest.raises(NotNow, match="nothing at"):
        recall(10**9)
