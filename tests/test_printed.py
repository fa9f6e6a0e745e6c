"""What tools print is in the log, in lines that say whose they are, and does not fill it."""

import logging
import os
from pathlib import Path

import pytest

from runs.engine.printed import CALL_BYTES
from runs.models import Run
from runs.states import RunState
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.waiting import wait_until

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def _new_tool_process(engine: Engine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Its log is what this test reads."""
    engine.worker.tools.close()
    caplog.clear()
    caplog.set_level(logging.INFO)


def speak(engine: Engine, how: str) -> tuple[Run, str]:
    """A run that prints, and what its lines begin with."""
    run = engine.go(engine.start([call("speak", how=how)]))
    (step,) = engine.steps(run, "speak")
    return run, f"run {run.pk}, step {step.number}, speak: "


def printed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "runs.engine.printed"]


def test_a_call_and_all_that_it_starts_print_marked_lines_into_a_file(
    engine: Engine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    run, mark = speak(engine, "oddly")
    assert engine.steps(run, "speak")[0].result == [True, True]
    lines = printed(caplog)
    assert lines[:4] == [f"{mark}one\x1b[2J\rnothing", mark, f"{mark}two", f"{mark}three"]
    assert lines[-1] == f"{mark}six \\xff"
    assert any("not all arguments converted" in line or "a real number is required" in line for line in lines)
    (logged,) = [line for line in capfd.readouterr().err.splitlines() if "four" in line]
    assert logged.endswith(f"WARNING agency[{logged.partition('[')[2].partition(']')[0]}] {mark}four, logged")


def test_of_a_call_that_prints_much_the_beginning_is_logged_and_the_rest_is_counted_and_freed(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    run, mark = speak(engine, "much")
    assert run.state == RunState.SUCCEEDED
    *lines, last = printed(caplog)
    assert {*lines} == {f"{mark}much"}
    assert 100 < len(lines) < CALL_BYTES / 100
    assert last.startswith(f"{mark}… 199")
    assert last.endswith(" bytes more were printed and are left out")
    tools = engine.worker.tools
    assert os.fstat(tools._printed._fd).st_blocks * 512 < 2 * 1024 * 1024
    caplog.clear()
    _, mark = speak(engine, "oddly")
    assert f"{mark}two" in printed(caplog)


def test_what_is_printed_after_a_call_is_not_taken_for_the_next_one(
    engine: Engine, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run, _ = speak(engine, f"{tmp_path}/now")
    assert run.state == RunState.SUCCEEDED
    (tmp_path / "now").touch()
    file = engine.worker.tools._printed._fd
    wait_until(lambda: os.fstat(file).st_size == len("late\n"), what="it is printed", timeout_s=10)
    engine.go(engine.start([call("give", value=1)]))
    (line,) = printed(caplog)
    assert line.startswith(f"after run {run.pk}, step ")
    assert line.endswith(": late")


def test_the_last_words_of_a_process_that_died_are_logged(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    _, mark = speak(engine, "and dies")
    assert f"{mark}last words" in printed(caplog)
