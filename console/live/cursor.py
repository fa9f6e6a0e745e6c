"""The moment before a page's queries: the page carries it, and its stream is told what moved since."""

from typing import Any

from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin

from console.live.stream import live
from runs.queries.since import read_mark


class CursorMiddleware(MiddlewareMixin):
    """Sets `request.live_cursor` on pages of signed-in people, before their view runs."""

    def process_view(self, request: HttpRequest, view: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        match = request.resolver_match
        page = request.method == "GET" and match is not None and not match.namespaces and view is not live
        if page and "HX-Request" not in request.headers and request.user.is_authenticated:
            request.live_cursor = read_mark()  # type: ignore[attr-defined]
