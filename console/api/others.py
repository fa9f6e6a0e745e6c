"""Facts, events, switches."""

from dataclasses import dataclass

from django.http import HttpResponse
from ninja import Router

from console.api import bodies
from console.api.answers import answer
from console.api.errors import with_fresh
from console.api.requests import Id, Request, Word
from runs import access, operations, queries
from runs.access import Action
from runs.errors import NotFound
from runs.queries import FactRow, Page, StepRow, SwitchCard, Window
from runs.queries.paging import sees

router = Router()


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    id: int
    matched_run: int | None


@router.get("/facts/{fact}", response=FactRow, summary="Read a fact as it stands now", tags=["Facts"])
def read_fact(request: Request, fact: Id) -> HttpResponse:
    return answer(_read_fact(request, fact))


@router.post("/facts/{fact}/recheck", response={202: StepRow}, summary="Check a fact again", tags=["Facts"])
def recheck_fact(request: Request, fact: Id) -> HttpResponse:
    """Queues a check through the fact's own source, and answers with that step."""
    found = _read_fact(request, fact)
    with with_fresh("fact", lambda: _read_fact(request, fact)):
        step = operations.recheck_fact(fact, by=request.auth)
    return answer(queries.find_step(found.run, step.number), status=202)


@router.post(
    "/events", response={202: StoredEvent, 200: StoredEvent}, summary="Deliver an event from outside", tags=["Events"]
)
def store_event(request: Request, body: bodies.StoreEvent) -> HttpResponse:
    """It is stored, and ends the oldest wait for its `name` and `key`, of the runs that you see: one that has begun, or one
    that begins later for a call that was taken before the event came. `matched_run`: the run that goes on with it; null
    where nothing waits for it yet, or never will. The same delivery again does nothing: 200, the same id.
    """
    access.require_sight(request.auth)
    event, is_new = operations.store_event(
        name=body.name,
        key=body.key,
        payload=body.payload,
        source=body.source,
        delivery_id=body.delivery_id,
        by=request.auth,
    )
    run = event.step.run if event.step else None
    matched = run.pk if run and sees(request.agents, run.agent) else None
    return answer(StoredEvent(id=event.pk, matched_run=matched), status=202 if is_new else 200)


@router.get("/switches", response=Page[SwitchCard], summary="List switches, newest first", tags=["Switches"])
def list_switches(
    request: Request, engaged: bool | None = None, after: Word | None = None, limit: int | None = None
) -> HttpResponse:
    return answer(queries.list_switches(Window.read(after, limit), agents=request.agents, engaged=engaged))


@router.get("/switches/{switch}", response=SwitchCard, summary="Read a switch", tags=["Switches"])
def read_switch(request: Request, switch: Id) -> HttpResponse:
    return answer(_read_switch(request, switch))


@router.post("/switches", response={201: SwitchCard}, summary="Engage a switch", tags=["Switches"])
def engage_switch(request: Request, body: bodies.Engage) -> HttpResponse:
    """Nothing new is taken in its scope until it is released. One that is engaged already stays as it is."""
    access.require_sight(request.auth)
    switch = operations.engage_switch(body.scope, reason=body.reason, by=request.auth)
    return answer(_read_switch(request, switch.pk), status=201)


@router.delete("/switches/{switch}", response=SwitchCard, summary="Release a switch", tags=["Switches"])
def release_switch(
    request: Request,
    switch: Id,
    body: bodies.Release | None = None,
    reason: Word | None = None,
    per_minute: int = 0,
) -> HttpResponse:
    """What it held goes on. The reason comes in the body or, for clients that send none with DELETE, in the query."""
    _read_switch(request, switch)
    access.require(request.auth, Action.SWITCH)
    said = reason or (body.reason if body else "")
    with with_fresh("switch", lambda: _read_switch(request, switch)):
        operations.release_switch(
            switch, reason=said, by=request.auth, per_minute=body.per_minute if body else per_minute
        )
    return answer(_read_switch(request, switch))


@dataclass(frozen=True, kw_only=True)
class LeftRunning:
    run: int
    why: str


@dataclass(frozen=True, kw_only=True)
class StoppedRuns:
    """What a bulk stop came to; `left` had ended by themselves, or could not be stopped."""

    stopped: list[int]
    left: list[LeftRunning]


@router.post(
    "/switches/{switch}/stop-runs", response=StoppedRuns, summary="Stop all runs of a scope", tags=["Switches"]
)
def stop_runs(request: Request, switch: Id, body: bodies.WithReason) -> HttpResponse:
    """A switch only holds. This ends every run in its scope for good, one by one, with their descendants."""
    card = _read_switch(request, switch)
    access.require(request.auth, Action.STOP)
    stopped, left = operations.stop_scope(card.scope, reason=body.reason, by=request.auth)
    return answer(StoppedRuns(stopped=stopped, left=[LeftRunning(run=run, why=why) for run, why in left]))


def _read_fact(request: Request, fact: int) -> FactRow:
    found = queries.find_fact(fact, agents=request.agents)
    if found is None:
        raise NotFound("fact", fact)
    return found


def _read_switch(request: Request, switch: int) -> SwitchCard:
    found = queries.find_switch(switch, agents=request.agents)
    if found is None:
        raise NotFound("switch", switch)
    return found
