"""The frame around every page: its live parts, and the theme."""

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader
from console.context import THEMES
from console.views.readers import for_readers

THEME_DAYS = 365


@require_safe
@for_readers
def show_nav(request: Reader) -> HttpResponse:
    return render(request, "shell/nav-links.html", {"section": request.GET.get("section", "")})


@require_safe
@for_readers
def show_switch_bars(request: Reader) -> HttpResponse:
    return render(request, "shell/switch-bars.html")


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Keep a theme in a cookie, so that the server renders it and no page flashes. Empty: as the system has it."""
    response = HttpResponseRedirect(read_next(request))
    theme = request.POST.get("theme", "")
    if theme in THEMES:
        response.set_cookie("theme", theme, max_age=THEME_DAYS * 86_400, samesite="Lax", httponly=True)
    else:
        response.delete_cookie("theme", samesite="Lax")
    return response


def read_next(request: HttpRequest) -> str:
    """Where a form says to go on to, if that is here."""
    wanted = request.POST.get("next", "")
    return wanted if url_has_allowed_host_and_scheme(wanted, allowed_hosts=None) else "/"
