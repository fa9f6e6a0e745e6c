"""What the environment makes of the settings, seen from a process that reads them."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from tests.conftest import PROJECT

NAMES = [
    "ALLOWED_HOSTS",
    "ANTHROPIC_API_KEY",
    "CSRF_COOKIE_SECURE",
    "CSRF_TRUSTED_ORIGINS",
    "ENGINE_PROCESS",
    "ENVIRONMENT",
    "GRACE_S",
    "LEASE_S",
    "PUBLIC_URL",
    "RUN_ZONE",
    "SECURE_HSTS_SECONDS",
    "SESSION_COOKIE_SECURE",
    "SHOP_URL",
]
SHOW = f"import json; from console import settings as s; print(json.dumps({{n: getattr(s, n) for n in {NAMES}}}))"


def start(code: str, data_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run some Python in an environment that sets nothing of ours but `variables`."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=PROJECT,
        env=inherited | {"LONGWATCH_DATA": str(data_dir)} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read_settings(data_dir: Path, **variables: str) -> dict[str, Any]:
    done = start(SHOW, data_dir, **variables)
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_with_nothing_set_it_is_a_rehearsal_on_this_machine(tmp_path: Path) -> None:
    settings = read_settings(tmp_path)
    assert settings["ENVIRONMENT"] == "rehearsal"
    assert settings["PUBLIC_URL"] == "http://127.0.0.1:8000"
    assert set(settings["ALLOWED_HOSTS"]) == {"localhost", "127.0.0.1", "[::1]"}
    assert (settings["LEASE_S"], settings["GRACE_S"], settings["RUN_ZONE"]) == (15.0, 10.0, "UTC")
    assert settings["SESSION_COOKIE_SECURE"] is False
    assert settings["ENGINE_PROCESS"] is False


def test_commands_say_the_address_that_up_runs_at_on_the_same_folder(tmp_path: Path) -> None:
    running = {"pid": 1, "url": "http://127.0.0.1:9123", "database_url": "", "shop_url": None, "rehearsal": True}
    (tmp_path / "up.json").write_text(json.dumps(running))
    with (tmp_path / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        settings = read_settings(tmp_path)
        assert settings["PUBLIC_URL"] == "http://127.0.0.1:9123"
        assert settings["CSRF_TRUSTED_ORIGINS"] == ["http://127.0.0.1:9123"]
        assert read_settings(tmp_path, LONGWATCH_URL="https://x.example")["PUBLIC_URL"] == "https://x.example"
    # It was killed, and left its note behind.
    assert read_settings(tmp_path)["PUBLIC_URL"] == "http://127.0.0.1:8000"


def test_with_a_model_key_it_is_production_unless_named_otherwise(tmp_path: Path) -> None:
    assert read_settings(tmp_path, ANTHROPIC_API_KEY="k")["ENVIRONMENT"] == "production"
    assert read_settings(tmp_path, ANTHROPIC_API_KEY="k", LONGWATCH_ENVIRONMENT="staging")["ENVIRONMENT"] == "staging"


def test_behind_https_cookies_are_secure_and_forms_come_from_there(tmp_path: Path) -> None:
    settings = read_settings(tmp_path, LONGWATCH_URL="https://agents.example.com/")
    assert settings["SESSION_COOKIE_SECURE"] is True
    assert settings["CSRF_COOKIE_SECURE"] is True
    assert settings["SECURE_HSTS_SECONDS"] > 0
    assert settings["CSRF_TRUSTED_ORIGINS"] == ["https://agents.example.com"]
    assert "agents.example.com" in settings["ALLOWED_HOSTS"]


@pytest.mark.parametrize("process", ["cluster", "modelgateway", "toolprocess"])
def test_a_process_that_holds_attempts_is_known_by_its_name(tmp_path: Path, process: str) -> None:
    assert read_settings(tmp_path, LONGWATCH_PROCESS=process)["ENGINE_PROCESS"] is True


def test_a_variable_that_cannot_be_used_stops_the_start_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=PROJECT,
        env=os.environ | {"LONGWATCH_DATA": str(tmp_path), "LONGWATCH_LEASE_S": "soon"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("LONGWATCH_LEASE_S is 'soon', but it must be a number of seconds")
    assert done.stderr.count("\n") == 1


def test_the_secret_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    code = "from console import settings; print(settings.SECRET_KEY)"
    keys = {start(code, data_dir).stdout for _ in range(2)}
    assert len(keys) == 1
    assert len(keys.pop().strip()) >= 50
    assert stat.S_IMODE((data_dir / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in data_dir.iterdir()] == ["secret_key"]


def test_an_empty_key_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret_key").touch()
    done = start("from console import settings; print(settings.SECRET_KEY)", tmp_path)
    assert len(done.stdout.strip()) >= 50


def test_a_key_that_cannot_be_kept_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "secret_key").mkdir()
    done = start("import console.settings", tmp_path)
    assert "LONGWATCH_SECRET_KEY is not set, and no key can be kept in" in done.stderr
    assert start("import console.settings", tmp_path, LONGWATCH_SECRET_KEY="x" * 50).returncode == 0


@pytest.mark.django_db
def test_pages_allow_nothing_inline_and_nothing_from_elsewhere(client: Client) -> None:
    answer = client.get("/sign-in")
    assert answer.status_code == 200
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer["X-Frame-Options"] == "DENY"


@pytest.mark.django_db
def test_a_style_of_the_admin_is_served(client: Client) -> None:
    answer = client.get("/static/admin/css/base.css")
    assert answer.status_code == 200
    answer.close()


def test_the_queue_cannot_be_written_to_through_the_admin() -> None:
    assert not [model for model in admin.site._registry if model._meta.app_label == "django_q"]
