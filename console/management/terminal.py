"""Follow a run on a terminal: a line for each step, and a question for each card."""

import json
import select
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, TextIO

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from runs import access, operations, queries
from runs.agents import Json
from runs.approvals import Said
from runs.errors import LongwatchError, say_dimension
from runs.management.command import clip, plain
from runs.queries import ApprovalCard, JournalRow, RunDetail, StepRow, Window
from runs.states import RUN_FINAL, STEP_FINAL, ApprovalKind, ApprovalState, Verdict

LOOK_S = 0.3
_STEP_ENDED = {f"step.{state}" for state in STEP_FINAL} | {"step.in_doubt"}
# What is said of a run beside its steps; the journal has the rest.
_TOLD = {
    "run.paused": "paused",
    "run.resumed": "resumed",
    "run.held": "held",
    "fact.changed": "a fact changed",
    "fact.check_failed": "a fact could not be checked",
    "approval.decided": "decided",
    "approval.expired": "nobody decided in time",
    "approval.voided": "the approval does not stand any more",
}
# With --yes: what lets the run go on without a person who knows better.
_AGREES = {
    ApprovalKind.APPROVAL: Verdict.APPROVE,
    ApprovalKind.QUESTION: Verdict.RESPOND,
    ApprovalKind.BUDGET: Verdict.GRANT,
    ApprovalKind.FAILURE: Verdict.RETRY,
    ApprovalKind.ESCALATION: Verdict.APPROVE,
}


class Stopped(Exception):
    """Somebody asked for a stop."""


@dataclass(kw_only=True)
class Follower:
    """`keep` waits that many seconds and meanwhile looks after what has to be looked after."""

    run: int
    user: User
    say: Callable[[str], None]
    keep: Callable[[float], None]
    yes: bool
    terminal: TextIO
    _seen: int = field(default=0, init=False)

    def follow(self) -> RunDetail:
        """Tell what happens until the run has ended.

        Raises:
            CommandError: something has to be decided, and there is nobody here to ask.
            Stopped: a stop was asked for.
        """
        while True:
            run = self._read()
            self._tell_news()
            if run.state in RUN_FINAL:
                self._tell_news()
                return run
            for card in self._pending():
                self._decide(card)
            self.keep(LOOK_S)

    def _read(self) -> RunDetail:
        run = queries.find_run(self.run, agents=access.visible_agents(self.user))
        if run is None:
            raise CommandError(f"Run {self.run} is not there any more.")
        return run

    def _pending(self) -> list[ApprovalCard]:
        agents = access.visible_agents(self.user)
        return queries.list_approvals(Window(), agents=agents, states=[ApprovalState.PENDING], run=self.run).items

    def _tell_news(self) -> None:
        while True:
            page = queries.list_journal(self.run, Window(after=self._seen, limit=queries.MAX_PAGE))
            for entry in page.items:
                self._seen = entry.seq
                self._tell(entry)
            if page.next is None:
                return

    def _tell(self, entry: JournalRow) -> None:
        if entry.kind in _STEP_ENDED and entry.step is not None:
            if step := queries.find_step(self.run, entry.step):
                self.say(_write_step(step, entry))
        elif entry.kind == "step.waited" and entry.why:
            self.say(f"{entry.step:>4}  {'waits':<9} {clip(entry.why, 100)}")
        elif entry.kind in _TOLD:
            place = f"{entry.step:>4}" if entry.step else "    "
            what = _TOLD[entry.kind]
            if entry.kind == "approval.decided" and isinstance(entry.after, dict):
                what = f"{plain(entry.after.get('verdict'))} by {plain(entry.actor.removeprefix('person:'))}"
            self.say(f"{place}  {'':<9} {what}" + (f": {clip(entry.why, 100)}" if entry.why else ""))

    def _decide(self, card: ApprovalCard) -> None:
        said = self._agree(card) if self.yes else self._ask(card)
        if said is None:
            return
        try:
            operations.decide(card.id, said, by=self.user)
        except LongwatchError as error:
            self.say(f"      {plain(str(error))}")
            if self.yes:
                raise

    def _agree(self, card: ApprovalCard) -> Said:
        verdict = _AGREES.get(ApprovalKind(card.kind))
        if verdict is None or verdict not in card.verdicts:
            raise self._nobody_here(card)
        answer = str(card.options[0]) if card.options else "Use your own judgement."
        return Said(
            verdict=verdict,
            version=card.version,
            answer=answer if verdict == Verdict.RESPOND else "",
            grant=_grant_enough(card) if verdict == Verdict.GRANT else None,
            comment="rehearse --yes",
        )

    def _ask(self, card: ApprovalCard) -> Said | None:
        """Ask here; None when the card was closed elsewhere meanwhile."""
        if not self.terminal.isatty():
            raise self._nobody_here(card)
        for line in _write_card(card):
            self.say(line)
        while True:
            given = self._read_line(card, f"      {' / '.join(card.verdicts)}: ")
            if given is None:
                return None
            fitting = [verdict for verdict in card.verdicts if given and verdict.startswith(given.strip().lower())]
            if len(fitting) == 1:
                break
        verdict = Verdict(fitting[0])
        more = self._ask_more(card, verdict)
        return None if more is None else Said(verdict=verdict, version=card.version, **more)

    def _ask_more(self, card: ApprovalCard, verdict: Verdict) -> dict[str, Any] | None:
        """What the verdict needs beside itself."""
        match verdict:
            case Verdict.EDIT:
                arguments = self._ask_arguments(card)
                return None if arguments is None else {"arguments": arguments}
            case Verdict.RESPOND:
                answer = self._read_line(card, "      Answer: ")
                return None if answer is None else {"answer": answer}
            case Verdict.REJECT | Verdict.STOP:
                reason = self._read_line(card, "      Reason: ")
                return None if reason is None else {"comment": reason}
            case Verdict.HAPPENED | Verdict.CORRECT:
                result = self._read_line(card, "      Result (JSON or text): ")
                return None if result is None else {"result": _read_value(result)}
            case Verdict.GRANT:
                asked_for = _asked_for(card)
                more = self._read_line(card, f"      How much more, in {say_dimension(asked_for)}: ")
                return None if more is None else {"grant": {asked_for: more} if more else None}
        return {}

    def _ask_arguments(self, card: ApprovalCard) -> dict[str, Json] | None:
        arguments: dict[str, Json] = dict(card.arguments) if isinstance(card.arguments, dict) else {}
        for name, old in list(arguments.items()):
            given = self._read_line(card, f"      {plain(name)} [{clip(old, 60)}]: ")
            if given is None:
                return None
            if given:
                arguments[name] = given if isinstance(old, str) else _read_value(given)
        return arguments

    def _read_line(self, card: ApprovalCard, prompt: str) -> str | None:
        """A line of the terminal, while everything else goes on; None when the card was decided elsewhere."""
        print(prompt, end="", flush=True)
        while not select.select([self.terminal], [], [], 0)[0]:
            self.keep(LOOK_S)
            if card.id not in {pending.id for pending in self._pending()}:
                print()
                self._tell_news()
                return None
        line = self.terminal.readline()
        if not line:
            print()
            raise self._nobody_here(card)
        return line.strip()

    def _nobody_here(self, card: ApprovalCard) -> CommandError:
        return CommandError(
            f"Approval {card.id} waits for a person: {plain(card.title)}."
            f" Decide it: bin/manage decide {card.id} {card.verdicts[0]} --as USER. Or rehearse with --yes."
        )


def _asked_for(card: ApprovalCard) -> str:
    named = card.evidence.get("dimension") if isinstance(card.evidence, dict) else None
    return str(named or "usd")


def _grant_enough(card: ApprovalCard) -> dict[str, str]:
    """So much more that it does not ask again for some time."""
    evidence = card.evidence if isinstance(card.evidence, dict) else {}
    try:
        missing = Decimal(str(evidence.get("needed", 0)).replace(",", "")) * 10
    except InvalidOperation:
        missing = Decimal(0)
    if (asked_for := _asked_for(card)) == "usd":
        return {"usd": format(max(missing, Decimal("1.00")), "f")}
    return {asked_for: str(max(int(missing), 600 if asked_for == "working_s" else 20))}


def _write_step(step: StepRow, entry: JournalRow) -> str:
    what = plain(step.tool or step.kind)
    if step.kind == "think" and isinstance(step.result, dict):
        return f"{step.number:>4}  {step.state:<9} {what:<14} {clip(step.result.get('text') or '', 90)}"
    call = " ".join(f"{name} {clip(value, 40)}" for name, value in step.arguments.items() if value not in ("", None))
    came = f"  → {clip(step.error or entry.why, 80)}" if step.error else ""
    return f"{step.number:>4}  {step.state:<9} {what:<14} {clip(call, 90)}{came}"


def _write_card(card: ApprovalCard) -> list[str]:
    lines = [f"   ?  Approval {card.id}: {plain(card.title)}"]
    if card.why:
        lines.append(f"      Why      {plain(card.why)}")
    if card.because:
        lines.append(f"      Because  {plain(card.because)}")
    if isinstance(card.arguments, dict):
        lines += [f"      {plain(name):<8} {plain(value)}" for name, value in card.arguments.items()]
    for fact in card.facts:
        age = "no date" if fact.age_s is None else f"{fact.age_s:.0f} s old"
        lines.append(f"      Fact     {plain(fact.name)} is {fact.state} ({age}): {clip(fact.value, 70)}")
    if card.options:
        lines.append(f"      Options  {', '.join(plain(option) for option in card.options)}")
    return lines


def _read_value(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
