"""A fleet for many tests: its workers and tool processes stop or die at a named point of the protocol when told to.

The test's own process reads and operates the fleet's database as the product does, with the fleet's agents.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from pytest_django import DjangoDbBlocker

from console.databases import read_database_url
from console.postgres import EmbeddedServer
from console.soak.fleet import Fleet
from console.soak.parts import Victim
from runs import operations, sql
from runs.approvals import Said
from runs.errors import LongwatchError
from runs.examples.shop.client import ShopClient
from runs.models import Approval, Attempt, Key, Run, Step, Switch
from runs.operations import Start
from runs.states import RUN_FINAL, RUN_OPEN, ApprovalState, StepKind, Verdict
from runs.supervise import read_stat
from tests.conftest import make_scratch_folder
from tests.engine_tools import call
from tests.process_tools import find_marked
from tests.waiting import wait_until

__all__ = ["Stage", "fleet_on_stage", "looking_at", "stage"]

POINTS = ("taken", "received", "looked", "performed", "reported", "returned", "settled")
ACTIONS = ("stop", "kill")
# Longer than a slow machine needs from take to look, and short enough to wait for its end.
LEASE_S = 2.0


class Stage:
    """What a test does on the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.person = User.objects.get(username="operator")
        self.shop: ShopClient = fleet.shop()

    def arm(self, point: str, action: str = "stop") -> None:
        """Let the next process that comes to this point stop or die there."""
        self._file(point, action).touch()

    def until_reached(self, point: str, action: str = "stop") -> None:
        wait_until(lambda: not self._file(point, action).exists(), what=f"{point} reached", timeout_s=40)

    def until_frozen(self) -> Victim:
        """Wait until a process of the fleet stands still."""
        return wait_until(self.find_frozen, what="a frozen process", timeout_s=40)[0]

    def find_frozen(self) -> list[Victim]:
        stats = [read_stat(pid) for pid in find_marked(self.fleet.mark)]
        return [Victim(pid=s.pid, start_ticks=s.start_ticks) for s in stats if s is not None and s.state == "T"]

    def order(self, paid: str = "50.00") -> str:
        order = self.shop.create_batch(7, size=1)["orders"][0]
        self.shop.change_order(order, paid=paid, refundable=True)
        return order

    def start_payment(self, tool: str, order: str) -> Run:
        """A run that reads an order, records it, and waits for the approval of a payment: the next call of it is that."""
        script = [
            [call("read_order", order=order)],
            [call("record_fact", name=f"order.{order}", from_step=2)],
            [{**call(tool, order=order, amount="20.00"), "again": "so that a person is asked"}],
        ]
        run = self.start("scripted", inputs={"script": script})
        self.until_card(run, "approval")
        return run

    def start(self, agent: str, goal: str = "Follow the script.", **start: Any) -> Run:
        run, _ = operations.start_run(Start(agent=agent, goal=goal, **start), by=self.person)
        return run

    def approve(self, run: Run) -> None:
        card = self.card(run, "approval")
        assert card is not None
        operations.decide(card.pk, Said(verdict=Verdict.APPROVE, version=card.version), by=self.person)

    def card(self, run: Run, kind: str) -> Approval | None:
        return Approval.objects.filter(run=run, kind=kind, state=ApprovalState.PENDING).first()

    def until_card(self, run: Run, kind: str) -> Approval:
        self.until(run, lambda: self.card(run, kind) is not None, timeout_s=90)
        card = self.card(run, kind)
        assert card is not None
        return card

    def until_over(self, run: Run, *, timeout_s: float = 60.0) -> Run:
        """Wait until a run has ended and nothing of it is in flight."""
        return self.until(run, lambda: run.state in RUN_FINAL and run.drained_at is not None, timeout_s=timeout_s)

    def until(self, run: Run, condition: Callable[[], object], *, timeout_s: float = 60.0) -> Run:
        def look() -> bool:
            run.refresh_from_db()
            return bool(condition())

        try:
            wait_until(look, what="it", timeout_s=timeout_s, poll_s=0.1)
        except AssertionError:
            raise AssertionError(f"{self.tell(run)}\n{self.fleet.tell()}") from None
        return run

    def tell(self, run: Run) -> str:
        run.refresh_from_db()
        steps = [
            f"{s.number} {s.kind} {s.tool} {s.state} {s.wait_note or s.error}"
            + "".join(f" [{a.outcome} {a.error}]" for a in s.attempts.order_by("number"))
            for s in Step.objects.filter(run=run).order_by("number")
        ]
        return "\n".join([f"run {run.pk} is {run.state}: {run.why}", *steps])

    def until_begin_by_is_over(self, attempt: Attempt) -> None:
        def over() -> bool:
            (passed,) = sql.fetch_row(
                "SELECT begin_by < clock_timestamp() FROM runs_attempt WHERE id = %s", [attempt.pk]
            )
            return bool(passed)

        wait_until(over, what="begin_by", timeout_s=20)

    def act(self, run: Run, tool: str) -> Step:
        return Step.objects.get(run=run, tool=tool, kind=StepKind.ACT)

    def attempt(self, run: Run, tool: str) -> Attempt:
        """The newest attempt of a call."""
        return Attempt.objects.filter(step=self.act(run, tool)).latest("number")

    def key(self, run: Run) -> Key:
        """The newest key of a run."""
        return Key.objects.filter(run=run).latest("pk")

    def paid(self, order: str) -> int:
        return len(self.shop.effects(order=order, kind="refund"))

    def tidy(self) -> None:
        """Leave the next test a fleet at rest."""
        for point in POINTS:
            for action in ACTIONS:
                self._file(point, action).unlink(missing_ok=True)
        for victim in self.find_frozen():
            victim.thaw()
        self.shop.clear_faults()
        self.fleet.model("DELETE", "/faults")
        for switch in Switch.objects.filter(released_at__isnull=True):
            operations.release_switch(switch.pk, reason="the test is over", by=self.person)
        for run in Run.objects.filter(state__in=RUN_OPEN):
            with suppress(LongwatchError):
                operations.stop_run(run.pk, reason="the test is over", by=self.person)
        sql.execute("UPDATE lw_clock_shift SET shift = '0'")

    def _file(self, point: str, action: str) -> Path:
        return self.fleet.folder / f"{point}.{action}"


@contextmanager
def looking_at(url: str) -> Iterator[None]:
    """Let this process's own queries go to another database."""
    before = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update(read_database_url(url, engine_process=False, process_name="pytest"))
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)


_shared: list[Fleet] = []  # a fixture that is imported into two modules is made twice


@pytest.fixture(scope="session")
def fleet_on_stage() -> Iterator[Fleet]:
    """One fleet for all tests that arm points of the protocol."""
    if _shared:
        yield _shared[0]
        return
    folder = make_scratch_folder()
    rules = [f"{point}={action}@{folder}/{point}.{action}" for point in POINTS for action in ACTIONS]
    fleet = Fleet(
        folder, lease_s=LEASE_S, workers=3, LONGWATCH_APPS="tests.agency", LONGWATCH_FAIL_POINT=",".join(rules)
    )
    _shared.append(fleet)
    yield fleet
    _shared.clear()
    fleet.close()
    EmbeddedServer(fleet.data).destroy()
    shutil.rmtree(folder)


@pytest.fixture
def stage(fleet_on_stage: Fleet, django_db_blocker: DjangoDbBlocker) -> Iterator[Stage]:
    with django_db_blocker.unblock(), looking_at(fleet_on_stage.database_url):
        made = Stage(fleet_on_stage)
        made.tidy()
        yield made
        made.tidy()
