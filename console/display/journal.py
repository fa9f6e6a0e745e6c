"""Journal entries in words, and as lines of a CSV."""

from dataclasses import dataclass
from datetime import datetime

from console.display.cells import write_number, write_text, write_time
from console.display.figures import write_day
from console.display.outside import SENTENCE, Text, shorten, show, write_brief, write_json
from runs.agents import Json
from runs.queries.journal import Entry

HEAD = ("time (UTC)", "who", "action", "run", "agent", "step", "before", "after", "why")


@dataclass(frozen=True, kw_only=True)
class EntryLine:
    id: int
    day: str
    at: datetime
    icon: str
    who: str
    what: str
    run: int | None
    agent: str
    step: int | None
    before: str
    after: str
    why: Text


def show_entry(entry: Entry, now: datetime) -> EntryLine:
    return EntryLine(
        id=entry.id,
        day=write_day(entry.at, now),
        at=entry.at,
        icon=find_icon(entry.actor),
        who=write_actor(entry.actor),
        what=write_kind(entry.kind),
        run=entry.run,
        agent=show(entry.agent),
        step=entry.step,
        before=write_side(entry.before),
        after=write_side(entry.after, 300),
        why=shorten(show(entry.why), SENTENCE),
    )


def find_icon(actor: str) -> str:
    return "person" if actor.startswith("person:") else "effect" if actor == "agent" else "keys"


def write_actor(actor: str) -> str:
    return show(actor.removeprefix("person:"))


def write_kind(kind: str) -> str:
    return kind.replace(".", " ").replace("_", " ")


def write_side(value: Json, most: int = 140) -> str:
    """What was, or is, so: without what it says nothing of. The CSV and the API have all of it."""
    if isinstance(value, dict):
        value = {
            name: part
            for name, part in value.items()
            if part not in (None, "") and part is not False and name != "holder"
        }
    return "" if value is None or value == {} else write_brief(value, most)


def write_cells(entry: Entry) -> list[str]:
    return [
        write_time(entry.at),
        write_text(entry.actor),
        write_text(entry.kind),
        write_number(entry.run),
        write_text(entry.agent),
        write_number(entry.step),
        "" if entry.before is None else write_text(write_json(entry.before)),
        "" if entry.after is None else write_text(write_json(entry.after)),
        write_text(entry.why),
    ]
