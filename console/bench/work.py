"""Runs for the benchmarks, started as anybody starts them, and when they ended."""

import time

from django.contrib.auth.models import User
from django.db import connection

from console.bench.house import wait_for
from runs import operations
from runs.agents import Json
from runs.approvals import Said
from runs.management.command import find_user
from runs.models import Approval
from runs.operations import Start
from runs.states import RUN_FINAL, ApprovalState, RunState, Verdict


class Starter:
    """Starts runs of one agent as the user of the command line."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._user: User = find_user(None)

    def start(self, **inputs: Json) -> int:
        run, _ = operations.start_run(Start(agent=self._agent, goal="A benchmark", inputs=inputs), by=self._user)
        return run.pk


def wait_until_ended(runs: list[int], *, within_s: float) -> float:
    """Wait until all have succeeded; return when the last one had, in seconds of the machine's clock.

    Raises:
        CannotMeasure: they did not end in time, or one ended otherwise.
    """

    def look() -> float:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FILTER (WHERE state = ANY(%s)), count(*) FILTER (WHERE state = %s),"
                " extract(epoch FROM max(ended_at))::float8 FROM runs_run WHERE id = ANY(%s)",
                [sorted(RUN_FINAL), RunState.SUCCEEDED, runs],
            )
            ended, succeeded, last = cursor.fetchone() or (0, 0, 0.0)
        return last if ended == succeeded == len(runs) else 0.0

    return wait_for(f"The end of {len(runs)} runs", look, within_s=within_s, every_s=0.1)


def warm_up(starter: Starter, workers: int) -> None:
    """Have every worker of a cluster do something once, so that it and its tool process are there."""
    wait_until_ended([starter.start(steps=4, at_once=4, take_s=0.3) for _ in range(workers)], within_s=180.0)
    time.sleep(1.0)  # and let them become idle


class Decider:
    """Decides cards as the user of the command line: a click, without the page around it."""

    def __init__(self) -> None:
        self._user: User = find_user(None)

    def wait_for_card(self, run: int) -> int:
        def look() -> int | None:
            card = Approval.objects.filter(run_id=run, state=ApprovalState.PENDING).first()
            return card.pk if card else None

        return wait_for("A card", look, within_s=120.0)

    def decide(self, card: int, verdict: Verdict, *, answer: str = "") -> None:
        operations.decide(card, Said(verdict=verdict, answer=answer), by=self._user)
