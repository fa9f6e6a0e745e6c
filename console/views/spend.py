"""What was spent: the page of figures, and the ledger behind it with its CSV."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.access import Reader
from console.display.ledger import HEAD, show_booked, write_cells
from console.display.marks import ENTRY
from console.display.spend import show_spend
from console.filters import read_asked, read_day, read_run
from console.views.exports import export
from console.views.readers import for_readers
from runs import clock
from runs.access import Action
from runs.agents import get_agents
from runs.errors import Malformed
from runs.queries.ledger import LedgerFilter, list_booked
from runs.queries.paging import Window
from runs.queries.spend import Span, read_spend
from runs.states import EntryKind

PAGE = 100
_ASKED = ("run", "agent", "kind", "model", "since", "until", "estimated")


@require_safe
@for_readers
def show_spend_page(request: Reader) -> HttpResponse:
    return render(request, "spend/spend.html", _describe(request) | {"section": "spend"})


@require_safe
@for_readers
def show_spend_panel(request: Reader) -> HttpResponse:
    return render(request, "spend/panel.html", _describe(request))


@require_safe
@for_readers
def show_ledger(request: Reader) -> HttpResponse:
    wanted = _read_filter(request)
    window = Window.read(request.GET.get("after"), PAGE)
    page = list_booked(wanted, window, agents=request.rights.agents)
    asked = read_asked(request.GET, _ASKED)
    now = clock.now()
    context = {
        "section": "spend",
        "lines": [show_booked(entry, now) for entry in page.items],
        "older": f"?{urlencode(asked | {'after': page.next})}" if page.next else "",
        "csv": f"?{urlencode(asked)}" if asked else "",
        "is_newest": window.after is None,
        "asked": asked,
        "kinds": [{"value": kind.value, "word": ENTRY[kind].word} for kind in EntryKind],
        "agent_choices": _list_agents(request),
    }
    return render(request, "spend/ledger.html", context)


@require_safe
@for_readers
def export_ledger(request: Reader) -> HttpResponse:
    """The newest entries that the filter finds."""
    wanted = _read_filter(request)
    return export("ledger", HEAD, lambda window: list_booked(wanted, window, agents=request.rights.agents), write_cells)


def _describe(request: Reader) -> dict[str, Any]:
    """Raises: Malformed."""
    word = request.GET.get("span", Span.WEEK)
    try:
        span = Span(word)
    except ValueError:
        raise Malformed(f"{word[:40]!r} is no span of time.", remedy=f"Known: {', '.join(Span)}.") from None
    agent = read_asked(request.GET, ["agent"]).get("agent", "")
    may_edit = request.rights.may(Action.MONEY) and request.user.is_staff
    spend = read_spend(span, agents=request.rights.agents, agent=agent)
    return {
        "spend": show_spend(spend, span, agent=agent, may_edit=may_edit),
        "now": spend.now,
        "may_edit": may_edit,
        "query": urlencode({"span": span.value} | ({"agent": agent} if agent else {})),
    }


def _read_filter(request: Reader) -> LedgerFilter:
    """Raises: Malformed."""
    asked = read_asked(request.GET, _ASKED)
    kind = asked.get("kind", "")
    if kind and kind not in EntryKind:
        raise Malformed(f"{kind!r} is no kind of entry.", remedy=f"Known: {', '.join(EntryKind)}.")
    return LedgerFilter(
        run=read_run(asked.get("run", "")),
        agent=asked.get("agent", ""),
        kind=kind,
        model=asked.get("model", ""),
        since=read_day(asked.get("since", "")),
        until=read_day(asked.get("until", ""), days=1),
        estimated="estimated" in asked,
    )


def _list_agents(request: Reader) -> list[str]:
    return [name for name in sorted(get_agents()) if request.rights.sees(name)]
