from django.db import models
from django.db.models import F, Q

from runs.states import CheckOutcome

LONGEST_AGE_S = 1e10


class Fact(models.Model):
    """A claim the agent rests on. Written by `runs.facts` alone. `max_age_s` in seconds.

    `observed_at` is when the reading of this value began, `verified_at` when a reading last said the same.
    Its state is computed when it is asked for (`lw_fact_state`), never stored.
    """

    run = models.ForeignKey("Run", on_delete=models.CASCADE, related_name="facts")
    name = models.CharField(max_length=200)
    value = models.JSONField(null=True)
    version = models.PositiveIntegerField(default=1)
    source = models.JSONField()  # {"tool", "arguments", "pointer", "step"} | {"person"} | {"agent"}
    source_tool = models.CharField(max_length=100, blank=True, default="")
    source_step = models.ForeignKey("Step", null=True, on_delete=models.SET_NULL, related_name="+")
    observed_at = models.DateTimeField(null=True)
    verified_at = models.DateTimeField(null=True)
    max_age_s = models.FloatField()
    # Of a derived fact: what it was recorded with. Its `max_age_s` is less where what it follows from lasts less long.
    own_max_age_s = models.FloatField(null=True)
    derived_from = models.JSONField(default=list)  # names of its parents
    check_failed_at = models.DateTimeField(null=True)
    check_tries = models.PositiveIntegerField(default=0)
    contradicted_at = models.DateTimeField(null=True)
    # What its max age was before a person extended it, until it is read again.
    extended_from_s = models.FloatField(null=True)
    # False once its run has ended: then it holds nothing up.
    live = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="fact_once_per_run", fields=["run", "name"]),
            models.CheckConstraint(
                name="fact_extended_by_something",
                condition=Q(extended_from_s__isnull=True) | Q(extended_from_s__lt=F("max_age_s")),
            ),
            # Neither NaN nor infinity: nothing is fresh for ever.
            models.CheckConstraint(name="fact_ages", condition=Q(max_age_s__gt=0, max_age_s__lt=LONGEST_AGE_S)),
        ]
        # One for each list of the facts page: it holds what the list shows and nothing of ended runs. Those by the end
        # of their age (fact_by_end, fact_ageing) are in SQL.
        indexes = [
            models.Index(name="fact_by_source", fields=["source_tool", "name"], condition=Q(live=True)),
            models.Index(name="fact_by_verified", fields=["verified_at", "id"], condition=Q(live=True)),
            models.Index(
                name="fact_contradicted",
                fields=["contradicted_at"],
                condition=Q(live=True, contradicted_at__isnull=False),
            ),
            models.Index(
                name="fact_check_failed",
                fields=["check_failed_at"],
                condition=Q(live=True, check_failed_at__isnull=False),
            ),
            models.Index(
                name="fact_without_date",
                fields=["id"],
                condition=Q(live=True)
                & (Q(observed_at__isnull=True) | Q(verified_at__isnull=True) | Q(verified_at__lt=F("observed_at"))),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of run {self.run_id}"


class FactVersion(models.Model):
    """Append-only: every value that a fact has had."""

    fact = models.ForeignKey(Fact, on_delete=models.CASCADE, related_name="versions")
    version = models.PositiveIntegerField()
    value = models.JSONField(null=True)
    source = models.JSONField()
    step = models.ForeignKey("Step", null=True, on_delete=models.SET_NULL, related_name="+")
    observed_at = models.DateTimeField(null=True)
    recorded_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(name="fact_version_once", fields=["fact", "version"])]


class FactCheck(models.Model):
    """Append-only: every time a fact was verified again, and what came of it."""

    fact = models.ForeignKey(Fact, on_delete=models.CASCADE, related_name="checks")
    step = models.ForeignKey("Step", null=True, on_delete=models.SET_NULL, related_name="+")
    outcome = models.CharField(max_length=12, choices=CheckOutcome)
    detail = models.TextField(blank=True, default="")
    at = models.DateTimeField()


class FactUse(models.Model):
    """Append-only: which version an act or an approval rested on, and how old it was then (seconds)."""

    fact = models.ForeignKey(Fact, on_delete=models.CASCADE, related_name="uses")
    version = models.PositiveIntegerField()
    attempt = models.ForeignKey("Attempt", null=True, on_delete=models.CASCADE, related_name="facts")
    approval = models.ForeignKey("Approval", null=True, on_delete=models.CASCADE, related_name="facts_shown")
    age_s = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(name="fact_use_by_attempt", fields=["attempt"])]
