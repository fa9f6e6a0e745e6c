"""`manage.py rehearse`: from nothing, in the foreground, with decisions on the terminal and the refunds counted at the shop."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.process_tools import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

# One request of this batch is above what the agent may refund by itself.
SEED = "8"


def environment(database_url: str, folder: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "LONGWATCH_"))}
    return kept | {"DATABASE_URL": database_url, "LONGWATCH_DATA": str(folder / "data")}


class Terminal:
    """A terminal with the command on it: `answers` maps the end of a prompt to the line that is typed then."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "rehearse", *arguments],
            cwd=ROOT,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._master = master
        self.said = ""

    def talk(self, answers: Mapping[str, str], *, within_s: float = 240.0) -> str:
        until, place = time.monotonic() + within_s, 0
        while time.monotonic() < until:
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    read = os.read(self._master, 65_536)
                except OSError:  # how a terminal ends whose last writer is gone
                    break
                if not read:
                    break
                self.said += read.decode(errors="replace")
            for prompt, line in answers.items():
                if self.said.endswith(prompt) and len(self.said) > place:
                    place = len(self.said)
                    os.write(self._master, f"{line}\n".encode())
        self.process.wait(timeout=30)
        os.close(self._master)
        return self.said


def test_a_rejected_refund_is_not_made_and_the_run_goes_on(database_url: str, scratch_folder: Path) -> None:
    terminal = Terminal("refund-desk", "--seed", SEED, env=environment(database_url, scratch_folder))
    said = terminal.talk({"explain: ": "reject", "Reason: ": "the photo shows another chair"})
    assert terminal.process.returncode == 0, said
    assert "amount   241.96" in said, "the exact arguments are shown"
    assert "Fact     order." in said
    assert "the photo shows another chair" in said
    counted = said[said.index("At the shop:") :]
    assert "241.96" not in counted
    assert "refunds" in counted
    assert "succeeded (verified)" in said


def test_without_a_terminal_it_says_how_to_decide(database_url: str, scratch_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "rehearse", "refund-desk", "--seed", SEED],
        cwd=ROOT,
        env=environment(database_url, scratch_folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert re.search(r"bin/manage decide \d+ approve --as USER", done.stderr), done.stderr
    assert done.stderr.count("\n") == 1


def test_an_agent_that_is_no_demo_is_wrong_usage(scratch_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "rehearse", "nobody"],
        cwd=ROOT,
        env=environment("postgresql://nowhere/none", scratch_folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
