"""The journal page and its CSV: who did what, when and why; nothing in it can be changed."""

from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console.access import Reader
from console.display.journal import HEAD, show_entry, write_cells
from console.filters import Asked, Choice, offer, read_day, read_run
from console.views.exports import export
from console.views.readers import for_readers
from runs import clock
from runs.queries.journal import JournalFilter, list_entries
from runs.queries.paging import Window

PAGE = 100
_ASKED = ("person", "run", "action", "since", "until", "people")
ACTIONS = (
    ("approval.", "Approvals"),
    ("run.", "Runs"),
    ("runs.", "Deleted runs"),
    ("switch.", "Switches"),
    ("bulk.", "Bulk acts"),
    ("budget.", "Budgets"),
    ("allowance.", "Allowances"),
    ("price.", "Prices"),
    ("fact.", "Facts"),
    ("credential.", "Credentials"),
    ("step.", "Steps"),
    ("attempt.", "Attempts"),
    ("key.", "Keys"),
    ("event", "Events"),
    ("provider.", "Providers"),
    ("notice.", "Notifications"),
    ("token.", "Tokens"),
    ("grant.", "Rights"),
    ("person.", "Sign-ins"),
)


@require_safe
@for_readers
def show_journal(request: Reader) -> HttpResponse:
    asked = Asked(request.GET, _ASKED)
    wanted = _read_filter(asked)
    window = Window.read(request.GET.get("after"), PAGE)
    page = list_entries(wanted, window, agents=request.rights.agents)
    now = clock.now()
    context = {
        "section": "journal",
        "lines": [show_entry(entry, now) for entry in page.items],
        "older": f"?{urlencode(asked.values | {'after': page.next})}" if page.next else "",
        "csv": f"?{urlencode(asked.values)}" if asked.values else "",
        "is_newest": window.after is None,
        "asked": asked.values,
        "left_out": asked.wrong,
        "actions": _offer_actions(asked.text("action")),
    }
    return render(request, "journal/journal.html", context)


@require_safe
@for_readers
def export_journal(request: Reader) -> HttpResponse:
    """The newest lines that the filter finds. Raises: Malformed: a file has no place to say what was left out."""
    asked = Asked(request.GET, _ASKED)
    wanted = _read_filter(asked)
    asked.require_all()
    return export(
        "journal",
        HEAD,
        lambda window: list_entries(wanted, window, agents=request.rights.agents),
        write_cells,
    )


def _offer_actions(action: str) -> list[Choice]:
    """The menu; with an action that is none of it when an address asks for that."""
    return offer((Choice(value=value, word=word) for value, word in ACTIONS), (action,) if action else ())


def _read_filter(asked: Asked) -> JournalFilter:
    return JournalFilter(
        person=asked.text("person"),
        run=asked.read("run", read_run),
        action=asked.text("action"),
        since=asked.read("since", read_day),
        until=asked.read("until", lambda text: read_day(text, days=1)),
        people=bool(asked.text("people")),
    )
