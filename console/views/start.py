"""Starting a run."""

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.access import Reader, require
from console.display.agents import show_agent
from console.forms import show_fields, show_limit_fields
from console.starting import StartForm, new_key
from console.views.readers import for_readers
from runs import operations
from runs.access import Action
from runs.agents import Agent, get_agents
from runs.errors import LongwatchError


@require_http_methods(["GET", "HEAD", "POST"])
@for_readers
def start(request: Reader) -> HttpResponse:
    """Show the form; start what it asks for. Refused: the form as it was typed, with why."""
    require(request, Action.START)
    agents = [agent for name, agent in sorted(get_agents().items()) if request.rights.may(Action.START, name)]
    if request.method != "POST":
        form = StartForm(agents=[a.name for a in agents], initial={"agent": request.GET.get("agent", "")})
        return _show(request, form, agents)
    form = StartForm(request.POST, agents=[a.name for a in agents])
    if not form.is_valid():
        return _show(request, form, agents, status=422)
    try:
        run, new = operations.start_run(form.read_start(), by=request.user, idempotency_key=form.idempotency_key)
    except LongwatchError as refusal:
        return _show(request, form, agents, refusal=refusal, status=refusal.status if refusal.status == 409 else 422)
    messages.success(
        request, "Started." if new else "This form had started this run already; nothing was started twice."
    )
    return HttpResponseRedirect(reverse("run", args=[run.pk]))


def _show(
    request: Reader, form: StartForm, agents: list[Agent], *, refusal: LongwatchError | None = None, status: int = 200
) -> HttpResponse:
    context = {
        "section": "runs",
        "fields": show_fields(form),
        "limit_fields": show_limit_fields(form),
        "agents": [show_agent(agent) for agent in agents],
        "refusal": refusal,
        "key": form.data.get("key") or new_key(),
    }
    return render(request, "start/start.html", context, status=status)
