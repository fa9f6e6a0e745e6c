from django.db import models
from django.db.models import Q

from runs.states import KEY_OPEN, KeyState


class Key(models.Model):
    """The idempotency key of an intended effect. Written by `runs.keys` alone.

    `intent` is the SHA-256 (hex) of the tool and its identity arguments, as asked. A generation is one life of the
    key at the receiver: it is only left when every attempt in it certainly did nothing. An occurrence is a deliberate
    second time.
    """

    namespace = models.UUIDField()
    tool = models.CharField(max_length=100)
    identity = models.JSONField()
    intent = models.CharField(max_length=64)
    occurrence = models.PositiveIntegerField(default=1)
    generation = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=10, choices=KeyState, default=KeyState.TAKEN)
    run = models.ForeignKey("Run", on_delete=models.CASCADE, related_name="keys")
    step = models.ForeignKey("Step", on_delete=models.CASCADE, related_name="keys")
    approval = models.ForeignKey("Approval", null=True, on_delete=models.PROTECT, related_name="keys")
    arguments = models.JSONField()
    result = models.JSONField(null=True)
    artifact = models.ForeignKey("Artifact", null=True, on_delete=models.PROTECT, related_name="+")
    evidence = models.JSONField(null=True)  # what the receiver said last
    closed_how = models.CharField(max_length=20, blank=True, default="")  # settled, reconciled, verdict, late
    replays = models.PositiveIntegerField(default=0)
    taken_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="key_state_known", condition=Q(state__in=list(KeyState))),
            models.UniqueConstraint(name="key_once", fields=["namespace", "intent", "occurrence", "generation"]),
            # One live generation per intended effect: two workers cannot both take it.
            models.UniqueConstraint(
                name="key_one_open", fields=["namespace", "intent", "occurrence"], condition=Q(state__in=KEY_OPEN)
            ),
            models.CheckConstraint(
                name="key_closed_has_time",
                condition=Q(state__in=KEY_OPEN, closed_at__isnull=True)
                | (~Q(state__in=KEY_OPEN) & Q(closed_at__isnull=False)),
            ),
        ]
        indexes = [
            models.Index(name="key_open", fields=["run", "state"], condition=Q(state__in=KEY_OPEN)),
        ]

    def __str__(self) -> str:
        return f"key {self.header}"

    @property
    def header(self) -> str:
        """What is sent as the Idempotency-Key: at most 255 characters, the same for every try of one generation."""
        return f"{self.namespace}-{self.intent[:32]}-{self.occurrence}-{self.generation}"


class KeyAlias(models.Model):
    """Another identity under which the same intended effect is found: that of an edited call."""

    key = models.ForeignKey(Key, on_delete=models.CASCADE, related_name="aliases")
    namespace = models.UUIDField()
    intent = models.CharField(max_length=64)

    class Meta:
        indexes = [models.Index(name="key_alias", fields=["namespace", "intent"])]


class Lock(models.Model):
    """What a key's tool claims across runs, from take until the key closes. Written by `runs.locks` alone."""

    name = models.CharField(max_length=200, unique=True)
    key = models.ForeignKey(Key, on_delete=models.CASCADE, related_name="locks")
    run = models.ForeignKey("Run", on_delete=models.CASCADE, related_name="locks")
    taken_at = models.DateTimeField()
