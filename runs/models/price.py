from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from django.db import models
from django.db.models import Q

RATES = ("uncached", "cache_read", "write_5m", "write_1h", "output")


def _rate(**kwargs: object) -> models.DecimalField[Decimal, Decimal]:
    return models.DecimalField(max_digits=12, decimal_places=6, **kwargs)  # type: ignore[arg-type]


class Price(models.Model):
    """A price that a person has set: it counts before the published ones. Written by `runs.prices` alone, never changed.

    USD per million tokens of each class, web searches per thousand. `model` is its plain name, or `*` for every model
    that has no other price. A row with `above` is for prompts of more tokens than that, of the whole request.
    """

    model = models.CharField(max_length=100)
    above = models.PositiveBigIntegerField("for prompts above, in tokens", default=0)
    effective_from = models.DateTimeField(null=True, blank=True)  # null: as long as anyone can remember
    uncached = _rate()
    cache_read = _rate()
    write_5m = _rate(verbose_name="5-minute cache write")
    write_1h = _rate(verbose_name="1-hour cache write")
    output = _rate(verbose_name="output, thinking included")
    web_searches = _rate(null=True, blank=True, verbose_name="1000 web searches")
    reason = models.TextField()
    set_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    set_at = models.DateTimeField()
    withdrawn_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    withdrawn_at = models.DateTimeField(null=True)
    withdrawn_because = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            # A price of nothing would let money be spent that nobody counts.
            models.CheckConstraint(name="price_is_not_nothing", condition=Q(**{f"{rate}__gt": 0 for rate in RATES})),
            models.UniqueConstraint(
                name="price_once",
                fields=["model", "above", "effective_from"],
                condition=Q(withdrawn_at__isnull=True),
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"price of {self.model}"
