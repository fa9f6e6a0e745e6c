"""Lists as CSV: the newest lines that a filter finds, read page by page."""

import csv
from collections.abc import Callable, Sequence

from django.http import HttpResponse

from runs.queries.paging import Page, Window

MOST_LINES = 10_000
_AT_ONCE = 1_000


def export[T](
    name: str, head: Sequence[str], read: Callable[[Window], Page[T]], write: Callable[[T], Sequence[str]]
) -> HttpResponse:
    """`write` makes the cells of a line; it disarms those that a spreadsheet would run (console.display.cells)."""
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response["Cache-Control"] = "no-store"
    lines = csv.writer(response)
    lines.writerow(head)
    after: int | None = None
    left = MOST_LINES
    while left > 0:
        page = read(Window(after=after, limit=min(left, _AT_ONCE)))
        lines.writerows(write(item) for item in page.items)
        left -= len(page.items)
        if page.next is None:
            break
        after = int(page.next)
    return response
