from typing import Any

import pytest
from django.db import connection

from console.databases import read_database_url, write_database_url
from console.env import BadVariable


def read(url: str | None, *, engine_process: bool = False) -> dict[str, Any]:
    return read_database_url(url, engine_process=engine_process, process_name="test")


@pytest.mark.django_db
def test_the_tests_run_on_a_real_postgresql_of_their_own() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int, current_database()")
        version, name = cursor.fetchone()
    assert version >= 160000
    assert name.startswith("test_")


def test_an_address_over_the_network_is_read_with_everything_in_it() -> None:
    settings = read("postgresql://al%40ice:p%2Fw%3A@db.example:6432/runs?sslmode=verify-full&application_name=mine")
    assert {key: settings[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")} == {
        "NAME": "runs",
        "USER": "al@ice",
        "PASSWORD": "p/w:",
        "HOST": "db.example",
        "PORT": "6432",
    }
    assert settings["OPTIONS"]["sslmode"] == "verify-full"
    assert settings["OPTIONS"]["application_name"] == "mine"


def test_an_address_over_a_unix_socket_is_read() -> None:
    settings = read("postgresql:///runs?host=/var/run/postgresql")
    assert (settings["HOST"], settings["PORT"], settings["NAME"]) == ("/var/run/postgresql", "", "runs")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://al%40ice:p%2Fw%3A@/runs?host=db.example&port=6432",
        "postgresql:///runs?host=%2Ftmp%2Fa+folder%2Cwith+marks",
        "postgresql://me@/r%20s",
    ],
)
def test_an_address_survives_being_written_for_another_process(url: str) -> None:
    assert read(write_database_url(read(url))) == read(url)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("mysql://u:hush@h/d", "must begin with postgresql://"),
        ("postgresql://u:hush@h:/%zz", "cannot be read by libpq"),
        ("postgresql://u:hush@h/d?nonsense=1", "cannot be read by libpq"),
        ("postgresql://u:hush@h", "must name a database"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_its_password(url: str, rule: str) -> None:
    with pytest.raises(BadVariable, match=rule) as refused:
        read(url)
    assert "hush" not in str(refused.value)


def test_processes_that_hold_attempts_keep_their_connections_and_let_nobody_wait() -> None:
    url = "postgresql:///runs?options=-c%20work_mem%3D8MB"
    web, engine = read(url), read(url, engine_process=True)
    assert (web["CONN_MAX_AGE"], engine["CONN_MAX_AGE"]) == (0, None)
    assert engine["CONN_HEALTH_CHECKS"] is True
    assert engine["OPTIONS"]["options"].startswith("-c work_mem=8MB -c lock_timeout=")
    assert "idle_in_transaction_session_timeout" in engine["OPTIONS"]["options"]
    for settings in (web, engine):
        assert settings["OPTIONS"]["server_side_binding"] is True
        assert "pool" not in settings["OPTIONS"]


def test_without_an_address_the_embedded_server_is_used() -> None:
    assert read(None)["ENGINE"] == "console.database"
