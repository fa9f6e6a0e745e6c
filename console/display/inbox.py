"""A card in the list of cards: what it is about, how long it has, and what its facts have come to."""

from dataclasses import dataclass
from datetime import datetime

from console.display.figures import plural
from console.display.marks import APPROVAL, KIND, Mark
from console.display.outside import shorten, show, show_title
from console.display.waits import say_until
from runs.queries.inbox import InboxLine
from runs.states import ApprovalKind, ApprovalState


@dataclass(frozen=True, kw_only=True)
class InboxItem:
    id: int
    href: str
    mark: Mark
    title: str
    where: str
    until: datetime | None
    urgent: bool
    tags: list[Mark]
    note: str
    since: datetime


def show_item(line: InboxLine, now: datetime, *, irreversible: bool) -> InboxItem:
    pending = line.state == ApprovalState.PENDING
    until = say_until(line.expires_at, now) if line.expires_at and pending else None
    tags = []
    if line.kind != ApprovalKind.APPROVAL:
        mark = KIND[line.kind]
        tags.append(Mark(word=mark.word.lower(), icon=mark.icon, css=mark.css))
    if irreversible:
        tags.append(Mark(word="irreversible", css="line"))
    if line.changed:
        tags.append(Mark(word=f"{plural(line.changed, 'fact')} changed", icon="conflict", css="danger"))
    elif line.stale:
        tags.append(Mark(word=f"{line.stale} not fresh", icon="stale", css="person"))
    if line.claimed_by:
        tags.append(Mark(word=f"{show(line.claimed_by)} is at it", icon="person", css="line"))
    if line.replaces is not None:
        tags.append(Mark(word="asked again", icon="undo", css="line"))
    if not pending:
        tags.append(APPROVAL[line.state])
    closed = line.closed_at or line.created_at
    return InboxItem(
        id=line.id,
        href=f"/approvals/{line.id}",
        mark=KIND[line.kind],
        title=shorten(show_title(line.title)).start,
        where=f"{line.agent} · run {line.run}",
        until=until.at if until else None,
        urgent=until.soon if until else False,
        tags=tags,
        note="waits" if pending else "ago",
        since=line.created_at if pending else closed,
    )
