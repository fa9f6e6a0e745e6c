"""Runs and their lists; starting, stopping, pausing, resuming, and new limits."""

from decimal import Decimal
from typing import Annotated

from django.http import HttpResponse
from ninja import Header, Query, Router, Schema
from pydantic import ConfigDict, JsonValue

from console.api import bodies
from console.api.answers import answer
from console.api.errors import with_fresh
from console.api.requests import Id, Request, Word, read_words
from runs import access, operations, queries
from runs.engine import briefing
from runs.errors import Malformed, NotFound
from runs.queries import (
    ApprovalCard,
    FactRow,
    JournalRow,
    KeyRow,
    LedgerRow,
    Page,
    RunDetail,
    RunFilter,
    RunRow,
    StepRow,
    Window,
    WorkRow,
)

router = Router(tags=["Runs"])


class BriefingPage(Schema):
    """The one briefing, as an item of a page and, for who wants only it, beside that."""

    model_config = ConfigDict(extra="allow")
    items: list[dict[str, JsonValue]]
    next: str | None


@router.post("/runs", response={201: RunDetail, 200: RunDetail}, summary="Start a run")
def start_run(
    request: Request,
    body: bodies.Start,
    idempotency_key: Annotated[str, Header(alias="Idempotency-Key")] = "",
) -> HttpResponse:
    """The same `Idempotency-Key` with the same body gives the same run (200), with another body 422; once it is deleted 409."""
    if len(idempotency_key) > 255 or not idempotency_key.isprintable():
        raise Malformed("The Idempotency-Key is not usable.", remedy="Use at most 255 printable characters.")
    start = operations.Start(
        agent=body.agent,
        goal=body.goal,
        constraints=body.constraints,
        inputs=body.inputs,
        labels=body.labels,
        usd=None if body.budget.usd is None else format(body.budget.usd, "f"),
        tokens=body.budget.tokens,
        calls=body.budget.calls,
        effects=body.budget.effects,
        steps=body.budget.steps,
        working_s=body.budget.working_s,
        max_age_s=body.max_age_s,
        deadline_at=body.deadline_at,
    )
    run, is_new = operations.start_run(start, by=request.auth, idempotency_key=idempotency_key)
    response = answer(_read(request, run.pk), status=201 if is_new else 200)
    response["Location"] = f"/api/v1/runs/{run.pk}"
    return response


@router.get("/runs", response=Page[RunRow], summary="List runs, newest first")
def list_runs(
    request: Request,
    state: Annotated[list[Word], Query()] = [],  # noqa: B006 - ninja reads it, nobody writes it
    agent: Annotated[list[Word], Query()] = [],  # noqa: B006
    label: Annotated[list[Word], Query()] = [],  # noqa: B006
    waiting_for: Annotated[list[Word], Query()] = [],  # noqa: B006
    parent: Id | None = None,
    q: Word | None = None,
    after: Word | None = None,
    limit: int | None = None,
) -> HttpResponse:
    """`label` is `key:value`. `q` finds a number, a uid, or words of goal and reason in the newest 100,000 runs."""
    wanted = RunFilter(
        states=read_words(state),
        agents=read_words(agent),
        waiting_for=read_words(waiting_for),
        labels=dict(_read_label(text) for text in label),
        parent=parent,
        q=q or "",
    )
    return answer(queries.list_runs(wanted, Window.read(after, limit), agents=request.agents))


@router.get("/runs/{run}", response=RunDetail, summary="Read a run")
def read_run(request: Request, run: Id) -> HttpResponse:
    """`why` says in one sentence why it is not moving, `waits` on whom, until when, and what happens then."""
    return answer(_read(request, run))


@router.post("/runs/{run}/stop", response=RunDetail, summary="Stop a run and its descendants")
def stop_run(request: Request, run: Id, body: bodies.WithReason) -> HttpResponse:
    """Nothing more is taken; what is under way is cut where it can be, and shown until it has ended."""
    with with_fresh("run", lambda: _read(request, run)):
        operations.stop_run(run, reason=body.reason, by=request.auth)
    return answer(_read(request, run))


@router.post("/runs/{run}/pause", response=RunDetail, summary="Pause a run")
def pause_run(request: Request, run: Id, body: bodies.WithReason) -> HttpResponse:
    """The call that is under way finishes; nothing more is taken until the run is resumed."""
    with with_fresh("run", lambda: _read(request, run)):
        operations.pause_run(run, reason=body.reason, by=request.auth)
    return answer(_read(request, run))


@router.post("/runs/{run}/resume", response=RunDetail, summary="Resume a paused run")
def resume_run(request: Request, run: Id, body: bodies.WithReason) -> HttpResponse:
    with with_fresh("run", lambda: _read(request, run)):
        operations.resume_run(run, reason=body.reason, by=request.auth)
    return answer(_read(request, run))


@router.post("/runs/{run}/budget", response=RunDetail, summary="Set new limits")
def set_budget(request: Request, run: Id, body: bodies.NewLimits) -> HttpResponse:
    """A run that waits for budget goes on by itself. A limit below what is spent or reserved is refused (409)."""
    given: dict[str, Decimal | int | float | None] = {
        "usd": body.usd,
        "tokens": body.tokens,
        "calls": body.calls,
        "effects": body.effects,
        "steps": body.steps,
        "working_s": body.working_s,
    }
    limits = {name: value for name, value in given.items() if value is not None}
    if not limits:
        raise Malformed("No limit was given.", remedy="Give usd, tokens, calls, effects, steps or working_s.")
    with with_fresh("run", lambda: _read(request, run)):
        operations.set_budget(run, limits, reason=body.reason, by=request.auth)
    return answer(_read(request, run))


@router.get("/runs/{run}/steps", response=Page[StepRow], summary="List a run's steps")
def list_steps(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    """A result above 16 kB is left out here (`result_bytes` is its size): read the step itself."""
    return answer(queries.list_steps(*_window(request, run, after, limit)))


@router.get("/runs/{run}/steps/{number}", response=StepRow, summary="Read a step, whole")
def read_step(request: Request, run: Id, number: Id) -> HttpResponse:
    access.get_run(request.auth, run)
    step = queries.find_step(run, number)
    if step is None:
        raise NotFound("step", f"{number} of run {run}")
    return answer(step)


@router.get("/runs/{run}/facts", response=Page[FactRow], summary="List a run's facts")
def list_facts(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    return answer(queries.list_facts(*_window(request, run, after, limit)))


@router.get("/runs/{run}/keys", response=Page[KeyRow], summary="List a run's idempotency keys")
def list_keys(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    return answer(queries.list_keys(*_window(request, run, after, limit)))


@router.get("/runs/{run}/ledger", response=Page[LedgerRow], summary="List what touched a run's budget")
def list_ledger(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    """Entries of its descendants are among them: a budget covers the whole tree below a run."""
    return answer(queries.list_ledger(*_window(request, run, after, limit)))


@router.get("/runs/{run}/approvals", response=Page[ApprovalCard], summary="List a run's approvals")
def list_approvals(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    number, window = _window(request, run, after, limit)
    return answer(queries.list_approvals(window, agents=request.agents, run=number))


@router.get("/runs/{run}/work", response=Page[WorkRow], summary="List a run's work items")
def list_work(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    return answer(queries.list_work(*_window(request, run, after, limit)))


@router.get("/runs/{run}/journal", response=Page[JournalRow], summary="Read a run's journal")
def list_journal(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    """To follow it, ask again with `after` set to the last `seq` that you have."""
    return answer(queries.list_journal(*_window(request, run, after, limit)))


@router.get("/runs/{run}/briefing", response=BriefingPage, summary="Read what the model would be shown now")
def read_briefing(request: Request, run: Id, after: Word | None = None, limit: int | None = None) -> HttpResponse:
    """A page as of the other lists, with one item, the briefing; its parts stand beside `items` too."""
    _, window = _window(request, run, after, limit)
    parts = briefing.to_json(briefing.build(run, keep=False))
    items = [] if window.after else [parts]
    return answer(parts | {"items": items, "next": None})


def _read(request: Request, run: int) -> RunDetail:
    found = queries.find_run(run, agents=request.agents)
    if found is None:
        raise NotFound("run", run)
    return found


def _window(request: Request, run: int, after: str | None, limit: int | None) -> tuple[int, Window]:
    """Raises: NotFound, Malformed."""
    access.get_run(request.auth, run)
    return run, Window.read(after, limit)


def _read_label(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon or not key:
        raise Malformed(f"{text!r} is no label.", remedy="Write it as key:value.")
    return key, value
