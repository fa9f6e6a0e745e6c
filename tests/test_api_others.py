"""Facts, events, switches, health and the documentation of the API."""

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from runs import operations, processes
from runs.models import Event, JournalEntry, Switch
from runs.states import ProcessKind
from tests import situations
from tests.people import Api, api_of, error_of, operator, viewer

__all__ = ["operator", "viewer"]

pytestmark = pytest.mark.django_db

EVENT = {"name": "parcel.arrived", "key": "1001", "payload": {"at": "noon"}, "delivery_id": "d1", "source": "carrier"}


def test_a_fact_is_read_and_checked_again(operator: User) -> None:
    api = api_of(operator)
    asking = situations.ask_approval(situations.start(operator))
    fact = api.get(f"/runs/{asking.run.pk}/facts").json()["items"][0]
    assert fact == api.get(f"/facts/{fact['id']}").json() | {"age_s": fact["age_s"]}
    response = api.post(f"/facts/{fact['id']}/recheck")
    assert response.status_code == 202, response.content
    check = response.json()
    assert (check["kind"], check["tool"], check["fact"]) == ("check", "read_order", "order.1001")
    assert api.post(f"/facts/{fact['id']}/recheck").json()["id"] == check["id"]
    api.post(f"/runs/{asking.run.pk}/stop", {"reason": "done"})
    late = api.post(f"/facts/{fact['id']}/recheck")
    assert late.status_code == 409
    assert late.json()["fact"]["name"] == "order.1001"


def test_an_event_is_stored_once_per_delivery(operator: User) -> None:
    api = api_of(operator)
    first = api.post("/events", EVENT)
    assert first.status_code == 202, first.content
    again = api.post("/events", EVENT | {"payload": "other"})
    assert again.status_code == 200
    assert again.json() == first.json() == {"id": Event.objects.get().pk, "matched_run": None}
    strange = api.post("/events", EVENT | {"delivery_id": "d\x002", "source": "\ud800"})
    assert strange.status_code == 202
    assert api.post("/events", EVENT | {"delivery_id": "d\x002", "source": "\ud800"}).json() == strange.json()


@pytest.mark.parametrize("change", [{"name": ""}, {"delivery_id": None}, {"source": "x" * 201}, {"extra": 1}])
def test_an_event_that_cannot_be_used_is_refused(operator: User, change: dict[str, Any]) -> None:
    assert api_of(operator).post("/events", EVENT | change).status_code == 400
    assert not Event.objects.exists()


def test_a_switch_is_engaged_shown_and_released(operator: User) -> None:
    api = api_of(operator)
    run = situations.start(operator)
    attempt = situations.take(run)
    response = api.post("/switches", {"scope": "tool:close_request", "reason": "wrong texts"})
    assert response.status_code == 201, response.content
    switch = response.json()
    assert switch["drained_at"] is None
    assert [flight["run"] for flight in switch["in_flight"]] == [run.pk]
    assert switch["acknowledged"] == []
    situations.finish(attempt)
    seen = api.get(f"/switches/{switch['id']}").json()
    assert seen["in_flight"] == []
    assert [(ack["run"], ack["outcome"]) for ack in seen["acknowledged"]] == [(run.pk, "done")]
    assert seen["drained_at"] == seen["acknowledged"][0]["at"]
    assert [s["id"] for s in api.get("/switches", engaged=True).json()["items"]] == [switch["id"]]
    released = api.delete(f"/switches/{switch['id']}", {"reason": "mended"}).json()
    assert (released["released_by"], released["release_reason"]) == ("olga", "mended")
    again = api.delete(f"/switches/{switch['id']}")
    assert again.status_code == 409
    assert again.json()["switch"]["release_reason"] == "mended"
    assert list(JournalEntry.objects.filter(kind__startswith="switch.").values_list("kind", flat=True)) == [
        "switch.engaged",
        "switch.released",
    ]


def test_a_release_takes_its_reason_from_the_query_too(operator: User) -> None:
    api = api_of(operator)
    switch = api.post("/switches", {"scope": "all", "reason": "look"}).json()
    api.delete(f"/switches/{switch['id']}?reason=mended")
    assert Switch.objects.get().release_reason == "mended"


def test_engaging_what_is_engaged_changes_nothing(operator: User) -> None:
    api = api_of(operator)
    first = api.post("/switches", {"scope": "all", "reason": "first"}).json()
    second = api.post("/switches", {"scope": "all", "reason": "second"}).json()
    assert (second["id"], second["reason"]) == (first["id"], "first")


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ("everything", 400),
        ("agent:", 400),
        ("agent:refund-dsek", 400),
        ("tool:refnud", 400),
        ("run:999999", 404),
        ("run:٣", 400),
        ("run:99999999999999999999999", 404),
        ("x" * 300, 400),
        ("tool:\x00", 400),
    ],
)
def test_a_switch_that_would_hold_nothing_is_refused(operator: User, scope: str, status: int) -> None:
    response = api_of(operator).post("/switches", {"scope": scope, "reason": "look"})
    assert response.status_code == status, response.content
    assert not Switch.objects.exists()


def test_a_started_run_is_refused_under_a_switch(operator: User) -> None:
    api = api_of(operator)
    api.post("/switches", {"scope": "agent:refund-desk", "reason": "look"})
    response = api.post("/runs", {"agent": "refund-desk", "goal": "x"})
    assert response.status_code == 409
    assert error_of(response)["code"] == "switched_off"


def test_health_needs_no_token_and_names_what_is_missing() -> None:
    api = Api()
    assert api.get("/health/live").json()["ok"] is True
    missing = api.get("/health/ready")
    assert missing.status_code == 503
    assert missing.json()["missing"] == ["gateway", "cluster"]
    assert [part["name"] for part in missing.json()["parts"]] == ["database", "migrations", "gateway", "cluster"]


def test_health_is_ready_when_both_executors_were_seen_lately() -> None:
    _see(ProcessKind.GATEWAY)
    _see(ProcessKind.CLUSTER)
    assert Api().get("/health/ready").status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_process SET seen_at = seen_at - interval '1 hour' WHERE kind = 'gateway'")
    late = Api().get("/health/ready")
    assert late.status_code == 503
    assert late.json()["missing"] == ["gateway"]


def test_head_is_answered_as_get_without_a_body(operator: User) -> None:
    api = api_of(operator)
    for path, status in (("/health/live", 200), ("/health/ready", 503), ("/runs", 200), ("/runs/999999", 404)):
        head = api.send("HEAD", path)
        assert (head.status_code, head.content) == (status, b"")
    assert Api().send("HEAD", "/runs").status_code == 401
    nothing = api.send("HEAD", "/events")
    assert (nothing.status_code, nothing["Allow"]) == (405, "POST")


def test_the_schema_names_every_call_and_the_docs_show_it() -> None:
    schema = Api().get("/openapi.json").json()
    calls = {(path, method) for path, methods in schema["paths"].items() for method in methods}
    for path, method in [
        ("/api/v1/runs", "post"),
        ("/api/v1/runs/{run}", "get"),
        ("/api/v1/approvals/{approval}/decision", "post"),
        ("/api/v1/facts/{fact}/recheck", "post"),
        ("/api/v1/switches/{switch}", "delete"),
        ("/api/v1/health/ready", "get"),
    ]:
        assert (path, method) in calls
    assert "why" in schema["components"]["schemas"]["RunDetail"]["properties"]
    for methods in schema["paths"].values():
        for call in methods.values():
            for parameter in call.get("parameters", []):
                assert parameter["name"], call["summary"]
                assert parameter["in"] == "path" or not parameter.get("required"), call["summary"]
    page = Client().get("/api/v1/docs")
    text = page.content.decode()
    assert "POST /api/v1/approvals/{approval}/decision" in text
    assert "<script" not in text
    assert "//cdn" not in text
    assert "style=" not in text


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "/runs", "Known: state, agent, label, waiting_for, parent, q, after, limit."),
        ("GET", "/runs/{run}", "This address has none."),
        ("GET", "/runs/{run}/steps", "Known: after, limit."),
        ("GET", "/approvals", "Known: state, agent, after, limit."),
        ("GET", "/switches", "Known: engaged, after, limit."),
        ("DELETE", "/switches/{switch}", "Known: reason, per_minute."),
        ("POST", "/approvals/{card}/claim", "This address has none."),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_with_those_that_are(
    operator: User, method: str, path: str, known: str
) -> None:
    asking = situations.ask_approval(situations.start(operator))
    switch = operations.engage_switch("tool:refund", reason="twice", by=operator)
    place = path.format(run=asking.run.pk, switch=switch.pk, card=asking.card.pk)
    api = api_of(operator)
    response = api.send(method, f"{place}?colour=red&limit_=1&reason_=x")
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    error = error_of(response)
    assert (error["code"], error["remedy"]) == ("malformed", known)
    assert error["message"] == "'colour', 'limit_', 'reason_' are not known here."
    assert Api().send(method, f"{place}?colour=red").status_code == 401
    switch.refresh_from_db()
    assert switch.released_at is None


def test_whoever_probes_the_health_or_reads_the_docs_may_add_what_it_likes() -> None:
    for path in ("/health/live", "/openapi.json", "/docs"):
        assert Api().get(path, t=1).status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/runs/", "/"])
def test_what_is_not_there_is_answered_in_json(operator: User, path: str) -> None:
    response = api_of(operator).get(path)
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


@pytest.mark.parametrize("token", [None, "", "lw_wrong", "é" * 10, "x" * 10_000])
def test_without_a_token_that_counts_nothing_is_told(token: str | None) -> None:
    client = Client(headers={} if token is None else {"Authorization": f"Bearer {token}"})
    response = client.get("/api/v1/runs")
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "not_signed_in"


def test_a_session_is_no_token(operator: User) -> None:
    client = Client()
    client.force_login(operator)
    assert client.get("/api/v1/runs").status_code == 401


def _see(kind: ProcessKind) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_process (id, kind, host, boot_id, pid, start_ticks, started_at, seen_at)"
            " VALUES (%s, %s, 'here', %s, 1, 1, clock_timestamp(), clock_timestamp())",
            [uuid.uuid4(), kind, kind],
        )
    assert processes.boot_id()
