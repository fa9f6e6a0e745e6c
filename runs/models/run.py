from django.conf import settings
from django.db import models
from django.db.models import F, Q

from runs.models.rules import Rules
from runs.states import RUN_FINAL, RUN_OPEN, RunState, Verified, WaitingFor, WorkState


class Run(models.Model):
    """One execution of an agent. Written by `runs.lifecycle` alone.

    `due_at` is the earliest moment at which it has to be looked at: the queue is this column.
    Durations are seconds. `lease_until` is the database's real clock; everything else its business clock (`lw_now()`).
    """

    uid = models.UUIDField(unique=True, editable=False)
    agent = models.CharField(max_length=100)
    goal = models.TextField()
    constraints = models.JSONField(default=list)
    inputs = models.JSONField(default=dict)
    labels = models.JSONField(default=dict)
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children")
    root = models.ForeignKey("self", on_delete=models.PROTECT, related_name="tree")
    depth = models.SmallIntegerField(default=0)
    # Namespace of its keys: its own uid.
    origin = models.UUIDField()
    contract = models.CharField(max_length=64)

    state = models.CharField(max_length=12, choices=RunState, default=RunState.QUEUED)
    priority = models.SmallIntegerField(default=0)
    due_at = models.DateTimeField(null=True)
    epoch = models.IntegerField(default=0)
    holder = models.UUIDField(null=True)
    lease_until = models.DateTimeField(null=True)
    waiting_for = models.CharField(max_length=12, choices=WaitingFor, blank=True, default="")
    why = models.TextField(blank=True, default="")

    paused_at = models.DateTimeField(null=True)
    pause_reason = models.TextField(blank=True, default="")
    held_since = models.DateTimeField(null=True)
    held_by = models.TextField(blank=True, default="")

    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    drained_at = models.DateTimeField(null=True)
    deadline_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)  # created_at + max_age
    max_age_s = models.FloatField(null=True)

    # The five clocks, added up at every move since `clock_mark`.
    clock_mark = models.DateTimeField()
    working_s = models.FloatField(default=0)
    queued_s = models.FloatField(default=0)
    world_s = models.FloatField(default=0)
    people_s = models.FloatField(default=0)
    held_s = models.FloatField(default=0)

    # It waits for a place among the runs that an allowance lets be under way at once.
    place_asked = models.BooleanField(default=False, db_default=False)
    step_seq = models.IntegerField(default=0)
    journal_seq = models.BigIntegerField(default=0)
    last_thought_at = models.DateTimeField(null=True)
    outcome = models.JSONField(null=True)
    end_reason = models.TextField(blank=True, default="")
    verified = models.CharField(max_length=24, choices=Verified, default=Verified.UNCLAIMED)

    class Meta:
        constraints = [
            Rules(
                name="run_rules",
                rules={
                    # A state is known, and an ended run has its end time and nothing that could make it move again.
                    "run_final_is_final": Q(
                        state__in=RUN_FINAL, ended_at__isnull=False, due_at__isnull=True, holder__isnull=True
                    )
                    | Q(state__in=RUN_OPEN, ended_at__isnull=True),
                    # Only a running run is held by a worker, under a lease.
                    "run_held_when_running": Q(state=RunState.RUNNING, holder__isnull=False, lease_until__isnull=False)
                    | (~Q(state=RunState.RUNNING) & Q(holder__isnull=True, lease_until__isnull=True)),
                    # Every open run can be found again: it is held, or it has a moment at which it is looked at (G7).
                    "run_always_due": Q(state__in=RUN_FINAL) | Q(state=RunState.RUNNING) | Q(due_at__isnull=False),
                    "run_waits_for_something": (Q(state=RunState.WAITING) & ~Q(waiting_for="") & ~Q(why=""))
                    | (~Q(state=RunState.WAITING) & Q(waiting_for="")),
                    "run_depth_matches_parent": Q(parent__isnull=True, depth=0) | Q(parent__isnull=False, depth__gt=0),
                    "run_ends_after_it_began": Q(ended_at__gte=F("created_at")),
                    "run_counts_up": Q(epoch__gte=0, step_seq__gte=0, journal_seq__gte=0),
                },
            )
        ]
        indexes = [
            # The queue: what a worker may claim, by the moment from which it may.
            models.Index(name="run_due", fields=["due_at"], condition=Q(state__in=[RunState.QUEUED, RunState.WAITING])),
            models.Index(name="run_due_think", fields=["due_at"], condition=Q(state=RunState.THINKING)),
            models.Index(name="run_leases", fields=["lease_until"], condition=Q(state=RunState.RUNNING)),
            models.Index(name="run_expiry", fields=["expires_at"], condition=Q(state__in=RUN_OPEN)),
            models.Index(name="run_deadline", fields=["deadline_at"], condition=Q(state__in=RUN_OPEN)),
            models.Index(
                name="run_undrained", fields=["ended_at"], condition=Q(state__in=RUN_FINAL, drained_at__isnull=True)
            ),
            models.Index(
                name="run_child_ended", fields=["ended_at"], condition=Q(parent__isnull=False, ended_at__isnull=False)
            ),
            # What the runs that people started have come to, and at what cost.
            models.Index(
                name="run_outcomes",
                fields=["ended_at"],
                condition=Q(parent__isnull=True, ended_at__isnull=False),
            ),
            models.Index(name="run_held", fields=["held_since"], condition=Q(held_since__isnull=False)),
            models.Index(name="run_by_agent", fields=["agent", "-id"]),
            models.Index(name="run_by_state", fields=["state", "-id"]),
        ]

    def __str__(self) -> str:
        return f"run {self.pk}"


class Amendment(models.Model):
    """What an operator added to a goal after the start: dated and signed, never a change to it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="amendments")
    text = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField()


class WorkItem(models.Model):
    """Outstanding work as an explicit list; a run is not finished while one is open."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="work", db_index=False)
    ref = models.CharField(max_length=20)  # w1, w2, … within the run
    title = models.TextField()
    state = models.CharField(max_length=10, choices=WorkState, default=WorkState.OPEN)
    outcome = models.TextField(blank=True, default="")
    opened_by = models.ForeignKey("Step", null=True, on_delete=models.CASCADE, related_name="+")
    closed_by = models.ForeignKey("Step", null=True, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="work_ref_once_per_run", fields=["run", "ref"]),
            models.CheckConstraint(
                name="work_closed_has_time",
                condition=Q(state=WorkState.OPEN, closed_at__isnull=True)
                | (~Q(state=WorkState.OPEN) & Q(closed_at__isnull=False)),
            ),
        ]
        indexes = [models.Index(name="work_by_run", fields=["run", "id"])]

    def __str__(self) -> str:
        return f"{self.ref} of run {self.run_id}"


class KeptFold(models.Model):
    """How much of a run's log is folded: derived from its steps and work items, and may be deleted at any time.

    Written by `runs.engine.briefing_kept` alone; the guard of the steps deletes it.
    """

    run = models.OneToOneField(Run, on_delete=models.CASCADE, related_name="+", primary_key=True)
    think = models.PositiveIntegerField()  # the think at which it folded last
    rules = models.CharField(max_length=64)
    state = models.TextField()

    def __str__(self) -> str:
        return f"fold of run {self.run_id} at step {self.think}"
