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
