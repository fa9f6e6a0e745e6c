from django.db import models


class ProviderLimit(models.Model):
    """What a model provider last said about a credential: nothing is sent before `not_before`.

    Written by `runs.gateway.limits` alone. `ramp` counts the calls let through since the limit ended.
    """

    credential = models.CharField(max_length=100)
    model = models.CharField(max_length=100, blank=True, default="")  # blank: the whole credential
    not_before = models.DateTimeField(null=True)
    reason = models.TextField(blank=True, default="")
    strikes = models.PositiveIntegerField(default=0)
    ramp_until = models.DateTimeField(null=True)
    spaced_at = models.DateTimeField(null=True)  # while ramping: the place of the last call let through
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(name="provider_limit_once", fields=["credential", "model"])]
