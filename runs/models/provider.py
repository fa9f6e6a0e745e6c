from django.db import models


class ProviderLimit(models.Model):
    """What a model provider last said about a credential (nothing is sent before `not_before`), and its rate of calls.

    Written by `runs.limits` alone.
    """

    credential = models.CharField(max_length=100)
    model = models.CharField(max_length=100, blank=True, default="")  # blank: the whole credential
    not_before = models.DateTimeField(null=True)
    reason = models.TextField(blank=True, default="")
    strikes = models.PositiveIntegerField(default=0)
    ramp_until = models.DateTimeField(null=True)
    changed_at = models.DateTimeField()
    calls_per_minute = models.PositiveIntegerField(null=True, blank=True)  # null: no more than the provider says itself
    free_at = models.DateTimeField(null=True)  # the place of the next call; in the past: so many calls may go at once
    version = models.PositiveIntegerField(default=1, db_default=1)

    class Meta:
        constraints = [models.UniqueConstraint(name="provider_limit_once", fields=["credential", "model"])]


class ProviderTurn(models.Model):
    """The place of a step that waits for its provider: given in order, so that no run is passed over by another."""

    limit = models.ForeignKey(ProviderLimit, on_delete=models.CASCADE, related_name="turns")
    step = models.ForeignKey("Step", on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(name="provider_turn_once", fields=["limit", "step"])]
        indexes = [models.Index(name="provider_turn_by_time", fields=["limit", "at"])]
