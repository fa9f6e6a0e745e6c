"""Pages of a list: a window in, items and a cursor out. A cursor is the place of the last item, so new rows move nothing."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from django.db.models import Model, QuerySet

from runs.errors import Malformed

MAX_PAGE = 200
BIGGEST = 2**63 - 1  # PostgreSQL's bigint
EVERY_AGENT = "*"


@dataclass(frozen=True, kw_only=True)
class Page[T]:
    items: list[T]
    next: str | None


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which part of a list: at most `limit` items after the place `after` (None: from its beginning).

    newest_first: from the end backwards; `after` is then the place before which to go on.
    """

    after: int | None = None
    limit: int = 50
    newest_first: bool = False

    @classmethod
    def read(cls, after: str | None, limit: int | None = None) -> "Window":
        """Raises: Malformed, for a cursor that none of our answers held, or a size out of range."""
        if limit is not None and not 1 <= limit <= MAX_PAGE:
            raise Malformed(f"limit is {limit}.", remedy=f"Use 1 to {MAX_PAGE}.")
        return cls(after=_read_cursor(after), limit=limit or cls.limit)


def cut[R, T](rows: Sequence[R], window: Window, *, place: Callable[[R], int], show: Callable[[R], T]) -> Page[T]:
    """Make a page of at most `limit` + 1 rows: the one too many says that there is a next page."""
    kept = rows[: window.limit]
    return Page(items=[show(row) for row in kept], next=str(place(kept[-1])) if len(rows) > window.limit else None)


def sees(agents: Collection[str], agent: str) -> bool:
    """Whether a reader who may see these agents sees this one."""
    return EVERY_AGENT in agents or agent in agents


def within[M: Model](rows: QuerySet[M], agents: Collection[str], path: str = "agent") -> QuerySet[M]:
    """Keep the rows of agents that the reader may see."""
    return rows if EVERY_AGENT in agents else rows.filter(**{f"{path}__in": list(agents)})


def in_range(number: int) -> bool:
    """Whether a number can be an id at all: others would be an error of the database, not a row that is not there."""
    return 0 < number <= BIGGEST


def _read_cursor(after: str | None) -> int | None:
    if not after:
        return None
    if after.isascii() and after.isdecimal() and len(after) <= 19 and int(after) <= BIGGEST:
        return int(after)
    raise Malformed("after is no cursor.", remedy="Use the `next` of an earlier answer, or leave it out.")
