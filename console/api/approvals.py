"""Cards that ask a person, and the one route by which they are decided."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from django.http import HttpResponse
from ninja import Query, Router

from console.api import bodies
from console.api.answers import answer
from console.api.errors import with_fresh
from console.api.requests import Id, Request, Word, read_words
from runs import access, operations, queries
from runs.access import Action
from runs.approvals import Said
from runs.errors import NotFound
from runs.queries import ApprovalCard, Page, Window

router = Router(tags=["Approvals"])


@router.get("/approvals", response=Page[ApprovalCard], summary="List approvals, oldest first")
def list_approvals(
    request: Request,
    state: Annotated[list[Word], Query()] = [],  # noqa: B006 - ninja reads it, nobody writes it
    agent: Annotated[list[Word], Query()] = [],  # noqa: B006
    after: Word | None = None,
    limit: int | None = None,
) -> HttpResponse:
    """`state=pending` is the inbox."""
    page = queries.list_approvals(
        Window.read(after, limit), agents=request.agents, states=read_words(state), of_agents=read_words(agent)
    )
    return answer(page)


# Before the route of one approval, which would take this word for its number.
@dataclass(frozen=True, kw_only=True)
class OneOfBatch:
    """`refused`: why it was not approved; empty when it was."""

    approval: int
    refused: str


@dataclass(frozen=True, kw_only=True)
class Batch:
    items: list[OneOfBatch]


@router.post("/approvals/batch", response=Batch, summary="Approve several cards of low risk")
def approve_batch(request: Request, body: bodies.ApproveBatch) -> HttpResponse:
    """Each stands or falls alone. Refused: what cannot be undone, what takes two people, what rests on a fact that is
    not fresh or not what was shown, and what has changed since it was asked before."""
    access.require_sight(request.auth)
    access.require(request.auth, Action.DECIDE)
    told = operations.approve_batch(
        [(each.approval, each.version) for each in body.approvals], comment=body.comment, by=request.auth
    )
    return answer(Batch(items=[OneOfBatch(approval=number, refused=why) for number, why in told]))


@router.get("/approvals/{approval}", response=ApprovalCard, summary="Read an approval")
def read_approval(request: Request, approval: Id) -> HttpResponse:
    """`facts` have the values that are shown, and how each stands now; `verdicts` are those that it allows."""
    return answer(_read(request, approval))


@router.post("/approvals/{approval}/decision", response=ApprovalCard, summary="Decide an approval, once")
def decide(request: Request, approval: Id, body: bodies.Decide) -> HttpResponse:
    """409 with the fresh approval when it is already decided, expired, void, or of another version."""
    more = dict(body.grant) if body.grant else {}
    grant = {name: format(Decimal(value), "f") for name, value in more.items() if value is not None} or None
    said = Said(
        verdict=body.verdict,
        version=body.version,
        arguments=body.arguments,
        answer=body.answer,
        result=body.result,
        grant=grant,
        comment=body.comment,
    )
    with with_fresh("approval", lambda: _read(request, approval)):
        operations.decide(approval, said, by=request.auth)
    return answer(_read(request, approval))


@router.post("/approvals/{approval}/claim", response=ApprovalCard, summary="Say that you are at it")
def claim(request: Request, approval: Id) -> HttpResponse:
    """Others see who is at it and cannot decide it for 15 min, unless they take it over by claiming it themselves."""
    with with_fresh("approval", lambda: _read(request, approval)):
        operations.claim_approval(approval, by=request.auth)
    return answer(_read(request, approval))


@router.delete("/approvals/{approval}/claim", response=ApprovalCard, summary="Give it back to everyone")
def release(request: Request, approval: Id) -> HttpResponse:
    with with_fresh("approval", lambda: _read(request, approval)):
        operations.release_approval(approval, by=request.auth)
    return answer(_read(request, approval))


def _read(request: Request, approval: int) -> ApprovalCard:
    found = queries.find_approval(approval, agents=request.agents)
    if found is None:
        raise NotFound("approval", approval)
    return found
