"""The list of runs."""

from collections.abc import Sequence

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.access import Reader
from console.display.runlines import show_line
from console.filters import STATE_CHOICES, WAIT_CHOICES, Choice, RunsFilter, list_views, offer
from console.views.readers import for_readers
from runs import clock
from runs.access import Action
from runs.agents import get_agents
from runs.queries import Window
from runs.queries.counts import count_runs
from runs.queries.runlines import RunLine, count_newer, list_run_lines, read_run_lines
from runs.queries.runs import find_by_name

PAGE = 50


@require_safe
@for_readers
def show_runs(request: Reader) -> HttpResponse:
    """The list; or the run itself, when nothing but its number or uid was put into the search field."""
    if set(request.GET) == {"q"} and (number := find_by_name(request.GET["q"], agents=request.rights.agents)):
        return HttpResponseRedirect(reverse("run", args=[number]))
    wanted, left_out = RunsFilter.read(dict(request.GET.lists()))
    after = request.GET.get("after", "")
    page = list_run_lines(wanted.as_query(), Window.read(after, PAGE), agents=request.rights.agents)
    now = clock.now()
    counts = count_runs(agents=request.rights.agents)
    agents = [Choice(value=name, word=name) for name in sorted(get_agents()) if request.rights.sees(name)]
    shown = ",".join(str(line.run.id) for line in page.items)
    context = {
        "section": "runs",
        "filter": wanted,
        "left_out": left_out,
        "counts": counts,
        "lines": [show_line(line, now) for line in page.items],
        "rows_url": reverse("run-rows") + wanted.write(shown=shown, after=after),
        "views": list_views(counts, wanted),
        "older": wanted.write(after=page.next or "") if page.next else "",
        "newest_link": wanted.write() if after else "",
        "state_choices": offer(STATE_CHOICES, wanted.states),
        "wait_choices": offer(WAIT_CHOICES, wanted.waiting_for),
        "agent_choices": offer(agents, wanted.agents),
        "may_start": request.rights.may(Action.START),
        "stale_in_s": _say_stale_in(page.items),
        "now": now,
    }
    return render(request, "runs/list.html", context)


@require_safe
@for_readers
def show_rows(request: Reader) -> HttpResponse:
    """The rows that a page shows, as they are now, in their places; how many others the filter finds by now."""
    wanted, _ = RunsFilter.read(dict(request.GET.lists()))
    shown = [int(n) for n in request.GET.get("shown", "").split(",") if n.isascii() and n.isdecimal() and len(n) < 19]
    lines = read_run_lines(shown[:PAGE], agents=request.rights.agents)
    newer = 0
    if not request.GET.get("after"):
        newer = count_newer(wanted.as_query(), shown, agents=request.rights.agents, most=PAGE)
    now = clock.now()
    counts = count_runs(agents=request.rights.agents)
    context = {
        "panel": True,
        "counts": counts,
        "views": list_views(counts, wanted),
        "lines": [show_line(line, now) for line in lines],
        "newer": newer,
        "most": PAGE,
        "newest": wanted.write(),
        "stale_in_s": _say_stale_in(lines),
        "now": now,
    }
    return render(request, "runs/rows.html", context)


def _say_stale_in(lines: Sequence[RunLine]) -> float | None:
    """When the first of these runs rests on one more stale fact."""
    soon = (line.waiting.stale_in_s for line in lines if line.waiting and line.waiting.stale_in_s is not None)
    return min(soon, default=None)
