from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT

from runs.models.rules import Rules
from runs.states import STEP_FINAL, STEP_OPEN, AttemptOutcome, StepKind, StepState, WaitingFor


class Step(models.Model):
    """One checkpointed unit of a run. Written by `runs.steps` alone. `number` counts from 1 within its run."""

    run = models.ForeignKey("Run", on_delete=models.CASCADE, related_name="steps", db_index=False)
    number = models.IntegerField()
    kind = models.CharField(max_length=10, choices=StepKind)
    state = models.CharField(max_length=10, choices=StepState, default=StepState.PLANNED)
    # The reply that asked for this step, the place in it, and the model's own id of the call.
    reply_to = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="planned", db_index=False)
    place = models.SmallIntegerField(default=0)
    call_id = models.CharField(max_length=100, blank=True, default="")
    tool = models.CharField(max_length=100, blank=True, default="")
    contract = models.CharField(max_length=64, blank=True, default="")
    asked = models.JSONField(default=dict)  # arguments as the model asked
    arguments = models.JSONField(default=dict)  # final: validated, normalised, possibly edited by a person
    because = models.TextField(blank=True, default="")
    rests_on = models.JSONField(default=list)  # fact names: the tool's own, then the model's
    again = models.TextField(blank=True, default="")
    fact = models.ForeignKey(
        "Fact", null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )  # kind check
    subject = models.ForeignKey(
        "Key", null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )  # kind reconcile
    rounds = models.SmallIntegerField(default=0)  # how often its facts were freshened

    # Decided once, stored, never recomputed on resume: null until the gate was asked.
    gated = models.BooleanField(null=True)
    gate_reason = models.TextField(blank=True, default="")

    waiting_for = models.CharField(max_length=12, choices=WaitingFor, blank=True, default="")
    waiting_on = models.TextField(blank=True, default="")
    wait_note = models.TextField(blank=True, default="")
    wake_at = models.DateTimeField(null=True)
    and_then = models.TextField(blank=True, default="")  # what happens at `wake_at`

    tries = models.IntegerField(default=0)
    tries_granted = models.IntegerField(default=0)  # what people allowed beyond the tool's own attempts
    # Its size in a briefing is beside it in `result_bytes`, which the database keeps (migration 0013).
    result = models.JSONField(null=True)
    artifact = models.ForeignKey("Artifact", null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    error = models.TextField(blank=True, default="")
    replay_of = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    usd = models.DecimalField(max_digits=20, decimal_places=10, default=0)
    created_at = models.DateTimeField()
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="step_number_once_per_run", fields=["run", "number"]),
            Rules(
                name="step_rules",
                rules={
                    # A state is known, and an end has its time.
                    "step_final_has_end": Q(state__in=STEP_FINAL, ended_at__isnull=False)
                    | Q(state__in=STEP_OPEN, ended_at__isnull=True),
                    # A waiting step says for what and why (G7).
                    "step_waits_for_something": (
                        Q(state__in=[StepState.WAITING, StepState.IN_DOUBT]) & ~Q(waiting_for="") & ~Q(wait_note="")
                    )
                    | (~Q(state__in=[StepState.WAITING, StepState.IN_DOUBT]) & Q(waiting_for="", wake_at__isnull=True)),
                    "step_act_has_tool": ~Q(kind__in=[StepKind.ACT, StepKind.CHECK]) | ~Q(tool=""),
                    "step_counts_up": Q(number__gte=1, place__gte=0, rounds__gte=0, tries__gte=0, tries_granted__gte=0),
                },
            ),
            # One model call at a time per run.
            models.UniqueConstraint(
                name="step_one_open_think", fields=["run"], condition=Q(kind=StepKind.THINK, state__in=STEP_OPEN)
            ),
        ]
        indexes = [
            models.Index(name="step_open", fields=["run", "number"], condition=Q(state__in=STEP_OPEN)),
            models.Index(name="step_by_wait", fields=["waiting_for", "run"], condition=Q(state=StepState.WAITING)),
            models.Index(
                KT("result__event"),
                KT("result__key"),
                name="step_by_event",
                condition=Q(state=StepState.WAITING, waiting_for=WaitingFor.EVENT),
            ),
            # Few steps have these: an index over all would be written at every move of every step.
            models.Index(name="step_by_reply_to", fields=["reply_to"], condition=Q(reply_to__isnull=False)),
            models.Index(name="step_by_fact", fields=["fact"], condition=Q(fact__isnull=False)),
            models.Index(name="step_by_subject", fields=["subject"], condition=Q(subject__isnull=False)),
            models.Index(name="step_by_artifact", fields=["artifact"], condition=Q(artifact__isnull=False)),
            models.Index(name="step_by_replay_of", fields=["replay_of"], condition=Q(replay_of__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"step {self.number} of run {self.run_id}"

    @property
    def keeps_wait(self) -> bool:
        """Whether it has been executed and only waits: it keeps what for as its result, and is not tried again."""
        return self.result is not None and self.state in STEP_OPEN


class Attempt(models.Model):
    """One try at a step: counted before the work, never overwritten. Written by `runs.steps` alone.

    `lease_until` and `begin_by` are the database's real clock. `began_at` is set by the last look, in the same
    statement that judges it, before a byte is sent: an attempt without it has certainly sent nothing.
    """

    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    # Its step names the run too: looked up once at each write is enough.
    run = models.ForeignKey("Run", on_delete=models.CASCADE, related_name="attempts", db_constraint=False)
    number = models.IntegerField()
    epoch = models.IntegerField()
    holder = models.UUIDField()  # the process that renews its lease: a worker, or a gateway
    performer = models.UUIDField()  # the process that can send: a tool process, or the gateway itself
    key = models.ForeignKey("Key", null=True, on_delete=models.PROTECT, related_name="attempts", db_index=False)
    approval = models.ForeignKey(
        "Approval", null=True, on_delete=models.PROTECT, related_name="attempts", db_index=False
    )
    outcome = models.CharField(max_length=10, choices=AttemptOutcome, default=AttemptOutcome.OPEN)
    taken_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    seen_at = models.DateTimeField(null=True)  # the business clock when its lease was last renewed
    begin_by = models.DateTimeField()
    timeout_s = models.FloatField()
    visible_within_s = models.FloatField(default=0)
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    progress = models.JSONField(null=True)
    error = models.TextField(blank=True, default="")
    exit_status = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    maxrss_bytes = models.BigIntegerField(null=True)
    late = models.BooleanField(default=False)  # its outcome came after its run had moved on

    class Meta:
        constraints = [
            Rules(
                name="attempt_rules",
                rules={
                    "attempt_outcome_known": Q(outcome__in=list(AttemptOutcome)),
                    "attempt_closed_has_end": Q(outcome=AttemptOutcome.OPEN, ended_at__isnull=True)
                    | (~Q(outcome=AttemptOutcome.OPEN) & Q(ended_at__isnull=False)),
                    "attempt_not_begun_did_not_begin": ~Q(outcome=AttemptOutcome.NOT_BEGUN) | Q(began_at__isnull=True),
                    "attempt_counts_up": Q(number__gte=1, epoch__gte=0),
                },
            ),
            models.UniqueConstraint(name="attempt_number_once", fields=["step", "number"]),
            # One live try per step.
            models.UniqueConstraint(name="attempt_one_open", fields=["step"], condition=Q(outcome=AttemptOutcome.OPEN)),
        ]
        indexes = [
            models.Index(name="attempt_leases", fields=["lease_until"], condition=Q(outcome=AttemptOutcome.OPEN)),
            models.Index(name="attempt_open_by_run", fields=["run"], condition=Q(outcome=AttemptOutcome.OPEN)),
            models.Index(name="attempt_by_key", fields=["key"], condition=Q(key__isnull=False)),
            models.Index(name="attempt_by_approval", fields=["approval"], condition=Q(approval__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"attempt {self.pk}"
