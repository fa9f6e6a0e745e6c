"""Kill switches in words: what each holds, who has confirmed it, what is still under way."""

from dataclasses import dataclass
from datetime import datetime

from console.display.figures import plural, write_ago, write_moment, write_took
from console.display.marks import Mark
from console.display.outside import SENTENCE, Text, shorten, show
from runs.queries import SwitchCard
from runs.queries.shapes import InFlight, Participant

_STATES: dict[str, Mark] = {
    "acknowledged": Mark(word="Confirmed", icon="fresh", css="done"),
    "in_flight": Mark(word="In flight", icon="running", css="running"),
    "not_confirmed": Mark(word="Not confirmed", icon="lost", css="lost loud unknown"),
    "ended": Mark(word="Ended", icon="stopped", css="queued"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A process that a switch reaches."""

    name: str
    where: str
    mark: Mark
    after: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A call that is still under way in a switch's scope."""

    href: str
    what: str
    age: str
    note: str


@dataclass(frozen=True, kw_only=True)
class SwitchView:
    id: int
    scope: str
    title: str
    name: str
    by: str
    at: datetime
    reason: Text
    released: bool
    released_by: str
    released_at: datetime | None
    release_reason: Text
    confirmed: int
    asked: int
    unconfirmed: int
    lines: list[Line]
    flights: list[Flight]
    held: int
    doubts: list[int]
    drained: str
    lasted: str

    @property
    def steps(self) -> list[str]:
        """Requested, fenced, acknowledged, drained: how far it has come."""
        said = ["Fenced at once: nothing new is taken"]
        if self.unconfirmed:
            said.append(f"{plural(self.unconfirmed, 'process', 'processes')} not confirmed")
        else:
            said.append("acknowledged by all" if self.asked else "no process ran that had to acknowledge it")
        said.append(self.drained)
        return said


def say_scope(scope: str) -> tuple[str, str]:
    """(what kind, its name) of a scope."""
    kind, _, name = scope.partition(":")
    return {"all": "Everything", "agent": "Agent", "tool": "Tool", "run": "Run"}.get(kind, kind), show(name)


def show_switch(card: SwitchCard, now: datetime) -> SwitchView:
    title, name = say_scope(card.scope)
    lines = [_show_participant(each, card, now) for each in card.participants]
    unconfirmed = sum(each.state == "not_confirmed" for each in card.participants)
    if card.drained_at is None:
        drained = f"{plural(len(card.in_flight), 'call')} still under way"
    else:
        drained = f"drained after {write_took((card.drained_at - card.engaged_at).total_seconds())}"
    return SwitchView(
        id=card.id,
        scope=card.scope,
        title=title,
        name=name,
        by=show(card.engaged_by) or "somebody",
        at=card.engaged_at,
        reason=shorten(show(card.reason), SENTENCE),
        released=card.released_at is not None,
        released_by=show(card.released_by),
        released_at=card.released_at,
        release_reason=shorten(show(card.release_reason), SENTENCE),
        confirmed=sum(each.state in ("acknowledged", "ended") for each in card.participants),
        asked=len(card.participants),
        unconfirmed=unconfirmed,
        lines=lines,
        flights=[
            Flight(
                href=f"/runs/{each.run}",
                what=f"{show(each.tool) or each.kind}, run {each.run}, step {each.step}",
                age=write_ago(each.taken_at, now),
                note=_say_flight(each),
            )
            for each in card.in_flight
        ],
        held=card.held,
        doubts=card.doubts,
        drained=drained,
        lasted=write_ago(card.engaged_at, card.released_at or now),
    )


def _say_flight(flight: InFlight) -> str:
    if not flight.acts:
        return "it changes nothing outside"
    return "it has begun, and may have its effect" if flight.began_at else "it has sent nothing, and will not"


def _show_participant(each: Participant, card: SwitchCard, now: datetime) -> Line:
    after = write_took((each.at - card.engaged_at).total_seconds()) if each.at and each.at >= card.engaged_at else ""
    note = ""
    if each.state == "not_confirmed":
        note = f"last seen {write_ago(each.seen_at, now)} ago; it can take nothing new"
        if each.may_send_until is not None and each.may_send_until > now:
            note += f", but may still send what it had begun, until {write_moment(each.may_send_until, now)}"
    elif each.in_flight:
        note = plural(each.in_flight, "call") + " under way"
    return Line(
        name=f"{each.kind} {each.pid}",
        where=show(each.host),
        mark=_STATES[each.state],
        after=after,
        note=note,
    )
