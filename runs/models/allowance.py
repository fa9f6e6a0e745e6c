from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from django.db import models
from django.db.models import F, Q

DIMENSIONS = ("usd", "tokens", "calls", "effects", "steps")
PERIODS = ("hour", "day", "month")


def _amount(**kwargs: object) -> models.DecimalField[Decimal, Decimal]:
    return models.DecimalField(max_digits=24, decimal_places=10, **kwargs)  # type: ignore[arg-type]


class Allowance(models.Model):
    """What many runs together may use: within an hour, a day or a month of a time zone; or how many may be under way.

    Written by `runs.allowances` alone. `scope` is `all`, `agent:NAME` or `label:KEY=VALUE` (of the run at the top of a
    tree). With the dimension `runs` it counts runs that were started by people and are under way at once.
    """

    scope = models.CharField(max_length=310, help_text="all, agent:NAME or label:KEY=VALUE")
    dimension = models.CharField(max_length=7, choices=[(d, d) for d in (*DIMENSIONS, "runs")])
    period = models.CharField(max_length=5, choices=[(p, p) for p in ("once", *PERIODS)])
    zone = models.CharField(max_length=64, default="UTC")
    soft = _amount(null=True, blank=True, help_text="Told when it is passed; holds nothing.")
    hard = _amount(help_text="Never passed.")
    version = models.PositiveIntegerField(default=1)
    set_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    set_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="allowance_once",
                fields=["scope", "dimension", "period"],
                condition=Q(ended_at__isnull=True),
            ),
            models.CheckConstraint(
                name="allowance_runs_at_once",
                condition=Q(dimension="runs", period="once") | ~Q(dimension="runs") & ~Q(period="once"),
            ),
            models.CheckConstraint(name="allowance_not_negative", condition=Q(hard__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.dimension} of {self.scope} per {self.period}"


class AllowanceWindow(models.Model):
    """One hour, day or month of an allowance, and what was used in it. Made by the first reservation within it."""

    allowance = models.ForeignKey(Allowance, on_delete=models.CASCADE, related_name="windows")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    spent = _amount(default=0)
    reserved = _amount(default=0)
    overrun = _amount(default=0)  # the part of the truth that no reservation had covered
    hard = _amount()  # the allowance's own, kept here so that the database can hold it
    soft = _amount(null=True)
    soft_told_at = models.DateTimeField(null=True)
    notice_due = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="allowance_window_once", fields=["allowance", "starts_at"]),
            models.CheckConstraint(
                name="allowance_window_within_limit", condition=Q(hard__gte=F("spent") + F("reserved") - F("overrun"))
            ),
            models.CheckConstraint(
                name="allowance_window_not_negative", condition=Q(spent__gte=0, reserved__gte=0, overrun__gte=0)
            ),
        ]
        indexes = [models.Index(name="allowance_notice_due", fields=["allowance"], condition=Q(notice_due=True))]


class AllowanceEntry(models.Model):
    """Append-only: what an attempt reserved, used, gave back or was corrected by, as in the ledger."""

    window = models.ForeignKey(AllowanceWindow, on_delete=models.CASCADE, related_name="entries")
    attempt = models.ForeignKey("Attempt", on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=8)
    amount = _amount()
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "allowance entries"
        constraints = [
            models.UniqueConstraint(
                name="allowance_entry_one_reserve", fields=["window", "attempt"], condition=Q(kind="reserve")
            ),
            models.UniqueConstraint(
                name="allowance_entry_one_end",
                fields=["window", "attempt"],
                condition=Q(kind__in=["settle", "release"]),
            ),
        ]
