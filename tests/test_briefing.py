"""The briefing says what the tables say, in the exact lines that a model reads."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from pytest_django import Settings

from runs import budgets, clock, facts, lifecycle, steps
from runs.agents import Briefing, Budget, Json
from runs.engine.briefing import build, parts, request, to_json
from runs.engine.builtin import BUILTINS
from runs.journal import Actor
from runs.models import Amendment, Fact
from runs.states import ApprovalState, RunState, StepKind, StepState, Verdict, WaitingFor
from tests.briefing_runs import DESK, Scene, approver, known, said, start

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _desk() -> Iterator[None]:
    with known(DESK):
        yield


def brief(scene: Scene) -> Briefing:
    return build(scene.run.pk)


def notices(scene: Scene, kind: str) -> list[dict[str, object]]:
    return [each for each in brief(scene).notices if each["notice"] == kind]


def test_the_log_has_one_line_per_finished_step_and_none_per_think() -> None:
    scene = start()
    scene.think()
    order = scene.read("1001")
    scene.act("read_order", {"order": "1002"}, state=StepState.FAILED, error="no answer")
    scene.think()
    first = scene.refund("1001")
    scene.refund("1001", first=first)
    scene.refund("1002", state=StepState.REFUSED, result=None, error="read it first")
    scene.refund("1003", state=None)
    assert brief(scene).log == [
        {
            "step": order.number,
            "tool": "read_order",
            "with": {"order": "1001"},
            "outcome": "done",
            "result": {"order": "1001", "paid": "45.00"},
        },
        {"step": 3, "tool": "read_order", "with": {"order": "1002"}, "outcome": "failed", "reason": "no answer"},
        {
            "step": 5,
            "tool": "refund",
            "with": {"order": "1001", "amount": "45.00"},
            "outcome": "done",
            "result": {"order": "1001", "amount": "45.00"},
        },
        {
            "step": 6,
            "tool": "refund",
            "with": {"order": "1001", "amount": "45.00"},
            "outcome": "replayed",
            "first_step": 5,
            "result": {"order": "1001", "amount": "45.00"},
        },
        {
            "step": 7,
            "tool": "refund",
            "with": {"order": "1002", "amount": "45.00"},
            "outcome": "refused",
            "reason": "read it first",
        },
    ]


def test_a_large_result_is_shortened_and_refers_to_its_artifact() -> None:
    scene = start()
    scene.think()
    scene.read("1001", result={"rows": ["x" * 100] * 400})
    scene.read("1002", result={"rows": ["y" * 100] * 80})
    large, middling = brief(scene).log
    assert large["result"]["shortened"] is True
    assert large["result"]["artifact"].startswith("sha256:")
    assert middling["result"]["shortened"] is True
    assert middling["result"]["bytes"] > 8_000
    assert all(len(json.dumps(line)) < 4_500 for line in (large, middling))


def test_a_checked_fact_has_a_line_of_its_own_kind() -> None:
    scene = start()
    scene.think()
    fact = scene.record("order.1001", {"paid": "45.00"}, step=scene.read("1001"))
    scene.think()
    scene.check(fact)
    scene.check(fact, {"paid": "40.00"}, changed=True)
    assert brief(scene).log[1:] == [
        {"step": 4, "check": "order.1001", "outcome": "same"},
        {"step": 5, "check": "order.1001", "outcome": "changed"},
    ]


def test_facts_are_told_with_age_and_state_by_the_database_clock() -> None:
    scene = start()
    scene.think()
    order = scene.read("1001")
    now = clock.now()
    for name, age_s in (("order.1", 10), ("order.2", 850), ("order.3", 1000)):
        scene.record(name, {"paid": "45.00"}, step=order, observed_at=now - timedelta(seconds=age_s))
    scene.record("order.4", "x", observed_at=now + timedelta(hours=1))
    told = {fact["fact"]: fact for fact in build(scene.run.pk, at=now).facts}
    assert told["order.1"] == {
        "fact": "order.1",
        "value": {"paid": "45.00"},
        "age_s": 10,
        "max_age_s": 900,
        "state": "fresh",
        "from_step": order.number,
        "source": "read_order",
    }
    assert [told[f"order.{n}"]["state"] for n in (2, 3, 4)] == ["ageing", "stale", "unknown"]
    assert told["order.4"]["source"] == "agent"
    later = build(scene.run.pk, at=now + timedelta(seconds=2000))
    assert {fact["state"] for fact in later.facts} == {"stale", "unknown"}


def test_a_derived_fact_is_as_old_as_its_oldest_parent() -> None:
    scene = start()
    now = clock.now()
    scene.record("order.1", 1, observed_at=now - timedelta(seconds=1000))
    scene.record("order.2", 2, observed_at=now)
    scene.record("sum", 3, observed_at=now, derived_from=("order.1", "order.2"))
    scene.record("lost", 3, observed_at=now, derived_from=("order.9",))
    told = {fact["fact"]: fact for fact in build(scene.run.pk, at=now).facts}
    assert (told["sum"]["state"], told["sum"]["age_s"]) == ("stale", 1000)
    assert told["lost"]["state"] == "unknown"


def test_open_work_stands_verbatim_and_what_was_closed_last_with_its_outcome() -> None:
    scene = start()
    scene.think()
    first, _ = scene.plan("Request r1: order 1001", "Request r2: " + "very long " * 100)
    scene.close(first, "refunded 45.00")
    assert brief(scene).work == [
        {"item": "w1", "title": "Request r1: order 1001", "state": "closed", "outcome": "refunded 45.00"},
        {"item": "w2", "title": "Request r2: " + "very long " * 100, "state": "open"},
    ]


def test_a_rejection_is_told_with_its_reason_until_the_intent_is_done_or_its_item_closed() -> None:
    scene = start()
    scene.think()
    item, *_ = scene.plan("Request r1: order 1001")
    scene.think()
    step = scene.refund("1001", state=None)
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
    card = scene.ask(step)
    anna = approver()
    scene.decide(card, said(Verdict.REJECT, "known fraud"), anna, ApprovalState.REJECTED)
    told = {
        "notice": "rejected",
        "step": step.number,
        "tool": "refund",
        "with": {"order": "1001", "amount": "45.00"},
        "reason": "known fraud",
        "by": anna.username,
        "comment": "known fraud",
    }
    assert notices(scene, "rejected") == [told]
    scene.think()
    scene.read("1002")
    scene.think()
    assert notices(scene, "rejected") == [told]
    scene.close(item, "refused by reviewer")
    assert notices(scene, "rejected") == []
    assert brief(scene).log[1]["reason"] == "known fraud"


def test_a_failure_is_told_until_the_same_call_succeeds() -> None:
    scene = start()
    scene.think()
    scene.act("read_order", {"order": "1001"}, state=StepState.FAILED, error="no answer")
    assert notices(scene, "failed") == [
        {
            "notice": "failed",
            "step": 2,
            "tool": "read_order",
            "with": {"order": "1001"},
            "reason": "no answer",
            "tries": 0,
        }
    ]
    scene.think()
    scene.think()
    assert len(notices(scene, "failed")) == 1
    scene.read("1001")
    assert notices(scene, "failed") == []


def test_expired_void_doubtful_and_replayed_calls_are_told() -> None:
    scene = start()
    scene.think()
    first = scene.refund("1000")
    scene.refund("1001", state=StepState.EXPIRED, result=None, error="nobody decided in time")
    scene.refund(
        "1002",
        state=StepState.VOID,
        error="order.1002 changed",
        result={"changed": ["order.1002"], "old": {"paid": "45.00"}, "new": {"paid": "0.00"}},
    )
    scene.refund("1000", first=first)
    doubtful = scene.refund("1003", state=None)
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        steps.wait(steps.lock(doubtful.pk), WaitingFor.VERDICT, note="not known", state=StepState.IN_DOUBT)
    told = {each["notice"]: each for each in brief(scene).notices}
    assert told["expired"]["reason"] == "nobody decided in time"
    assert told["void"]["changed"] == ["order.1002"]
    assert (told["void"]["old"], told["void"]["new"]) == ({"paid": "45.00"}, {"paid": "0.00"})
    assert told["replayed"]["first_step"] == first.number
    assert told["in_doubt"]["with"] == {"order": "1003", "amount": "45.00"}


def test_a_changed_fact_is_told_with_old_and_new_at_the_next_think_only() -> None:
    scene = start()
    scene.think()
    fact = scene.record("order.1001", {"paid": "45.00"}, step=scene.read("1001"))
    scene.think()
    check = scene.check(fact, {"paid": "40.00"}, changed=True)
    told = {
        "notice": "changed",
        "fact": "order.1001",
        "old": {"paid": "45.00"},
        "new": {"paid": "40.00"},
        "step": check.number,
    }
    assert notices(scene, "changed") == [told]
    assert brief(scene).facts[0]["version"] == 2
    scene.think()
    assert notices(scene, "changed") == []


def test_a_fact_that_a_person_corrected_is_told() -> None:
    scene = start()
    fact = scene.record("order.1001", {"paid": "45.00"})
    scene.think()
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        facts.correct(Fact.objects.get(pk=fact.pk), {"paid": "1.00"}, actor=Actor(name="person:anna"))
    (told,) = notices(scene, "changed")
    assert (told["new"], told["by"]) == ({"paid": "1.00"}, "a person")


def test_amendments_are_told_whole_for_ever_and_new_ones_as_new() -> None:
    scene = start()
    anna = approver()
    Amendment.objects.create(run=scene.run, text="Do not refund order 1701.", by=anna, at=clock.now())
    assert [a.get("new") for a in notices(scene, "amended")] == [True]
    scene.think()
    Amendment.objects.create(run=scene.run, text="Be quick.", by=anna, at=clock.now())
    told = notices(scene, "amended")
    assert [a["text"] for a in told] == ["Do not refund order 1701.", "Be quick."]
    assert [a.get("new") for a in told] == [None, True]
    assert told[0]["by"] == anna.username


def test_a_refuted_finish_is_told_with_what_was_found() -> None:
    scene = start()
    scene.think()
    scene.act(
        "finish",
        {"outcome": "all done", "evidence": []},
        kind=StepKind.FINISH,
        state=StepState.REFUSED,
        error="refuted: r1 is open at the shop",
        result={"open": ["r1"]},
    )
    (told,) = notices(scene, "refuted")
    assert (told["step"], told["reason"], told["result"]) == (2, "r1 is open at the shop", {"open": ["r1"]})
    scene.think()
    scene.act(
        "finish", {"outcome": "done"}, kind=StepKind.FINISH, state=StepState.REFUSED, error="1 work items are open"
    )
    assert notices(scene, "refuted") == []
    assert notices(scene, "refused")[0]["reason"] == "1 work items are open"


@pytest.mark.parametrize("kind", ["cut_off", "refusal", "no_call"])
def test_a_reply_that_came_to_nothing_is_told_with_what_was_new_before_it(kind: str) -> None:
    scene = start()
    scene.think()
    scene.act("read_order", {"order": "1001"}, state=StepState.FAILED, error="no answer")
    empty = scene.think(settle=False)
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        result: Json = {"notice": kind, "stop_reason": "end_turn", "text": "Well, then."}
        steps.close(steps.lock(empty.pk), StepState.FAILED, result=result, error="it came to nothing")
    told = {each["notice"]: each for each in brief(scene).notices}
    assert told[kind]["reason"] == "it came to nothing"
    assert ("text" in told[kind]) == (kind != "cut_off")
    assert told["failed"]["step"] == 2
    scene.think()
    assert notices(scene, kind) == []


def test_an_edited_call_tells_what_ran_and_what_was_asked() -> None:
    scene = start()
    scene.think()
    step = scene.refund("1001", state=None)
    anna = approver()
    scene.decide(scene.ask(step), said(Verdict.EDIT, "half is enough"), anna, ApprovalState.APPROVED)
    with transaction.atomic():
        lifecycle.lock(scene.run.pk)
        locked = steps.lock(step.pk)
        steps.set_arguments(locked, {"order": "1001", "amount": "20.00", "memo": ""}, locked.contract)
        steps.close(locked, StepState.DONE, result={"amount": "20.00"})
    told = brief(scene)
    assert told.log[-1]["with"] == {"order": "1001", "amount": "20.00"}
    assert told.log[-1]["edited_from"] == {"order": "1001", "amount": "45.00"}
    (notice,) = notices(scene, "edited")
    assert (notice["by"], notice["comment"]) == (anna.username, "half is enough")


def test_a_child_that_ended_is_told() -> None:
    scene = start()
    scene.think()
    with transaction.atomic():
        parent = lifecycle.lock(scene.run.pk)
        child = lifecycle.create(agent="helper", contract="c", goal="help", parent=parent)
    assert notices(scene, "child_ended") == []
    with transaction.atomic():
        lifecycle.finalise(lifecycle.lock(child.pk), RunState.FAILED, reason="no luck", outcome={"found": 0})
    assert notices(scene, "child_ended") == [
        {
            "notice": "child_ended",
            "run": child.pk,
            "agent": "helper",
            "state": "failed",
            "outcome": {"found": 0},
            "reason": "no luck",
        }
    ]


def test_the_budget_is_what_the_run_and_those_above_it_have_left() -> None:
    scene = start()
    told = brief(scene).budget
    assert told["usd"] == {"limit": "2.00", "spent": "0.00", "reserved": "0.00", "left": "2.00"}
    assert told["tokens"] == {"limit": None, "spent": 0, "reserved": 0}
    with transaction.atomic():
        child = lifecycle.create(agent="helper", contract="c", goal="help", parent=lifecycle.lock(scene.run.pk))
        budgets.create(child, Budget(usd="5"))
    told = build(child.pk).budget
    assert (told["usd"]["limit"], told["usd"]["left"]) == ("5.00", "2.00")


def test_the_time_is_told_in_the_zone_of_the_runs_and_how_long_the_run_was_away(settings: Settings) -> None:
    scene = start()
    assert brief(scene).now["away_s"] is None
    scene.think()
    scene.run.refresh_from_db()
    assert scene.run.last_thought_at is not None
    at = scene.run.last_thought_at + timedelta(days=3, seconds=5)
    told = build(scene.run.pk, at=at).now
    assert told["away_s"] == 3 * 86_400 + 5
    assert told["time"] == at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    settings.RUN_ZONE = "Asia/Tokyo"
    told = build(scene.run.pk, at=at).now
    there = at.astimezone(ZoneInfo("Asia/Tokyo"))
    assert datetime.fromisoformat(told["time"]) == there.replace(microsecond=0)
    assert (told["time"][-6:], told["zone"], told["day"]) == ("+09:00", "Asia/Tokyo", f"{there:%A}")


def test_the_request_marks_what_a_cache_may_keep() -> None:
    scene = start()
    scene.think()
    scene.read("1001")
    scene.think()
    scene.refund("1001")
    sent = request(DESK, brief(scene))
    (message,) = sent.messages
    *stable, volatile = message["content"]
    assert [block["text"].split("\n")[0][:8] for block in stable] == ['<goal>"S', '{"step":', '{"step":']
    assert ["cache_control" in block for block in stable] == [False, False, True]
    assert "cache_control" not in volatile
    assert volatile["text"].startswith("</log>\n<facts>\n")
    assert ["cache_control" in block for block in sent.system] == [False, True]
    assert ["cache_control" in tool for tool in sent.tools] == [False] * (len(sent.tools) - 1) + [True]
    assert (sent.model, sent.max_tokens) == (DESK.model, DESK.max_tokens)
    assert sent.system[0]["text"] == DESK.instructions


def test_tools_that_act_ask_for_a_reason() -> None:
    sent = request(DESK, brief(start()))
    tools = {tool["name"]: tool["input_schema"] for tool in sent.tools}
    assert set(tools) == {"read_order", "refund", *BUILTINS} - {"spawn"}
    assert set(tools["refund"]["properties"]) == {"order", "amount", "memo", "because", "rests_on", "again"}
    assert "because" in tools["refund"]["required"]
    assert "rests_on" not in tools["refund"]["required"]
    assert set(tools["read_order"]["properties"]) == {"order"}
    assert "because" not in DESK.tools[1].schema["properties"]


def test_the_parts_add_up_to_what_is_sent() -> None:
    scene = start()
    scene.think()
    scene.read("1001")
    sent = request(DESK, brief(scene))
    told = {part.name: part for part in parts(sent)}
    assert list(told) == [
        "tools",
        "instructions",
        "house rules",
        "goal",
        "constraints",
        "inputs",
        "log",
        "facts",
        "work",
        "notices",
        "budget",
        "now",
    ]
    text = sum(len(block["text"].encode()) for block in sent.messages[0]["content"])
    message = sum(part.bytes for name, part in told.items() if name not in ("tools", "instructions", "house rules"))
    assert abs(message - text) <= 3
    assert {name for name, part in told.items() if part.cacheable < 1} == {"facts", "work", "notices", "budget", "now"}


def test_a_briefing_survives_json() -> None:
    scene = start()
    scene.think()
    scene.record("order.1001", {"paid": "45.00"}, step=scene.read("1001"))
    told = brief(scene)
    assert Briefing(**json.loads(json.dumps(to_json(told)))) == told


def test_there_is_no_briefing_of_a_run_that_is_not_there() -> None:
    with pytest.raises(LookupError):
        build(987_654)
