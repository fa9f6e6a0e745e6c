from django.db import models
from django.db.models import Q

from runs.agents import EVENT_CHARS


class Event(models.Model):
    """Something from outside, written by `runs.events` alone. Kept also when no step waits for it, until `deleteevents`."""

    name = models.CharField(max_length=EVENT_CHARS)
    key = models.CharField(max_length=EVENT_CHARS)
    payload = models.JSONField(null=True)
    source = models.CharField(max_length=200)
    delivery_id = models.CharField(max_length=200)
    agents = models.JSONField(default=list)  # whose runs it may reach: what its sender saw; `*` stands for all
    received_at = models.DateTimeField()
    # The step whose wait it ended.
    step = models.ForeignKey("Step", null=True, on_delete=models.SET_NULL, related_name="events", db_index=False)
    matched_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="event_delivered_once", fields=["source", "delivery_id"]),
            # Each wait is ended by one event.
            models.UniqueConstraint(name="event_once_per_step", fields=["step"], condition=Q(step__isnull=False)),
            models.CheckConstraint(
                name="event_matched_has_time", condition=Q(step__isnull=True) | Q(matched_at__isnull=False)
            ),
        ]
        indexes = [models.Index(name="event_unmatched", fields=["name", "key"], condition=Q(matched_at__isnull=True))]

    def __str__(self) -> str:
        return f"event {self.name}"
