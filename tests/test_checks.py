"""Each check says what is wrong and how to mend it, and is silent where nothing is."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connections
from pytest_django import Settings

from runs import checks

type Check = Callable[..., Iterable[CheckMessage]]

HEALTHY: dict[str, Any] = {"version": 180004, "fsync": "on", "slots": 200, "commit": "on", "standby": False}


def run_check(check: Check, **arguments: Any) -> list[str]:
    """Run a check and return the ids of what it found, each with a remedy."""
    found = list(check(None, **arguments))
    assert all(message.hint for message in found)
    return [str(message.id) for message in found]


def test_an_installation_as_delivered_passes_every_check() -> None:
    for check in (
        checks.check_secret_key,
        checks.check_hosts,
        checks.check_serving,
        checks.check_leases,
        checks.check_connections,
    ):
        assert run_check(check) == []


@pytest.mark.parametrize("key", ["short", "a" * 60])
def test_a_weak_secret_key_is_refused(settings: Settings, key: str) -> None:
    settings.SECRET_KEY = key
    assert run_check(checks.check_secret_key) == ["runs.E001"]


def test_every_host_is_accepted_in_development_only(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert run_check(checks.check_hosts) == ["runs.E002"]
    settings.DEBUG = True
    assert run_check(checks.check_hosts) == []


def test_the_public_address_has_to_be_an_allowed_host(settings: Settings) -> None:
    settings.PUBLIC_URL = "https://agents.example.com"
    settings.ALLOWED_HOSTS = ["other.example.com"]
    assert run_check(checks.check_hosts) == ["runs.E003"]
    settings.ALLOWED_HOSTS = [".example.com"]
    assert run_check(checks.check_hosts) == []


def test_the_console_is_not_put_below_a_path(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["example.com"]
    settings.PUBLIC_URL = "https://example.com/agents"
    assert run_check(checks.check_hosts) == ["runs.E018"]
    settings.PUBLIC_URL = "https://example.com"
    assert run_check(checks.check_hosts) == []


def test_passwords_do_not_cross_a_network_in_the_clear(settings: Settings) -> None:
    settings.PUBLIC_URL = "http://agents.example.com"
    settings.ALLOWED_HOSTS = ["agents.example.com"]
    assert run_check(checks.check_hosts) == ["runs.W004"]
    settings.PUBLIC_URL, settings.ALLOWED_HOSTS = "http://[::1]:8000", ["[::1]"]
    assert run_check(checks.check_hosts) == []


def test_the_pages_are_served_over_asgi(settings: Settings) -> None:
    settings.WSGI_APPLICATION = "console.wsgi.application"
    assert run_check(checks.check_serving) == ["runs.E005"]


def test_times_have_a_zone(settings: Settings) -> None:
    settings.USE_TZ = False
    assert run_check(checks.check_serving) == ["runs.E006"]


@pytest.mark.parametrize(
    ("lease_s", "grace_s", "found"),
    [(0.1, 10, ["runs.E007"]), (301, 10, ["runs.E007"]), (1, 0, ["runs.E008"]), (1, 601, ["runs.E008"]), (1, 0.5, [])],
)
def test_leases_can_be_renewed_and_end_in_time(
    settings: Settings, lease_s: float, grace_s: float, found: list[str]
) -> None:
    settings.LEASE_S, settings.GRACE_S = lease_s, grace_s
    assert run_check(checks.check_leases) == found


def test_processes_that_fork_share_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"pool": True})
    assert run_check(checks.check_connections) == ["runs.E010"]


def test_no_request_opens_a_transaction_over_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    assert run_check(checks.check_connections) == ["runs.E011"]


@pytest.mark.django_db
def test_the_server_is_asked_only_where_a_database_was_named() -> None:
    assert run_check(checks.check_server) == []
    # The tests' own server does not wait for the disk, and that is all that is wrong with it.
    assert run_check(checks.check_server, databases=["default"]) == ["runs.W015"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"version": 150012}, ["runs.E013"]),
        ({"version": 160000}, []),
        ({"standby": True}, ["runs.E014"]),
        ({"fsync": "off"}, ["runs.W015"]),
        ({"commit": "off"}, ["runs.W015"]),
        ({"commit": "remote_apply"}, []),
        ({"slots": 20}, ["runs.W016"]),
    ],
)
def test_a_server_is_judged_by_what_it_says_of_itself(change: dict[str, Any], found: list[str]) -> None:
    assert [message.id for message in checks.judge_server(**(HEALTHY | change))] == found
