"""Each benchmark runs at a small size on the real processes, and prints what is promised of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from console.bench.house import open_house
from tests.conftest import PROJECT

pytestmark = pytest.mark.processes

TINY = ["--runs=3", "--steps=3", "--seconds=1", "--pgbench-s=1"]


@pytest.fixture(scope="module")
def house() -> Iterator[Mapping[str, str]]:
    """One throwaway installation for all benchmarks of this file."""
    with open_house() as environment:
        yield environment


def run_bench(*arguments: str, env: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROJECT / "manage.py"), "bench", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_throughput_counts_checkpointed_steps_against_pgbench(house: Mapping[str, str]) -> None:
    found = run_bench("throughput", *TINY, "--inside", env=house)

    assert found["checkpoints_stored"] == found["steps_run"] == 9
    assert found["ratio_to_pgbench"] == pytest.approx(found["steps_per_s"] / found["pgbench_tps"], abs=0.01)
    assert found["settings"]["synchronous_commit"] == found["settings"]["journal"] == found["settings"]["fsync"] == "on"


def test_latency_tells_the_gap_between_steps_and_the_start_of_a_run(house: Mapping[str, str]) -> None:
    found = run_bench("latency", *TINY, "--inside", env=house)

    assert found["steps_run"] == 3
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert 0 < found["start_p50_ms"] <= found["start_p99_ms"]


def test_a_walk_of_several_replies_makes_every_step_itself(house: Mapping[str, str]) -> None:
    """A call that was left out, or done over, is not a step that was made."""
    found = run_bench("latency", "--runs=1", "--steps=7", "--at-once=3", "--pgbench-s=1", "--inside", env=house)

    assert found["steps_run"] == 7


def test_idle_counts_the_transactions_of_every_process_at_rest(house: Mapping[str, str]) -> None:
    found = run_bench("idle", *TINY, "--inside", env=house)

    assert found["parked"] == 3
    assert found["tx_per_s"] >= 0
    assert found["rss_mb"] > found["pss_mb"] > 0


def test_wake_tells_how_long_an_answer_takes_to_move_its_run(house: Mapping[str, str]) -> None:
    found = run_bench("wake", *TINY, "--inside", env=house)

    assert 0 < found["p50_ms"] <= found["p99_ms"]


def test_ledger_counts_what_runs_reserve_and_settle_under_one_parent(house: Mapping[str, str]) -> None:
    found = run_bench("ledger", *TINY, "--inside", env=house)

    assert found["pairs"] > 3
    assert 0 < found["reserve_p50_ms"] <= found["reserve_p99_ms"]
    assert 0 < found["settle_p50_ms"] <= found["settle_p99_ms"]


def test_recovery_counts_the_effects_at_the_receiver(house: Mapping[str, str]) -> None:
    found = run_bench("recovery", "--runs=1", "--steps=3", "--inside", env={**house, "LONGWATCH_LEASE_S": "2"})

    assert found["effects"] == found["expected"] == 3
    assert found["ran_twice"] == 1
    assert found["recovery_s"] > 0
    assert found["lease_s"] == 2.0


def test_kill_looks_for_what_was_taken_after_a_stop(house: Mapping[str, str]) -> None:
    found = run_bench("kill", "--runs=4", "--inside", env={**house, "LONGWATCH_GRACE_S": "1"})

    assert found["violations"] == 0
    assert 0 < found["stream_cut_p50_ms"] <= found["stream_cut_p99_ms"]
    assert 0 < found["drained_p50_ms"] <= found["drained_p99_ms"]
    # Who heeds no stop has the grace time, and not much more.
    assert found["deaf_drained_p99_ms"] > 1000
    assert [each["count"] for each in found["distributions_ms"].values()] == [2, 1, 1]


def test_approve_measures_up_to_the_request_at_the_receiver(house: Mapping[str, str]) -> None:
    found = run_bench("approve", *TINY, "--inside", env=house)

    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert 0 < found["last_look_window_p99_ms"] < found["p99_ms"]
    assert found["effects"] == found["expected"] == found["requests"] == 3


def test_thinking_tells_what_calls_at_once_cost_and_what_is_added_to_them(house: Mapping[str, str]) -> None:
    found = run_bench("thinking", *TINY, "--inside", env=house)

    assert found["runs"] == found["at_once"] == 3
    assert found["rss_mb"] > found["pss_mb"] > 0
    # A reply takes its second at least, so nothing is below zero.
    assert 0 < found["call_overhead_p99_ms"] <= found["overhead_p99_ms"]


def test_live_waits_for_each_change_at_each_stream(house: Mapping[str, str]) -> None:
    found = run_bench("live", "--runs=12", "--seconds=1", "--inside", env=house)

    assert found["streams"] == 12
    assert found["distributions_ms"]["change_to_frame"]["count"] == 12 * found["settings"]["changes"]
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["max_ms"]
    assert found["rss_mb"] > 0
    # What listens, and what looks: not one for each stream.
    assert 0 < found["db_connections"] < 12


def test_pages_are_asked_for_beside_many_runs() -> None:
    with open_house() as own:  # its numbers are given out beforehand
        found = run_bench("pages", "--runs=400", "--steps=20", "--seconds=0.1", "--inside", env=own)

    assert found["rows"] == 400
    assert {"/", "/runs", "/approvals", "/journal"} <= {page["path"] for page in found["pages"]}
    for page in found["pages"]:
        assert 0 < page["p50_ms"] <= page["p95_ms"]
        assert page["queries"] > 0
        assert page["bytes"] > 500


def test_a_benchmark_uses_a_database_of_its_own_and_leaves_nothing_behind(scratch_folder: Path) -> None:
    # An operator's database that does not answer: it is not asked.
    env = {**os.environ, "DATABASE_URL": "postgresql:///nobody?host=/nowhere", "TMPDIR": str(scratch_folder)}

    found = run_bench("latency", "--runs=1", "--steps=2", "--pgbench-s=1", "--json", env=env)

    assert found["p50_ms"] > 0
    assert not list(scratch_folder.iterdir())
