"""Credentials: what is known of each and who waits for it; a person says that one is renewed. No secret comes here."""

from collections import defaultdict
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader
from console.display.credentials import show_credentials
from console.filters import read_moment
from console.views.readers import for_readers
from runs import operations, vault
from runs.access import Action
from runs.agents import get_agents
from runs.errors import Conflict, Forbidden, LongwatchError, NotFound
from runs.queries.credentials import read_credentials
from runs.queries.paging import EVERY_AGENT

MOST_TEXT = 2_000


@require_safe
@for_readers
def show_credentials_page(request: Reader) -> HttpResponse:
    return _show(request)


@require_safe
@for_readers
def show_list_panel(request: Reader) -> HttpResponse:
    return render(request, "credentials/list.html", _describe(request))


@require_POST
@for_readers
def renew(request: Reader) -> HttpResponse:
    name = request.POST.get("name", "").replace("\x00", "\ufffd")[:100]
    try:
        operations.renew_credential(
            name,
            expires_at=read_moment(request.POST.get("expires_at", "")),
            comment=request.POST.get("comment", "").strip()[:MOST_TEXT],
            by=request.user,
        )
    except (NotFound, Forbidden):
        raise
    except LongwatchError as refusal:
        return _show(request, refusal=refusal, status=409 if isinstance(refusal, Conflict) else 422)
    messages.success(request, f"{name} is renewed. What waited for it tries again.")
    return HttpResponseRedirect(reverse("credentials"))


def _show(request: Reader, *, refusal: LongwatchError | None = None, status: int = 200) -> HttpResponse:
    context = _describe(request) | {"section": "facts", "refusal": refusal}
    return render(request, "credentials/credentials.html", context, status=status)


def _describe(request: Reader) -> dict[str, Any]:
    """Each credential that an agent of the reader's signs in with, or a run of theirs waits for."""
    rights = request.rights
    found = read_credentials(agents=rights.agents)
    users: dict[str, list[str]] = defaultdict(list)
    of_agents: dict[str, set[str]] = defaultdict(set)
    for agent in get_agents().values():
        if rights.sees(agent.name):
            for name, tools in agent.users_of_credentials().items():
                users[name].append(f"{agent.name} ({', '.join(tools)})" if tools else agent.name)
                of_agents[name].add(agent.name)
    for name, waiting in found.waiting.items():
        of_agents[name] |= {each.agent for each in waiting}
    if EVERY_AGENT in rights.agents:
        of_agents |= {name: set() for name in found.known if name not in of_agents}
    return {
        "now": found.now,
        "lines": show_credentials(
            found,
            {name: users.get(name, []) for name in of_agents},
            {name: vault.find_place(name) for name in of_agents},
            {name: any(rights.may(Action.DECIDE, agent) for agent in agents) for name, agents in of_agents.items()},
        ),
    }
