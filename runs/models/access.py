from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models


class AgentGrant(models.Model):
    """Lets a group see an agent's runs; what its members may do there, their role groups say. `*`: every agent."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="agent_grants")
    agent = models.CharField(max_length=100)

    class Meta:
        constraints = [models.UniqueConstraint(name="agent_grant_once", fields=["group", "agent"])]

    def __str__(self) -> str:
        return f"{self.group} → {self.agent}"


class ApiToken(models.Model):
    """A bearer token; only its SHA-256 (hex) is kept. Acts as `user`."""

    name = models.CharField(max_length=100)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return self.name


class StartRequest(models.Model):
    """The Idempotency-Key of a start over the API: one run per caller and key, also after that run was deleted."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    body_digest = models.CharField(max_length=64)
    # It goes on naming a run that `deleteruns` deleted.
    run = models.ForeignKey("Run", on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False)
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(name="start_request_once", fields=["user", "key"])]
