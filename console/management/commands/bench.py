"""`manage.py bench NAME`: one benchmark on a throwaway installation of its own, never on the operator's."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from console.bench import approve, idle, kill, latency, ledger, live, pages, recovery, thinking, throughput, wake
from console.bench.house import MANAGE, CannotMeasure, Stage, open_house
from console.bench.sizes import Sizes
from runs.arguments import number, whole
from runs.management.command import OperatorCommand
from runs.management.usage import one_line

BENCHES: dict[str, Callable[[Stage, Sizes], dict[str, object]]] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "ledger": ledger.measure,
    "idle": idle.measure,
    "wake": wake.measure,
    "recovery": recovery.measure,
    "kill": kill.measure,
    "approve": approve.measure,
    "thinking": thinking.measure,
    "pages": pages.measure,
    "live": live.measure,
}


_SIZES = [field.name for field in fields(Sizes)]


class Command(OperatorCommand):
    help = "Measure one thing on a throwaway database of its own, with the real processes."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(BENCHES))
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one line of JSON")
        parser.add_argument("--workers", type=whole(1, 64), default=2, help="worker processes")
        parser.add_argument("--runs", type=whole(1, 1_000_000), help="how many runs, starts, kills, clicks or streams")
        parser.add_argument("--steps", type=whole(1, 1_000_000), help="steps of each run")
        parser.add_argument(
            "--at-once", type=whole(1, 1_000_000), help="calls that the agent asks for in one reply (default: all)"
        )
        parser.add_argument(
            "--seconds", type=number(0.01, 86_400), help="how long something is watched, or a reply takes"
        )
        parser.add_argument(
            "--pgbench-s", type=whole(1, 3600), default=4, help="how long the limit of the database is measured"
        )
        parser.add_argument("--inside", action="store_true", help="internal")

    def handle(self, *args: Any, as_json: bool = False, inside: bool = False, **options: Any) -> None:
        try:
            figures = _measure_here(options) if inside else _measure_elsewhere(options)
        except (CannotMeasure, ImproperlyConfigured) as error:
            raise CommandError(one_line(str(error))) from None
        if as_json or inside:
            self.say(json.dumps(figures))
            return
        for name, value in figures.items():
            self.say(f"{name:<26} {value if isinstance(value, int | float | str) else json.dumps(value)}")


def _measure_elsewhere(options: dict[str, Any]) -> dict[str, object]:
    """Make the throwaway installation, and measure in a process that knows no other."""
    given = [f"--{name.replace('_', '-')}={options[name]}" for name in _SIZES if options[name] is not None]
    argv = [
        sys.executable,
        str(MANAGE),
        "bench",
        options["name"],
        f"--workers={options['workers']}",
        *given,
        "--inside",
    ]
    signal.signal(signal.SIGTERM, _interrupt)
    with open_house() as environment:
        measuring = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            told, _ = measuring.communicate()
        finally:
            measuring.terminate()
            measuring.wait()
    if measuring.returncode != 0:
        raise CannotMeasure(f"The benchmark ended with status {measuring.returncode}.")
    figures: dict[str, object] = json.loads(told)
    return figures


def _measure_here(options: dict[str, Any]) -> dict[str, object]:
    signal.signal(signal.SIGTERM, _interrupt)
    stage = Stage(workers=options["workers"])
    try:
        return BENCHES[options["name"]](stage, Sizes(**{name: options[name] for name in _SIZES}))
    finally:
        stage.stop()
        connections.close_all()


def _interrupt(number: int, frame: object) -> None:
    """End in order, with what has to be taken away."""
    raise KeyboardInterrupt
