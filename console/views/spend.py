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
from console.filters import Asked, read_day, read_run, read_word
from console.views.exports import export
from console.views.readers import for_readers
from runs import clock
from runs.access import Action
from runs.agents import get_agents
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
    asked = Asked(request.GET, _ASKED)
    wanted = _read_filter(asked)
    window = Window.read(request.GET.get("after"), PAGE)
    page = list_booked(wanted, window, agents=request.rights.agents)
    now = clock.now()
    context = {
        "section": "spend",
        "lines": [show_booked(entry, now) for entry in page.items],
        "older": f"?{urlencode(asked.values | {'after': page.next})}" if page.next else "",
        "csv": f"?{urlencode(asked.values)}" if asked.values else "",
        "is_newest": window.after is None,
        "asked": asked.values,
        "left_out": asked.wrong,
        "kinds": [{"value": kind.value, "word": ENTRY[kind].word} for kind in EntryKind],
        "agent_choices": _list_agents(request),
    }
    return render(request, "spend/ledger.html", context)


@require_safe
@for_readers
def export_ledger(request: Reader) -> HttpResponse:
    """The newest entries that the filter finds. Raises: Malformed: a file has no place to say what was left out."""
    asked = Asked(request.GET, _ASKED)
    wanted = _read_filter(asked)
    asked.require_all()
    return export("ledger", HEAD, lambda window: list_booked(wanted, window, agents=request.rights.agents), write_cells)


def _describe(request: Reader) -> dict[str, Any]:
    asked = Asked(request.GET, ("span", "agent"))
    span = Span(asked.read("span", read_word(Span, "span of time")) or Span.WEEK)
    agent = asked.text("agent")
    may_edit = request.rights.may(Action.MONEY) and request.user.is_staff
    spend = read_spend(span, agents=request.rights.agents, agent=agent)
    return {
        "spend": show_spend(spend, span, agent=agent, may_edit=may_edit),
        "now": spend.now,
        "may_edit": may_edit,
        "left_out": asked.wrong,
        "query": urlencode({"span": span.value} | ({"agent": agent} if agent else {})),
    }


def _read_filter(asked: Asked) -> LedgerFilter:
    return LedgerFilter(
        run=asked.read("run", read_run),
        agent=asked.text("agent"),
        kind=asked.read("kind", read_word(EntryKind, "kind of entry")) or "",
        model=asked.text("model"),
        since=asked.read("since", read_day),
        until=asked.read("until", lambda text: read_day(text, days=1)),
        estimated=bool(asked.text("estimated")),
    )


def _list_agents(request: Reader) -> list[str]:
    return [name for name in sorted(get_agents()) if request.rights.sees(name)]
