"""`manage.py rehearse AGENT`: one run of a demo agent against the local shop and the rehearsal model, from nothing.

`manage.py rehearse --soak MINUTES`: many runs while everything is killed, on a database that is thrown away.
"""

import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import connections

from console.launch import CannotLaunch, Launch
from console.management.terminal import Follower, Stopped
from console.running import Running, find_running
from console.soak.soak import Verdict, soak, use_database
from runs import operations
from runs.agents import Json
from runs.arguments import number
from runs.errors import LongwatchError
from runs.examples.shop.client import ShopClient
from runs.management.command import OperatorCommand, find_user
from runs.management.usage import one_line
from runs.operations import Start
from runs.states import RunState

# Long enough to see the run wait for a parcel, short enough to wait for it oneself.
ARRIVES_IN_S = 12.0


class Command(OperatorCommand):
    help = "Rehearse a demo agent in the foreground: each step in a line, decisions on the terminal."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--as", dest="acting", metavar="USER", help="whom the run and its decisions are signed by")
        parser.add_argument("agent", nargs="?", choices=sorted(_SCENES))
        parser.add_argument("--seed", type=int, metavar="N", help="of the shop's batch: the same gives the same course")
        parser.add_argument(
            "--soak", type=number(0.01, 100_000), metavar="MINUTES", help="instead: many runs, everything killed"
        )
        parser.add_argument(
            "--kill-every", type=number(0.01, 100_000), default=2.0, metavar="S", help="of a soak, on average"
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="of a soak: print one line of JSON")
        parser.add_argument("--yes", action="store_true", help="approve what it asks for, instead of asking here")

    def handle(self, *args: Any, acting: str | None, as_json: bool = False, **options: Any) -> None:
        agent, seed, yes = options["agent"], options["seed"], options["yes"]
        if (agent is None) == (options["soak"] is None):
            raise CommandError("Name an agent, or say --soak MINUTES.", returncode=2)
        # The processes write to logs of their own; here is said only what went wrong.
        logging.getLogger().setLevel(logging.WARNING)
        if options["soak"] is not None:
            self._soak(options["soak"], options["kill_every"], seed, as_json)
            return
        running = find_running(settings.DATA_DIR)
        try:
            if running is not None:
                self._use(running, agent, seed, yes, acting)
            else:
                self._use_own(agent, seed, yes, acting)
        except (CannotLaunch, ImproperlyConfigured, LongwatchError) as error:
            raise CommandError(one_line(str(error))) from None
        except (Stopped, KeyboardInterrupt):
            raise CommandError("Stopped here. The run goes on where Longwatch runs: bin/up.") from None

    def _soak(self, minutes: float, kill_every_s: float, seed: int | None, as_json: bool) -> None:
        seed = secrets.randbelow(1_000_000) if seed is None else seed
        say: Callable[[str], None] = (lambda line: None) if as_json else self.say
        say(f"Soak of {minutes:g} minutes, a kill every {kill_every_s:g} s, seed {seed}")
        verdict = soak(minutes=minutes, kill_every_s=kill_every_s, seed=seed, say=say)
        if as_json:
            self.stdout.write(json.dumps(asdict(verdict)))
        else:
            self._tell(verdict)
        if verdict.violations:
            raise CommandError(f"{len(verdict.violations)} violations, seed {seed}.")

    def _tell(self, verdict: Verdict) -> None:
        killed = ", ".join(f"{part} {times}" for part, times in verdict.killed.items())
        self.say(f"{verdict.kills} kills ({killed})")
        self.say(f"{verdict.runs} runs, {verdict.steps} steps, {verdict.attempts} tries, {verdict.effects} refunds")
        for line in verdict.explained:
            self.say(f"explained: {one_line(line)}")
        for line in verdict.violations:
            self.say(f"violation: {line}")

    def _use(self, running: Running, agent: str, seed: int | None, yes: bool, acting: str | None) -> None:
        if not running.rehearsal or running.shop_url is None:
            raise CommandError(
                "The Longwatch that runs here is no rehearsal: its agents are played by a real model."
                " Rehearse on a data folder of its own: LONGWATCH_DATA=/some/folder."
            )
        self.say(f"Longwatch runs here already: {running.url}")
        use_database(running.database_url)
        self._rehearse(agent, seed, yes, acting, shop_url=running.shop_url, keep=time.sleep)

    def _use_own(self, agent: str, seed: int | None, yes: bool, acting: str | None) -> None:
        launch = Launch(port=0, data_dir=settings.DATA_DIR, workers=settings.WORKERS, rehearsal=True)
        try:
            self.say("Starting what is needed …")
            launch.take_port()
            prepared = launch.prepare()
            if prepared.password:
                self.say(
                    f"For signing in, once bin/up runs: {prepared.operator}, password {prepared.password} (shown only now)"
                )
            launch.start()
            if not launch.wait_ready():
                raise Stopped
            shop_url = launch.shop_url
            assert shop_url is not None
            use_database(launch.database_url)

            def keep(seconds: float) -> None:
                launch.step(seconds)
                if launch.stop_requested:
                    raise Stopped

            self._rehearse(agent, seed, yes, acting, shop_url=shop_url, keep=keep)
        finally:
            connections.close_all()
            launch.stop()

    def _rehearse(
        self,
        agent: str,
        seed: int | None,
        yes: bool,
        acting: str | None,
        *,
        shop_url: str,
        keep: Callable[[float], None],
    ) -> None:
        user = find_user(acting)
        shop = ShopClient(url=shop_url, timeout_s=20.0, caller="rehearse")
        seed = secrets.randbelow(10_000) if seed is None else seed
        goal, inputs = _SCENES[agent](shop, seed)
        run, _ = operations.start_run(Start(agent=agent, goal=goal, inputs=inputs), by=user)
        self.say(f"Run {run.pk} of {agent}, seed {seed}: {goal}")
        follower = Follower(run=run.pk, user=user, say=self.say, keep=keep, yes=yes, terminal=sys.stdin)
        ended = follower.follow()
        if batch := inputs.get("batch"):
            self._count(shop, str(batch))
        if ended.state != RunState.SUCCEEDED:
            raise CommandError(f"Run {run.pk} is {ended.state}: {one_line(ended.why)}")
        self.say(f"Run {run.pk} succeeded ({ended.verified}).")

    def _count(self, shop: ShopClient, batch: str) -> None:
        refunds = shop.effects(batch=batch, kind="refund")
        total = sum((Decimal(str(refund["amount"])) for refund in refunds), Decimal(0))
        self.say(f"At the shop: {len(refunds)} refunds, {total} in all")
        for refund in refunds:
            self.say(f"  order {refund['order']}  {refund['amount']}")
        orders = [refund["order"] for refund in refunds]
        if twice := sorted({str(order) for order in orders if orders.count(order) > 1}):
            raise CommandError(f"Refunded more than once: {', '.join(twice)}.")


def _make_refund_desk(shop: ShopClient, seed: int) -> tuple[str, dict[str, Json]]:
    batch = shop.create_batch(seed, arrives_in_s=ARRIVES_IN_S)
    return f"Work the {len(batch['requests'])} refund requests of batch {batch['batch']}", {"batch": batch["batch"]}


def _make_stock_watch(shop: ShopClient, seed: int) -> tuple[str, dict[str, Json]]:
    skus: list[Json] = [*shop.create_batch(seed)["skus"][:3]]
    return "Watch the stock of three articles for three rounds", {"skus": skus, "rounds": 3, "every_s": 5}


_SCENES: dict[str, Callable[[ShopClient, int], tuple[str, dict[str, Json]]]] = {
    "refund-desk": _make_refund_desk,
    "stock-watch": _make_stock_watch,
}
