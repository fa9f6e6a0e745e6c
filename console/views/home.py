"""The first page: what needs a person, then how everything else is doing."""

from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader, rights_of
from console.display.home import count_needs, show_agents, show_ended_counts, show_needs, show_open_counts
from console.display.runlines import show_line
from console.views.readers import for_readers
from runs.agents import get_agents
from runs.queries.counts import count_runs
from runs.queries.overview import read_overview

WELCOME_DAYS = 365


@require_safe
@login_required
def show_home(request: HttpRequest) -> HttpResponse:
    """Somebody who sees no agent yet is told so: this is where signing in leads."""
    if not rights_of(request).agents:
        return render(request, "home/nothing.html", {"section": "home"})
    reader = cast(Reader, request)
    context = _describe(reader) | {"section": "home", "welcome": request.COOKIES.get("welcome") != "seen"}
    return render(request, "home/home.html", context)


@require_safe
@for_readers
def show_panel(request: Reader) -> HttpResponse:
    return render(request, "home/panel.html", _describe(request) | {"panel": True})


@require_POST
def dismiss_welcome(request: HttpRequest) -> HttpResponse:
    response = HttpResponseRedirect("/")
    response.set_cookie("welcome", "seen", max_age=WELCOME_DAYS * 86_400, samesite="Lax", httponly=True)
    return response


def _describe(request: Reader) -> dict[str, Any]:
    agents = request.rights.agents
    overview, counts = read_overview(agents=agents), count_runs(agents=agents)
    known = [name for name in get_agents() if request.rights.sees(name)]
    return {
        "overview": overview,
        "counts": counts,
        "needs": show_needs(overview),
        "needs_count": count_needs(overview),
        "open_counts": show_open_counts(counts),
        "ended_counts": show_ended_counts(counts),
        "agents": show_agents(overview, known),
        "lately": [show_line(line, overview.now) for line in overview.lately],
        "now": overview.now,
    }
