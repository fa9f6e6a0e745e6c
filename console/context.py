"""What every page knows."""

from django.conf import settings
from django.http import HttpRequest


def name_environment(request: HttpRequest) -> dict[str, object]:
    """The environment's name, always in sight, and whether it is a rehearsal: no real model, no real receiver."""
    return {"environment": settings.ENVIRONMENT, "rehearsal": not settings.ANTHROPIC_API_KEY}
