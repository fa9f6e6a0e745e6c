"""Whatever is sent, the API refuses it in words: never with a traceback."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.access import Role
from tests import situations
from tests.people import Api, api_of, make_person, operator

__all__ = ["operator"]

pytestmark = pytest.mark.django_db

SOMETIMES = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

texts = st.text(st.characters(exclude_categories=[]), max_size=30) | st.sampled_from(
    ["\x00", "\ud800", "refund-desk", "all", "run:1", "1e999", "-0", "", " ", "9" * 40, "approve", "'; DROP TABLE--"]
)
numbers = st.integers() | st.sampled_from([2**31, 2**63, 2**64, 10**40, -1, 0]) | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
FIELDS: dict[str, list[str]] = {
    "/runs": ["agent", "goal", "constraints", "inputs", "labels", "budget", "max_age_s", "deadline_at"],
    "/runs/{run}/stop": ["reason"],
    "/runs/{run}/pause": ["reason"],
    "/runs/{run}/resume": ["reason"],
    "/runs/{run}/budget": ["usd", "tokens", "calls", "effects", "steps", "working_s", "reason"],
    "/approvals/{card}/decision": ["version", "verdict", "arguments", "answer", "result", "grant", "comment"],
    "/events": ["name", "key", "payload", "delivery_id", "source"],
    "/switches": ["scope", "reason"],
}
GOOD: dict[str, dict[str, Any]] = {
    "/runs": {"agent": "refund-desk", "goal": "x"},
    "/approvals/{card}/decision": {"version": 1, "verdict": "edit", "arguments": {"order": "1", "amount": "1"}},
    "/events": {"name": "n", "delivery_id": "d", "source": "s"},
    "/switches": {"scope": "all", "reason": "r"},
}


@pytest.fixture
def everyone(db: None) -> Api:
    return api_of(make_person("all", Role.OPERATOR, Role.APPROVER))


@pytest.mark.parametrize("path", FIELDS)
def test_no_body_breaks_the_api(everyone: Api, operator: User, path: str) -> None:
    asking = situations.ask_approval(situations.start(operator))
    place = path.format(run=asking.run.pk, card=asking.card.pk)

    @SOMETIMES
    @given(st.dictionaries(st.sampled_from(FIELDS[path]), anything), st.booleans())
    def send(body: dict[str, Any], fill: bool) -> None:
        if fill:
            body = GOOD.get(path, {"reason": "r"}) | body
        response = everyone.post(place, json.dumps(body))
        assert response.status_code < 500, (body, response.content)
        answer = response.json()
        assert ("error" in answer) == (response.status_code >= 400)

    send()


@SOMETIMES
@given(body=st.binary(max_size=200))
def test_no_bytes_break_the_api(everyone: Api, body: bytes) -> None:
    assert everyone.post("/runs", body).status_code == 400


@SOMETIMES
@given(
    query=st.dictionaries(
        st.sampled_from(["state", "agent", "label", "waiting_for", "parent", "q", "after", "limit", "engaged"]),
        st.text(max_size=20) | st.sampled_from(["\x00", "9" * 30, "a:b", "queued", "%", "_", "\\", "-1", "1e9"]),
    )
)
@pytest.mark.parametrize("path", ["/runs", "/approvals", "/switches", "/runs/{run}/steps", "/runs/{run}/journal"])
def test_no_query_breaks_the_api(everyone: Api, operator: User, path: str, query: dict[str, str]) -> None:
    from runs.models import Run

    run = Run.objects.first() or situations.start(operator)
    response = everyone.get(path.format(run=run.pk), **query)
    assert response.status_code in (200, 400), response.content


@SOMETIMES
@given(number=st.integers().map(str) | st.text(min_size=1, max_size=12))
@pytest.mark.parametrize("path", ["/runs/{}", "/approvals/{}", "/facts/{}", "/switches/{}", "/runs/{}/ledger"])
def test_no_number_breaks_the_api(everyone: Api, path: str, number: str) -> None:
    from urllib.parse import quote

    response = everyone.get(path.format(quote(number, safe="")))
    assert response.status_code in (200, 404), response.content


@SOMETIMES
@given(key=st.text(st.characters(max_codepoint=255), max_size=300))
def test_no_idempotency_key_breaks_the_api(everyone: Api, key: str) -> None:
    response = everyone.post("/runs", {"agent": "refund-desk", "goal": "x"}, **{"Idempotency-Key": key})
    assert response.status_code in (200, 201, 400), response.content
