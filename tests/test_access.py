"""Who may make which call of the API: for every call, every kind of person.

The table below is held against the API's operations: a call that is missing here fails. The pages have a table of
their own, in `test_access_pages.py`.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User

from console.api.app import api
from runs import access, operations
from runs.access import Action, Role
from runs.errors import Forbidden
from runs.models import Run
from tests import situations
from tests.people import Api, api_of, make_person, make_stranger

pytestmark = pytest.mark.django_db

VIEWER, OPERATOR, APPROVER, SERVICE, ADMIN = Role.VIEWER, Role.OPERATOR, Role.APPROVER, Role.SERVICE, Role.ADMIN
READERS = frozenset(Role)
RUNNERS = frozenset({OPERATOR, ADMIN})
DECIDERS = frozenset({APPROVER, ADMIN})


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call with a body that works; who may make it; what a stranger, who sees no agent, is answered."""

    may: frozenset[Role]
    body: dict[str, Any] | None = None
    ok: int = 200
    stranger: int = 404


REASON = {"reason": "because"}
CALLS: dict[tuple[str, str], Call] = {
    ("POST", "/runs"): Call(
        may=frozenset({OPERATOR, SERVICE, ADMIN}), body={"agent": "refund-desk", "goal": "x"}, ok=201
    ),
    ("GET", "/runs"): Call(may=READERS, stranger=200),
    ("GET", "/runs/{run}"): Call(may=READERS),
    ("POST", "/runs/{run}/stop"): Call(may=RUNNERS, body=REASON),
    ("POST", "/runs/{run}/pause"): Call(may=RUNNERS, body=REASON),
    ("POST", "/runs/{run}/resume"): Call(may=RUNNERS, body=REASON),
    ("POST", "/runs/{run}/budget"): Call(may=RUNNERS, body=REASON | {"usd": "9"}),
    ("GET", "/runs/{run}/steps"): Call(may=READERS),
    ("GET", "/runs/{run}/steps/{number}"): Call(may=READERS),
    ("GET", "/runs/{run}/facts"): Call(may=READERS),
    ("GET", "/runs/{run}/keys"): Call(may=READERS),
    ("GET", "/runs/{run}/ledger"): Call(may=READERS),
    ("GET", "/runs/{run}/approvals"): Call(may=READERS),
    ("GET", "/runs/{run}/work"): Call(may=READERS),
    ("GET", "/runs/{run}/journal"): Call(may=READERS),
    ("GET", "/runs/{run}/briefing"): Call(may=READERS),
    ("GET", "/approvals"): Call(may=READERS, stranger=200),
    ("GET", "/approvals/{approval}"): Call(may=READERS),
    ("POST", "/approvals/{approval}/decision"): Call(may=DECIDERS, body={"version": 1, "verdict": "approve"}),
    ("GET", "/facts/{fact}"): Call(may=READERS),
    ("POST", "/facts/{fact}/recheck"): Call(may=RUNNERS | DECIDERS, ok=202),
    ("POST", "/events"): Call(
        may=frozenset({OPERATOR, SERVICE, ADMIN}), body={"name": "n", "delivery_id": "d", "source": "s"}, ok=202
    ),
    ("POST", "/approvals/{approval}/claim"): Call(may=DECIDERS),
    ("DELETE", "/approvals/{approval}/claim"): Call(may=DECIDERS, ok=409),
    ("POST", "/approvals/batch"): Call(may=DECIDERS, body={"approvals": [{"approval": 1, "version": 1}]}),
    ("POST", "/switches/{switch}/stop-runs"): Call(may=RUNNERS, body=REASON),
    ("GET", "/switches"): Call(may=READERS, stranger=200),
    ("POST", "/switches"): Call(may=RUNNERS, body=REASON | {"scope": "all"}, ok=201),
    ("GET", "/switches/{switch}"): Call(may=READERS),
    ("DELETE", "/switches/{switch}"): Call(may=RUNNERS),
}
WITHOUT_TOKEN = {("GET", "/health/live"), ("GET", "/health/ready")}


def read_calls() -> set[tuple[str, str]]:
    found = set()
    for _, router in api._routers:
        for path, view in router.path_operations.items():
            found |= {(method, path) for operation in view.operations for method in operation.methods}
    return found


def test_the_table_names_every_call() -> None:
    assert set(CALLS) | WITHOUT_TOKEN == read_calls()


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Things of a run, by the names that paths use, made by somebody who may."""

    names: dict[str, int]

    def fill(self, path: str) -> str:
        return path.format(**self.names)


@pytest.fixture
def scene(db: None) -> Scene:
    return make_scene()


def make_scene(*, paused: bool = False) -> Scene:
    maker = User.objects.create_superuser(f"maker {Run.objects.count()}")
    asking = situations.ask_approval(situations.start(maker))
    if paused:
        operations.pause_run(asking.run.pk, reason="set up", by=maker)
    # Of a run, so that it holds nothing that the calls below need.
    switch = operations.engage_switch(f"run:{asking.run.pk}", reason="set up", by=maker)
    return Scene(
        names={
            "run": asking.run.pk,
            "approval": asking.card.pk,
            "fact": asking.fact.pk,
            "switch": switch.pk,
            "number": asking.step.number,
        }
    )


def call(client: Api, method: str, path: str, scene: Scene) -> int:
    status: int = client.send(method, scene.fill(path), CALLS[method, path].body).status_code
    return status


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_without_a_token_every_call_is_refused(scene: Scene, method: str, path: str) -> None:
    assert call(Api(), method, path, scene) == 401


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_a_stranger_finds_nothing(scene: Scene, method: str, path: str) -> None:
    runs = Run.objects.count()
    response = api_of(make_stranger()).send(method, scene.fill(path), CALLS[method, path].body)
    assert response.status_code == CALLS[method, path].stranger
    if response.status_code == 200:
        assert response.json()["items"] == []
    assert Run.objects.count() == runs


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_someone_who_sees_another_agent_only_finds_nothing(scene: Scene, method: str, path: str) -> None:
    person = make_person("noor", Role.OPERATOR, Role.APPROVER, agents=("stock-watch",))
    if path in ("/events", "/switches", "/approvals/batch") and method == "POST":
        return  # those name no run
    response = api_of(person).send(method, scene.fill(path), CALLS[method, path].body)
    if method == "GET" and CALLS[method, path].stranger == 200:
        assert response.json()["items"] == []
    else:
        # A name of an agent in a body is refused as one that is not there.
        assert response.status_code == (400 if path == "/runs" else 404), response.content


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_a_role_may_what_its_table_says(method: str, path: str, role: Role) -> None:
    scene = make_scene(paused=path.endswith("/resume"))
    expected = CALLS[method, path]
    status = call(api_of(make_person("them", role)), method, path, scene)
    assert status == (expected.ok if role in expected.may else 403)


@pytest.mark.parametrize(("method", "path"), sorted(WITHOUT_TOKEN))
def test_health_is_open_to_all(method: str, path: str) -> None:
    assert Api().send(method, path).status_code in (200, 503)


def test_a_revoked_token_and_one_of_someone_who_left_open_nothing(scene: Scene) -> None:
    person = make_person("vera", Role.VIEWER)
    client = api_of(person)
    assert person.api_tokens.get().last_used_at is None
    assert client.get("/runs").status_code == 200
    assert person.api_tokens.get().last_used_at is not None
    User.objects.filter(pk=person.pk).update(is_active=False)
    assert client.get("/runs").status_code == 401
    User.objects.filter(pk=person.pk).update(is_active=True)
    admin = make_person("ada", Role.ADMIN)
    operations.revoke_token(person.api_tokens.get().pk, by=admin)
    assert client.get("/runs").status_code == 401


def test_one_table_answers_for_buttons_and_posts() -> None:
    person = make_person("olga", Role.OPERATOR, agents=("refund-desk",))
    assert access.may(person, access.Action.STOP, "refund-desk")
    assert not access.may(person, access.Action.STOP, "stock-watch")
    assert not access.may(person, access.Action.DECIDE, "refund-desk")
    assert not access.may(make_stranger(), access.Action.VIEW)


@pytest.mark.parametrize("action", Action)
def test_every_action_says_what_it_refuses(db: None, action: Action) -> None:
    with pytest.raises(Forbidden, match="You may not "):
        access.require(User.objects.create_user("stranger"), action)
