"""`manage.py switch engage|release SCOPE --reason TEXT`: a kill switch."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from runs import access, operations, queries
from runs.errors import NotFound
from runs.management.command import OperatorCommand, plain
from runs.models import Switch
from runs.queries import SwitchCard
from runs.sanitise import clean_text


class Command(OperatorCommand):
    help = "Engage or release a kill switch. It holds: nothing new is taken in its scope, and nothing is lost."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["engage", "release"])
        parser.add_argument("scope", type=clean_text, help="all, agent:NAME, tool:NAME or run:ID")
        parser.add_argument("--reason", type=clean_text, required=True)

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        scope, reason = options["scope"], options["reason"]
        if options["action"] == "engage":
            switch = operations.engage_switch(scope, reason=reason, by=user)
        else:
            engaged = Switch.objects.filter(scope=scope, released_at__isnull=True).first()
            if engaged is None:
                raise CommandError(f"There is no engaged switch for {scope}.")
            switch = operations.release_switch(engaged.pk, reason=reason, by=user)
        card = queries.find_switch(switch.pk, agents=access.visible_agents(user))
        if card is None:
            raise NotFound("switch", switch.pk)
        if as_json:
            self.answer(card)
        else:
            self._say(card)

    def _say(self, card: SwitchCard) -> None:
        if card.released_at is not None:
            self.say(f"The switch for {plain(card.scope)} is released.")
            return
        self.say(f"The switch for {plain(card.scope)} is engaged: {plain(card.reason)}")
        for flight in card.in_flight:
            self.say(f"  under way     run {flight.run} step {flight.step} {plain(flight.tool or flight.kind)}")
        for ended in card.acknowledged:
            self.say(f"  acknowledged  run {ended.run} step {ended.step} {plain(ended.tool)}: {ended.outcome}")
        if not card.in_flight:
            self.say("  nothing is under way in its scope")
        for each in card.participants:
            self.say(f"  {each.state.replace('_', ' '):<13} {each.kind} {each.pid} on {plain(each.host)}")
