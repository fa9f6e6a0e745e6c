"""`manage.py deleteruns --older-than 365d`: delete runs that ended long ago, with all that belongs to them."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from runs import operations
from runs.management.command import OperatorCommand, read_duration
from runs.sanitise import clean_text

_WHY = {
    "open call": "has a call that is open or in doubt",
    "open card": "has an open card",
    "open spend": "has spent since, or waits for a price",
}


class Command(OperatorCommand):
    help = "Delete runs that ended long ago, each with all that it started and all that belongs to them."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", type=read_duration, required=True, metavar="365d", help="since they ended")
        parser.add_argument("--agent", type=clean_text, default="", help="only what this agent was started for")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        total = operations.Deletion()
        dry_run = options["dry_run"]
        interrupted = False
        try:
            for done in operations.delete_runs(
                older_than_s=options["older_than"], agent=options["agent"], dry_run=dry_run, by=user
            ):
                total.add(done)
        except KeyboardInterrupt:
            interrupted = True
        if as_json:
            self.answer({"dry_run": dry_run, **total.__dict__})
        else:
            verb = "would be" if dry_run else "are"
            self.say(
                f"{total.runs} runs with {total.steps} steps and {total.artifacts} artifacts"
                f" ({total.bytes} bytes) {verb} deleted."
            )
            for kept, trees in sorted(total.kept.items()):
                self.say(f"{trees} trees of runs are kept: each {_WHY[kept]}.")
        if interrupted:
            raise CommandError("Interrupted: run it again for the rest.")
