"""What a refused request is answered: `{"error": {code, message, remedy}}` and the members of RFC 9457."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from django.http import HttpRequest, JsonResponse

from runs.errors import LongwatchError
from runs.queries import as_json

_TITLES = {
    400: "Malformed",
    401: "Not signed in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict with the current state",
    413: "Too large",
    422: "Idempotency key reused",
    429: "Too many requests",
    500: "Internal error",
    503: "Not available",
}


class NotSignedIn(LongwatchError):
    code, status = "not_signed_in", 401

    def __init__(self) -> None:
        super().__init__(
            "This needs a token.", remedy="Send Authorization: Bearer TOKEN; bin/manage createtoken makes one."
        )


class NoSuchAddress(LongwatchError):
    code, status = "not_found", 404

    def __init__(self) -> None:
        super().__init__("There is nothing at this address.", remedy="/api/v1/docs lists what there is.")


class MethodNotAllowed(LongwatchError):
    code, status = "method_not_allowed", 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible here.", remedy=f"Use {allowed}.")


class NotAvailable(LongwatchError):
    code, status = "not_available", 503

    def __init__(self) -> None:
        super().__init__("The database does not answer.", remedy="Try again in a moment; nothing was changed.")


class Stale(Exception):
    """A conflict, with the object as it is now: the caller need not ask for it again."""

    def __init__(self, error: LongwatchError, **fresh: object) -> None:
        super().__init__(str(error))
        self.error = error
        self.fresh = fresh


@contextmanager
def with_fresh(name: str, read: Callable[[], object]) -> Iterator[None]:
    """Put the object as it is now, under its name, into the answer to a conflict."""
    try:
        yield
    except LongwatchError as error:
        if error.status != 409:
            raise
        raise Stale(error, **{name: read()}) from error


def write_problem(
    request: HttpRequest,
    error: LongwatchError,
    *,
    fields: list[dict[str, str]] | None = None,
    fresh: Mapping[str, object] = MappingProxyType({}),
) -> JsonResponse:
    """`fields`: what is wrong in the body, one by one. `fresh`: the object as it is now, under its name."""
    inner: dict[str, Any] = {"code": error.code, "message": error.message, "remedy": error.remedy}
    if fields:
        inner["fields"] = fields
    body: dict[str, Any] = {
        "error": inner,
        "type": f"/api/v1/docs#{error.code}",
        "title": _TITLES.get(error.status, "Refused"),
        "status": error.status,
        "detail": f"{error.message} {error.remedy}".strip(),
        "instance": request.path,
    }
    body |= {name: as_json(value) for name, value in fresh.items()}
    response = JsonResponse(body, status=error.status, content_type="application/problem+json")
    if error.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if error.status == 503:
        response["Retry-After"] = "2"
    return response
