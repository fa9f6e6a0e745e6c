"""Who uses the admin site in the tests."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runs.access import Role
from tests.people import make_person

__all__ = ["ada", "client"]


@pytest.fixture
def ada() -> User:
    return make_person("ada", Role.ADMIN, staff=True)


@pytest.fixture
def client(ada: User) -> Client:
    client = Client()
    client.force_login(ada)
    return client
