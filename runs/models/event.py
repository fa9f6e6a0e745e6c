from django.db import models
from django.db.models import Q


class Event(models.Model):
    """Something from outside, written by `runs.events` alone. No step waits for events yet: none is matched."""

    name = models.CharField(max_length=200)
    key = models.CharField(max_length=200)
    payload = models.JSONField(null=True)
    source = models.CharField(max_length=200)
    delivery_id = models.CharField(max_length=200)
    step = models.ForeignKey("Step", null=True, on_delete=models.SET_NULL, related_name="events")
    received_at = models.DateTimeField()
    matched_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(name="event_delivered_once", fields=["source", "delivery_id"])]
        indexes = [models.Index(name="event_unmatched", fields=["name", "key"], condition=Q(matched_at__isnull=True))]

    def __str__(self) -> str:
        return f"event {self.name}"
