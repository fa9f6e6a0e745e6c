"""Drive the engine in the test's own process: a real worker with a real tool process, at a real shop."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from pytest_django import DjangoDbBlocker

from runs import operations, sql
from runs.engine.sweep import sweep_once
from runs.engine.worker import Worker
from runs.examples.shop.client import ShopClient
from runs.models import Approval, Run, Step
from runs.operations import Start
from runs.states import RUN_FINAL, WAITS_ON_PEOPLE, ApprovalState, RunState
from tests.shop_process import ShopProcess
from tests.waiting import wait_until

__all__ = ["Engine", "call", "dig", "engine", "shop_process", "workers"]


def call(tool: str, because: str = "the script says so", **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments, "because": because}


def dig(value: Any, *path: str | int) -> Any:
    """What stands at this place in a JSON value."""
    for part in path:
        value = value[part]
    return value


class Engine:
    """One worker, stepped by the test."""

    def __init__(self, shop: ShopClient, worker: Worker) -> None:
        self.worker = worker
        self.shop = shop
        self.person = User.objects.create_superuser("ana")

    def start(self, *script: list[dict[str, Any]], **start: Any) -> Run:
        start = {"agent": "scripted", "goal": "follow the script", **start}
        run, _ = operations.start_run(
            Start(**{**start, "inputs": {"script": list(script), **start.get("inputs", {})}}), by=self.person
        )
        return run

    def order(self, amount: str = "50.00") -> str:
        """A new order at the shop, of which this much was paid."""
        order = self.shop.create_batch(7, size=1)["orders"][0]
        self.shop.change_order(order, paid=amount, refundable=True)
        return order

    def read(self, order: str) -> list[list[dict[str, Any]]]:
        """The rounds in which a script reads an order and records it."""
        return [
            [call("read_order", order=order)],
            [call("record_fact", name=f"order.{order}", from_step=2)],
        ]

    def go(self, run: Run, *, rounds: int = 200) -> Run:
        """Advance whatever is due until this run waits or has ended."""
        for _ in range(rounds):
            if not self.worker.claim_and_advance():
                break
        run.refresh_from_db()
        return run

    def until_rest(self, run: Run, *, sweeps: int = 1) -> Run:
        """Advance and sweep until nothing is due."""
        for _ in range(sweeps):
            self.go(run)
            sweep_once()
        return self.go(run)

    def go_on(self, run: Run, *, timeout_s: float = 20.0) -> Run:
        """Advance and sweep until the run has ended or waits for a person: timed waits take their time."""

        def settled() -> bool:
            sweep_once()
            self.go(run)
            return run.state in RUN_FINAL or (run.state == RunState.WAITING and run.waiting_for in WAITS_ON_PEOPLE)

        wait_until(settled, what=f"run {run.pk} at rest", timeout_s=timeout_s)
        return run

    def hasten(self, run: Run) -> None:
        """Let every timed wait of a run be over now."""
        with transaction.atomic(durable=True):
            sql.execute(
                "UPDATE runs_step SET wake_at = lw_clock() WHERE run_id = %s AND state = 'waiting' AND wake_at IS NOT NULL",
                [run.pk],
            )
            sql.execute("UPDATE runs_run SET due_at = lw_clock() WHERE id = %s AND state = 'waiting'", [run.pk])

    def card(self, run: Run, kind: str = "approval") -> Approval:
        return Approval.objects.get(run=run, kind=kind, state=ApprovalState.PENDING)

    def steps(self, run: Run, tool: str) -> list[Step]:
        return list(Step.objects.filter(run=run, tool=tool).order_by("number"))

    def paid(self, order: str) -> int:
        """How many refunds of this order there really are."""
        return len(self.shop.list_refunds(order)["refunds"])


@pytest.fixture(scope="session")
def shop_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopProcess]:
    """One shop for all: orders are told apart, and faults match one order."""
    process = ShopProcess(tmp_path_factory.mktemp("shop"))
    yield process
    process.stop()


@pytest.fixture(scope="session")
def workers(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[list[Worker]]:
    """The worker, kept with its tool process from test to test: starting one takes longer than most tests."""
    yield from keep_workers(django_db_blocker)


def keep_workers(django_db_blocker: DjangoDbBlocker) -> Iterator[list[Worker]]:
    """A list for workers that are kept; their tool processes end after it."""
    kept: list[Worker] = []
    yield kept
    with django_db_blocker.unblock():
        for worker in kept:
            worker.tools.close()


@pytest.fixture
def engine(
    database_url: str,
    shop_process: ShopProcess,
    workers: list[Worker],
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> Iterator[Engine]:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("LONGWATCH_SHOP_URL", shop_process.url)
    # Where secrets are mounted, also for the tool process that is kept from test to test.
    folder = shop_process.folder / "credentials"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("LONGWATCH_CREDENTIALS", str(folder))
    settings.SECRETS_DIR = folder
    settings.SHOP_URL = shop_process.url
    settings.LEASE_S = 5.0
    if not workers:
        workers.append(Worker())
    shop = shop_process.client(caller="the test")
    shop.clear_faults()
    yield Engine(shop, workers[0])
    sql.execute("UPDATE lw_clock_shift SET shift = '0'")
