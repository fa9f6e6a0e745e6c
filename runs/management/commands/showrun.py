"""`manage.py showrun ID`: why a run is where it is, and what it did."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from runs import access, queries
from runs.management.command import OperatorCommand, clip, plain, read_run
from runs.queries import (
    ApprovalCard,
    FactRow,
    JournalRow,
    KeyRow,
    Page,
    RunDetail,
    StepRow,
    Window,
    WorkRow,
    write_money,
)

# More than a terminal is read for; --json and the API have everything.
SHOWN = 200
LAST_ENTRIES = 30


class Command(OperatorCommand):
    help = "Show why a run is where it is, then its steps, facts, keys, budget, approvals and journal."

    def add_own(self, parser: CommandParser) -> None:
        parser.add_argument("run", type=int)

    def act(self, user: User, *, as_json: bool, **options: Any) -> None:
        run = read_run(user, options["run"])
        if as_json:
            self.answer(run)
            return
        window = Window(limit=SHOWN)
        self._say_head(run)
        self._say_list("Steps", queries.list_steps(run.id, window), _write_step)
        self._say_list("Facts", queries.list_facts(run.id, window), _write_fact)
        self._say_list("Keys", queries.list_keys(run.id, window), _write_key)
        self._say_budget(run)
        cards = queries.list_approvals(window, agents=access.visible_agents(user), run=run.id)
        self._say_list("Approvals", cards, _write_card)
        self._say_list("Work", queries.list_work(run.id, window), _write_item)
        last = Window(after=max(run.counts.journal - LAST_ENTRIES, 0), limit=SHOWN)
        self._say_list("Journal", queries.list_journal(run.id, last), _write_entry)

    def _say_head(self, run: RunDetail) -> None:
        waiting = f" for {run.waiting_for}" if run.waiting_for else ""
        self.say(f"Run {run.id} of {plain(run.agent)} is {run.state}{waiting}")
        self.say(f"  Why       {plain(run.why)}")
        for hold in run.held:
            self.say(f"  Held      by the switch {plain(hold.by)}: {plain(hold.reason)}")
        for wait in run.waits:
            on = f" on {plain(wait.on)}" if wait.on else ""
            until = f", until {_time(wait.until)}" if wait.until else ""
            then = f", then: {plain(wait.and_then)}" if wait.and_then else ""
            card = f" (approval {wait.approval})" if wait.approval else ""
            self.say(f"  Waits     step {wait.step} {plain(wait.tool)} for {wait.waiting_for}{on}{until}{then}{card}")
        for flight in run.in_flight:
            sent = f"sent {_time(flight.began_at)}" if flight.began_at else "nothing sent yet"
            if flight.behind is not None:
                sent = f"taken, behind step {flight.behind}"
            self.say(
                f"  Under way step {flight.step} {plain(flight.tool or flight.kind)}: try {flight.attempt}, {sent}"
            )
        self.say(f"  Goal      {plain(run.goal)}")
        for constraint in run.constraints:
            self.say(f"  Must      {plain(constraint)}")
        if run.outcome is not None:
            self.say(f"  Outcome   {plain(run.outcome)} ({run.verified})")
        started = f" by {plain(run.started_by)}" if run.started_by else ""
        self.say(f"  Started   {_time(run.created_at)}{started}; expires {_time(run.expires_at)}")
        clocks = run.clocks
        self.say(
            f"  Clocks    working {clocks.working_s:.0f} s, queued {clocks.queued_s:.0f} s, on people"
            f" {clocks.people_s:.0f} s, on the world {clocks.world_s:.0f} s, held {clocks.held_s:.0f} s"
        )

    def _say_budget(self, run: RunDetail) -> None:
        budget = run.budget
        self.say("Budget")
        limit = "no limit" if budget.limits.usd is None else f"limit ${write_money(budget.limits.usd)}"
        spent, reserved = write_money(budget.spent.usd), write_money(budget.reserved.usd)
        self.say(f"  usd      ${spent} spent, ${reserved} reserved, {limit}")
        for name in ("tokens", "calls", "effects", "steps"):
            most = getattr(budget.limits, name)
            of = "no limit" if most is None else f"limit {most:,}"
            self.say(
                f"  {name:<8} {getattr(budget.spent, name):,} spent, {getattr(budget.reserved, name):,} reserved, {of}"
            )

    def _say_list[T](self, name: str, page: Page[T], write: Callable[[T], str]) -> None:
        if not page.items:
            return
        self.say(name)
        for item in page.items:
            self.say(f"  {write(item)}")
        if page.next:
            self.say("  … and more: see --json and the API")


def _write_step(step: StepRow) -> str:
    what = plain(step.tool or step.kind)
    call = f" {clip(step.arguments, 60)}" if step.arguments else ""
    came = step.error or (step.wait_note if step.waiting_for else "") or ("" if step.result is None else step.result)
    return f"{step.number:>4}  {step.state:<9} {what}{call}" + (f"  → {clip(came, 70)}" if came else "")


def _write_fact(fact: FactRow) -> str:
    age = "no date" if fact.age_s is None else f"{fact.age_s:.0f} s old"
    return f"{fact.state:<12} {plain(fact.name)} = {clip(fact.value, 60)}  ({age}, limit {fact.max_age_s:.0f} s)"


def _write_key(key: KeyRow) -> str:
    replays = f", {key.replays} replays" if key.replays else ""
    return f"{key.state:<8} {plain(key.tool)} {clip(key.identity, 60)}  ({key.attempts} tries{replays})  {key.key}"


def _write_card(card: ApprovalCard) -> str:
    allowed = f"  allows {', '.join(card.verdicts)}" if card.verdicts else ""
    expires = f"  expires {_time(card.expires_at)}" if card.verdicts and card.expires_at else ""
    return f"{card.id:>4}  {card.state:<9} {card.kind}: {clip(card.title, 80)}{expires}{allowed}"


def _write_item(item: WorkRow) -> str:
    return f"{item.item:<4} {item.state:<8} {clip(item.title, 80)}" + (
        f"  → {clip(item.outcome, 60)}" if item.outcome else ""
    )


def _write_entry(entry: JournalRow) -> str:
    step = f" step {entry.step}" if entry.step else ""
    why = f"  {clip(entry.why, 80)}" if entry.why else ""
    return f"{entry.seq:>5}  {_time(entry.at)}  {plain(entry.kind)}{step} by {plain(entry.actor)}{why}"


def _time(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else "never"
