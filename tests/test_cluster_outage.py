"""A cluster goes on by itself after the database was away, and after a worker that stopped in the middle of its work."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from runs.board import Activity, Role
from runs.models import Process, Run
from runs.supervise import read_stat
from tests.cluster_host import ClusterHost
from tests.cluster_work import add_run, count_done
from tests.cut_cable import Cable
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "done"


@pytest.fixture
def cable(database_url: str, scratch_folder: Path) -> Cable:
    host = parse_qs(urlsplit(database_url).query)["host"][0]
    return Cable(Path(host) / ".s.PGSQL.5432", scratch_folder / ".s.PGSQL.5432")


@pytest.fixture
def host(database_url: str, cable: Cable, scratch_folder: Path, tmp_path: Path) -> Iterator[ClusterHost]:
    server = parse_qs(urlsplit(database_url).query)["host"][0]
    url = database_url.replace(quote(server, safe=""), quote(str(scratch_folder), safe=""))
    assert url != database_url
    host = ClusterHost(url, tmp_path)
    yield host
    host.close()


def test_it_goes_on_when_the_database_was_away(host: ClusterHost, cable: Cable, log: Path) -> None:
    busy = add_run(log, seconds=2.0)
    host.find(Role.WORKER, Activity.BUSY)
    parts = {seat.pid for seat in host.seats()}
    cable.cut()
    away = add_run(log)
    wait_until(lambda: "cannot be asked for due runs" in host.log.read_text(), what="the outage is noticed")
    cable.mend()
    mended = time.monotonic()
    wait_until(lambda: count_done(log).get(away), what="the run that became due meanwhile", timeout_s=30)
    assert time.monotonic() - mended < 8
    wait_until(lambda: count_done(log).get(busy), what="the run that was cut off", timeout_s=30)
    wait_until(lambda: not Run.objects.exclude(state="succeeded").exists(), what="all runs end")
    assert {seat.pid for seat in host.seats()} == parts, "no part had to be replaced"
    assert host.log.read_text().count("cannot be asked for due runs") == 1


def test_the_end_of_a_process_is_recorded_when_the_database_is_back(host: ClusterHost, cable: Cable, log: Path) -> None:
    add_run(log, seconds=20, tool=1)
    wait_until(Process.objects.filter(kind="tool").exists, what="a tool process")
    tool = Process.objects.get(kind="tool")
    stat = read_stat(tool.pid)
    assert stat is not None
    cable.cut()
    os.kill(stat.parent, signal.SIGKILL)
    wait_until(lambda: "An exit cannot be recorded yet" in host.log.read_text(), what="the record has to wait")
    cable.mend()
    wait_until(Process.objects.filter(pk=tool.pk, exit_signal=signal.SIGKILL).exists, what="the record")


def test_a_worker_that_froze_at_work_is_replaced_when_its_lease_is_long_over(host: ClusterHost, log: Path) -> None:
    run = add_run(log, seconds=0.5)
    wait_until(Run.objects.filter(pk=run, holder__isnull=False).exists, what="a worker holds the run")
    worker = Process.objects.get(pk__in=Run.objects.filter(pk=run).values("holder"))
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: count_done(log).get(run), what="another worker does the run")
    wait_until(
        lambda: worker.pid not in {seat.pid for seat in host.seats()}, what="the frozen worker is gone", timeout_s=60
    )
    host.wait_complete()
    assert count_done(log) == {run: 1}
