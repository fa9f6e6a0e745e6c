"""What tools print, and what they log, is in the log, in lines that say whose they are, and does not fill it."""

import logging
import os
import re
from pathlib import Path

import pytest

from runs.engine.printed import CALL_BYTES
from runs.engine.toolhost import CannotStart
from runs.models import Run
from runs.states import RunState
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.waiting import wait_until

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.usefixtures("transactional_db")

WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"


@pytest.fixture(autouse=True)
def _new_tool_process(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was printed in it yet."""
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
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    run, mark = speak(engine, "oddly")
    assert engine.steps(run, "speak")[0].result == [True, True]
    lines = printed(caplog)
    assert lines[:4] == [f"{mark}one\x1b[2J\rnothing", mark, f"{mark}two", f"{mark}three"]
    assert lines[-1] == f"{mark}six \\xff"
    assert any("not all arguments converted" in line or "a real number is required" in line for line in lines)
    (logged,) = [line for line in lines if "four" in line]
    assert re.fullmatch(rf"{mark}{WHEN} WARNING agency\[\d+\] four, logged", logged)


def test_what_a_call_logs_is_one_line_of_its_own_whatever_it_says(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    _, mark = speak(engine, "as another")
    (line,) = printed(caplog)
    assert re.match(f"{mark}{WHEN} INFO runs.engine.sweep", line)
    assert line.endswith("one\\nrun 1, step 1, refund: two\\x1b[2J")


def test_of_a_call_that_logs_much_the_beginning_is_logged_and_the_rest_is_counted(
    engine: Engine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.worker.tools.close()  # the next one would write where this test reads
    _, mark = speak(engine, "much to the log")
    *lines, last = printed(caplog)
    assert all(re.fullmatch(rf"{mark}{WHEN} ERROR agency\[\d+\] much", line) for line in lines)
    assert 100 < len(lines) < CALL_BYTES / 100
    assert re.fullmatch(f"{mark}… 6[0-9]{{5}} bytes more were printed and are left out", last)
    assert "more more" not in capfd.readouterr().err


def test_what_a_tool_process_says_that_does_not_start_is_marked(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGWATCH_APPS", "no_such_module")
    with pytest.raises(CannotStart):
        engine.worker.tools.ready()
    lines = printed(caplog)
    assert any("no_such_module" in line for line in lines)
    assert all(line.startswith("a tool process: ") for line in lines)


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
