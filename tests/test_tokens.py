"""A token acts with the rights it was made with: no later token of its name gives it others."""

import pytest
from django.contrib.auth.models import Group

from runs import access, operations
from runs.access import Action, Role
from runs.errors import Conflict, Malformed, WrongState
from runs.journal import RUNTIME
from runs.models import ApiToken
from tests import people

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def roles(db: None) -> None:
    access.make_roles()


def make(name: str, role: Role) -> str:
    return operations.create_token(name, role, by=RUNTIME)


def test_a_token_acts_in_its_role_and_only_its_hash_is_kept() -> None:
    token = make("robot", Role.SERVICE)
    user = access.find_token_user(token)
    assert user is not None
    assert (access.may(user, Action.START), access.may(user, Action.DECIDE)) == (True, False)
    assert not ApiToken.objects.filter(digest__contains=token[3:]).exists()
    assert not user.has_usable_password()


def test_a_second_token_of_a_name_has_the_same_role_and_another_role_is_refused() -> None:
    first, second = make("robot", Role.SERVICE), make("robot", Role.SERVICE)
    assert first != second
    with pytest.raises(Conflict, match="another role"):
        make("robot", Role.ADMIN)
    user = access.find_token_user(first)
    assert user is not None
    assert set(user.groups.all()) == {Group.objects.get(name=Role.SERVICE)}


def test_a_revoked_or_unknown_token_and_one_of_an_inactive_user_are_nobody() -> None:
    admin = people.make_person("ada", Role.ADMIN)
    token = make("robot", Role.SERVICE)
    assert access.find_token_user(token + "x") is None
    row = ApiToken.objects.get()
    row.user.is_active = False
    row.user.save()
    assert access.find_token_user(token) is None
    row.user.is_active = True
    row.user.save()
    operations.revoke_token(row.pk, by=admin)
    assert access.find_token_user(token) is None
    with pytest.raises(WrongState):
        operations.revoke_token(row.pk, by=admin)


@pytest.mark.parametrize("name", ["", "   ", "x" * 101])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Malformed):
        make(name, Role.VIEWER)
