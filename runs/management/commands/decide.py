"""`manage.py decide APPROVAL VERDICT --as USER`: one decision."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from runs import access, operations, queries
from runs.approvals import Said
from runs.errors import NotFound
from runs.management.command import OperatorCommand, plain, read_json
from runs.models import Approval
from runs.sanitise import clean_json, clean_text
from runs.states import Verdict


class Command(OperatorCommand):
    help = "Decide an approval, once. `showrun` lists a run's approvals with the verdicts that each allows."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("approval", type=int)
        parser.add_argument("verdict", choices=[str(verdict) for verdict in Verdict])
        parser.add_argument("--arguments", type=read_json, metavar="JSON", help="for edit: the call's new arguments")
        parser.add_argument("--answer", type=clean_text, default="", metavar="TEXT", help="for respond")
        parser.add_argument("--result", type=read_json, metavar="JSON", help="for happened and correct")
        parser.add_argument("--grant-usd", metavar="X", help="for grant: how many dollars more")
        parser.add_argument("--grant", metavar="N", help="for grant: how much more of what the card asks for")
        parser.add_argument("--comment", type=clean_text, default="", metavar="TEXT")
        parser.add_argument("--seen-version", type=int, metavar="N", help="refuse when the card has changed since")

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        arguments = clean_json(options["arguments"])
        if arguments is not None and not isinstance(arguments, dict):
            raise CommandError("--arguments must be a JSON object.", returncode=2)
        said = Said(
            verdict=Verdict(options["verdict"]),
            version=options["seen_version"],
            arguments=arguments,
            answer=options["answer"],
            result=clean_json(options["result"]),
            grant=self._read_grant(options),
            comment=options["comment"],
        )
        operations.decide(options["approval"], said, by=user)
        card = queries.find_approval(options["approval"], agents=access.visible_agents(user))
        if card is None:
            raise NotFound("approval", options["approval"])
        if as_json:
            self.answer(card)
        else:
            self.say(f"Approval {card.id} is {card.state} ({card.verdict}): {plain(card.title)}")

    def _read_grant(self, options: dict[str, Any]) -> dict[str, str] | None:
        if options["grant_usd"] is not None:
            return {"usd": options["grant_usd"]}
        if options["grant"] is None:
            return None
        evidence = Approval.objects.filter(pk=options["approval"]).values_list("evidence", flat=True).first()
        asked_for = evidence.get("dimension") if isinstance(evidence, dict) else None
        return {str(asked_for or "usd"): options["grant"]}
