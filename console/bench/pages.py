"""How long each page of the console takes beside many runs: asked of the web server, its queries counted apart."""

import time

from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.bench.crowd import fill, lengthen
from console.bench.house import CannotMeasure, Stage
from console.bench.readings import percentile, to_ms
from console.bench.sizes import Sizes
from console.bench.visitor import Visitor
from runs.management.command import find_user
from runs.models import Approval, Run
from runs.states import RunState

_LEAST = 5


def measure(stage: Stage, sizes: Sizes) -> dict[str, object]:
    runs, steps, seconds = max(sizes.runs or 50_000, 100), sizes.steps or 1000, sizes.seconds or 3.0
    waiting, due = runs // 10, runs // 100
    fill(finished=runs - waiting - due, waiting=waiting, due=due)
    long = Run.objects.filter(state=RunState.QUEUED).latest("pk").pk
    lengthen(long, first=runs + 1, count=steps)
    card = Approval.objects.filter(state="pending").latest("pk").pk
    paths = [
        "/",
        "/runs",
        "/runs?state=succeeded",
        f"/runs/{long}",
        "/approvals",
        f"/approvals/{card}",
        "/facts",
        "/spend",
        "/ledger",
        "/credentials",
        "/switches",
        "/journal",
        f"/journal?run={long}",
    ]
    visitor, port = Visitor(find_user(None)), stage.start_web()
    return {
        "rows": Run.objects.count(),
        "pages": [_measure_page(visitor, port, path, seconds=seconds) for path in paths],
        "settings": stage.describe()
        | {
            "finished": runs - waiting - due,
            "waiting": waiting,
            "due": due,
            "steps_of_the_long_run": steps,
            "watched_s_per_page": seconds,
            "asked": "one after another, by one person who may see all, each on a connection of its own",
        },
    }


def _measure_page(visitor: Visitor, port: int, path: str, *, seconds: float) -> dict[str, object]:
    visitor.inside.get(path)  # what is made once in a process is made
    with CaptureQueriesContext(connection) as asked:
        status = visitor.inside.get(path).status_code
    if status != 200:
        raise CannotMeasure(f"{path} was answered with {status}.")
    visitor.get(port, path)
    took: list[float] = []
    size, until = 0, time.monotonic() + seconds
    while len(took) < _LEAST or time.monotonic() < until:
        began = time.monotonic()
        size = visitor.get(port, path)
        took.append(time.monotonic() - began)
    return {
        "path": path,
        "p50_ms": to_ms(percentile(took, 50)),
        "p95_ms": to_ms(percentile(took, 95)),
        "queries": len(asked),
        "bytes": size,
        "shown": len(took),
    }
