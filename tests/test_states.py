"""The state tables are complete, terminal is final, and the README's diagram is the code's."""

import re
from pathlib import Path

import pytest

from runs.states import (
    APPROVAL_MOVES,
    KEY_MOVES,
    RUN_FINAL,
    RUN_MOVES,
    RUN_OPEN,
    STEP_FINAL,
    STEP_MOVES,
    STEP_OPEN,
    VERDICTS,
    WAIT_ORDER,
    ApprovalKind,
    ApprovalState,
    KeyState,
    RunState,
    StepState,
    WaitingFor,
)

README = Path(__file__).resolve().parent.parent / "README.md"


def test_every_state_has_its_moves() -> None:
    assert set(RUN_MOVES) == set(RunState)
    assert set(STEP_MOVES) == set(StepState)
    assert set(KEY_MOVES) == set(KeyState)
    assert set(APPROVAL_MOVES) == set(ApprovalState)
    assert set(VERDICTS) == set(ApprovalKind)
    assert set(WAIT_ORDER) == set(WaitingFor)


@pytest.mark.parametrize("state", sorted(RUN_FINAL))
def test_no_final_state_of_a_run_has_a_way_out(state: RunState) -> None:
    assert RUN_MOVES[state] == frozenset()


@pytest.mark.parametrize("state", sorted(RUN_OPEN))
def test_every_open_run_can_be_stopped_failed_and_expired(state: RunState) -> None:
    assert {RunState.STOPPED, RunState.FAILED, RunState.EXPIRED} <= RUN_MOVES[state]


def test_only_a_running_run_succeeds() -> None:
    assert [s for s in RunState if RunState.SUCCEEDED in RUN_MOVES[s]] == [RunState.RUNNING]


def test_only_a_void_step_still_takes_a_late_outcome() -> None:
    assert [s for s in STEP_FINAL if STEP_MOVES[s]] == [StepState.VOID]
    assert all(STEP_MOVES[s] for s in STEP_OPEN)


def test_a_closed_key_stays_closed() -> None:
    assert KEY_MOVES[KeyState.DONE] == KEY_MOVES[KeyState.FAILED] == frozenset()


def test_the_diagram_in_the_readme_is_the_one_in_the_code() -> None:
    drawn = set(re.findall(r"^ {4}(\w+) --> (\w+)$", README.read_text(), re.MULTILINE))
    assert drawn == {(str(a), str(b)) for a, moves in RUN_MOVES.items() for b in moves}
    assert set(re.findall(r"^ {4}(\w+) --> \[\*\]$", README.read_text(), re.MULTILINE)) == {str(s) for s in RUN_FINAL}
