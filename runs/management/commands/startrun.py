"""`manage.py startrun AGENT "GOAL"`: start a run."""

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from runs import operations
from runs.management.command import OperatorCommand, read_duration, read_moment, read_pair
from runs.operations import Start
from runs.sanitise import clean_text


class Command(OperatorCommand):
    help = "Start a run of an agent."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("agent", type=clean_text)
        parser.add_argument("goal", type=clean_text)
        parser.add_argument("--input", type=read_pair, action="append", default=[], metavar="K=V", help="repeatable")
        parser.add_argument("--constraint", type=clean_text, action="append", default=[], metavar="TEXT")
        parser.add_argument("--budget-usd", metavar="X", help="limit in USD, as 2.00")
        parser.add_argument("--budget-tokens", type=int, metavar="N")
        parser.add_argument("--budget-calls", type=int, metavar="N", help="model calls")
        parser.add_argument("--budget-effects", type=int, metavar="N")
        parser.add_argument("--budget-steps", type=int, metavar="N")
        parser.add_argument("--budget-working", type=read_duration, metavar="2h", help="working time")
        parser.add_argument("--max-age", type=read_duration, metavar="2d", help="when it expires, from its start")
        parser.add_argument("--deadline", type=read_moment, metavar="ISO")
        parser.add_argument("--label", type=read_pair, action="append", default=[], metavar="K=V", help="repeatable")

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        start = Start(
            agent=options["agent"],
            goal=options["goal"],
            constraints=options["constraint"],
            inputs=dict(options["input"]),
            labels=dict(options["label"]),
            usd=options["budget_usd"],
            tokens=options["budget_tokens"],
            calls=options["budget_calls"],
            effects=options["budget_effects"],
            steps=options["budget_steps"],
            working_s=options["budget_working"],
            max_age_s=options["max_age"],
            deadline_at=options["deadline"],
        )
        run, _ = operations.start_run(start, by=user)
        url = f"{settings.PUBLIC_URL}/runs/{run.pk}"
        if as_json:
            self.answer({"id": run.pk, "uid": run.uid, "url": url})
        else:
            self.say(f"Run {run.pk} of {run.agent} is started: {url}")
