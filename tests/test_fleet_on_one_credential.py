"""Case I1: forty runs on one credential of ten calls a minute, over ten minutes of the shifted clock, with a limit in the
middle and another gateway half a minute after it.

The gateway, its provider and the 429 are real; the workers' part (a run that is due is handed over) is the test's.
"""

from datetime import timedelta

import pytest

from runs import clock, operations
from runs.models import Attempt, ProviderLimit, Run
from runs.states import AttemptOutcome, RunState
from tests.gateway_tools import Desk, desk, model_process, model_server
from tests.waiting import wait_until

__all__ = ["desk", "model_process", "model_server"]

RUNS = 40
RATE = 10
MINUTES = 10
TICK_S = 3
RETRY_AFTER_S = 45.0


def hand_over_due(desk: Desk) -> None:
    """What workers do with the runs whose moment has come."""
    due = Run.objects.extra(
        where=[
            "state IN ('queued', 'waiting') AND due_at <= lw_now() AND NOT EXISTS (SELECT FROM runs_step s"
            " WHERE s.run_id = runs_run.id AND s.kind = 'think' AND s.state = 'waiting' AND s.wake_at > lw_now())"
        ]
    )
    for run in due.order_by("due_at"):
        desk.hand_over(run, wake=False)


def nobody_is_under_way() -> bool:
    return not Run.objects.filter(state=RunState.THINKING).exists()


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_a_fleet_uses_its_quota_passes_it_never_and_does_not_burst_after_a_limit(desk: Desk) -> None:
    runs = [desk.start("busy", usd="100.00", steps=10_000) for _ in range(RUNS)]
    first = desk.gateway()
    wait_until(lambda: ProviderLimit.objects.exists(), what="the credential is known", timeout_s=40)
    operations.set_rate(ProviderLimit.objects.get().pk, RATE, reason="the contract", by=desk.person)
    started_at = clock.now()
    stopped = runs[-1]
    for tick in range(MINUTES * 60 // TICK_S):
        wait_until(nobody_is_under_way, what=f"every call of tick {tick} ended or waits", timeout_s=60)
        if tick == 40:
            desk.model.fault("rate_limit", retry_after=RETRY_AFTER_S)
        if tick == 50:
            # What is known of the limit is in the database: who comes new keeps to it.
            first.close()
            desk.gateway()
        if tick == 60:
            stopped.refresh_from_db()
            assert stopped.waiting_for == "provider"
            operations.stop_run(stopped.pk, reason="enough", by=desk.person)
        clock.shift(timedelta(seconds=TICK_S))
        hand_over_due(desk)
    wait_until(nobody_is_under_way, what="the last calls ended", timeout_s=60)
    calls = list(Attempt.objects.filter(began_at__isnull=False).order_by("began_at"))
    begun = [(call.began_at - started_at).total_seconds() for call in calls if call.began_at]
    clock.shift(-timedelta(seconds=MINUTES * 60))
    limited = [call for call in calls if call.outcome == AttemptOutcome.REFUSED]
    assert len(limited) == 1, "one met the limit, and nobody called while it lasted"
    assert 0.8 * RATE * MINUTES <= len(begun) <= 110, f"{len(begun)} calls"
    assert limited[0].ended_at is not None
    over = (limited[0].ended_at - started_at).total_seconds() + RETRY_AFTER_S
    assert not [at for at in begun if over - RETRY_AFTER_S + 1 < at < over - 1]
    assert len([at for at in begun if over - 1 <= at < over + 10]) <= 3, "no burst when the limit ends"
    assert max(sum(first <= at < first + 60 for at in begun) for first in begun) <= RATE + 2
    counted = [Attempt.objects.filter(run=run, began_at__isnull=False).count() for run in runs[:-1]]
    # Who missed a turn by the limit is one behind the others.
    assert max(counted) - min(counted) <= 2, f"each had its turn: {counted}"
    stopped.refresh_from_db()
    assert stopped.state == RunState.STOPPED
    print(f"{len(begun)} calls in {MINUTES} shifted minutes, {len(begun) / RATE / MINUTES:.0%} of the quota")
