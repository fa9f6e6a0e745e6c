"""What moved since a moment, read from the journal: for screens that must not miss what they were not told.

The moment is a *mark*: the oldest transaction that was still running. Ids are no such moment, because an entry with a
smaller id may commit later. Everything below a mark is committed and visible, so whoever read after taking a mark, and
then asks for what was written at or above it, is told of everything that they cannot have seen.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from runs import sql
from runs.queries.paging import EVERY_AGENT

# Beyond it nobody is told one by one.
MOST = 2_000

MARK = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

# One statement, one snapshot: the new mark fits the rows. Newest first, so that a full answer lacks the oldest.
SINCE = f"""
SELECT ({MARK}), entry.id, entry.xid, entry.run_id, run.agent, split_part(entry.kind, '.', 1)
FROM (SELECT 1) AS always
LEFT JOIN runs_journalentry AS entry ON entry.xid >= %s
LEFT JOIN runs_run AS run ON run.id = entry.run_id
ORDER BY entry.id DESC
LIMIT {MOST}"""

_TOPICS = {"approval": "approvals", "switch": "switches"}
_OF_ENTRIES = frozenset({"runs", "approvals", "journal"})


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One journal entry, as far as screens care. Without a run it is an operator action."""

    entry: int
    xid: int
    run: int | None
    agent: str | None
    noun: str


@dataclass(frozen=True, kw_only=True)
class Since:
    """`mark` is where to ask on. Not `complete`: more moved than is told here."""

    mark: int
    moved: Sequence[Moved]
    complete: bool

    def select_new(self, moved: Iterable[Moved]) -> list[Moved]:
        """Of what somebody else read: what was not there yet."""
        known = {each.entry for each in self.moved}
        return [each for each in moved if each.xid >= self.mark and each.entry not in known]


def read_mark() -> int:
    """The moment before the queries that follow."""
    return int(sql.fetch_row(MARK)[0])


def read_since(mark: int) -> Since:
    return parse_since(sql.fetch_all(SINCE, [mark]))


def parse_since(rows: Sequence[Sequence[Any]]) -> Since:
    """From the rows of SINCE, whoever ran it."""
    moved = [
        Moved(entry=entry, xid=xid, run=run, agent=agent, noun=noun)
        for _, entry, xid, run, agent, noun in rows
        if entry is not None
    ]
    return Since(mark=rows[0][0], moved=moved, complete=len(rows) < MOST)


def name_topics(moved: Iterable[Moved], *, agents: Collection[str]) -> set[str]:
    """The topics (`runs.notify.screen`) that a reader who sees these agents is told of; a stranger is told nothing."""
    topics: set[str] = set()
    for entry in moved if agents else ():
        if entry.run is None:
            topics.add("journal")
        elif EVERY_AGENT in agents or entry.agent in agents:
            topics |= {"runs", f"run.{entry.run}"}
        else:
            continue
        if entry.noun in _TOPICS:
            topics.add(_TOPICS[entry.noun])
    return topics


def keep_unexplained(topics: Iterable[str]) -> set[str]:
    """The hinted topics that may move without an entry, and are not about some runs only."""
    return {topic for topic in topics if topic not in _OF_ENTRIES and not topic.startswith("run.")}
