"""Whatever comes from outside can be stored and read again, and what was replaced is marked (case G1)."""

import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from runs import artifacts, clock, facts, lifecycle, operations, sql, steps
from runs.agents import digest
from runs.approvals import Said
from runs.journal import Actor
from runs.models import Artifact, Event, Fact, JournalEntry, Run, Step
from runs.sanitise import MAX_DEPTH, MAX_ITEMS, clean_json, clean_text, find_replaced
from runs.states import RunState, StepKind, StepState, Verdict
from tests.situations import ask_question, start

MARK = "\ufffd"
FAMILY = "\U0001f469\u200d\U0001f467 \U0001f600"

pytestmark = pytest.mark.django_db


@pytest.fixture
def person(db: None) -> User:
    return User.objects.create_superuser("ana")


def through_jsonb(value: object) -> Any:
    (text,) = sql.fetch_row("SELECT %s::jsonb::text", [sql.jsonb([value])])
    return json.loads(text)[0]


def through_text(value: str) -> str:
    (text,) = sql.fetch_row("SELECT %s::text", [clean_text(value)])
    return str(text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a\x00b", f"a{MARK}b"),
        ("\ud83d", MARK),
        ("\ude00\ud83d", MARK * 2),
        ("cut \ud83d end", f"cut {MARK} end"),
        ("\ud83d\ude00", "\U0001f600"),
        (FAMILY, FAMILY),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (-0.0, 0.0),
        (1e16, "1e+16"),
        (1e300, "1e+300"),
        (5e-324, 5e-324),
        (Decimal("0.1"), "0.1"),
        (Decimal("NaN"), "NaN"),
        (2**53, 2**53),
        (10**40, "1" + "0" * 40),
        (-(10**40), "-1" + "0" * 40),
        (10**5000, hex(10**5000)),
        (True, True),
        (None, None),
        (b"plain", "plain"),
        (b"\xff\xfe", {"base64": "//4="}),
        (b"a\x00b", {"base64": "YQBi"}),
        (bytearray(b"x"), "x"),
        (datetime(2026, 11, 29, 19, 30, tzinfo=UTC), "2026-11-29T19:30:00+00:00"),
        (date(2026, 11, 29), "2026-11-29"),
        (time(19, 30), "19:30:00"),
        (timedelta(minutes=2), 120.0),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"a"}), ["a"]),
        ((1, "2"), [1, "2"]),
        (range(3), [0, 1, 2]),
        ((n for n in (1, 2)), [1, 2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Fraction(1, 3), "Fraction(1, 3)"),
        (StepState.DONE, "done"),
        (int, "<class 'int'>"),
    ],
    ids=lambda value: ascii(value)[:30] if not isinstance(value, int) or abs(value) < 10**50 else "huge",
)
def test_each_kind_of_value_is_stored_and_marked_where_something_was_replaced(given: object, kept: object) -> None:
    cleaned = clean_json(given)
    assert cleaned == kept
    assert through_jsonb(cleaned) == kept


def test_a_dataclass_and_a_model_are_kept_by_their_fields() -> None:
    @dataclass
    class Order:
        number: int
        paid: Decimal

    class Parcel(BaseModel):
        order: int
        lost: bool = False

    assert clean_json([Order(7, Decimal("1.50")), Parcel(order=7)]) == [
        {"number": 7, "paid": "1.50"},
        {"order": 7, "lost": False},
    ]


def test_what_is_no_json_is_found_with_its_place_once_for_each_type() -> None:
    @dataclass
    class Order:
        number: int
        paid: Decimal

    value = {
        "orders": [Order(1, Decimal("1.50")), Order(2, Decimal("2.50"))],
        "at": (datetime.now(UTC),),
        "by": {7: "x"},
        "huge": [2**60, 1.5, True, None],
        "took": timedelta(seconds=3),
        "raw": b"\x00\xff",
        "object": Fraction(1, 3),
        "set": {3, 1},
        "each": iter([Decimal(1)]),
        "nul": "a\x00b",
    }
    found = [(each.path, each.what, each.kept_as) for each in find_replaced(value, clean_json(value))]
    assert found == [
        ("orders[0].paid", "Decimal", "str"),
        ("at[0]", "datetime", "str"),
        ("by (a key)", "int", "str"),
        ("took", "timedelta", "float"),
        ("raw", "bytes", "dict"),
        ("object", "Fraction", "str"),
    ]


@pytest.mark.parametrize("value", [{"a": [1, 2.5, "x", None, True, {"b": []}]}, (1, (2, 3)), "a\x00", OrderedDict(a=1)])
def test_of_what_is_json_nothing_is_found(value: object) -> None:
    assert find_replaced(value, clean_json(value)) == []


def test_what_cannot_be_compared_is_found_and_never_raises() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    value = [Odd()]
    (found,) = find_replaced(value, clean_json(value))
    assert (found.what, found.kept_as) == ("list", "list (RuntimeError)")


def test_keys_that_become_equal_are_kept_apart_and_keys_of_two_normal_forms_both_stay() -> None:
    assert clean_json({"a\x00": 1, f"a{MARK}": 2}) == {f"a{MARK}": 1, f"a{MARK}\u2032": 2}
    assert clean_json({1: "number", "1": "text", None: 0}) == {"1": "number", "1\u2032": "text", "None": 0}
    composed, decomposed = "\u00e9", "e\u0301"
    for names in itertools.permutations([composed, decomposed]):
        value = dict.fromkeys(names, 1)
        assert through_jsonb(value) == {composed: 1, decomposed: 1}


def test_two_hundred_levels_are_stored_whole_and_what_is_deeper_is_cut_with_a_mark() -> None:
    def nest(levels: int) -> Any:
        value: Any = "core"
        for level in range(levels):
            value = [value] if level % 2 else {"in": value}
        return value

    assert through_jsonb(nest(MAX_DEPTH - 1)) == nest(MAX_DEPTH - 1)
    assert "nested deeper than" in json.dumps(through_jsonb(nest(5000)), ensure_ascii=False)


def test_a_value_that_holds_itself_or_has_no_end_is_cut_with_a_mark() -> None:
    loop: list[Any] = [1]
    loop += [loop, {"again": loop}]
    assert clean_json(loop) == [1, "… holds itself: list", {"again": "… holds itself: list"}]
    endless = clean_json(itertools.count())
    assert isinstance(endless, list)
    assert (len(endless), endless[-1]) == (MAX_ITEMS + 1, f"… and more than {MAX_ITEMS} items")


def test_a_value_that_cannot_be_looked_at_never_raises() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

        def __iter__(self) -> Iterator[object]:
            raise RuntimeError("no")

    assert clean_json(Broken()) == "… cannot be shown: Broken (RuntimeError)"


def test_an_emoji_at_the_place_of_our_own_cut_is_whole_or_gone(person: User) -> None:
    text = "x" * (artifacts.PREVIEW_CHARS - 1) + "\U0001f600" * 12_000
    with transaction.atomic():
        preview, artifact = artifacts.shorten(text)
    assert artifact is not None
    assert isinstance(preview, dict)
    assert preview["text"] == "x" * (artifacts.PREVIEW_CHARS - 1) + "\U0001f600"
    assert json.loads(bytes(Artifact.objects.get(pk=artifact.pk).body)) == text


def test_a_result_with_lone_surrogates_is_shortened_all_the_same(db: None) -> None:
    with transaction.atomic():
        preview, artifact = artifacts.shorten("\ud83d\x00" * 20_000)
        again, same = artifacts.shorten("\ud83d\x00" * 20_000)
        odd = artifacts.store(b"{}", media_type="text/\x00" + "x" * 300)
    assert artifact is not None
    assert same is not None
    assert (same.pk, again) == (artifact.pk, preview)
    assert (len(odd.media_type), odd.media_type[:6]) == (100, f"text/{MARK}")


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | texts
    | st.binary(max_size=20)
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.uuids()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(texts | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | texts, max_size=4)
    ),
    max_leaves=12,
)
many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(values)
def test_any_value_comes_back_from_jsonb_equal_with_the_same_digest_and_is_clean_for_good(value: Any) -> None:
    cleaned = clean_json(value)
    back = through_jsonb(value)
    assert back == cleaned
    assert digest(back) == digest(cleaned)
    assert clean_json(cleaned) == cleaned
    assert digest(clean_json(back)) == digest(cleaned)


@many
@given(texts)
def test_any_text_comes_back_from_a_text_column_and_paired_surrogates_are_untouched(text: str) -> None:
    stored = through_text(text)
    assert stored == clean_text(text)
    assert len(stored.encode("utf-16-le")) == len(text.encode("utf-16-le", "surrogatepass"))
    proper = text.encode("utf-8", "ignore").decode().replace("\x00", "")
    assert clean_text(proper) == proper
    assert clean_text(proper.encode("utf-16-le").decode("utf-16-le", "surrogatepass")) == proper


DIRT = "a\x00b \ud83d \U0001f600"
CLEAN = f"a{MARK}b {MARK} \U0001f600"


def test_every_text_that_comes_from_outside_is_stored_marked_and_the_run_goes_on(person: User) -> None:
    run = start(person, goal=DIRT, constraints=[DIRT], inputs={"batch": DIRT}, labels={DIRT: DIRT})
    card = ask_question(run, question=DIRT)
    operations.decide(card.pk, Said(verdict=Verdict.RESPOND, answer=DIRT, comment=DIRT), by=person)
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        fact = facts.record(
            locked, name=DIRT, value=DIRT, source={"tool": DIRT}, observed_at=clock.now(), max_age_s=60.0
        )
        step = steps.plan(
            locked,
            steps.Asked(kind=StepKind.ACT, tool="refund", arguments={"memo": DIRT}, because=DIRT, rests_on=(DIRT,)),
        )
        assert set(facts.judge(run.pk, [DIRT])) == {CLEAN}
        facts.correct(fact, DIRT, actor=Actor(name="person:ana", user=person.pk))
        lifecycle.add_work(run.pk, [DIRT], step=step.pk)
        steps.close(step, StepState.FAILED, error=DIRT, result=DIRT)
    operations.store_event(name=DIRT, key=DIRT, payload=DIRT, source=DIRT, delivery_id=DIRT, by=person)
    switch = operations.engage_switch("all", reason=DIRT, by=person)
    operations.release_switch(switch.pk, reason=DIRT, by=person)
    operations.pause_run(run.pk, reason=DIRT, by=person)
    operations.resume_run(run.pk, reason=DIRT, by=person)
    operations.set_budget(run.pk, {"steps": 77}, reason=DIRT, by=person)

    stored = Run.objects.get(pk=run.pk)
    assert (stored.goal, stored.constraints[-1], stored.inputs, stored.labels) == (
        CLEAN, CLEAN, {"batch": CLEAN}, {CLEAN: CLEAN}
    )  # fmt: skip
    assert stored.state == RunState.QUEUED
    kept = Step.objects.get(pk=step.pk)
    assert (kept.arguments, kept.because, kept.rests_on, kept.error, kept.result) == (
        {"memo": CLEAN}, CLEAN, [CLEAN], CLEAN, CLEAN
    )  # fmt: skip
    assert Fact.objects.filter(run=run, name=CLEAN).values_list("value", flat=True).get() == CLEAN
    assert Event.objects.get(source=CLEAN).payload == CLEAN
    assert Step.objects.get(run=run, tool="ask").result == {"answer": CLEAN}
    assert JournalEntry.objects.filter(run=run, why__contains=MARK).count() >= 5

    operations.stop_run(run.pk, reason=DIRT, by=person)
    stored.refresh_from_db()
    assert (stored.state, stored.end_reason) == (RunState.STOPPED, CLEAN)
