"""The admin's site: Longwatch's name on it, and its own sign-in page in front of it."""

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator


class Site(AdminSite):
    site_title = site_header = "Longwatch"
    index_title = "Configuration and forensics"

    @method_decorator(login_not_required)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """There is one sign-in page. Someone who is signed in and may not be here is told so, not asked again."""
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get("next", "/admin/"))
