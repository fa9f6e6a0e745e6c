from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.db.models import F, Q

from runs.models.rules import Rules
from runs.states import EntryKind

DIMENSIONS = ("usd", "tokens", "calls", "effects", "steps")


def _amount(**kwargs: object) -> models.DecimalField[Decimal, Decimal]:
    return models.DecimalField(max_digits=20, decimal_places=10, **kwargs)  # type: ignore[arg-type]


def _rules() -> dict[str, Q]:
    found = {
        "budget_ask_percent_of_hundred": Q(ask_percent__isnull=True) | Q(ask_percent__gte=1, ask_percent__lte=100),
        "budget_counts_up": Q(version__gte=0, told_percent__gte=0),
    }
    for d in DIMENSIONS:
        used = F(f"{d}_spent") + F(f"{d}_reserved") - F(f"{d}_overrun")
        found[f"budget_{d}_within_limit"] = Q(**{f"{d}_limit__isnull": True}) | Q(**{f"{d}_limit__gte": used})
        found[f"budget_{d}_not_negative"] = Q(**{f"{d}_{part}__gte": 0 for part in ("spent", "reserved", "overrun")})
    return found


class Budget(models.Model):
    """What a run may use, with all its descendants. Written by `runs.budgets` alone; people edit the limits only.

    A null limit is no limit. `*_overrun` is the part of the truth that no reservation had covered: it is shown, and it
    is the only way in which spent + reserved can pass a limit.
    """

    run = models.OneToOneField("Run", on_delete=models.CASCADE, related_name="budget", primary_key=True)
    version = models.IntegerField(default=1)
    unlimited_because = models.TextField(blank=True, default="")
    usd_limit = _amount(null=True, blank=True)
    usd_spent = _amount(default=0)
    usd_reserved = _amount(default=0)
    usd_overrun = _amount(default=0)
    tokens_limit = models.BigIntegerField(null=True, blank=True)
    tokens_spent = models.BigIntegerField(default=0)
    tokens_reserved = models.BigIntegerField(default=0)
    tokens_overrun = models.BigIntegerField(default=0)
    calls_limit = models.BigIntegerField(null=True, blank=True)
    calls_spent = models.BigIntegerField(default=0)
    calls_reserved = models.BigIntegerField(default=0)
    calls_overrun = models.BigIntegerField(default=0)
    effects_limit = models.BigIntegerField(null=True, blank=True)
    effects_spent = models.BigIntegerField(default=0)
    effects_reserved = models.BigIntegerField(default=0)
    effects_overrun = models.BigIntegerField(default=0)
    steps_limit = models.BigIntegerField(null=True, blank=True)
    steps_spent = models.BigIntegerField(default=0)
    steps_reserved = models.BigIntegerField(default=0)
    steps_overrun = models.BigIntegerField(default=0)
    working_limit_s = models.FloatField(null=True, blank=True)
    # A step that may take more than this share of the USD or token limit is put before a person first; null: none is.
    ask_percent = models.SmallIntegerField(null=True, blank=True)
    told_percent = models.SmallIntegerField(default=0, db_default=0)  # the last threshold that was told of
    notice_due = models.BooleanField(
        default=False, db_default=False
    )  # what is spent has passed the next one: the sweep tells it
    finish_asked_at = models.DateTimeField(null=True)  # it thinks once more and ends, by a person's decision

    class Meta:
        constraints = [Rules(name="budget_rules", rules=_rules())]
        indexes = [models.Index(name="budget_notice_due", fields=["run"], condition=Q(notice_due=True))]

    def __str__(self) -> str:
        return f"budget of run {self.run_id}"


class LedgerEntry(models.Model):
    """Append-only. One entry per budget that an operation touched: the run's own and each ancestor's.

    A reserve has positive amounts; its settle has the real ones and replaces it; a release has the reserve's. `estimated`:
    the truth may still come, and then a correct entry has the difference to it (which may be negative). So
    spent = sum of settles and corrects, reserved = reserves not yet replaced.
    """

    # Whoever writes an entry holds the lock of the budget, and the attempt names the run: neither is looked up again.
    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="entries", db_constraint=False)
    run = models.ForeignKey(  # whose step it was
        "Run", on_delete=models.CASCADE, related_name="ledger", db_index=False, db_constraint=False
    )
    attempt = models.ForeignKey("Attempt", null=True, on_delete=models.CASCADE, related_name="entries")
    kind = models.CharField(max_length=8, choices=EntryKind)
    usd = _amount(default=0)
    tokens = models.BigIntegerField(default=0)
    calls = models.BigIntegerField(default=0)
    effects = models.BigIntegerField(default=0)
    steps = models.BigIntegerField(default=0)
    estimated = models.BooleanField(default=False)
    unpriced = models.BooleanField(
        default=False, db_default=False
    )  # its usage is known, and no price for it: an estimate until there is
    model = models.CharField(max_length=100, blank=True, default="")
    usage = models.JSONField(null=True)  # as the provider sent it
    price = models.JSONField(null=True)  # rates in USD per million tokens, where from, effective when
    note = models.TextField(blank=True, default="")
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [
            # A grant says how a limit changed, a correct how an estimate was wrong; everything else is what an attempt
            # used or may use, and never negative.
            models.CheckConstraint(
                name="ledger_entry_has_attempt", condition=Q(kind=EntryKind.GRANT) | Q(attempt__isnull=False)
            ),
            models.CheckConstraint(
                name="ledger_not_negative",
                condition=Q(kind__in=[EntryKind.GRANT, EntryKind.CORRECT]) | Q(**{f"{d}__gte": 0 for d in DIMENSIONS}),
            ),
            models.UniqueConstraint(
                name="ledger_one_reserve", fields=["budget", "attempt"], condition=Q(kind=EntryKind.RESERVE)
            ),
            # An attempt's reservation is replaced once: by its settlement or its release.
            models.UniqueConstraint(
                name="ledger_one_end",
                fields=["budget", "attempt"],
                condition=Q(kind__in=[EntryKind.SETTLE, EntryKind.RELEASE]),
            ),
            # The truth about an estimate comes once; a missing price that is added later is another truth of it.
            models.UniqueConstraint(
                name="ledger_one_correct",
                fields=["budget", "attempt"],
                condition=Q(kind=EntryKind.CORRECT, estimated=False),
            ),
        ]
        indexes = [
            models.Index(name="ledger_by_run", fields=["run", "id"]),
            models.Index(name="ledger_unpriced", fields=["model"], condition=Q(unpriced=True)),
            # What was spent since a moment, with all that is asked of it: each try once, on its own run's budget.
            models.Index(
                name="ledger_spent",
                fields=["at"],
                include=["run", "attempt", "usd", "tokens", "calls", "estimated", "model"],
                condition=Q(budget=F("run"), kind__in=[EntryKind.SETTLE, EntryKind.CORRECT])
                & (~Q(usd=0) | ~Q(tokens=0)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
