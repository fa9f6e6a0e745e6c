"""Starting, reading, stopping runs over the API."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from tests.people import api_of, operator, viewer

__all__ = ["operator", "viewer"]

pytestmark = pytest.mark.django_db

START = {"agent": "refund-desk", "goal": "Work off batch b1", "inputs": {"batch": "b1"}}


def test_a_run_is_started_and_read_back(operator: User) -> None:
    api = api_of(operator)
    response = api.post("/runs", START | {"labels": {"shop": "north"}, "budget": {"usd": "1.50"}})
    assert response.status_code == 201, response.content
    run: dict[str, Any] = response.json()
    print(run)
    assert run == api.get(f"/runs/{run['id']}").json() | {"clocks": run["clocks"], "budget": run["budget"]}
