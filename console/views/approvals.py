"""The inbox, the card of one approval, and the one route by which it is decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader, require
from console.deciding import ARGUMENT, read_decision, write_field
from console.display.cards import CardView, say_verdict, show_card
from console.display.figures import plural
from console.display.inbox import InboxItem, show_item
from console.views.frame import read_next
from console.views.readers import for_readers
from runs import clock, operations, queries
from runs.access import Action
from runs.agents import Tool, get_agents
from runs.errors import Conflict, LongwatchError, NotFound
from runs.queries import ApprovalCard, Window
from runs.queries.inbox import InboxLine, list_decided, list_pending, read_card_extras
from runs.states import ApprovalKind

PAGE = 50


@dataclass(frozen=True, kw_only=True)
class Found:
    card: ApprovalCard
    view: CardView


@require_safe
@for_readers
def show_inbox(request: Reader) -> HttpResponse:
    """What is to be decided, with the first card open; or what was decided."""
    if request.GET.get("state") == "decided":
        return _show_decided(request)
    pending = list_pending(agents=request.rights.agents, kinds=_kinds(request))
    if not pending:
        return render(request, "approvals/inbox.html", _describe_inbox(request, pending, current=None))
    return _show(request, _find(request, pending[0].id), pending, is_inbox=True)


@require_safe
@for_readers
def show_approval(request: Reader, number: int) -> HttpResponse:
    return _show(request, _find(request, number), list_pending(agents=request.rights.agents))


@require_safe
@for_readers
def show_list_panel(request: Reader) -> HttpResponse:
    current = request.GET.get("current", "")
    pending = list_pending(agents=request.rights.agents, kinds=_kinds(request))
    number = int(current) if current.isascii() and current.isdecimal() else None
    return render(request, "approvals/list.html", _describe_inbox(request, pending, current=number))


@require_safe
@for_readers
def show_evidence_panel(request: Reader, number: int) -> HttpResponse:
    found = _find(request, number)
    return render(request, "approvals/evidence.html", {"card": found.view})


@require_safe
@for_readers
def show_news_panel(request: Reader, number: int) -> HttpResponse:
    """Whether the card is another one by now than the one somebody is reading."""
    found = _find(request, number)
    is_news = request.GET.get("version") != str(found.view.version)
    return render(request, "approvals/news.html", {"card": found.view, "is_news": is_news})


@require_POST
@for_readers
def decide(request: Reader, number: int) -> HttpResponse:
    found = _find(request, number)
    require(request, Action.DECIDE, found.card.agent)
    try:
        operations.decide(number, read_decision(request.POST, found.card), by=request.user)
    except NotFound:
        raise
    except LongwatchError as refusal:
        status = 409 if isinstance(refusal, Conflict) else 422
        fresh = _find(request, number)
        left = list_pending(agents=request.rights.agents)
        return _show(request, fresh, left, refusal=refusal, typed=request.POST, status=status)
    left = list_pending(agents=request.rights.agents)
    word = say_verdict(request.POST["verdict"]).capitalize()
    more = f"{plural(len(left), 'card')} left to decide." if left else "Nothing is left to decide."
    messages.success(request, f"{word}: {found.view.title}. {more}")
    following = next((line.id for line in left), None)
    return HttpResponseRedirect(reverse("approval", args=[following]) if following else reverse("approvals"))


@require_POST
@for_readers
def recheck(request: Reader, number: int) -> HttpResponse:
    """Queue a check of a fact through its own source, and go back to where it was asked for."""
    operations.recheck_fact(number, by=request.user)
    messages.success(request, "It is being checked again. What its source says shows here.")
    return HttpResponseRedirect(read_next(request))


def _find(request: Reader, number: int) -> Found:
    card = queries.find_approval(number, agents=request.rights.agents)
    if card is None:
        raise NotFound("approval", number)
    extras = read_card_extras(card.id, agents=request.rights.agents)
    may_recheck = request.rights.may(Action.RECHECK, card.agent)
    return Found(card=card, view=show_card(card, extras, _tool_of(card.agent, card.tool), may_recheck=may_recheck))


def _show(
    request: Reader,
    found: Found,
    pending: list[InboxLine],
    *,
    refusal: LongwatchError | None = None,
    typed: Mapping[str, str] | None = None,
    status: int = 200,
    is_inbox: bool = False,
) -> HttpResponse:
    card, typed = found.card, typed or {}
    fields = []
    if isinstance(card.arguments, dict):
        for argument in found.view.arguments:
            if argument.name in card.arguments:
                text = typed.get(ARGUMENT + argument.name, write_field(card.arguments[argument.name]))
                is_long = len(text) > 60 or "\n" in text
                fields.append(
                    {"name": argument.name, "text": text, "is_long": is_long, "hidden": argument.value.hidden}
                )
    numbers = [line.id for line in pending]
    place = numbers.index(card.id) + 1 if card.id in numbers else 0
    context = _describe_inbox(request, pending, current=card.id) | {
        "card": found.view,
        "refusal": refusal,
        "typed": typed,
        "fields": fields,
        "may_decide": request.rights.may(Action.DECIDE, card.agent),
        "place": place,
        "next_card": next((n for n in numbers if n != card.id and (not place or numbers.index(n) >= place)), None),
        "is_inbox": is_inbox,
    }
    return render(request, "approvals/card.html", context, status=status)


def _describe_inbox(request: Reader, pending: list[InboxLine], *, current: int | None) -> dict[str, Any]:
    now = clock.now()
    items = [_item(line, now) for line in pending]
    return {
        "section": "doubts" if _kinds(request) == [ApprovalKind.VERDICT] else "approvals",
        "items": items,
        "urgent": sum(item.urgent for item in items),
        "current": current,
        "kind": request.GET.get("kind", "") if _kinds(request) else "",
        "now": now,
    }


def _show_decided(request: Reader) -> HttpResponse:
    page = list_decided(Window.read(request.GET.get("after"), PAGE), agents=request.rights.agents)
    now = clock.now()
    context = {
        "section": "approvals",
        "items": [_item(line, now) for line in page.items],
        "older": page.next,
        "now": now,
    }
    return render(request, "approvals/decided.html", context)


def _item(line: InboxLine, now: datetime) -> InboxItem:
    tool = _tool_of(line.agent, line.tool)
    return show_item(line, now, irreversible=tool is not None and tool.irreversible)


def _kinds(request: Reader) -> list[str]:
    return [kind for kind in request.GET.getlist("kind") if kind in set(ApprovalKind)]


def _tool_of(agent: str, tool: str) -> Tool | None:
    known = get_agents().get(agent)
    return known.tool(tool) if known and tool else None
