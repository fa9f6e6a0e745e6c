"""Facts over all runs that are not finished, one fact with its story, and what a person may do about it."""

import json
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader
from console.display.facts import say_empty, show_groups, show_tabs
from console.filters import Asked, read_word
from console.forms import DurationField
from console.views.finding import find_story, show_fact_story
from console.views.frame import read_next
from console.views.readers import for_readers
from runs import operations
from runs.access import Action
from runs.agents import Json, get_agents
from runs.errors import Conflict, Forbidden, LongwatchError, Malformed, NotFound
from runs.queries.factlists import SHOWN, FactList, FactOver, list_facts_over_runs
from runs.sanitise import clean_json

MOST_TEXT = 20_000


@require_safe
@for_readers
def show_facts(request: Reader) -> HttpResponse:
    return render(request, "facts/facts.html", _describe_list(request) | {"section": "facts"})


@require_safe
@for_readers
def show_list_panel(request: Reader) -> HttpResponse:
    return render(request, "facts/list.html", _describe_list(request))


@require_safe
@for_readers
def show_fact(request: Reader, number: int) -> HttpResponse:
    return _show_fact(request, number)


@require_safe
@for_readers
def show_fact_panel(request: Reader, number: int) -> HttpResponse:
    return render(request, "facts/story.html", _describe_fact(request, number))


@require_POST
@for_readers
def recheck(request: Reader, number: int) -> HttpResponse:
    """Queue a check of a fact through its own source, and go back to where it was asked for."""
    try:
        operations.recheck_fact(number, by=request.user)
    except Conflict as refusal:
        return _show_fact(request, number, refusal=refusal, status=409)
    messages.success(request, "It is being checked again. What its source says shows here.")
    return HttpResponseRedirect(read_next(request))


@require_POST
@for_readers
def correct(request: Reader, number: int) -> HttpResponse:
    def act() -> str:
        operations.correct_fact(number, _read_value(request), by=request.user, version=_read_version(request))
        return "Corrected. What rested on the old value is void, and the agent thinks again with both."

    return _act(request, number, act, {"value": request.POST.get("value", "")[:MOST_TEXT]})


@require_POST
@for_readers
def extend(request: Reader, number: int) -> HttpResponse:
    def act() -> str:
        reason = request.POST.get("reason", "").strip()[:2000]
        operations.extend_fact(number, by_s=_read_longer(request), reason=reason, by=request.user)
        return "Extended. The next reading of it ends that."

    typed = {name: request.POST.get(name, "")[:2000] for name in ("minutes", "reason")}
    return _act(request, number, act, typed)


def _act(request: Reader, number: int, act: Any, typed: dict[str, str]) -> HttpResponse:
    """One operation. Refused: the fact as it is now, with why, and what was typed."""
    try:
        said = act()
    except (NotFound, Forbidden):
        raise
    except LongwatchError as refusal:
        status = 409 if isinstance(refusal, Conflict) else 422
        return _show_fact(request, number, refusal=refusal, typed=typed, status=status)
    messages.success(request, said)
    return HttpResponseRedirect(read_next(request) if "next" in request.POST else reverse("fact", args=[number]))


def _describe_list(request: Reader) -> dict[str, Any]:
    source, name = request.GET.get("source"), request.GET.get("name")
    asked = Asked(request.GET, ["state"])
    which = FactList(asked.read("state", read_word(FactList, "list of facts")) or FactList.STALE)
    place = {"state": which.value, "source": source, "name": name}
    page = list_facts_over_runs(which, agents=request.rights.agents, source=source, name=name)
    return {
        "groups": show_groups(page, {fact.id: _may_recheck(request, fact) for fact in page.facts}),
        "fact_tabs": show_tabs(page, None if source is not None else which),
        "empty": say_empty(which),
        "source": source,
        "name": name,
        "which": which.value,
        "more": page.more,
        "stale_in_s": page.stale_in_s,
        "most": SHOWN,
        "now": page.now,
        "left_out": asked.wrong,
        "query": urlencode({part: text for part, text in place.items() if text is not None}),
    }


def _may_recheck(request: Reader, fact: FactOver) -> bool:
    agent = get_agents().get(fact.agent)
    checkable = agent is not None and agent.reader_of(fact.name, fact.source_tool) is not None
    return checkable and request.rights.may(Action.RECHECK, fact.agent)


def _describe_fact(request: Reader, number: int) -> dict[str, Any]:
    story = find_story(request, number)
    return {"fact": show_fact_story(request, story), "now": story.now}


def _show_fact(
    request: Reader,
    number: int,
    *,
    refusal: LongwatchError | None = None,
    typed: dict[str, str] | None = None,
    status: int = 200,
) -> HttpResponse:
    context = _describe_fact(request, number) | {"section": "facts", "refusal": refusal, "typed": typed or {}}
    return render(request, "facts/fact.html", context, status=status)


def _read_value(request: Reader) -> Json:
    """JSON if it is that, else the text. Raises: Malformed."""
    text = request.POST.get("value", "").strip()
    if not text:
        raise Malformed("A correction needs the right value.")
    if len(text) > MOST_TEXT:
        raise Malformed(f"The value has more than {MOST_TEXT} characters.", remedy="Shorten it.")
    try:
        return clean_json(json.loads(text))
    except ValueError:
        return clean_json(text)


def _read_version(request: Reader) -> int:
    """The value that was seen: without it a correction could land on another one. Raises: Malformed."""
    text = request.POST.get("version", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Malformed("The form does not say which value it is about.", remedy="Open the fact again.")
    return int(text)


def _read_longer(request: Reader) -> float:
    """In seconds: a plain number is minutes, else a duration as everywhere. Raises: Malformed."""
    text = request.POST.get("minutes", "").strip()
    try:
        seconds = DurationField(required=False).clean(f"{text}m" if text.replace(".", "", 1).isdecimal() else text)
    except ValidationError:
        seconds = None
    if seconds is None:
        raise Malformed("Extending says by how much.", remedy="Write a duration, as 15m or 20s.")
    return seconds
