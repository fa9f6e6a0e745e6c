"""People by role, their tokens, and clients that speak for them."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpResponse
from django.test import Client

from runs import access, operations
from runs.access import Role
from runs.journal import RUNTIME
from runs.models import AgentGrant, ApiToken


def make_person(name: str, *roles: Role, agents: tuple[str, ...] | None = None, staff: bool = False) -> User:
    """A person with these roles. `agents` narrows what they see from all to those, through a group of their own."""
    _make_roles()
    user = User.objects.create_user(username=name, is_staff=staff)
    for role in roles:
        user.groups.add(Group.objects.get(name=role))
    if agents is not None:
        AgentGrant.objects.filter(group__name__in=[str(role) for role in roles]).delete()
        group = Group.objects.create(name=f"agents of {name}")
        for agent in agents:
            AgentGrant.objects.create(group=group, agent=agent)
        user.groups.add(group)
    return user


def make_stranger(name: str = "stranger") -> User:
    """Someone who can sign in and sees no agent."""
    return User.objects.create_user(username=name)


def token_of(user: User) -> str:
    """A token that acts as an existing person."""
    _make_roles()
    token = operations.create_token(f"of {user.username}", Role.VIEWER, by=RUNTIME)
    ApiToken.objects.filter(name=f"of {user.username}").update(user=user)
    return token


class Api:
    """A client of the API with somebody's token, or none."""

    def __init__(self, token: str | None = None) -> None:
        self._client = Client(headers={"Authorization": f"Bearer {token}"} if token else {})

    def get(self, path: str, **query: Any) -> Any:
        return self._client.get(f"/api/v1{path}", query)

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        return self.send("POST", path, body, **headers)

    def delete(self, path: str, body: object = None) -> Any:
        return self.send("DELETE", path, body)

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        return self._client.generic(
            method,
            f"/api/v1{path}",
            "" if body is None else body if isinstance(body, (bytes, str)) else _dump(body),
            content_type="application/json",
            headers=headers,
        )


def api_of(user: User) -> Api:
    return Api(token_of(user))


@pytest.fixture
def operator(db: None) -> User:
    return make_person("olga", Role.OPERATOR)


@pytest.fixture
def approver(db: None) -> User:
    return make_person("anna", Role.APPROVER)


@pytest.fixture
def viewer(db: None) -> User:
    return make_person("vera", Role.VIEWER)


def error_of(response: HttpResponse) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]  # type: ignore[attr-defined]
    return error


def _dump(body: object) -> str:
    import json

    return json.dumps(body)


def _make_roles() -> None:
    """Making them takes some twenty statements, which most tests need once and not for each person."""
    if Group.objects.count() < len(Role):
        access.make_roles()
