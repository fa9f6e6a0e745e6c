"""What an agent decides on: built from the tables at every think, never from a transcript.

The stable part comes first (goal, constraints, inputs, the log of finished steps) so that a prompt cache can keep it; what
is only true now comes last (facts, work, notices, budget, time). Queries are a fixed number, whatever the run's size: the
first one says which of the others have an answer. What they read does not grow with the run either: what is folded is
kept, and read as it was written. A briefing that folded more than what is kept says so with one statement more.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from django.conf import settings

from runs import sql
from runs.agents import Briefing, Json, get_agents
from runs.engine import briefing_fold, briefing_kept, briefing_log, briefing_notices, briefing_now
from runs.engine.briefing_request import Part, Request, parts, request
from runs.states import Verdict

__all__ = ["Part", "Request", "Shares", "ask", "build", "parts", "request", "to_json"]

ask = briefing_now.ask_head


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How much of a briefing its growing parts may take, in tokens (four bytes each)."""

    log: int = 60_000
    facts: int = 30_000


def build(
    run: int,
    *,
    at: datetime | None = None,
    shares: Shares | None = None,
    keep: bool = True,
    asked: sql.Answer | None = None,
) -> Briefing:
    """Build the briefing of a run as of now, or as of a moment of the business clock.

    keep: store what was folded, so that the next briefing need not work it out again. asked: its first question, where
    that was asked before (`ask`) and nothing has changed since.

    Raises: LookupError, when there is no such run.
    """
    shares = shares or Shares(log=getattr(settings, "BRIEFING_LOG_TOKENS", Shares.log))
    head = briefing_now.read_head(asked or ask(run, at))
    effects = briefing_log.list_effects(get_agents().get(head.agent))
    rules = briefing_kept.name_rules(effects, shares.log * 4)
    kept = briefing_kept.read(head.kept[1]) if head.kept and head.kept[0] == rules else briefing_kept.NOTHING
    steps = briefing_log.read_steps(run, kept) if "finished" in head.holds else briefing_log.no_steps(kept)
    items = briefing_now.read_items(run, steps) if "items" in head.holds else []
    decided = briefing_notices.read_decisions(run, kept) if "cards" in head.holds else {}
    fold = briefing_fold.choose(steps, items, effects, share=shares.log * 4)
    if keep and fold.to_keep is not None:
        unsettled = briefing_notices.list_unsettled(steps, fold, effects, before=fold.to_keep.think)
        briefing_kept.write(run, replace(fold.to_keep, unsettled=unsettled), rules=rules, seq=head.seq)
    noticed = briefing_notices.choose_noticed(steps, fold, effects, decided)
    details = briefing_log.read_details(run, [*fold.live, *noticed])
    edited = frozenset(number for number, decision in decided.items() if decision.verdict == Verdict.EDIT)
    log = briefing_fold.write(fold, steps, details, effects, edited)
    return Briefing(
        run=head.id,
        uid=head.uid,
        goal=head.goal,
        constraints=head.constraints,
        inputs=head.inputs,
        log=log.lines,
        log_blocks=log.blocks,
        facts=briefing_now.read_facts(run, head.at, share=shares.facts * 4) if "facts" in head.holds else [],
        work=briefing_now.write_work(items, kept.items_left_out),
        notices=briefing_notices.write_notices(head, steps, details, noticed, effects, decided),
        budget=briefing_now.read_budget(head),
        now=briefing_now.write_now(head),
    )


def to_json(briefing: Briefing) -> dict[str, Json]:
    """A briefing as JSON, for the process in which an agent's own function decides."""
    return asdict(briefing)
