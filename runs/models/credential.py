from django.db import models


class Credential(models.Model):
    """What is known of a secret that tools name: never the secret itself. Written by `runs.credentials` alone."""

    name = models.CharField(max_length=100, unique=True)
    expires_at = models.DateTimeField(null=True)
    renewed_at = models.DateTimeField(null=True)
    renewed_by = models.CharField(max_length=200, blank=True, default="")
    refused_at = models.DateTimeField(null=True)
    refused_because = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return self.name
