from django.db import models
from django.db.models import Q

from runs.states import ProcessKind


class Process(models.Model):
    """A process that can hold an attempt or perform one. Written by `runs.processes` alone.

    `ended_at` is only ever set from the exit that its parent reaped: that, and nothing else, confirms its death.
    """

    id = models.UUIDField(primary_key=True)
    kind = models.CharField(max_length=10, choices=ProcessKind)
    parent = models.UUIDField(null=True)
    host = models.CharField(max_length=200)
    boot_id = models.CharField(max_length=40)
    pid = models.IntegerField()
    start_ticks = models.BigIntegerField()  # /proc/PID/stat field 22: tells apart two processes with one pid
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    clock_offset_s = models.FloatField(null=True)  # its clock minus the database's
    ended_at = models.DateTimeField(null=True)
    exit_status = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    maxrss_bytes = models.BigIntegerField(null=True)

    class Meta:
        verbose_name_plural = "processes"
        constraints = [
            # Two containers of one machine share its boot id, and may have a process of one number each.
            models.UniqueConstraint(name="process_once", fields=["host", "boot_id", "pid", "start_ticks"]),
        ]
        indexes = [models.Index(name="process_alive", fields=["seen_at"], condition=Q(ended_at__isnull=True))]

    def __str__(self) -> str:
        return f"{self.kind} {self.pid} on {self.host}"
