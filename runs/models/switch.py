from django.conf import settings
from django.db import models
from django.db.models import Q


class Switch(models.Model):
    """A kill switch. It holds: nothing new is taken in its scope. Written by `runs.switches` alone.

    `scope` is `all`, `agent:NAME`, `tool:NAME` or `run:ID` (that run and its descendants).
    """

    scope = models.CharField(max_length=200)
    reason = models.TextField()
    engaged_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    engaged_at = models.DateTimeField()
    released_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    released_at = models.DateTimeField(null=True)
    release_reason = models.TextField(blank=True, default="")

    class Meta:
        verbose_name_plural = "switches"
        constraints = [
            # One engaged switch per scope.
            models.UniqueConstraint(name="switch_one_engaged", fields=["scope"], condition=Q(released_at__isnull=True))
        ]

    def __str__(self) -> str:
        return f"switch {self.scope}"


class SwitchAck(models.Model):
    """A process has looked since a switch was engaged, and holds nothing in its scope. Written by `runs.switches` alone."""

    switch = models.ForeignKey(Switch, on_delete=models.CASCADE, related_name="acks")
    process = models.ForeignKey("Process", on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(name="switch_ack_once", fields=["switch", "process"])]

    def __str__(self) -> str:
        return f"{self.process_id} acknowledged switch {self.switch_id}"
