"""No process outlives its parent, and how each ended is known to the one that buries it."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runs.supervise import is_alive, read_stat, reap_leader, spawn_leader
from tests.process_tools import ROOT, find_marked, make_mark
from tests.waiting import wait_until


def test_an_exit_says_which_process_ended_and_how() -> None:
    leader = spawn_leader([sys.executable, "-c", "import os; x = bytearray(60_000_000); os._exit(7)"])
    ended = reap_leader(leader.pid)
    assert ended is not None
    assert (ended.pid, ended.start_ticks, ended.status, ended.signal) == (leader.pid, leader.start_ticks, 7, None)
    assert ended.maxrss_bytes is not None
    assert 60_000_000 < ended.maxrss_bytes < 600_000_000


def test_a_death_by_signal_is_told_from_a_status() -> None:
    leader = spawn_leader(["sleep", "1000"])
    leader.signal(signal.SIGKILL)
    ended = reap_leader(leader.pid)
    assert ended is not None
    assert (ended.status, ended.signal, str(ended)) == (None, signal.SIGKILL, "ended by SIGKILL")


def test_waiting_for_an_exit_gives_up_in_time_and_leaves_the_process_alone() -> None:
    leader = spawn_leader(["sleep", "1000"])
    assert reap_leader(leader.pid, timeout_s=0.05) is None
    assert is_alive(leader.pid, leader.start_ticks)
    leader.kill_group()
    assert reap_leader(leader.pid) is not None


def test_an_exit_is_reported_only_when_the_group_is_empty(tmp_path: Path) -> None:
    leader = spawn_leader(["sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/member; kill -9 $$"])
    assert reap_leader(leader.pid) is not None
    member = read_stat(int((tmp_path / "member").read_text()))
    assert member is None or member.state == "Z"


def test_a_leader_leads_a_group_and_a_session_of_its_own() -> None:
    leader = spawn_leader(["sleep", "1000"])
    assert os.getpgid(leader.pid) == os.getsid(leader.pid) == leader.pid
    leader.kill_group()
    reap_leader(leader.pid)


def test_a_program_that_cannot_be_started_ends_with_a_status() -> None:
    leader = spawn_leader(["/nonexistent/program"])
    ended = reap_leader(leader.pid)
    assert ended is not None
    assert ended.status == 1


def test_only_the_named_descriptors_are_passed_on() -> None:
    readable, writable = os.pipe()
    leader = spawn_leader([sys.executable, "-c", f"import os; os.write({writable}, b'hello')"], pass_fds=[writable])
    os.close(writable)
    assert os.read(readable, 100) == b"hello"
    os.close(readable)
    reap_leader(leader.pid)


def test_a_number_taken_by_another_process_is_not_the_same_process() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert is_alive(os.getpid(), stat.start_ticks)
    assert not is_alive(os.getpid(), stat.start_ticks - 1)


class Host:
    """A supervisor in a process of its own, which prints a line of JSON for every exit and every start."""

    def __init__(self, *programs: tuple[str, str], grace_s: float = 1.0) -> None:
        self.mark = make_mark("supervised")
        script = f"""
            import json, os, sys
            from runs.supervisor import Program, Supervisor
            def tell(ended, name):
                print(json.dumps({{"name": name, "pid": ended.pid, "status": ended.status,
                                   "signal": ended.signal}}), flush=True)
            supervisor = Supervisor(on_exit=tell)
            names = []
            for name, script in {list(programs)!r}:
                supervisor.add(Program(name=name, argv=["sh", "-c", script], grace_s={grace_s}))
                names.append(name)
            print(json.dumps({{"ready": True}}), flush=True)
            while not supervisor.stop_requested:
                supervisor.step(0.1)
            supervisor.stop(*names)
            print(json.dumps({{"empty": supervisor.bury_rest(timeout_s=5)}}), flush=True)
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=ROOT,
            env={**os.environ, "MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.read() == {"ready": True}

    def read(self, timeout_s: float = 20.0) -> dict[str, object]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], timeout_s)[0], "the supervisor says nothing"
        line = self.process.stdout.readline()
        assert line, "the supervisor ended"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def descendants(self) -> set[int]:
        return find_marked(self.mark) - {self.process.pid}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for pid in find_marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    made: list[Host] = []
    yield made
    for host in made:
        host.close()


def test_a_program_that_dies_is_started_again(hosts: list[Host]) -> None:
    host = Host(("one", "exec sleep 1000"))
    hosts.append(host)
    (first,) = wait_until(host.descendants, what="a program")
    os.kill(first, signal.SIGKILL)
    assert host.read() == {"name": "one", "pid": first, "status": None, "signal": 9}
    (second,) = wait_until(host.descendants, what="a program")
    assert second != first


def test_a_program_that_keeps_dying_is_started_less_and_less_often(hosts: list[Host], tmp_path: Path) -> None:
    host = Host(("one", f"date +%s.%N >> {tmp_path}/starts; exit 3"))
    hosts.append(host)
    for _ in range(4):
        assert host.read()["status"] == 3
    starts = [float(line) for line in (tmp_path / "starts").read_text().split()]
    assert starts[1] - starts[0] >= 0.2
    assert starts[3] - starts[2] >= 0.8


def test_what_a_program_leaves_behind_in_its_group_dies_before_its_exit_is_told(hosts: list[Host]) -> None:
    host = Host(("one", "sleep 1000 & sleep 1000 & wait"))
    hosts.append(host)
    wait_until(lambda: len(host.descendants()) == 3, what="three processes")
    leader = next(pid for pid in host.descendants() if os.getpgid(pid) == pid)
    before = host.descendants()
    os.kill(leader, signal.SIGKILL)
    while host.read()["pid"] != leader:
        pass
    assert not before & host.descendants()


def test_an_orphan_in_a_session_of_its_own_is_adopted_killed_and_told(hosts: list[Host], tmp_path: Path) -> None:
    host = Host(("one", f"setsid sh -c 'echo $$ > {tmp_path}/orphan; exec sleep 1000' & exec sleep 1000"))
    hosts.append(host)
    orphan = int(
        wait_until(lambda: (tmp_path / "orphan").exists() and (tmp_path / "orphan").read_text(), what="the orphan")
    )
    leader = next(
        pid for pid in wait_until(host.descendants, what="a program") if pid != orphan and os.getpgid(pid) == pid
    )
    os.kill(leader, signal.SIGKILL)
    told = {host.read()["pid"], host.read()["pid"]}
    assert told == {leader, orphan}


def test_stopping_signals_the_leader_alone_and_leaves_nothing(hosts: list[Host], tmp_path: Path) -> None:
    member = f"trap 'touch {tmp_path}/signalled' TERM; while :; do sleep 0.1; done"
    host = Host(("one", f'sh -c "{member}" & trap "exit 0" TERM; touch {tmp_path}/up; wait'))
    hosts.append(host)
    wait_until((tmp_path / "up").exists, what="the program is up")
    host.process.send_signal(signal.SIGTERM)
    told = [host.read()]
    while "empty" not in told[-1]:
        told.append(host.read())
    assert {"name": "one", "pid": told[0]["pid"], "status": 0, "signal": None} in told
    assert told[-1] == {"empty": True}
    assert not (tmp_path / "signalled").exists()
    assert not host.descendants()


def test_a_program_that_ignores_the_request_to_stop_is_killed_after_its_grace(
    hosts: list[Host], tmp_path: Path
) -> None:
    host = Host(("one", f'trap "" TERM; touch {tmp_path}/up; while :; do sleep 0.1; done'), grace_s=0.3)
    hosts.append(host)
    wait_until((tmp_path / "up").exists, what="the program is up")
    host.process.send_signal(signal.SIGTERM)
    while (told := host.read()).get("name") != "one":
        pass
    assert told["signal"] == 9


def test_nothing_survives_a_supervisor_that_is_killed(hosts: list[Host]) -> None:
    host = Host(("one", "exec sleep 1000"), ("two", "exec sleep 1000"))
    hosts.append(host)
    wait_until(lambda: len(host.descendants()) == 2, what="two programs")
    host.process.kill()
    host.process.wait()
    wait_until(lambda: not host.descendants(), what="the children are gone")
