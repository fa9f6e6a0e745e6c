from django.db import models


class Artifact(models.Model):
    """A large output, stored once by its SHA-256 (hex). Written by `runs.artifacts` alone. `size` in bytes."""

    digest = models.CharField(max_length=64, unique=True)
    media_type = models.CharField(max_length=100)
    size = models.BigIntegerField()
    body = models.BinaryField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"artifact {self.digest[:12]}"
