"""Preparing a database gives it its role groups and, once, an operator who can sign in."""

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, User
from django.core.management import call_command

from runs.access import Role, read_sign_in_token

pytestmark = pytest.mark.django_db(transaction=True)


def prepare() -> dict[str, Any]:
    said = StringIO()
    call_command("prepare", "--json", stdout=said)
    answer = json.loads(said.getvalue())
    assert isinstance(answer, dict)
    return answer


def test_the_first_operator_is_made_once_and_can_sign_in() -> None:
    first = prepare()
    operator = User.objects.get(is_superuser=True)
    assert first["operator"] == operator.username
    assert operator.check_password(first["password"])
    assert read_sign_in_token(first["sign_in_token"]) == operator
    again = prepare()
    assert again["password"] is None
    assert User.objects.count() == 1


def test_the_role_groups_are_there() -> None:
    prepare()
    assert set(Group.objects.values_list("name", flat=True)) >= {role.value for role in Role}


def test_the_user_that_commands_act_as_does_not_stand_in_for_an_operator() -> None:
    User.objects.create(username="command-line", is_superuser=True, password=make_password(None))
    assert prepare()["password"]


def test_where_somebody_else_made_an_administrator_no_operator_is_added() -> None:
    User.objects.create_superuser("ada", password="analytical engine")
    assert prepare() == {"operator": None, "password": None, "sign_in_token": None}
