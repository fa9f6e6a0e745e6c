"""Whether the web process lives, and whether the whole installation can do its work. No token is needed."""

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Router

from console.api.answers import answer
from runs import queries
from runs.queries import Health

router = Router(tags=["Health"])


@dataclass(frozen=True, kw_only=True)
class Alive:
    ok: bool
    environment: str


@router.get("/health/live", response=Alive, auth=None, summary="Whether this process answers")
def read_live(request: HttpRequest) -> HttpResponse:
    return answer(Alive(ok=True, environment=settings.ENVIRONMENT))


@router.get("/health/ready", response={200: Health, 503: Health}, auth=None, summary="Whether work can be done")
def read_ready(request: HttpRequest) -> HttpResponse:
    """200 when the database answers with every migration applied and a gateway and a cluster were seen lately.

    Otherwise 503; `parts` says of each whether it is there, and `missing` names those that are not.
    """
    health = queries.read_health(seen_within_s=max(15.0, settings.LEASE_S))
    missing = [part.name for part in health.parts if not part.ok]
    body = {"ok": health.ok, "missing": missing, "parts": health.parts}
    return answer(body, status=200 if health.ok else 503)
