"""`manage.py startdemo`: start the example runs at the sandbox shop. `bin/up` calls it once, on an empty database."""

from typing import Any

from django.contrib.auth.models import User

from runs.examples.demo import start_demo
from runs.management.command import OperatorCommand


class Command(OperatorCommand):
    help = "Start the example runs at the sandbox shop, unless there are runs already."

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        started = start_demo(by=user)
        if as_json:
            self.answer([run.pk for run in started])
        else:
            self.say(f"{len(started)} example runs are started.")
