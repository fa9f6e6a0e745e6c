"""Starting, reading, pausing, stopping runs and setting their limits over the API."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs import clock, queries
from runs.models import JournalEntry, Run
from runs.queries import Window
from tests import situations
from tests.people import api_of, error_of, operator, viewer

__all__ = ["operator", "viewer"]

pytestmark = pytest.mark.django_db

START = {"agent": "refund-desk", "goal": "Work off batch b1", "inputs": {"batch": "b1"}}
FIELDS = [
    "id",
    "uid",
    "agent",
    "goal",
    "constraints",
    "state",
    "waiting_for",
    "why",
    "due_at",
    "deadline_at",
    "epoch",
    "clocks",
    "budget",
    "outcome",
    "verified",
    "in_flight",
    "counts",
    "links",
]


def test_a_run_is_started_and_read_back(operator: User) -> None:
    api = api_of(operator)
    body = START | {
        "constraints": ["Ask before noon."],
        "labels": {"shop": "north"},
        "budget": {"usd": "1.50", "tokens": 5000, "steps": 7, "working_s": 60},
        "max_age_s": 3600,
        "deadline_at": "2036-01-01T10:00:00+01:00",
    }
    response = api.post("/runs", body)
    assert response.status_code == 201, response.content
    run: dict[str, Any] = response.json()
    assert response["Location"] == f"/api/v1/runs/{run['id']}"
    assert set(FIELDS) <= set(run)
    assert run["constraints"][-1] == "Ask before noon."
    assert run["deadline_at"] == "2036-01-01T09:00:00Z"
    limits = {"usd": "1.50", "tokens": 5000, "calls": None, "effects": None, "steps": 7, "working_s": 60.0}
    assert run["budget"]["limits"] == limits
    assert run["budget"]["reserved"]["usd"] == "0.00"
    again = api.get(f"/runs/{run['id']}").json()
    assert {name: again[name] for name in FIELDS if name not in ("clocks", "budget")} == {
        name: run[name] for name in FIELDS if name not in ("clocks", "budget")
    }


def test_every_link_of_a_run_leads_somewhere(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    links = api.get(f"/runs/{run.pk}").json()["links"]
    for name, link in links.items():
        if name != "page":
            assert api.get(link.removeprefix("/api/v1")).status_code == 200, link


def test_the_same_idempotency_key_and_body_give_the_same_run(operator: User) -> None:
    api = api_of(operator)
    headers = {"Idempotency-Key": "batch-b1"}
    first = api.post("/runs", START, **headers)
    second = api.post("/runs", START, **headers)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    other = api.post("/runs", START | {"goal": "Something else"}, **headers)
    assert other.status_code == 422
    assert error_of(other)["code"] == "idempotency_key_reused"
    assert Run.objects.count() == 1


def test_an_idempotency_key_is_its_senders_own(operator: User) -> None:
    from runs.access import Role
    from tests.people import make_person

    headers = {"Idempotency-Key": "one"}
    first = api_of(operator).post("/runs", START, **headers).json()
    second = api_of(make_person("otto", Role.OPERATOR)).post("/runs", START, **headers)
    assert second.status_code == 201
    assert second.json()["id"] != first["id"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"goal": "x"}, "malformed"),
        (START | {"agent": "nobody"}, "unknown_agent"),
        (START | {"surprise": 1}, "malformed"),
        (START | {"budget": {"usd": "-1"}}, "malformed"),
        (START | {"budget": {"usd": "1e40"}}, "malformed"),
        (START | {"budget": {"usd": "NaN"}}, "malformed"),
        (START | {"budget": {"euro": "1"}}, "malformed"),
        (START | {"budget": {"tokens": 2**63}}, "malformed"),
        (START | {"max_age_s": 1e300}, "malformed"),
        (START | {"max_age_s": 0}, "malformed"),
        (START | {"deadline_at": "2036-01-01T10:00:00"}, "malformed"),
        (START | {"deadline_at": "9999-12-31T23:59:59-12:00"}, "malformed"),
        (START | {"goal": "   "}, "malformed"),
        (START | {"goal": "x" * 20_001}, "malformed"),
        (START | {"labels": {"shop": 1}}, "malformed"),
        ([], "malformed"),
        ("{", "malformed"),
        ('{"goal": NaN}', "malformed"),
        ("[" * 100_000, "malformed"),
        (b"\xff\xfe", "malformed"),
    ],
)
def test_a_body_that_cannot_be_used_is_refused(operator: User, body: object, code: str) -> None:
    response = api_of(operator).post("/runs", body)
    assert response.status_code == 400, response.content
    problem = response.json()
    assert problem["error"]["code"] == code
    assert problem["error"]["message"]
    assert problem["error"]["remedy"]
    assert (problem["status"], response["Content-Type"]) == (400, "application/problem+json")
    assert {"type", "title", "detail", "instance"} <= set(problem)
    assert not Run.objects.exists()


def test_a_body_of_more_than_a_mebibyte_is_too_large(operator: User) -> None:
    response = api_of(operator).post("/runs", START | {"inputs": {"text": "x" * 1_100_000}})
    assert response.status_code == 413
    assert error_of(response)["code"] == "too_large"
    assert api_of(operator).post("/runs", b"x" * 3_000_000).status_code == 413


def test_what_postgresql_cannot_hold_in_a_text_is_replaced(operator: User) -> None:
    response = api_of(operator).post("/runs", '{"agent": "refund-desk", "goal": "a\\u0000b\\ud800c"}')
    assert response.status_code == 201
    assert response.json()["goal"] == "a\ufffdb\ufffdc"


def test_runs_are_listed_newest_first_and_paged_by_a_cursor(operator: User) -> None:
    api = api_of(operator)
    numbers = [situations.start(operator).pk for _ in range(5)]
    first = api.get("/runs", limit=2).json()
    assert [run["id"] for run in first["items"]] == numbers[:2:-1]
    situations.start(operator)
    second = api.get("/runs", limit=2, after=first["next"]).json()
    assert [run["id"] for run in second["items"]] == numbers[2:0:-1]
    third = api.get("/runs", limit=2, after=second["next"]).json()
    assert [run["id"] for run in third["items"]] == numbers[:1]
    assert third["next"] is None


def test_runs_are_filtered_by_state_agent_label_wait_and_words(operator: User) -> None:
    api = api_of(operator)
    plain = situations.start(operator)
    marked = situations.start(operator, labels={"shop": "north"}, goal="Look for the 100% wool order")
    waiting = situations.ask_approval(situations.start(operator)).run

    def found(**query: Any) -> list[int]:
        response = api.get("/runs", **query)
        assert response.status_code == 200, response.content
        return [run["id"] for run in response.json()["items"]]

    assert found(state="waiting") == [waiting.pk]
    assert found(state="queued,waiting") == [waiting.pk, marked.pk, plain.pk]
    assert found(waiting_for="approval") == [waiting.pk]
    assert found(label="shop:north") == [marked.pk]
    assert found(agent="nobody") == []
    assert found(q="100% WOOL") == [marked.pk]
    assert found(q=str(plain.pk)) == [plain.pk]
    assert found(q=str(plain.uid)) == [plain.pk]


@pytest.mark.parametrize(
    "query",
    [
        {"state": "asleep"},
        {"waiting_for": "godot"},
        {"label": "shop"},
        {"after": "last"},
        {"after": "99999999999999999999"},
        {"after": "-1"},
        {"after": "\u0661"},
        {"limit": "0"},
        {"limit": "201"},
        {"limit": "ten"},
        {"q": "a\x00b"},
        {"agent": "\x00"},
        {"parent": "99999999999999999999"},
    ],
)
def test_a_query_that_cannot_be_used_is_refused(operator: User, query: dict[str, str]) -> None:
    response = api_of(operator).get("/runs", **query)
    assert response.status_code == 400, response.content
    assert error_of(response)["code"] == "malformed"


@pytest.mark.parametrize("number", ["0", "-1", "99999999999999999999999", "abc", "1.5", "9223372036854775807", "%00"])
@pytest.mark.parametrize("part", ["", "/steps", "/journal", "/briefing", "/steps/1"])
def test_a_run_that_cannot_be_there_is_not_found(operator: User, number: str, part: str) -> None:
    response = api_of(operator).get(f"/runs/{number}{part}")
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


def test_a_run_is_stopped_once_with_a_reason(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    assert api.post(f"/runs/{run.pk}/stop", {"reason": ""}).status_code == 400
    stopped = api.post(f"/runs/{run.pk}/stop", {"reason": "wrong batch"})
    assert stopped.status_code == 200
    assert (stopped.json()["state"], stopped.json()["why"]) == ("stopped", "wrong batch")
    again = api.post(f"/runs/{run.pk}/stop", {"reason": "again"})
    assert again.status_code == 409
    assert error_of(again)["code"] == "run_ended"
    assert again.json()["run"]["state"] == "stopped"
    entry = JournalEntry.objects.get(kind="run.stopped")
    assert (entry.actor, entry.why) == ("person:olga", "wrong batch")


def test_a_run_is_paused_and_resumed(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    paused = api.post(f"/runs/{run.pk}/pause", {"reason": "lunch"}).json()
    assert paused["paused"]["reason"] == "lunch"
    assert paused["why"] == "Paused: lunch"
    assert api.post(f"/runs/{run.pk}/pause", {"reason": "lunch"}).status_code == 409
    resumed = api.post(f"/runs/{run.pk}/resume", {"reason": "back"}).json()
    assert resumed["paused"] is None
    assert api.post(f"/runs/{run.pk}/resume", {"reason": "back"}).status_code == 409


def test_a_new_limit_closes_the_question_and_queues_the_run(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    card = situations.ask_budget(run)
    assert api.get(f"/runs/{run.pk}").json()["waiting_for"] == "budget"
    response = api.post(f"/runs/{run.pk}/budget", {"usd": "5.00", "reason": "worth it"})
    assert response.status_code == 200, response.content
    assert (response.json()["state"], response.json()["budget"]["limits"]["usd"]) == ("queued", "5.00")
    assert api.get(f"/approvals/{card.pk}").json()["state"] == "void"
    grant = api.get(f"/runs/{run.pk}/ledger").json()["items"][0]
    assert (grant["kind"], grant["note"]) == ("grant", "worth it")


@pytest.mark.parametrize(
    "body", [{"reason": "x"}, {"usd": "1"}, {"usd": "1", "reason": " "}, {"tokens": -1, "reason": "x"}]
)
def test_a_limit_needs_an_amount_and_a_reason(operator: User, body: dict[str, Any]) -> None:
    run = situations.start(operator)
    assert api_of(operator).post(f"/runs/{run.pk}/budget", body).status_code == 400


def test_a_limit_below_what_is_used_is_refused_with_the_run_as_it_is(operator: User) -> None:
    run = situations.start(operator)
    run.budget.tokens_spent = 500
    run.budget.save()
    response = api_of(operator).post(f"/runs/{run.pk}/budget", {"tokens": 100, "reason": "less"})
    assert response.status_code == 409
    assert error_of(response)["code"] == "limit_too_low"
    assert response.json()["run"]["budget"]["spent"]["tokens"] == 500


def test_a_run_says_what_it_waits_for_until_when_and_what_then(operator: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    run = api_of(operator).get(f"/runs/{asking.run.pk}").json()
    assert run["state"] == "waiting"
    assert run["waiting_for"] == "approval"
    assert "above 200" in run["why"]
    assert run["waits"] == [
        {
            "step": asking.step.number,
            "tool": "refund",
            "waiting_for": "approval",
            "on": "an approver",
            "note": "amount 420.00 is above 200",
            "until": queries.as_json(asking.card.expires_at),
            "and_then": "it is expired",
            "approval": asking.card.pk,
        }
    ]
    assert run["counts"]["approvals_pending"] == 1
    assert run["counts"]["facts"] == 1


def test_a_call_under_way_is_shown_until_it_ends(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    attempt = situations.take(run)
    seen = api.get(f"/runs/{run.pk}").json()
    assert [(flight["step"], flight["tool"], flight["began_at"]) for flight in seen["in_flight"]] == [
        (attempt.step.number, "close_request", None)
    ]
    assert seen["why"] == "Under way: step 1 (close_request)."
    situations.finish(attempt, {"request": "r1"})
    assert api.get(f"/runs/{run.pk}").json()["in_flight"] == []


def test_the_clocks_run_while_one_looks(operator: User) -> None:
    asking = situations.ask_approval(situations.start(operator), valid_for_s=None)
    clock.shift(timedelta(seconds=100))
    clocks = api_of(operator).get(f"/runs/{asking.run.pk}").json()["clocks"]
    assert clocks["people_s"] >= 100
    assert clocks["world_s"] == 0
    api_of(operator).post(f"/runs/{asking.run.pk}/stop", {"reason": "enough"})
    stopped = api_of(operator).get(f"/runs/{asking.run.pk}").json()["clocks"]
    assert 100 <= stopped["people_s"] < 110


def test_a_tripped_switch_is_named_as_what_holds_the_run(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    api.post("/switches", {"scope": f"run:{run.pk}", "reason": "look first"})
    seen = api.get(f"/runs/{run.pk}").json()
    assert seen["why"] == f"Held by the switch run:{run.pk}: look first"
    assert seen["held"][0]["by"] == f"run:{run.pk}"


def test_lists_of_a_run_are_paged_oldest_first(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    situations.finish(situations.take(run), {"request": "r1", "state": "closed"})
    for part in ("steps", "keys", "journal"):
        page = api.get(f"/runs/{run.pk}/{part}", limit=1).json()
        assert len(page["items"]) == 1, part
    journal = api.get(f"/runs/{run.pk}/journal", limit=200).json()["items"]
    assert [entry["seq"] for entry in journal] == list(range(1, len(journal) + 1))
    after = api.get(f"/runs/{run.pk}/journal", after=journal[2]["seq"]).json()["items"]
    assert after == journal[3:]
    step = api.get(f"/runs/{run.pk}/steps").json()["items"][0]
    assert (step["tool"], step["state"], step["result"]) == (
        "close_request",
        "done",
        {"request": "r1", "state": "closed"},
    )
    assert [attempt["outcome"] for attempt in step["attempts"]] == ["done"]
    key = api.get(f"/runs/{run.pk}/keys").json()["items"][0]
    assert (key["state"], key["step"], key["attempts"]) == ("done", 1, 1)


def test_a_large_result_stays_out_of_the_list_and_in_the_step(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    large = {"text": "The same again. " * 2_000}
    situations.finish(situations.take(run), large)
    listed = api.get(f"/runs/{run.pk}/steps").json()["items"][0]
    assert listed["result"] is None
    assert listed["result_bytes"] > 16_384
    assert api.get(f"/runs/{run.pk}/steps/1").json()["result"] == large
    assert api.get(f"/runs/{run.pk}/steps/2").status_code == 404


def test_reading_takes_the_same_number_of_queries_however_much_there_is(operator: User) -> None:
    agents = {"*"}

    def count() -> list[int]:
        counts = []
        run = situations.start(operator)
        for order in ("1", "2", "3"):
            situations.ask_approval(run, order=order)
        reads: list[Any] = [
            lambda: queries.find_run(run.pk, agents=agents),
            lambda: queries.list_runs(queries.RunFilter(), Window(), agents=agents),
            lambda: queries.list_approvals(Window(), agents=agents),
            lambda: queries.list_steps(run.pk, Window()),
            lambda: queries.list_facts(run.pk, Window()),
            lambda: queries.list_keys(run.pk, Window()),
            lambda: queries.list_journal(run.pk, Window()),
        ]
        for read in reads:
            with CaptureQueriesContext(
                connection,
            ) as captured:
                read()
            counts.append(len(captured))
        return counts

    first = count()
    assert count() == first
    assert max(first) <= 7


def test_the_briefing_is_a_page_with_one_item_and_stands_beside_it(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    page = api.get(f"/runs/{run.pk}/briefing").json()
    assert page["next"] is None
    (briefing,) = page["items"]
    assert briefing["goal"] == "Work off batch b1"
    assert {name: page[name] for name in briefing if name != "now"} == {n: v for n, v in briefing.items() if n != "now"}
    assert api.get(f"/runs/{run.pk}/briefing", after="1").json()["items"] == []
