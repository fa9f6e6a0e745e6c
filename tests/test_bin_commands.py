"""The commands in bin/ make the environment once, and again only when what it is made from changed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT

# Stands for an installed interpreter: writes down what it is asked for, and takes its time to install.
PYTHON = """#!/bin/sh
case "$*" in
    "-c import sys; sys.exit"*) exit 0 ;;
    "-m pip --version") exit 0 ;;
esac
printf '%s\\n' "$*" >>"{record}"
case "$*" in *"pip install"*) sleep 0.3; exit {status} ;; esac
"""


class Checkout:
    """A copy of what bin/ needs, with an environment whose interpreter only takes notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.environment = os.environ | {
            "PATH": f"{folder}/no-uv:/usr/bin:/bin",
            "LONGWATCH_VENV": str(folder / "venv"),
        }
        for name in ("LONGWATCH_PYTHON", "LONGWATCH_DATA"):
            self.environment.pop(name, None)
        shutil.copytree(PROJECT / "bin", folder / "bin")
        for name in (".python-version", "requirements.txt", "requirements-dev.txt"):
            shutil.copy(PROJECT / name, folder / name)
        self.write_python(status=0)
        # Where there is a uv it would be asked instead; this one does not run.
        uv = folder / "no-uv" / "uv"
        uv.parent.mkdir()
        uv.write_text("#!/bin/sh\nexit 1\n")
        uv.chmod(0o755)

    def write_python(self, *, status: int) -> None:
        python = self.folder / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(PYTHON.format(record=self.record, status=status))
        python.chmod(0o755)

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd="/",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def read_record(self) -> list[str]:
        """Return what the interpreter was asked to do, in short."""
        return [
            "install" if "pip install" in line else line.replace(f"{self.folder}/", "")
            for line in self.record.read_text().splitlines()
        ]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_environment_is_made_once_and_arguments_pass_through(checkout: Checkout) -> None:
    assert checkout.run("manage", "startrun", "refund-desk", "two  words").returncode == 0
    assert checkout.run("up", "--port", "8001").returncode == 0
    assert checkout.read_record() == [
        "install",
        "manage.py startrun refund-desk two  words",
        "manage.py up --port 8001",
    ]


def test_every_package_is_installed_by_its_hash(checkout: Checkout) -> None:
    checkout.run("manage")
    assert "--require-hashes" in checkout.record.read_text().splitlines()[0]


def test_changed_requirements_are_installed_again(checkout: Checkout) -> None:
    checkout.run("manage", "a")
    with (checkout.folder / "requirements.txt").open("a") as file:
        file.write("# newer\n")
    checkout.run("manage", "b")
    assert checkout.read_record() == ["install", "manage.py a", "install", "manage.py b"]


def test_the_gate_installs_its_own_tools_and_leaves_the_product_installed(checkout: Checkout) -> None:
    checkout.run("test", "-k", "one thing")
    checkout.run("manage", "a")
    assert checkout.read_record() == ["install", "-m pytest -k one thing", "manage.py a"]


def test_two_commands_on_a_fresh_clone_install_once(checkout: Checkout) -> None:
    together = [checkout.start("manage", str(number)) for number in range(3)]
    for process in together:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted(checkout.read_record()) == ["install", "manage.py 0", "manage.py 1", "manage.py 2"]


def test_an_installation_that_failed_starts_nothing_and_is_tried_again(checkout: Checkout) -> None:
    checkout.write_python(status=1)
    failed = checkout.run("up")
    assert failed.returncode == 1
    assert "Installing failed. Nothing was started" in failed.stderr
    checkout.write_python(status=0)
    assert checkout.run("up").returncode == 0
    assert checkout.read_record() == ["install", "install", "manage.py up"]


def test_an_interpreter_that_cannot_be_used_is_refused_by_name(checkout: Checkout) -> None:
    shutil.rmtree(checkout.folder / "venv")
    checkout.environment["LONGWATCH_PYTHON"] = "/no/such/python"
    refused = checkout.run("manage")
    assert refused.returncode == 1
    assert "LONGWATCH_PYTHON is /no/such/python" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_gate_runs_every_stage_and_names_what_failed(checkout: Checkout) -> None:
    lint = checkout.folder / "venv" / "bin" / "lint-imports"
    lint.write_text("#!/bin/sh\nexit 1\n")
    lint.chmod(0o755)
    gate = checkout.run("test")
    assert gate.returncode == 1
    assert gate.stdout.splitlines()[-1].startswith("bin/test: FAILED: imports (")
    stages = [line for line in checkout.read_record() if line != "install"]
    assert [stage.split(" ")[-1] for stage in stages[:3]] == [".", ".", "mypy"]
    assert "makemigrations --check" in stages[3]
    assert "check --fail-level WARNING" in stages[4]
    assert stages[5].startswith("-m pytest")
    lint.write_text("#!/bin/sh\nexit 0\n")
    passed = checkout.run("test")
    assert passed.returncode == 0
    assert passed.stdout.splitlines()[-1].startswith("bin/test: all passed (")
