from django.conf import settings
from django.db import models
from django.db.models import Q

from runs.states import ApprovalKind, ApprovalState, Verdict


class Approval(models.Model):
    """Everything that asks a person, by kind. Written by `runs.approvals` alone.

    `digest` binds it to the exact final arguments, the tool's contract, the run and the step. `facts` are the values
    that were shown, with version, digest and age: [{"name", "version", "digest", "value", "age_s", "max_age_s"}].
    """

    run = models.ForeignKey("Run", on_delete=models.CASCADE, related_name="approvals")
    step = models.ForeignKey("Step", null=True, on_delete=models.CASCADE, related_name="approvals")
    key = models.ForeignKey("Key", null=True, on_delete=models.PROTECT, related_name="verdicts")
    fact = models.ForeignKey("Fact", null=True, on_delete=models.CASCADE, related_name="cards")
    kind = models.CharField(max_length=10, choices=ApprovalKind)
    state = models.CharField(max_length=10, choices=ApprovalState, default=ApprovalState.PENDING)
    version = models.PositiveIntegerField(default=1)
    title = models.TextField()
    why = models.TextField(blank=True, default="")
    because = models.TextField(blank=True, default="")
    tool = models.CharField(max_length=100, blank=True, default="")
    contract = models.CharField(max_length=64, blank=True, default="")
    arguments = models.JSONField(null=True)
    digest = models.CharField(max_length=64, blank=True, default="")
    facts = models.JSONField(default=list)
    options = models.JSONField(default=list)
    evidence = models.JSONField(null=True)
    verdicts = models.JSONField(default=list)
    verdict = models.CharField(max_length=16, choices=Verdict, blank=True, default="")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    on_expiry = models.CharField(max_length=10, default="hold")  # hold, reject, escalate
    needed = models.PositiveSmallIntegerField(default=1)  # how many different people have to approve
    groups = models.JSONField(default=list)  # who decides: members of one of these; empty: everyone with the right
    escalate_to = models.JSONField(default=list)  # the groups that are asked when these let it expire
    claimed_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    claimed_at = models.DateTimeField(null=True)
    # Set while a decision is made and may still be undone: the card is pending, and nobody else decides it.
    effective_at = models.DateTimeField(null=True)
    # The void card that this one asks again, and what is different: [{"what", "name", "old", "new"}].
    replaces = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="replaced_by")
    changes = models.JSONField(default=list)
    # What a person asked the agent about it: [{"question", "by", "at", "text", "answered_at"}]; text is null until then.
    explained = models.JSONField(default=list)
    closed_at = models.DateTimeField(null=True)
    closed_because = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.CheckConstraint(name="approval_state_known", condition=Q(state__in=list(ApprovalState))),
            models.CheckConstraint(
                name="approval_closed_has_time",
                condition=Q(state=ApprovalState.PENDING, closed_at__isnull=True)
                | (~Q(state=ApprovalState.PENDING) & Q(closed_at__isnull=False)),
            ),
            # Only what is still pending can be held back.
            models.CheckConstraint(
                name="approval_held_is_pending",
                condition=Q(effective_at__isnull=True) | Q(state=ApprovalState.PENDING),
            ),
            models.CheckConstraint(name="approval_needs_someone", condition=Q(needed__gte=1)),
            models.CheckConstraint(
                name="approval_on_expiry_known", condition=Q(on_expiry__in=["hold", "reject", "escalate"])
            ),
            # One open question per step and kind.
            models.UniqueConstraint(
                name="approval_one_pending", fields=["step", "kind"], condition=Q(state=ApprovalState.PENDING)
            ),
            # At most one approval in effect per step.
            models.UniqueConstraint(
                name="approval_one_in_effect",
                fields=["step"],
                condition=Q(kind=ApprovalKind.APPROVAL, state__in=[ApprovalState.APPROVED, ApprovalState.CONSUMED]),
            ),
        ]
        indexes = [
            models.Index(name="approval_inbox", fields=["expires_at", "id"], condition=Q(state=ApprovalState.PENDING)),
            models.Index(name="approval_held", fields=["effective_at"], condition=Q(effective_at__isnull=False)),
            models.Index(
                name="approval_expiry",
                fields=["expires_at"],
                condition=Q(state__in=[ApprovalState.PENDING, ApprovalState.APPROVED]),
            ),
        ]

    def __str__(self) -> str:
        return f"approval {self.pk}"

    @property
    def credential(self) -> str:
        """The name of the credential that it asks for; empty for every other kind."""
        return str(self.evidence.get("credential") or "") if isinstance(self.evidence, dict) else ""


class Decision(models.Model):
    """Append-only: what a person decided, with everything they said."""

    approval = models.ForeignKey(Approval, on_delete=models.CASCADE, related_name="decisions")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    verdict = models.CharField(max_length=16, choices=Verdict)
    version = models.PositiveIntegerField()
    arguments = models.JSONField(null=True)
    answer = models.TextField(blank=True, default="")
    result = models.JSONField(null=True)
    grant = models.JSONField(null=True)
    comment = models.TextField(blank=True, default="")
    at = models.DateTimeField()
    effective_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"decision {self.pk}"
