"""The tabs of a run's page: each reads what it shows, at most one page of it, newest first where a list can grow."""

from collections.abc import Callable
from typing import Any

from django.urls import reverse

from console.access import Reader
from console.display import tabs
from console.display.facts import StoryView
from console.display.outside import show_exactly
from console.display.steps import show_step
from console.timeline import draw
from console.views.finding import Found, find_story, show_fact_story
from runs import queries
from runs.access import Action
from runs.agents import Agent, get_agents
from runs.engine import briefing
from runs.errors import NotFound
from runs.queries import Window
from runs.queries.factuse import read_fact_uses
from runs.queries.failures import list_failures
from runs.queries.timeline import STEPS_SHOWN, read_timeline
from runs.states import RUN_FINAL

PAGE = 100
FACTS = 200
BRIEFING_SHOWN = 400_000

type Tab = Callable[[Reader, Found], dict[str, Any]]


def read_tab(request: Reader, found: Found, name: str) -> dict[str, Any]:
    """The context of one tab, and the list of all."""
    name = name if name in TABS else "timeline"
    return {
        "tab": name,
        "tab_template": f"runs/tabs/{name}.html",
        "tab_list": list_tabs(found, name),
        "tab_url": reverse("run-tab", args=[found.run.id, name]) + _keep(request),
    } | TABS[name](request, found)


def list_tabs(found: Found, current: str) -> list[dict[str, Any]]:
    counts = found.run.counts
    # Facts of a run that has ended hold nothing up.
    stale = counts.facts_stale if found.run.state not in RUN_FINAL else 0
    words = {
        "timeline": ("Timeline", "", ""),
        "facts": ("Facts", str(stale or counts.facts), "person" if stale else ""),
        "work": ("Work", f"{counts.work - counts.work_open}/{counts.work}", ""),
        "keys": ("Keys", str(counts.keys_in_doubt or counts.keys), "unknown" if counts.keys_in_doubt else ""),
        "failures": ("Failures", str(found.extras.failures), ""),
        "ledger": ("Ledger", "", ""),
        "briefing": ("Briefing", "", ""),
        "journal": ("Journal", "", ""),
    }
    return [
        {
            "name": name,
            "word": word,
            "count": count,
            "css": css,
            "current": name == ("timeline" if current == "step" else current),
        }
        for name, (word, count, css) in words.items()
    ]


def _keep(request: Reader) -> str:
    """The parts of the address that a panel has to know too."""
    kept = request.GET.copy()
    for name in [name for name in kept if name not in ("before", "after", "errors", "idle", "step", "fact")]:
        del kept[name]
    return f"?{kept.urlencode()}" if kept else ""


def _read_place(request: Reader) -> int | None:
    """Raises: Malformed."""
    return Window.read(request.GET.get("before")).after


def _timeline(request: Reader, found: Found) -> dict[str, Any]:
    errors, collapse = request.GET.get("errors") == "1", request.GET.get("idle") != "1"
    timeline = read_timeline(found.run.id, before=_read_place(request), errors=errors)
    agent = get_agents().get(found.run.agent)
    drawing = draw(
        timeline.steps,
        now=found.extras.now,
        ended=found.run.state in RUN_FINAL,
        collapse=collapse,
        signatures={tool.name: [*tool.identity, *tool.arguments.model_fields] for tool in agent.tools} if agent else {},
    )
    return {
        "drawing": drawing,
        "older": timeline.before,
        "is_newest": "before" not in request.GET,
        "errors": errors,
        "collapse": collapse,
        "most": STEPS_SHOWN,
    }


def _facts(request: Reader, found: Found) -> dict[str, Any]:
    window = Window.read(request.GET.get("after"), FACTS)
    page = queries.list_facts(found.run.id, window)
    uses = read_fact_uses(found.run.id, [(row.id, row.name) for row in page.items])
    may_recheck = request.rights.may(Action.RECHECK, found.run.agent) and found.run.state not in RUN_FINAL
    agent = get_agents().get(found.run.agent)
    checkable = frozenset(row.id for row in page.items if agent and _can_check(agent, row))
    lines = tabs.show_facts(page.items, uses, found.extras.now, may_recheck=may_recheck, checkable=checkable)
    return {
        "lines": lines,
        "next": page.next,
        "is_first": window.after is None,
        "facts_url": f"{reverse('run', args=[found.run.id])}?tab=facts"
        + (f"&after={window.after}" if window.after else ""),
        "may_decide": request.rights.may(Action.DECIDE, found.run.agent) and found.run.state not in RUN_FINAL,
        "chosen": _choose_fact(request, {row.id for row in page.items}),
    }


def _choose_fact(request: Reader, shown: set[int]) -> StoryView | None:
    """The fact whose forms are open, of those that are shown."""
    text = request.GET.get("fact", "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else 0
    return show_fact_story(request, find_story(request, number)) if number in shown else None


def _can_check(agent: Agent, row: queries.FactRow) -> bool:
    source = row.source if isinstance(row.source, dict) else {}
    return agent.reader_of(row.name, str(source.get("tool") or "")) is not None


def _work(request: Reader, found: Found) -> dict[str, Any]:
    window = Window.read(request.GET.get("after"), queries.MAX_PAGE)
    page = queries.list_work(found.run.id, window)
    return {"lines": tabs.show_work(page.items), "next": page.next, "is_first": window.after is None}


def _keys(request: Reader, found: Found) -> dict[str, Any]:
    page = queries.list_keys(found.run.id, _newest(request))
    return {"lines": tabs.show_keys(page.items), "older": page.next}


def _failures(request: Reader, found: Found) -> dict[str, Any]:
    page = list_failures(found.run.id, _newest(request))
    return {"lines": tabs.show_failures(page.items), "older": page.next}


def _ledger(request: Reader, found: Found) -> dict[str, Any]:
    page = queries.list_ledger(found.run.id, _newest(request))
    return {"lines": tabs.show_ledger(page.items, found.run.id), "older": page.next}


def _journal(request: Reader, found: Found) -> dict[str, Any]:
    page = queries.list_journal(found.run.id, _newest(request))
    return {"lines": tabs.show_journal(page.items), "older": page.next}


def _newest(request: Reader) -> Window:
    return Window(after=_read_place(request), limit=PAGE, newest_first=True)


def _step(request: Reader, found: Found) -> dict[str, Any]:
    """Raises: NotFound."""
    number = request.GET.get("step", "")
    is_number = number.isascii() and number.isdecimal() and len(number) < 11
    step = queries.find_step(found.run.id, int(number)) if is_number else None
    if step is None:
        raise NotFound("step", number)
    return {"step": show_step(step, found.extras.now)}


def _briefing(request: Reader, found: Found) -> dict[str, Any]:
    """What the model would be sent now, byte for byte, and what each part of it weighs."""
    agent = get_agents().get(found.run.agent)
    if agent is None:
        return {"missing": True}
    sent = briefing.request(agent, briefing.build(found.run.id, keep=False))
    parts = briefing.parts(sent)
    texts = [str(block["text"]) for block in sent.messages[0]["content"]]
    whole = sum(part.tokens for part in parts)
    cached = sum(part.tokens * part.cacheable for part in parts)
    text = "\n".join(texts)
    return {
        "parts": parts,
        "whole": whole,
        "cached_share": round(100 * cached / whole) if whole else 0,
        "text": show_exactly(text[:BRIEFING_SHOWN]),
        "cut": max(len(text) - BRIEFING_SHOWN, 0),
        "model": agent.model,
    }


TABS: dict[str, Tab] = {
    "timeline": _timeline,
    "facts": _facts,
    "work": _work,
    "keys": _keys,
    "failures": _failures,
    "ledger": _ledger,
    "briefing": _briefing,
    "journal": _journal,
    "step": _step,
}
