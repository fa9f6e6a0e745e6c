"""The API object, with its errors, and its addresses."""

from collections.abc import Callable
from typing import Any, cast

from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, re_path
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from console.api import approvals, health, others, runs
from console.api.docs import PlainDocs
from console.api.errors import MethodNotAllowed, NoSuchAddress, NotAvailable, NotSignedIn, Stale, write_problem
from console.api.requests import MAX_BODY, Bearer, BodyParser, refuse_unknown_parameters
from runs.errors import LongwatchError, Malformed, TooLarge

type View = Callable[..., HttpResponseBase]

api = NinjaAPI(
    title="Longwatch",
    version="1",
    description="Start, follow, decide and stop long-running agents. A parameter or field that is not known is refused.",
    urls_namespace="api",
    auth=Bearer(),
    parser=BodyParser(),
    docs=PlainDocs(),
)
for router in (runs.router, approvals.router, others.router, health.router):
    # Whoever probes the health may add what it likes.
    if router is not health.router:
        refuse_unknown_parameters(router)
    api.add_router("", router)


@api.exception_handler(LongwatchError)
def refuse(request: HttpRequest, error: LongwatchError) -> HttpResponse:
    return write_problem(request, error)


@api.exception_handler(Stale)
def refuse_stale(request: HttpRequest, stale: Stale) -> HttpResponse:
    return write_problem(request, stale.error, fresh=stale.fresh)


@api.exception_handler(ValidationError)
def refuse_malformed(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """An id in the address that cannot be one is an address that leads nowhere."""
    places = {str(wrong["loc"][0]) for wrong in error.errors}
    if places == {"path"}:
        return write_problem(request, NoSuchAddress())
    fields = [{"field": ".".join(map(str, wrong["loc"][1:])), "message": str(wrong["msg"])} for wrong in error.errors]
    wrong = "; ".join(f"{field['field']}: {field['message']}" for field in fields[:5])
    refusal = Malformed(f"The request cannot be used: {wrong}", remedy="/api/v1/docs says what each field may be.")
    return write_problem(request, refusal, fields=fields)


@api.exception_handler(AuthenticationError)
def refuse_stranger(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    return write_problem(request, NotSignedIn())


@api.exception_handler(HttpError)
def refuse_unread(request: HttpRequest, error: HttpError) -> HttpResponse:
    """Ninja wraps what the body parser raises."""
    cause = error.__cause__
    if isinstance(cause, LongwatchError):
        return write_problem(request, cause)
    return write_problem(request, Malformed(error.message))


@api.exception_handler(RequestDataTooBig)
def refuse_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return write_problem(request, TooLarge(f"The body has more than {MAX_BODY} bytes."))


@api.exception_handler(Http404)
def refuse_missing(request: HttpRequest, error: Http404) -> HttpResponse:
    return write_problem(request, NoSuchAddress())


@api.exception_handler(OperationalError)
def refuse_without_database(request: HttpRequest, error: OperationalError) -> HttpResponse:
    return write_problem(request, NotAvailable())


@api.exception_handler(InterfaceError)
def refuse_without_connection(request: HttpRequest, error: InterfaceError) -> HttpResponse:
    return write_problem(request, NotAvailable())


def answer_nothing_here(request: HttpRequest) -> HttpResponse:
    return write_problem(request, NoSuchAddress())


def read_urls() -> tuple[list[URLPattern], str, str]:
    """The API's addresses; whatever else lies below them is answered in JSON too."""
    patterns, app, namespace = api.urls
    for pattern in patterns:
        pattern.callback = _guard(cast(View, pattern.callback))
    return [*patterns, re_path("", _guard(answer_nothing_here), name="nothing-here")], app, namespace


def _guard(view: View) -> Any:
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # Load balancers probe with HEAD. It is answered as GET is; the server leaves the body out.
        asked = request.method
        if asked == "HEAD":
            request.method = "GET"
        response = view(request, *args, **kwargs)
        request.method = asked
        if response.status_code == 405:
            allowed = response["Allow"]
            response = write_problem(request, MethodNotAllowed(str(request.method), allowed))
            response["Allow"] = allowed
        return response

    # A token in a header cannot be sent by another site's page, so there is nothing for CSRF to protect;
    # and who may come in is decided by the token, not by the session.
    guarded.csrf_exempt = True  # type: ignore[attr-defined]
    guarded.login_required = False  # type: ignore[attr-defined]
    return guarded
