"""An outage of ten hours: what should have ended has ended, and nobody is charged for the time nothing ran."""

import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import budgets, course, lifecycle, operations, sql, steps
from runs.budgets import Amounts
from runs.engine.sweep import sweep_once
from runs.models import Approval, Budget, Lock, Run
from runs.states import ApprovalState, RunState, StepKind
from tests import situations
from tests.writers import claim, person, shifted, start

__all__ = ["person"]

OUTAGE = timedelta(hours=10)
HOUR_S = 3600.0


def think(run: Run) -> int:
    """A model call under way, with its reservation; the id of the attempt."""
    claimed = claim(run)
    with transaction.atomic():
        locked = lifecycle.lock_held(claimed)
        step = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
        lifecycle.move(locked, RunState.THINKING)
        gateway = uuid.uuid4()
        attempt = steps.open_attempt(
            step,
            epoch=claimed.epoch,
            holder=gateway,
            performer=gateway,
            lease_s=60.0,
            begin_within_s=60.0,
            timeout_s=60.0,
        )
        budgets.reserve(run.pk, Amounts(usd=Decimal("0.30"), calls=1, steps=1), attempt=attempt.pk)
        steps.begin(attempt.pk)
        return attempt.pk


@pytest.mark.django_db(transaction=True)
def test_an_outage_of_ten_hours_ends_what_was_due_and_charges_nobody_for_the_time(person: User, settings: Any) -> None:
    settings.LEASE_S = 1.0  # the sweep waits one lease after the server has started
    working, thinking = start(person), start(person)
    handed = start(person)
    aged, late, in_time = start(person, max_age_s=2 * HOUR_S), start(person), start(person, max_age_s=20 * HOUR_S)
    sql.execute("UPDATE runs_run SET deadline_at = lw_clock() + interval '5 h' WHERE id = %s", [late.pk])
    claim(working)
    think(thinking)
    with transaction.atomic():
        locked = lifecycle.lock_held(claim(handed))
        steps.plan(locked, steps.Asked(kind=StepKind.THINK))
        lifecycle.move(locked, RunState.THINKING)
    with transaction.atomic():
        course.rest(lifecycle.lock(aged.pk))
    situations.ask_approval(aged)
    card = Approval.objects.get(run=aged)
    with shifted(OUTAGE):
        # Nobody has renewed a lease for ten hours.
        sql.execute(
            "UPDATE runs_run SET lease_until = clock_timestamp() - interval '1 s' WHERE lease_until IS NOT NULL"
        )
        sql.execute("UPDATE runs_attempt SET lease_until = clock_timestamp() - interval '1 s' WHERE outcome = 'open'")
        sweep_once()
        with transaction.atomic():
            lifecycle.count_queued(lifecycle.lock(handed.pk))
        for run in (working, thinking, handed, aged, late, in_time):
            run.refresh_from_db()
        assert (aged.state, late.state, in_time.state) == (RunState.EXPIRED, RunState.EXPIRED, RunState.QUEUED)
        assert aged.end_reason == "its max age passed"
        card.refresh_from_db()
        assert card.state == ApprovalState.VOID
        assert not Lock.objects.filter(run=aged).exists()
        assert (working.state, thinking.state) == (RunState.QUEUED, RunState.THINKING)
        for run in (working, thinking, handed):
            assert run.working_s < 120, f"run {run.pk} is charged for the outage"
            assert run.queued_s > 9.9 * HOUR_S
            with transaction.atomic():
                budgets.require_room(run.pk, budgets.Amounts(steps=1))
        # The call that was under way may have been paid for; nothing else was.
        assert [b.usd_spent for b in Budget.objects.filter(usd_spent__gt=0)] == [Decimal("0.30")]
        assert budgets.mismatches() == []
        with pytest.raises(Exception, match="ended"):
            operations.pause_run(aged.pk, reason="too late", by=person)
