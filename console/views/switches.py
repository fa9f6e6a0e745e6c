"""The kill switches: engaged in one action, released deliberately, with who has confirmed them."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader, require
from console.display.figures import plural
from console.display.outside import show
from console.display.switches import say_scope, show_switch
from console.views.readers import for_readers
from runs import clock, operations, queries
from runs.access import Action
from runs.agents import get_agents
from runs.errors import Conflict, Forbidden, LongwatchError, Malformed, NotFound
from runs.queries import Window
from runs.queries.paging import EVERY_AGENT
from runs.queries.switches import count_reach

PAGE = 20
ENGAGED_SHOWN = 50
MOST_REASON = 2_000
PER_MINUTE = (0, 10, 60, 600)


@require_safe
@for_readers
def show_switches(request: Reader) -> HttpResponse:
    return _show(request)


@require_safe
@for_readers
def show_panel(request: Reader) -> HttpResponse:
    return render(request, "switches/engaged.html", _describe(request))


@require_POST
@for_readers
def engage(request: Reader) -> HttpResponse:
    require(request, Action.SWITCH)
    try:
        scope = _read_scope(request)
        operations.engage_switch(scope, reason=_read_reason(request), by=request.user)
    except LongwatchError as refusal:
        return _refuse(request, refusal)
    title, name = say_scope(scope)
    messages.success(request, f"Engaged: {title.lower()} {name}. Nothing new is taken in it.")
    return HttpResponseRedirect(reverse("switches"))


@require_POST
@for_readers
def release(request: Reader, number: int) -> HttpResponse:
    require(request, Action.SWITCH)
    _find(request, number)
    text = request.POST.get("per_minute", "")
    per_minute = int(text) if text in {str(choice) for choice in PER_MINUTE} else 0
    try:
        reason = _read_reason(request)
        if not reason:
            raise Malformed("Releasing a switch needs a reason.", remedy="Say why it is safe again.")
        operations.release_switch(number, reason=reason, by=request.user, per_minute=per_minute)
    except LongwatchError as refusal:
        return _refuse(request, refusal)
    messages.success(request, "Released. What it held goes on; nothing that was finished is done again.")
    return HttpResponseRedirect(reverse("switches"))


@require_POST
@for_readers
def stop_runs(request: Reader, number: int) -> HttpResponse:
    """End every run in a switch's scope: an act of its own, in the journal before and after."""
    require(request, Action.STOP)
    card = _find(request, number)
    try:
        stopped, left = operations.stop_scope(card.scope, reason=_read_reason(request), by=request.user)
    except LongwatchError as refusal:
        return _refuse(request, refusal)
    more = f" {plural(len(left), 'run')} had ended or could not be stopped." if left else ""
    messages.success(request, f"Stopped {plural(len(stopped), 'run')}.{more}")
    return HttpResponseRedirect(reverse("switches"))


def _find(request: Reader, number: int) -> queries.SwitchCard:
    card = queries.find_switch(number, agents=request.rights.agents)
    if card is None:
        raise NotFound("switch", number)
    return card


def _read_scope(request: Reader) -> str:
    kind = request.POST.get("kind", "")
    if kind == "all":
        if request.POST.get("confirm", "").strip().upper() != "STOP":
            raise Malformed("Everything asks back.", remedy="Type STOP beside it.")
        return "all"
    name = request.POST.get(kind, "").strip()[:200] if kind in ("agent", "tool", "run") else ""
    if not name:
        raise Malformed("The form does not say what to hold.", remedy="Choose an agent, a tool or a run.")
    return f"{kind}:{name}"


def _read_reason(request: Reader) -> str:
    return (request.POST.get("reason", "").strip() or request.POST.get("ready", "").strip())[:MOST_REASON]


def _refuse(request: Reader, refusal: LongwatchError) -> HttpResponse:
    status = {Conflict.status: 409, Forbidden.status: 403, NotFound.status: 404}.get(refusal.status, 422)
    return _show(request, refusal=refusal, status=status)


def _show(request: Reader, *, refusal: LongwatchError | None = None, status: int = 200) -> HttpResponse:
    rights = request.rights
    every = EVERY_AGENT in rights.agents
    known = get_agents()
    reach = count_reach()
    agents = sorted(name for name in known if rights.sees(name))
    tools = {
        tool.name: {a.name for a in known.values() if a.tool(tool.name)} for a in known.values() for tool in a.tools
    }
    before = queries.list_switches(Window.read(request.GET.get("after"), PAGE), agents=rights.agents, engaged=False)
    now = clock.now()
    context = _describe(request) | {
        "section": "switches",
        "refusal": refusal,
        "typed": request.POST,
        "may_all": every,
        "agents": [
            {"name": name, "word": f"{show(name)} ({plural(reach.agents.get(name, 0), 'run')})"} for name in agents
        ],
        "tools": [
            {"name": name, "word": f"{show(name)} ({plural(reach.tools.get(name, 0), 'run')} at it)"}
            for name, whose in sorted(tools.items())
            if every or whose <= rights.agents
        ],
        "reach": reach if every else None,
        "before": [show_switch(card, now) for card in before.items],
        "older": before.next,
        "reasons": ("Incident outside", "Wrong output", "Cost"),
    }
    return render(request, "switches/switches.html", context, status=status)


def _describe(request: Reader) -> dict[str, Any]:
    now = clock.now()
    page = queries.list_switches(Window(limit=ENGAGED_SHOWN), agents=request.rights.agents, engaged=True)
    return {
        "now": now,
        "engaged": [show_switch(card, now) for card in page.items],
        "may_switch": request.rights.may(Action.SWITCH),
        "may_stop": request.rights.may(Action.STOP),
        "paces": PER_MINUTE,
    }
