"""A card that asks a person, in words: what will run exactly, why it is asked, on what it rests, and what each button does."""

from dataclasses import dataclass
from datetime import datetime

from console.display.evidence import Evidence, show_evidence, show_subject
from console.display.figures import plural, write_ago, write_duration
from console.display.marks import APPROVAL, KIND, Mark
from console.display.outside import Shown, Text, shorten, show, show_title, show_value, write_brief
from console.display.waits import Until, say_on_expiry, say_until
from console.display.why import Answer
from runs.agents import Effect, Json, Tool
from runs.budgets import GRANTABLE
from runs.errors import say_dimension
from runs.queries import ApprovalCard
from runs.queries.credentials import Waiter
from runs.queries.inbox import CLAIM_S, CardExtras
from runs.queries.shapes import DecisionRow
from runs.states import ApprovalKind, ApprovalState, Verdict

TITLE_ON_BUTTON = 60


@dataclass(frozen=True, kw_only=True)
class Argument:
    """`brief`: in one line, where the value is long."""

    name: str
    value: Shown
    brief: str = ""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An answer that the agent offers: as it is sent, and as it is shown."""

    raw: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Made:
    """A decision that was made: by whom, when, with everything they said."""

    by: str
    word: str
    at: datetime
    said: str
    more: list[Argument]


@dataclass(frozen=True, kw_only=True)
class EarlierMade:
    href: str
    title: str
    word: str
    by: str
    said: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class TryLine:
    number: int
    words: str
    when: datetime
    took: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is different from the card that was asked before: old and new, side by side."""

    name: str
    old: Shown
    new: Shown


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What a person asked the agent about its call, and what it said."""

    by: str
    question: str
    answer: Shown | None


# What these ask is their title: where that is too long for a heading, it is shown in full below.
_ASKED_BY_TITLE = (ApprovalKind.QUESTION, ApprovalKind.ESCALATION)


@dataclass(frozen=True, kw_only=True)
class CardView:
    id: int
    version: int
    kind: str
    mark: Mark
    state: Mark
    pending: bool
    heading: Text
    asked: Shown | None
    tool: str
    run: int
    step: int | None
    agent: str
    tags: list[Mark]
    effect: str
    answers: list[Answer]
    arguments: list[Argument]
    hidden: int
    digest: str
    evidence: list[Evidence]
    evidence_title: str
    evidence_note: str
    moves_s: float | None
    what_title: str
    warning: str
    because: Shown | None
    options: list[Option]
    made: list[Made]
    earlier: list[EarlierMade]
    tries: list[TryLine]
    key: str
    needing: list[Waiter]
    notes: list[Argument]
    subject: Evidence | None
    approve_label: str
    verdicts: frozenset[str]
    until: Until | None
    overdue: bool
    held_until: datetime | None
    held_by: str
    claimed_by: str
    groups: list[str]
    changes: list[Change]
    replaces: int | None
    replaced_by: int | None
    talks: list[Talk]
    closed_note: str
    dimension: str = "usd"
    by_share: bool = False  # a budget card that only asks whether a step may take so much

    @property
    def dimension_name(self) -> str:
        return (
            f"{say_dimension(self.dimension)}, in seconds"
            if self.dimension == "working_s"
            else say_dimension(self.dimension)
        )

    @property
    def open(self) -> bool:
        """Whether there is still something to decide."""
        return self.pending and not self.overdue and self.held_until is None

    @property
    def template(self) -> str:
        return f"approvals/kinds/{self.kind}.html"


def show_card(card: ApprovalCard, extras: CardExtras, tool: Tool | None, *, may_recheck: bool) -> CardView:
    now = extras.now
    pending = card.state == ApprovalState.PENDING
    may_recheck = may_recheck and pending and not extras.run_ended
    until = say_until(card.expires_at, now) if card.expires_at else None
    heading = shorten(show_title(card.title))
    arguments = _arguments(card, tool)
    read_at = now if pending else None
    evidence = [
        show_evidence(shown, extras.facts.get(shown.name), may_recheck, read_at=read_at) for shown in card.facts
    ]
    # Only what is decided once more by a person: a fact card's own fact is its subject, not its evidence.
    subject = show_subject(extras.subject, may_recheck, read_at=read_at) if extras.subject else None
    return CardView(
        id=card.id,
        version=card.version,
        kind=card.kind,
        mark=KIND[card.kind],
        state=APPROVAL[card.state],
        pending=pending,
        heading=heading,
        asked=show_value(card.title) if heading.whole and card.kind in _ASKED_BY_TITLE else None,
        tool=show(card.tool),
        run=card.run,
        step=card.step,
        agent=card.agent,
        tags=_tags(card, tool),
        effect=_EFFECTS[tool.effect] if tool else "",
        answers=_answers(card, extras, until),
        arguments=arguments,
        hidden=sum(argument.value.hidden for argument in arguments),
        digest=card.digest[:16],
        evidence=evidence,
        evidence_title="Evidence, with its age" if pending else "Evidence, with its age then",
        evidence_note=_note_evidence(evidence),
        moves_s=min((fact.moves_s for fact in evidence if fact.moves_s is not None), default=None),
        what_title=_WHAT.get(card.state, "What was asked for"),
        warning=_warn(card, evidence),
        because=show_value(card.because) if card.because else None,
        options=[Option(raw=str(option), text=show(str(option))) for option in card.options],
        made=[_made(decision) for decision in card.decisions],
        earlier=[
            EarlierMade(
                href=f"/approvals/{made.approval}",
                title=show(made.title),
                word=say_verdict(made.verdict),
                by=show(made.by),
                said=show(made.comment),
                at=made.at,
            )
            for made in extras.earlier
        ],
        tries=_tries(extras, now),
        key=extras.key,
        needing=extras.needing,
        notes=_notes(card),
        subject=subject,
        approve_label=_label(card),
        verdicts=frozenset(card.verdicts),
        until=until if pending else None,
        overdue=pending and until is not None and until.past and card.effective_at is None,
        held_until=card.effective_at,
        held_by=card.decisions[-1].by if card.effective_at and card.decisions else "",
        claimed_by=card.claimed_by if pending and _is_claimed(card, now) else "",
        groups=card.groups,
        changes=[
            Change(
                name=_NAME_CHANGE[each.what].format(show(each.name)), old=show_value(each.old), new=show_value(each.new)
            )
            for each in card.changes
        ],
        replaces=card.replaces,
        replaced_by=card.replaced_by,
        talks=[
            Talk(
                by=show(each.by),
                question=show(each.question),
                answer=None if each.text is None else show_value(each.text),
            )
            for each in card.explained
        ],
        closed_note=_say_closed(card, now),
        dimension=_dimension(card),
        by_share=isinstance(card.evidence, dict) and "asked_above_percent" in card.evidence,
    )


def _is_claimed(card: ApprovalCard, now: datetime) -> bool:
    return card.claimed_at is not None and (now - card.claimed_at).total_seconds() < CLAIM_S


_NAME_CHANGE: dict[str, str] = {"argument": "{}", "fact": "fact {}", "tool": "what {} takes and does"}

_EFFECTS: dict[Effect, str] = {
    Effect.READ: "only reads",
    Effect.INTERNAL: "changes only Longwatch",
    Effect.IDEMPOTENT: "harmless to repeat",
    Effect.KEYED: "keyed: the receiver honours the key",
    Effect.CHECKABLE: "can be looked up at the receiver",
    Effect.ONCE: "can neither be repeated nor looked up",
}

_WHAT: dict[str, str] = {
    ApprovalState.PENDING: "What will run, exactly",
    ApprovalState.APPROVED: "What runs, exactly",
    ApprovalState.CONSUMED: "What was let run, exactly",
}

_VERDICTS: dict[str, str] = {
    Verdict.APPROVE: "approved",
    Verdict.EDIT: "approved with changes",
    Verdict.REJECT: "rejected",
    Verdict.RESPOND: "answered",
    Verdict.EXPLAIN: "asked for more",
    Verdict.HAPPENED: "it happened",
    Verdict.DID_NOT_HAPPEN: "it did not happen",
    Verdict.GRANT: "granted more",
    Verdict.FINISH: "told to finish",
    Verdict.CONFIRM: "confirmed",
    Verdict.CORRECT: "corrected",
    Verdict.RENEWED: "renewed",
    Verdict.RETRY: "told to try again",
    Verdict.STOP: "stopped the run",
    Verdict.UNDO: "took it back",
}


def say_verdict(verdict: str) -> str:
    return _VERDICTS.get(verdict, verdict)


def _label(card: ApprovalCard) -> str:
    """The button says its effect."""
    title = show(card.title)
    return f"Approve {title}" if len(title) <= TITLE_ON_BUTTON else f"Approve this {show(card.tool) or 'once'}"


def _tags(card: ApprovalCard, tool: Tool | None) -> list[Mark]:
    tags = []
    if tool is not None and tool.irreversible:
        tags.append(Mark(word="irreversible", css="line"))
    if card.tool and tool is None and card.kind == ApprovalKind.APPROVAL:
        tags.append(Mark(word=f"{show(card.tool)} is not deployed here", icon="migration", css="danger"))
    return tags


def _answers(card: ApprovalCard, extras: CardExtras, until: Until | None) -> list[Answer]:
    answers, now = [], extras.now
    if card.why and show(card.why) not in show(card.title):
        answers.append(Answer(label="Why a person", words=show(card.why)))
    if card.state != ApprovalState.PENDING:
        closed = card.closed_at or card.created_at
        answers.append(Answer(label="Asked", at=card.created_at, since=card.created_at, words="ago"))
        answers.append(Answer(label="Closed after", words=write_ago(card.created_at, closed)))
        return answers
    whom = f"one of {', '.join(map(show, card.groups))}" if card.groups else "anyone who may decide"
    answers.append(Answer(label="Waiting", since=card.created_at, words=f"for {whom}"))
    if card.needed > 1:
        given = f"; {', '.join(map(show, card.approved_by))} approved" if card.approved_by else ""
        left = card.needed - len(card.approved_by)
        answers.append(Answer(label="Takes", words=f"{card.needed} different people{given}; {left} more"))
    if until is None:
        answers.append(Answer(label="Expires", words="no time limit"))
        answers.append(Answer(label="Then", words="nothing: it waits until someone decides"))
    else:
        answers.append(Answer(label="Expires", at=until.at, until=until.at, css="is-person" if until.soon else ""))
        then = say_on_expiry(card.on_expiry, card.kind)
        if card.on_expiry == "escalate":
            then = f"it goes to {', '.join(map(show, card.escalate_to))}; nothing runs until someone decides"
        answers.append(Answer(label="Then", words=then))
    answers.append(Answer(label="While it waits", words=_say_behind(extras, now)))
    return answers


def _say_behind(extras: CardExtras, now: datetime) -> str:
    """What waiting costs."""
    behind, said = extras.behind, ["nothing is spent"]
    if behind.steps:
        said.append(
            f"{plural(behind.steps, 'other step')} of the run {'waits' if behind.steps == 1 else 'wait'} as well"
        )
    if behind.runs:
        said.append(f"{plural(behind.runs, 'run')} above it {'waits' if behind.runs == 1 else 'wait'} for its outcome")
    if behind.must_end_at is not None:
        said.append(f"the run has to end {say_until(behind.must_end_at, now).left}")
    return "; ".join(said)


def _arguments(card: ApprovalCard, tool: Tool | None) -> list[Argument]:
    """Every argument, complete; in the order of the tool's signature, which the database does not keep."""
    if not isinstance(card.arguments, dict):
        return []
    order = list(tool.arguments.model_fields) if tool else []
    names = sorted(card.arguments, key=lambda name: order.index(name) if name in order else len(order))
    return [Argument(name=show(name), value=show_value(card.arguments[name])) for name in names]


def _note_evidence(evidence: list[Evidence]) -> str:
    if not evidence:
        return "it rests on no fact"
    hot = sum(fact.hot for fact in evidence)
    return f"{plural(len(evidence), 'fact')}, {f'{hot} not fresh' if hot else 'all fresh'}"


def _warn(card: ApprovalCard, evidence: list[Evidence]) -> str:
    """What an approver has to know about the facts before they press the button."""
    if card.kind != ApprovalKind.APPROVAL or card.state != ApprovalState.PENDING:
        return ""
    if changed := [fact.name for fact in evidence if fact.now_value is not None or fact.id is None]:
        names = ", ".join(changed)
        return f"{names} changed since this was asked: an approval would not be used, and you would be asked again."
    if hot := [fact.name for fact in evidence if fact.hot]:
        them = "it" if len(hot) == 1 else "they"
        return (
            f"{', '.join(hot)} {'is' if len(hot) == 1 else 'are'} checked again right before the call. If {them} changed, "
            "this approval is void, nothing runs, and you are asked again."
        )
    return ""


def _made(decision: DecisionRow) -> Made:
    more = []
    if isinstance(decision.arguments, dict):
        more += [Argument(name=show(name), value=show_value(value)) for name, value in decision.arguments.items()]
    if decision.result is not None:
        more.append(Argument(name="result", value=show_value(decision.result)))
    if decision.grant is not None:
        more.append(Argument(name="grant", value=show_value(decision.grant)))
    return Made(
        by=show(decision.by),
        word=say_verdict(decision.verdict),
        at=decision.at,
        said=show(decision.answer or decision.comment),
        more=more,
    )


_OUTCOMES: dict[str, str] = {
    "open": "under way",
    "done": "done",
    "failed": "failed, and certainly did nothing",
    "refused": "refused by the receiver",
    "not_begun": "gave up before anything was sent",
    "unknown": "sent; no answer that says what came of it",
    "lost": "lost: its lease ran out",
    "dead": "its process died",
    "cut": "cut by a stop or a hold",
    "disproved": "settled: it did nothing",
    "proved": "settled: it happened",
}


def say_outcome(outcome: str) -> str:
    return _OUTCOMES.get(outcome, outcome)


def _tries(extras: CardExtras, now: datetime) -> list[TryLine]:
    lines = []
    for made in extras.tries:
        begun = "began to send" if made.began_at else "never began to send"
        signal = f", killed by signal {made.exit_signal}" if made.exit_signal else ""
        lines.append(
            TryLine(
                number=made.number,
                words=f"{begun}; {say_outcome(made.outcome)}{signal}",
                when=made.began_at or made.taken_at,
                took=write_duration(((made.ended_at or now) - made.taken_at).total_seconds()),
                error=show(made.error),
            )
        )
    return lines


def _notes(card: ApprovalCard) -> list[Argument]:
    """What the runtime wrote beside a card, except what is shown better elsewhere."""
    if not isinstance(card.evidence, dict):
        return [] if card.evidence is None else [Argument(name="evidence", value=show_value(card.evidence))]
    if card.kind == ApprovalKind.BUDGET:
        return [
            Argument(name=told, value=show_value(card.evidence[name]), brief=write_brief(card.evidence[name]))
            for name, told in _BUDGET_NOTES.items()
            if card.evidence.get(name) is not None
        ]
    established = card.evidence.get("established")
    known = card.evidence | (established if isinstance(established, dict) else {})
    return [
        Argument(name=name.replace("_", " "), value=show_value(_by_line(value)), brief=write_brief(value))
        for name, value in known.items()
        if name not in ("tries", "key", "established") and value is not None
    ]


def _by_line(value: Json) -> Json:
    """A list of texts as one line each, without the signs of JSON around them."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "\n".join(map(str, value))
    return value


# In the order in which a person weighs them.
_BUDGET_NOTES: dict[str, str] = {
    "model": "model without a price",
    "run": "whose limit it is: run",
    "dimension": "of what",
    "limit": "limit",
    "spent": "spent",
    "reserved": "reserved for what is under way",
    "left": "left",
    "needed": "the next step takes at most",
    "asked_above_percent": "asked about above, in percent of the limit",
    "next_call_usd_at_most": "the next model call, USD at most",
    "prompt_usd_if_cached": "its prompt, USD, if it goes on at once",
    "prompt_usd_after_a_pause": "its prompt, USD, after a pause (cold cache)",
    "usd_per_hour": "so far, USD per hour",
    "usd_per_model_call": "so far, USD per model call",
    "tokens_per_hour": "so far, tokens per hour",
    "calls_per_hour": "so far, model calls per hour",
    "effects_per_hour": "so far, effects per hour",
    "steps_per_hour": "so far, steps per hour",
}


def _dimension(card: ApprovalCard) -> str:
    named = card.evidence.get("dimension") if isinstance(card.evidence, dict) else None
    return named if isinstance(named, str) and named in GRANTABLE else "usd"


def _say_closed(card: ApprovalCard, now: datetime) -> str:
    """Who decided what and when, or what else became of it."""
    if card.state == ApprovalState.PENDING:
        if card.effective_at is None or not card.decisions:
            return ""
        last = card.decisions[-1]
        left = max((card.effective_at - now).total_seconds(), 0.0)
        return f"{show(last.by)} {say_verdict(last.verdict)} it; it takes effect in {write_duration(left)}."
    when = f"{write_ago(card.closed_at, now)} ago" if card.closed_at else ""
    if card.decisions and card.state != ApprovalState.VOID:
        last = card.decisions[-1]
        used = ", and used" if card.state == ApprovalState.CONSUMED else ""
        return f"{show(last.by)} {say_verdict(last.verdict)} {write_ago(last.at, now)} ago{used}."
    if card.state == ApprovalState.EXPIRED:
        return f"Expired {when}: nobody decided in time. Nothing ran."
    because = f": {show(card.closed_because).removesuffix('.')}" if card.closed_because else ""
    return f"Void {when}{because}. Nothing ran by it."
