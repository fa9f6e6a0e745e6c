"""Who is reading: their rights, read once for each request, for the page and for the frame around it."""

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest

from runs import access
from runs.access import Rights


class Reader(HttpRequest):
    """A request of somebody who signed in, with what they may see and do."""

    user: User
    rights: Rights


def rights_of(request: HttpRequest) -> Rights:
    reader = cast(Reader, request)
    if not hasattr(reader, "rights"):
        reader.rights = access.read_rights(reader.user)
    return reader.rights
