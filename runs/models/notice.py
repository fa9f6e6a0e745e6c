from django.db import models
from django.db.models import Q


class Notice(models.Model):
    """That people are told of a card, by one channel, once per event. Written by `runs.notices` alone."""

    approval = models.ForeignKey("Approval", on_delete=models.CASCADE, related_name="notices")
    event = models.CharField(max_length=10)  # new, expiring, escalated
    channel = models.CharField(max_length=10)  # mail, webhook, slack
    state = models.CharField(max_length=10, default="due")  # due, sent, failed, spared (decided before it was sent)
    tries = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    # Whoever sends it has it until then; after that it is tried again.
    claimed_until = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(name="notice_once", fields=["approval", "event", "channel"]),
            models.CheckConstraint(
                name="notice_state_known", condition=Q(state__in=["due", "sent", "failed", "spared"])
            ),
        ]
        indexes = [models.Index(name="notice_due", fields=["due_at"], condition=Q(state="due"))]

    def __str__(self) -> str:
        return f"{self.event} of approval {self.approval_id} by {self.channel}"
