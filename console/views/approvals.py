"""The inbox, the card of one approval, and the one route by which it is decided."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console import later
from console.access import Reader, require
from console.deciding import ARGUMENT, read_decision, write_field
from console.display.cards import CardView, say_verdict, show_card
from console.display.figures import plural, write_duration
from console.display.inbox import InboxItem, show_item
from console.display.outside import show
from console.filters import sort_out
from console.views.readers import for_readers
from runs import clock, operations, queries, voting
from runs.access import Action
from runs.agents import find_tool
from runs.errors import Conflict, Forbidden, LongwatchError, Malformed, NotFound
from runs.models import Approval
from runs.queries import ApprovalCard, Window
from runs.queries.channels import list_failing_channels
from runs.queries.inbox import INBOX_SHOWN, InboxLine, list_decided, list_pending, read_card_extras
from runs.states import ApprovalKind, ApprovalState, Verdict

PAGE = 50
# What may be approved together is looked for among so many cards, what expires first on top.
TOGETHER_AMONG = 1_000
_CHANNELS = {"mail": "mail", "webhook": "the webhook", "slack": "the chat"}
REJECT_REASONS = (
    "Too much",
    "Not enough evidence",
    "Not allowed by our rules",
    "Already done",
    "Ask the customer first",
)


@dataclass(frozen=True, kw_only=True)
class Inbox:
    """What waits: `lines` are shown, without those that the reader has put off. `which`: "", mine or later. `more`: than
    are shown.
    """

    lines: list[InboxLine]
    more: bool
    put_off: dict[int, datetime]
    which: str
    now: datetime

    @property
    def count(self) -> str:
        return f"{len(self.lines)}{'+' if self.more else ''}"


@dataclass(frozen=True, kw_only=True)
class Found:
    card: ApprovalCard
    view: CardView
    now: datetime


@require_safe
@for_readers
def show_inbox(request: Reader) -> HttpResponse:
    """What is to be decided, with the first card open or, on a phone with `?list=1`, by itself; or what was decided."""
    if request.GET.get("state") == "decided":
        return render(request, "approvals/decided.html", _describe_decided(request) | {"section": "approvals"})
    inbox = _read_inbox(request)
    if not inbox.lines or request.GET.get("list"):
        return render(request, "approvals/inbox.html", _describe_inbox(request, inbox, current=None))
    return _show(request, _find(request, inbox.lines[0].id), inbox, is_inbox=True)


@require_safe
@for_readers
def show_approval(request: Reader, number: int) -> HttpResponse:
    return _show(request, _find(request, number), _read_inbox(request))


@require_safe
@for_readers
def show_list_panel(request: Reader) -> HttpResponse:
    current = request.GET.get("current", "")
    number = int(current) if current.isascii() and current.isdecimal() else None
    context = _describe_inbox(request, _read_inbox(request), current=number)
    return render(request, "approvals/list.html", context | {"panel": True})


@require_safe
@for_readers
def show_evidence_panel(request: Reader, number: int) -> HttpResponse:
    found = _find(request, number)
    return render(request, "approvals/evidence.html", {"card": found.view, "now": found.now})


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
    """Decide, or undo. What takes effect can be undone for a while: the next page offers that."""
    found = _find(request, number)
    require(request, Action.DECIDE, found.card.agent)
    try:
        said = read_decision(request.POST, found.card)
        made = operations.decide(number, said, by=request.user, hold_s=settings.UNDO_S)
    except NotFound:
        raise
    except LongwatchError as refusal:
        return _refuse(request, number, refusal)
    left = _read_inbox(request)
    more = _say_left(left)
    word = say_verdict(said.verdict).capitalize()
    stays = said.verdict in (Verdict.UNDO, Verdict.EXPLAIN) or made.state == ApprovalState.PENDING
    if said.verdict == Verdict.EXPLAIN:
        messages.success(request, "The agent is asked. Its answer shows here; the call goes on waiting.")
    elif stays and made.effective_at is None and said.verdict != Verdict.UNDO:
        messages.success(request, f"{word}: {found.view.heading.start}. It takes another person as well. {more}")
        stays = False
    else:
        messages.success(request, f"{word}: {found.view.heading.start}. {more}")
    following = number if stays and made.effective_at is None else next((line.id for line in left.lines), None)
    undo = f"{'&' if _which(request) else '?'}undo={number}" if made.effective_at is not None else ""
    return HttpResponseRedirect(_place(request, following) + undo)


@require_POST
@for_readers
def claim(request: Reader, number: int) -> HttpResponse:
    return _act(request, number, operations.claim_approval, "You are at it. Others see that for 15 min.")


@require_POST
@for_readers
def release(request: Reader, number: int) -> HttpResponse:
    return _act(request, number, operations.release_approval, "It is everyone’s again.")


@require_POST
@for_readers
def put_off(request: Reader, number: int) -> HttpResponse:
    """Leave a card out of the reader's own list for a while, or bring it back. Nothing changes for anybody else."""
    found = _find(request, number)
    require(request, Action.DECIDE, found.card.agent)
    text = request.POST.get("minutes", "")
    minutes = int(text) if text in {str(choice) for choice in later.MINUTES} else 0
    later.put_off(request.session, number, now=found.now, minutes=minutes)
    if not minutes:
        messages.success(request, "It is in your list again.")
        return HttpResponseRedirect(_place(request, number))
    left = _read_inbox(request)
    shown_again = write_duration(minutes * 60)
    messages.success(
        request, f"Put off: {found.view.heading.start}. It shows again in {shown_again}. {_say_left(left)}"
    )
    return HttpResponseRedirect(_place(request, left.lines[0].id if left.lines else None))


def _say_left(left: Inbox) -> str:
    if left.more:
        return f"{left.count} cards left to decide."
    return f"{plural(len(left.lines), 'card')} left to decide." if left.lines else "Nothing is left to decide."


def _place(request: Reader, number: int | None) -> str:
    """The address of a card, or of the inbox, among the same cards as before."""
    place = reverse("approvals") if number is None else reverse("approval", args=[number])
    return place + ("?mine=1" if _which(request) == "mine" else "")


def _act(request: Reader, number: int, act: Callable[..., object], done: str) -> HttpResponse:
    found = _find(request, number)
    require(request, Action.DECIDE, found.card.agent)
    try:
        act(number, by=request.user)
    except (NotFound, Forbidden):
        raise
    except LongwatchError as refusal:
        return _refuse(request, number, refusal)
    messages.success(request, done)
    return HttpResponseRedirect(reverse("approval", args=[number]))


def _refuse(request: Reader, number: int, refusal: LongwatchError) -> HttpResponse:
    """The card as it is now, with why not, and with what was typed."""
    status = {Conflict.status: 409, Forbidden.status: 403}.get(refusal.status, 422)
    inbox = _read_inbox(request)
    return _show(request, _find(request, number), inbox, refusal=refusal, typed=request.POST, status=status)


@require_safe
@for_readers
def show_together(request: Reader) -> HttpResponse:
    """What may be approved together: low risk, with fresh facts only, by tool."""
    return _show_together(request, told=[])


@require_POST
@for_readers
def approve_together(request: Reader) -> HttpResponse:
    require(request, Action.DECIDE)
    chosen = []
    for text in request.POST.getlist("card"):
        number, _, version = text.partition(".")
        if number.isascii() and number.isdecimal() and version.isascii() and version.isdecimal() and len(text) < 30:
            chosen.append((int(number), int(version)))
    told = operations.approve_batch(
        chosen[:INBOX_SHOWN], comment=request.POST.get("comment", "")[:2000], by=request.user
    )
    return _show_together(request, told=told)


def _show_together(request: Reader, *, told: list[tuple[int, str]]) -> HttpResponse:
    pending = list_pending(agents=request.rights.agents, kinds=[ApprovalKind.APPROVAL], limit=TOGETHER_AMONG)
    now = clock.now()
    lines = {line.id: line for line in pending}
    fresh = [line.id for line in pending if not line.stale]
    found = Approval.objects.select_related("run").in_bulk(fresh)
    fitting = (
        card
        for card in (found[number] for number in fresh if number in found)
        if request.rights.may(Action.DECIDE, card.run.agent) and not operations.why_not_in_batch(card)
    )
    low = sorted(islice(fitting, INBOX_SHOWN), key=lambda card: (card.tool, card.pk))
    context = {
        "section": "approvals",
        "now": now,
        "alone": len(pending),
        "tools": [
            {
                "tool": tool,
                "cards": [{"item": _item(lines[c.pk], now), "version": c.version, "why": show(c.why)} for c in cards],
            }
            for tool, cards in groupby(low, key=lambda card: card.tool)
        ],
        "told": [{"id": number, "refused": why} for number, why in told],
        "approved": sum(not why for _, why in told),
    }
    return render(request, "approvals/together.html", context)


@require_POST
@for_readers
def freshen(request: Reader, number: int) -> HttpResponse:
    """Check what a card rests on and has aged. The page asks for it when it is opened; without scripts a button does."""
    names = operations.recheck_card(number, by=request.user)
    said = f"{plural(len(names), 'fact')} {'is' if len(names) == 1 else 'are'} being read again." if names else ""
    if request.headers.get("HX-Request") == "true":
        return render(request, "approvals/freshened.html", {"said": said})
    messages.success(request, said or "Nothing of it could be read again.")
    return HttpResponseRedirect(reverse("approval", args=[number]))


def _find(request: Reader, number: int) -> Found:
    card = queries.find_approval(number, agents=request.rights.agents)
    if card is None:
        raise NotFound("approval", number)
    extras = read_card_extras(card.id, agents=request.rights.agents)
    may_recheck = request.rights.may(Action.RECHECK, card.agent)
    view = show_card(card, extras, find_tool(card.agent, card.tool), may_recheck=may_recheck)
    return Found(card=card, view=view, now=extras.now)


def _show(
    request: Reader,
    found: Found,
    inbox: Inbox,
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
    numbers = [line.id for line in inbox.lines]
    place = numbers.index(card.id) + 1 if card.id in numbers else 0
    context = _describe_inbox(request, inbox, current=card.id) | {
        "card": found.view,
        "later_until": inbox.put_off.get(card.id),
        "later_choices": [(minutes, write_duration(minutes * 60)) for minutes in later.MINUTES],
        "refusal": refusal,
        "typed": typed,
        "fields": fields,
        "may_decide": request.rights.may(Action.DECIDE, card.agent) and voting.is_asked(request.user, card.groups),
        "is_mine": bool(card.claimed_by) and found.view.claimed_by == card.claimed_by == request.user.get_username(),
        "can_undo": found.view.held_until is not None and found.view.held_by == request.user.get_username(),
        "reasons": REJECT_REASONS,
        "has_aged": found.view.open
        and any(fact.aged for fact in found.view.evidence)
        and request.rights.may(Action.RECHECK, card.agent),
        "place": place,
        "next_card": next((n for n in numbers if n != card.id and (not place or numbers.index(n) >= place)), None),
        "is_inbox": is_inbox,
    }
    return render(request, "approvals/card.html", context, status=status)


def _which(request: Reader) -> str:
    """Which cards: "" (all that are not put off), mine, or later (those that are)."""
    asked = request.POST if request.method == "POST" else request.GET
    if asked.get("mine"):
        return "mine"
    return "later" if asked.get("state") == "later" else ""


def _read_inbox(request: Reader) -> Inbox:
    which, now = _which(request), clock.now()
    of = request.user if which == "mine" else None
    pending = list_pending(
        agents=request.rights.agents,
        kinds=_kinds(request),
        of=of,
        limit=INBOX_SHOWN + 1,
        apart=later.list_put_off(request.session, now),
    )
    put_off = later.read_put_off(request.session, pending, now)
    lines = [line for line in pending if (line.id in put_off) == (which == "later")]
    more = len(lines) > INBOX_SHOWN and which != "later"
    return Inbox(lines=lines[:INBOX_SHOWN] if more else lines, more=more, put_off=put_off, which=which, now=now)


def _describe_inbox(request: Reader, inbox: Inbox, *, current: int | None) -> dict[str, Any]:
    now = inbox.now
    items = [_item(line, now) for line in inbox.lines]
    changes_in_s = [line.stale_in_s for line in inbox.lines if line.stale_in_s is not None]
    changes_in_s += [(until - now).total_seconds() for until in inbox.put_off.values()]
    return {
        "undo": _read_undo(request),
        "failing": [
            {"name": _CHANNELS[each.channel], "since": each.since, "waiting": each.waiting, "error": show(each.error)}
            for each in list_failing_channels()
        ],
        "section": "doubts" if _kinds(request) == [ApprovalKind.VERDICT] else "approvals",
        "items": items,
        "count": inbox.count,
        "more": inbox.more,
        "urgent": sum(item.urgent for item in items),
        "changes_in_s": min(changes_in_s, default=None),
        "which": inbox.which,
        "query": {"mine": "?mine=1", "later": "?state=later"}.get(inbox.which, ""),
        "put_off": len(inbox.put_off),
        "current": current,
        "kind": next(iter(_kinds(request)), ""),
        "left_out": _list_left_out(request),
        "now": now,
    }


def _read_undo(request: Reader) -> dict[str, Any] | None:
    """The decision that somebody has just made, while they can still undo it."""
    text = request.GET.get("undo", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        return None
    card = queries.find_approval(int(text), agents=request.rights.agents)
    if card is None or card.effective_at is None or card.decisions[-1].by != request.user.get_username():
        return None
    left = (card.effective_at - clock.now()).total_seconds()
    return {"id": card.id, "version": card.version, "until": card.effective_at, "left_s": max(left, 0.0)}


@require_safe
@for_readers
def show_decided_panel(request: Reader) -> HttpResponse:
    return render(request, "approvals/decided-list.html", _describe_decided(request))


def _describe_decided(request: Reader) -> dict[str, Any]:
    page = list_decided(Window.read(request.GET.get("after"), PAGE), agents=request.rights.agents)
    now = clock.now()
    return {
        "items": [_item(line, now) for line in page.items],
        "older": page.next,
        "is_newest": "after" not in request.GET,
        "now": now,
    }


def _item(line: InboxLine, now: datetime) -> InboxItem:
    tool = find_tool(line.agent, line.tool)
    return show_item(line, now, irreversible=tool is not None and tool.irreversible)


def _kinds(request: Reader) -> list[str]:
    kinds, _ = sort_out(tuple(request.GET.getlist("kind")), ApprovalKind, "kind of card")
    return list(kinds)


def _list_left_out(request: Reader) -> list[Malformed]:
    """Why what the address asks for besides is not shown."""
    lists = [word for word in request.GET.getlist("state") if word]
    _, no_lists = sort_out(tuple(lists), ("later", "decided"), "list of approvals")
    _, no_kinds = sort_out(tuple(kind for kind in request.GET.getlist("kind") if kind), ApprovalKind, "kind of card")
    return no_lists + no_kinds
