"""A run's page: its head, its tabs, and what an operator does to it."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.access import Reader
from console.display.runs import show_about, show_head
from console.views.readers import for_readers
from runs import queries
from runs.access import Action
from runs.agents import get_agents
from runs.errors import NotFound
from runs.queries import RunDetail
from runs.queries.runpage import RunExtras, read_run_extras


@dataclass(frozen=True, kw_only=True)
class Found:
    run: RunDetail
    extras: RunExtras


def find(request: Reader, number: int) -> Found:
    """Raises: NotFound, also for a run of an agent that the reader may not see."""
    run = queries.find_run(number, agents=request.rights.agents)
    if run is None:
        raise NotFound("run", number)
    return Found(run=run, extras=read_run_extras(run.id))


def describe(request: Reader, found: Found) -> dict[str, Any]:
    """What the head and the side of a run's page show; its panels show the same."""
    rights, run = request.rights, found.run
    head = show_head(
        run,
        found.extras,
        may_stop=rights.may(Action.STOP, run.agent),
        may_decide=rights.may(Action.DECIDE, run.agent),
    )
    return {"run": run, "head": head, "now": found.extras.now}


@require_safe
@for_readers
def show_run(request: Reader, number: int) -> HttpResponse:
    found = find(request, number)
    agent = get_agents().get(found.run.agent)
    context = describe(request, found) | {
        "section": "runs",
        "about": show_about(found.run, found.extras, model=agent.model if agent else ""),
    }
    return render(request, "runs/run.html", context)


@require_safe
@for_readers
def show_head_panel(request: Reader, number: int) -> HttpResponse:
    return render(request, "runs/head.html", describe(request, find(request, number)))


@require_safe
@for_readers
def show_side_panel(request: Reader, number: int) -> HttpResponse:
    return render(request, "runs/side.html", describe(request, find(request, number)))
