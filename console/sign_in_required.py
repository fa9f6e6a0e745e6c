"""Every page needs a sign-in, and a fragment is told so in a way that a page can use."""

from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseBase


class SignInRequired(LoginRequiredMiddleware):
    """As Django's; but who fetches a fragment gets 401, because a redirect would put the sign-in page into the fragment."""

    def process_view(self, request: HttpRequest, *view: Any) -> HttpResponseBase | None:
        refused = super().process_view(request, *view)
        if refused is not None and "HX-Request" in request.headers:
            return HttpResponse("Signed out.", status=401, content_type="text/plain")
        return refused
