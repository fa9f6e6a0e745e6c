"""A run's page with its panels, and what an operator does to a run."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.access import Reader, require
from console.display.runs import show_about, show_head
from console.forms import show_limit_fields
from console.limiting import RunLimitsForm, write_limits
from console.views.finding import Found, find
from console.views.readers import for_readers
from console.views.run_tabs import TABS, read_tab
from runs import operations
from runs.access import Action
from runs.agents import get_agents
from runs.errors import Conflict, Forbidden, LongwatchError, Malformed, NotFound
from runs.models import Run

MOST_REASON = 2_000


@require_safe
@for_readers
def show_run(request: Reader, number: int) -> HttpResponse:
    return _show(request, find(request, number))


@require_safe
@for_readers
def show_head_panel(request: Reader, number: int) -> HttpResponse:
    return render(request, "runs/head.html", _describe(request, find(request, number)) | {"panel": True})


@require_safe
@for_readers
def show_side_panel(request: Reader, number: int) -> HttpResponse:
    return render(request, "runs/side.html", _describe(request, find(request, number)))


@require_safe
@for_readers
def show_tab_panel(request: Reader, number: int, tab: str) -> HttpResponse:
    if tab not in TABS:
        raise NotFound("tab", tab)
    found = find(request, number)
    context = {"run": found.run, "now": found.extras.now, "facts_move_s": found.extras.facts_move_s}
    context |= read_tab(request, found, tab)
    return render(request, "runs/tab.html", context)


@require_POST
@for_readers
def stop(request: Reader, number: int) -> HttpResponse:
    return _act(request, number, operations.stop_run, "stop", "Stopped. Calls under way are shown until they are over.")


@require_POST
@for_readers
def set_limits(request: Reader, number: int) -> HttpResponse:
    """Set every limit of a run as the form says. Refused: the run as it is now, with the form as it was typed."""
    found = find(request, number)
    require(request, Action.BUDGET, found.run.agent)
    form = RunLimitsForm(request.POST)
    typed = {"act": "limits", "reason": request.POST.get("reason", "").strip()[:MOST_REASON]}
    if not form.is_valid():
        # Without the version that was seen the form could land on limits that somebody else has set.
        unseen = Malformed(
            "The form does not say which limits it is about.", remedy="Look at these, and set them again."
        )
        refusal = unseen if "version" in form.errors else None
        return _show(request, found, refusal=refusal, typed=typed, limits=form, status=422)
    wanted = form.read_limits(found.run.budget.limits)
    try:
        operations.set_budget(
            number,
            wanted,
            reason=typed["reason"],
            by=request.user,
            version=form.read_version(),
            # A page from before a deploy has no such fields, and means to change nothing about them.
            ends=form.read_ends(found.run) if "max_age" in request.POST else None,
        )
    except (NotFound, Forbidden):
        raise
    except LongwatchError as refusal:
        status = 409 if isinstance(refusal, Conflict) else 422
        return _show(request, find(request, number), refusal=refusal, typed=typed, limits=form, status=status)
    messages.success(request, "The limits are set. They hold from the next reservation on.")
    return HttpResponseRedirect(reverse("run", args=[number]))


@require_POST
@for_readers
def pause(request: Reader, number: int) -> HttpResponse:
    return _act(
        request, number, operations.pause_run, "pause", "Paused. The step in hand finishes; nothing new is taken."
    )


@require_POST
@for_readers
def amend(request: Reader, number: int) -> HttpResponse:
    def add(run: int, *, reason: str, by: AbstractBaseUser) -> Run:
        return operations.amend_run(run, text=reason, by=by)

    return _act(request, number, add, "amend", "Amended. The agent reads it before its next decision.")


@require_POST
@for_readers
def resume(request: Reader, number: int) -> HttpResponse:
    return _act(request, number, operations.resume_run, "resume", "Resumed. It is queued, and goes on by itself.")


def _act(request: Reader, number: int, act: Callable[..., Run], name: str, done: str) -> HttpResponse:
    """One operation with a reason. Refused: the page as it is now, with why, and what was typed."""
    found = find(request, number)
    require(request, Action.STOP, found.run.agent)
    reason = request.POST.get("reason", "").strip()[:MOST_REASON]
    try:
        act(number, reason=reason, by=request.user)
    except (NotFound, Forbidden):
        raise
    except LongwatchError as refusal:
        status = 409 if isinstance(refusal, Conflict) else 422
        typed = {"act": name, "reason": reason}
        return _show(request, find(request, number), refusal=refusal, typed=typed, status=status)
    messages.success(request, done)
    return HttpResponseRedirect(reverse("run", args=[number]))


def _show(
    request: Reader,
    found: Found,
    *,
    refusal: LongwatchError | None = None,
    typed: Mapping[str, str] | None = None,
    limits: RunLimitsForm | None = None,
    status: int = 200,
) -> HttpResponse:
    """limits: the form of limits as somebody typed it, which is then open."""
    form = limits or RunLimitsForm(initial=write_limits(found.run))
    agent = get_agents().get(found.run.agent)
    context = (
        _describe(request, found)
        | read_tab(request, found, request.GET.get("tab", ""))
        | {
            "section": "runs",
            "about": show_about(found.run, found.extras, model=agent.model if agent else ""),
            "refusal": refusal,
            "typed": typed or {},
            "limit_fields": show_limit_fields(form),
        }
    )
    return render(request, "runs/run.html", context, status=status)


def _describe(request: Reader, found: Found) -> dict[str, Any]:
    """What the head and the side of a run's page show; their panels show the same."""
    rights, run = request.rights, found.run
    head = show_head(
        run,
        found.extras,
        may_stop=rights.may(Action.STOP, run.agent),
        may_limit=rights.may(Action.BUDGET, run.agent),
        may_decide=rights.may(Action.DECIDE, run.agent),
    )
    return {"run": run, "head": head, "now": found.extras.now, "facts_move_s": found.extras.facts_move_s}
