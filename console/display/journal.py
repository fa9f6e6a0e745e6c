"""Journal entries in words, and as lines of a CSV that no spreadsheet takes for formulas."""

from dataclasses import dataclass
from datetime import UTC, datetime

from console.display.outside import show, write_brief, write_json
from runs.queries.journal import Entry

HEAD = ("time (UTC)", "who", "action", "run", "agent", "step", "before", "after", "why")
# A cell that begins with one of these is a formula to a spreadsheet (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, kw_only=True)
class EntryLine:
    id: int
    at: datetime
    icon: str
    who: str
    what: str
    run: int | None
    agent: str
    step: int | None
    before: str
    after: str
    why: str


def show_entry(entry: Entry) -> EntryLine:
    return EntryLine(
        id=entry.id,
        at=entry.at,
        icon="person" if entry.actor.startswith("person:") else "effect" if entry.actor == "agent" else "keys",
        who=show(entry.actor.removeprefix("person:")),
        what=entry.kind.replace(".", " ").replace("_", " "),
        run=entry.run,
        agent=show(entry.agent),
        step=entry.step,
        before="" if entry.before is None else write_brief(entry.before),
        after="" if entry.after is None else write_brief(entry.after, 300),
        why=show(entry.why),
    )


def write_cells(entry: Entry) -> list[str]:
    cells = [
        entry.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        entry.actor,
        entry.kind,
        "" if entry.run is None else str(entry.run),
        entry.agent,
        "" if entry.step is None else str(entry.step),
        "" if entry.before is None else write_json(entry.before),
        "" if entry.after is None else write_json(entry.after),
        entry.why,
    ]
    return [_disarm(cell) for cell in cells]


def _disarm(cell: str) -> str:
    return "'" + cell if cell.startswith(_FORMULA) else cell
