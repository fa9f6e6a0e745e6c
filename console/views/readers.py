"""What every page has in common: a reader with rights, and refusals that say the rule and the remedy."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from console.access import rights_of
from console.views.errors import answer
from runs.errors import LongwatchError, NotFound


def for_readers(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Give a view a Reader. Somebody who sees no agent at all finds nothing here (404)."""

    @login_required
    @wraps(view)
    def with_rights(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            if not rights_of(request).agents:
                raise NotFound("page", request.path)
            return view(request, *args, **kwargs)
        except LongwatchError as error:
            return answer(request, error)

    return with_rights
