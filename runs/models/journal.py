from django.conf import settings
from django.db import models
from django.db.models import Q


class JournalEntry(models.Model):
    """Append-only: everything that happened to a run, and every operator action. Written by `runs.journal` alone.

    `seq` counts from 1 within a run, under the run's lock. `xid` is the writing transaction: a reader holds its cursor
    below the oldest transaction still running, so that nothing which commits late is skipped.
    """

    # Its writer holds the lock of the run: it is not looked up again at each write.
    run = models.ForeignKey(
        "Run", null=True, on_delete=models.CASCADE, related_name="journal", db_index=False, db_constraint=False
    )
    seq = models.PositiveBigIntegerField(null=True)
    xid = models.BigIntegerField()
    kind = models.CharField(max_length=60)
    actor = models.CharField(max_length=200)  # person:NAME, agent, runtime
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    # An entry stays as it was written when its step goes, and is not looked up again at each write.
    step = models.ForeignKey("Step", null=True, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    why = models.TextField(blank=True, default="")
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "journal entries"
        constraints = [
            models.UniqueConstraint(name="journal_seq_once", fields=["run", "seq"], condition=Q(run__isnull=False))
        ]
        indexes = [
            models.Index(name="journal_by_kind", fields=["kind", "-id"]),
            models.Index(name="journal_since", fields=["xid"]),
            # Most entries are the runtime's.
            models.Index(name="journal_by_user", fields=["user", "-id"], condition=Q(user__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} ({self.pk})"
