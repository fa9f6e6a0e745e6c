"""Tests that keep a machine busy are given out by lanes, one worker each."""

import pytest

from tests.conftest import LANES, PROJECT, find_lane


@pytest.mark.parametrize(
    ("file", "lane"),
    [
        ("test_crash_chaos.py", "crash"),
        ("test_ledger_storm.py", "crash"),
        ("test_up.py", "processes"),
        ("browser/test_live_pages.py", "browser"),
        ("test_states.py", None),
    ],
)
def test_the_lane_of_a_file_is_found_without_collecting_it(file: str, lane: str | None) -> None:
    assert find_lane(PROJECT / "tests" / file) == lane


def test_what_is_marked_is_in_the_lane_of_its_file(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        for lane in LANES:
            assert not item.get_closest_marker(lane) or find_lane(item.path) == lane, item.nodeid
