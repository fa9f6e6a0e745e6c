"""Entries of the ledger in words, and as lines of a CSV."""

from dataclasses import dataclass
from datetime import datetime

from console.display.cells import write_number, write_text, write_time
from console.display.figures import plural, write_booked, write_count, write_day
from console.display.marks import ENTRY, Mark
from console.display.outside import show, write_json
from runs.queries.ledger import Booked
from runs.queries.shapes import write_money

HEAD = (
    "time (UTC)",
    "entry",
    "run",
    "agent",
    "step",
    "attempt",
    "usd",
    "tokens",
    "model calls",
    "effects",
    "steps",
    "estimated",
    "no price",
    "model",
    "usage",
    "price",
    "note",
)


@dataclass(frozen=True, kw_only=True)
class BookedLine:
    """`counts`: the other figures of the entry, in words."""

    id: int
    day: str
    at: datetime
    mark: Mark
    tags: list[Mark]
    run: int
    agent: str
    step: int | None
    attempt: str
    usd: str
    tokens: str
    counts: str
    model: str
    note: str


def show_booked(entry: Booked, now: datetime) -> BookedLine:
    tags = [Mark(word="estimated", css="unknown")] if entry.estimated else []
    if entry.unpriced:
        tags.append(Mark(word="no price", css="person"))
    return BookedLine(
        id=entry.id,
        day=write_day(entry.at, now),
        at=entry.at,
        mark=ENTRY[entry.kind],
        tags=tags,
        run=entry.run,
        agent=show(entry.agent),
        step=entry.step,
        attempt=f"attempt {entry.attempt}" if entry.attempt and entry.attempt > 1 else "",
        usd=write_booked(entry.usd),
        tokens=write_count(entry.tokens),
        counts=_say_counts(entry),
        model=show(entry.model),
        note=show(entry.note),
    )


def _say_counts(entry: Booked) -> str:
    parts = ((entry.calls, "model call"), (entry.effects, "effect"), (entry.steps, "step"))
    return ", ".join(plural(number, word) for number, word in parts if number)


def write_cells(entry: Booked) -> list[str]:
    """Figures exactly, and as figures; text as no spreadsheet runs it."""
    return [
        write_time(entry.at),
        write_text(entry.kind),
        write_number(entry.run),
        write_text(entry.agent),
        write_number(entry.step),
        write_number(entry.attempt),
        write_money(entry.usd),
        write_number(entry.tokens),
        write_number(entry.calls),
        write_number(entry.effects),
        write_number(entry.steps),
        "yes" if entry.estimated else "",
        "yes" if entry.unpriced else "",
        write_text(entry.model),
        "" if entry.usage is None else write_text(write_json(entry.usage)),
        "" if entry.price is None else write_text(write_json(entry.price)),
        write_text(entry.note),
    ]
