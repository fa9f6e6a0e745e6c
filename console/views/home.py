"""The first page."""

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from runs import access, queries
from runs.access import Action
from runs.queries import RunFilter, Window
from runs.states import ApprovalState


class SignedIn(HttpRequest):
    """A request behind `login_required`."""

    user: User


@require_safe
@login_required
def show_home(request: SignedIn) -> HttpResponse:
    """What waits for a person first, then the newest runs."""
    agents = access.visible_agents(request.user)
    context = {
        "section": "home",
        "approvals": queries.list_approvals(Window(limit=20), agents=agents, states=[ApprovalState.PENDING]),
        "runs": queries.list_runs(RunFilter(), Window(limit=20), agents=agents),
        "may_decide": access.may(request.user, Action.DECIDE),
    }
    return render(request, "home.html", context)
