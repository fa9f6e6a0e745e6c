"""Who is reading: their rights, read once for each request, for the page and for the frame around it."""

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest

from runs import access
from runs.access import Action, Rights


class Reader(HttpRequest):
    """A request of somebody who signed in, with what they may see and do."""

    user: User
    rights: Rights


def require(request: Reader, action: Action, agent: str | None = None) -> None:
    """Raises: Forbidden, naming the roles that may."""
    if not request.rights.may(action, agent):
        access.require(request.user, action, agent)


def rights_of(request: HttpRequest) -> Rights:
    reader = cast(Reader, request)
    if not hasattr(reader, "rights"):
        reader.rights = access.read_rights(reader.user)
    return reader.rights
