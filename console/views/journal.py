"""The journal page and its CSV: who did what, when and why; nothing in it can be changed."""

import csv
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.access import Reader
from console.display.journal import HEAD, show_entry, write_cells
from console.views.readers import for_readers
from runs import clock
from runs.errors import Malformed
from runs.queries.journal import JournalFilter, list_entries
from runs.queries.paging import BIGGEST, Window

PAGE = 100
MOST_LINES = 10_000
ACTIONS = (
    ("", "Everything"),
    ("approval.", "Approvals"),
    ("run.", "Runs"),
    ("switch.", "Switches"),
    ("bulk.", "Bulk acts"),
    ("budget.", "Budgets"),
    ("fact.", "Facts"),
    ("step.", "Steps"),
    ("attempt.", "Attempts"),
    ("notice.", "Notifications"),
    ("token.", "Tokens"),
    ("grant.", "Rights"),
    ("person.", "Sign-ins"),
)


@require_safe
@for_readers
def show_journal(request: Reader) -> HttpResponse:
    wanted = _read_filter(request)
    window = Window.read(request.GET.get("after"), PAGE)
    page = list_entries(wanted, window, agents=request.rights.agents)
    asked = _asked(request)
    context = {
        "section": "journal",
        "now": clock.now(),
        "lines": [show_entry(entry) for entry in page.items],
        "older": f"?{urlencode(asked | {'after': page.next})}" if page.next else "",
        "csv": f"?{urlencode(asked)}" if asked else "",
        "is_newest": window.after is None,
        "asked": asked,
        "actions": [{"value": value, "word": word} for value, word in ACTIONS],
    }
    return render(request, "journal/journal.html", context)


@require_safe
@for_readers
def export_journal(request: Reader) -> HttpResponse:
    """The newest lines that the filter finds, as CSV. Cells that a spreadsheet would run are disarmed."""
    wanted = _read_filter(request)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="journal.csv"'
    response["Cache-Control"] = "no-store"
    lines = csv.writer(response)
    lines.writerow(HEAD)
    after: int | None = None
    left = MOST_LINES
    while left > 0:
        page = list_entries(wanted, Window(after=after, limit=min(left, 1_000)), agents=request.rights.agents)
        lines.writerows(write_cells(entry) for entry in page.items)
        left -= len(page.items)
        if page.next is None:
            break
        after = int(page.next)
    return response


def _asked(request: Reader) -> dict[str, str]:
    names = ("person", "run", "action", "since", "until", "people")
    return {name: text for name in names if (text := request.GET.get(name, "").strip()[:200])}


def _read_filter(request: Reader) -> JournalFilter:
    asked = _asked(request)
    return JournalFilter(
        person=asked.get("person", ""),
        run=_read_run(asked.get("run", "")),
        action=asked.get("action", ""),
        since=_read_day(asked.get("since", "")),
        until=_read_day(asked.get("until", ""), days=1),
        people="people" in asked,
    )


def _read_run(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= BIGGEST):
        raise Malformed(f"{text!r} is no number of a run.", remedy="Write it as 41.")
    return int(text)


def _read_day(text: str, *, days: int = 0) -> datetime | None:
    if not text:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise Malformed(f"{text!r} is no day.", remedy="Write it as 2026-11-29.") from None
    if not 2000 <= day.year <= 9000:
        raise Malformed(f"{text!r} is out of reach.", remedy="Write a day such as 2026-11-29.")
    return day + timedelta(days=days)
