"""The card that answers first: why a run is not moving, on whom it waits, since when, until when, and what happens then."""

from dataclasses import dataclass
from datetime import datetime

from console.display.figures import plural, write_ago, write_duration, write_limit
from console.display.journal import write_actor
from console.display.marks import WAITING, mark_run
from console.display.outside import SENTENCE, Text, shorten, show
from console.display.waits import say_and_then, say_until, say_whom
from runs.queries import RunDetail
from runs.queries.runpage import OpenCard, RunExtras
from runs.states import RUN_FINAL, WAITS_ON_PEOPLE, ApprovalKind, RunState, WaitingFor


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One of the answers under the sentence, in this order: the moment that it names, in bold; how long until then or
    since then, which goes on by itself; the words."""

    label: str
    words: str = ""
    at: datetime | None = None
    until: datetime | None = None
    since: datetime | None = None
    css: str = ""

    @property
    def text(self) -> Text:
        return shorten(self.words)

    @property
    def whole_id(self) -> str:
        return f"whole-{self.label.lower().replace(' ', '-')}"


@dataclass(frozen=True, kw_only=True)
class Link:
    label: str
    href: str
    primary: bool = False


@dataclass(frozen=True, kw_only=True)
class Why:
    tone: str
    icon: str
    sentence: str
    answers: list[Answer]
    link: Link | None = None

    @property
    def text(self) -> Text:
        return shorten(self.sentence, SENTENCE)


def explain(run: RunDetail, extras: RunExtras, *, may_decide: bool) -> Why:
    now = extras.now
    if run.state in RUN_FINAL:
        return _explain_end(run, extras)
    if run.paused is not None:
        return Why(
            tone="calm",
            icon="paused",
            sentence=show(run.why),
            answers=[
                Answer(label="On whom", words="whoever resumes it"),
                Answer(label="Paused", since=run.paused.at, words="ago"),
                Answer(label="By", words=write_actor(extras.acted_by)),
                _end_of_life(run, now),
                Answer(
                    label="And then",
                    words="it expires, paused or not" if run.expires_at else "nothing: it stays paused",
                ),
            ],
        )
    # What waits is held only when it would go on: until then it is the wait that somebody can end.
    if run.state == RunState.WAITING and not (run.held and run.held[0].since):
        return _explain_wait(run, extras, may_decide)
    if run.held:
        since = run.held[0].since
        return Why(
            tone="danger",
            icon="switch",
            sentence=f"The switch for {_scope(run.held[0].by)} holds this run: {show(run.held[0].reason)}",
            answers=[
                Answer(label="On whom", words="an operator who releases it"),
                Answer(label="Held", since=since, words="" if since else "as soon as it would go on"),
                Answer(label="Until", words="it is released"),
                Answer(label="And then", words="it goes on by itself"),
            ],
        )
    return _explain_move(run, extras)


def _explain_end(run: RunDetail, extras: RunExtras) -> Why:
    mark = mark_run(state=run.state, undrained=bool(run.in_flight) or any(below.in_flight for below in run.descendants))
    took = write_ago(run.created_at, run.ended_at) if run.ended_at else ""
    answers = [Answer(label="Ended", since=run.ended_at, words="ago" if run.ended_at else "now")]
    answers.append(Answer(label="After", words=took))
    if extras.acted_by.startswith("person:"):
        answers.append(Answer(label="By", words=write_actor(extras.acted_by)))
    if run.state == RunState.EXPIRED:
        answers.append(_name_limit(run))
    if run.in_flight:
        calls = ", ".join(f"step {i.step} {show(i.tool) or i.kind}" for i in run.in_flight[:3] if i.behind is None)
        answers.append(Answer(label="Still under way", words=calls, css="is-danger"))
        answers.append(Answer(label="And then", words="its result is recorded; it changes nothing of the run"))
    elif run.counts.keys_in_doubt:
        answers.append(Answer(label="In doubt", words=plural(run.counts.keys_in_doubt, "effect"), css="is-unknown"))
    if run.state == RunState.SUCCEEDED:
        tone, sentence = "calm", _say_outcome(run)
        answers.append(Answer(label="Checked outside", words=_CHECKED.get(run.verified, run.verified)))
    else:
        tone, sentence = "danger", f"{mark.word}: {show(run.end_reason or run.state)}"
    return Why(tone=tone, icon=mark.icon, sentence=sentence, answers=answers)


def _name_limit(run: RunDetail) -> Answer:
    """The limit that ended it: the earlier of the two."""
    if run.deadline_at is not None and (run.expires_at is None or run.deadline_at < run.expires_at):
        return Answer(label="Its deadline", at=run.deadline_at)
    age = (run.expires_at - run.created_at).total_seconds() if run.expires_at else 0.0
    return Answer(label="Its max age", words=write_limit(round(age)))


_CHECKED = {
    "verified": "yes, and it holds",
    "claimed_not_verified": "no, it is only claimed",
    "claimed_refuted": "yes, and it does not hold",
    "unclaimed": "no",
}


def _say_outcome(run: RunDetail) -> str:
    outcome = run.outcome
    said = outcome.get("outcome") if isinstance(outcome, dict) else outcome
    return show(said) if isinstance(said, str) and said else show(run.why)


def _explain_wait(run: RunDetail, extras: RunExtras, may_decide: bool) -> Why:
    now, kind = extras.now, WAITING.get(run.waiting_for)
    wait = next((w for w in run.waits if w.waiting_for == run.waiting_for), None)
    card = _card_of(extras, wait.approval if wait else None)
    limited = card if card and card.expires_at else None
    until = limited.expires_at if limited else wait.until if wait else run.due_at
    since = card.created_at if card else run.changed_at
    and_then = say_and_then(
        and_then=wait.and_then if wait else "",
        on_expiry=limited.on_expiry if limited else "",
        kind=card.kind if card else "",
        waiting_for=run.waiting_for,
    )
    answers = [
        Answer(label="On whom", words=say_whom(wait.on if wait else "", run.waiting_for)),
        Answer(label="Waiting", since=since),
        _say_end(until, now, person=limited is not None),
        Answer(label="And then", words=and_then),
    ]
    if run.held:
        by = f"the switch for {_scope(run.held[0].by)}: {show(run.held[0].reason)}"
        answers.append(Answer(label="Then held by", words=by, css="is-danger"))
    people = run.waiting_for in WAITS_ON_PEOPLE
    held = wait is not None and wait.on.startswith("switch.")
    return Why(
        tone="danger" if held else "unknown" if run.waiting_for == WaitingFor.VERDICT else "" if people else "calm",
        icon="switch" if held else kind.icon if kind else "waiting",
        sentence=_say_card(card) if card else show(run.why),
        answers=answers,
        link=_link_to(card, may_decide) if card else None,
    )


def _card_of(extras: RunExtras, number: int | None) -> OpenCard | None:
    return next((card for card in extras.cards if card.id == number), None)


def _say_card(card: OpenCard) -> str:
    title, why = show(card.title), show(card.why)
    step = f"Step {card.step}" if card.step else "It"
    match card.kind:
        case ApprovalKind.APPROVAL:
            return f"{step} needs an approval for {title}: {why}"
        case ApprovalKind.QUESTION:
            return f"{step} asks: “{title}”"
        case ApprovalKind.VERDICT:
            return f"{step} may have happened. Nobody but a person can find out. {title}"
    return f"{title}: {why}" if why and why not in title else title


def _link_to(card: OpenCard, may_decide: bool) -> Link:
    label = _REVIEW[card.kind] if may_decide else "See the card"
    return Link(label=label, href=f"/approvals/{card.id}", primary=may_decide)


_REVIEW: dict[str, str] = {
    ApprovalKind.APPROVAL: "Review the approval",
    ApprovalKind.QUESTION: "Answer",
    ApprovalKind.VERDICT: "Decide",
    ApprovalKind.FAILURE: "Look at the failure",
    ApprovalKind.BUDGET: "Grant more…",
    ApprovalKind.FACT: "Look at the fact",
    ApprovalKind.CREDENTIAL: "Look at the credential",
    ApprovalKind.ESCALATION: "Review the escalation",
}


def _explain_move(run: RunDetail, extras: RunExtras) -> Why:
    now = extras.now
    if not run.in_flight:
        overdue = (now - run.due_at).total_seconds() if run.due_at else 0.0
        late = overdue > 60 and run.state != RunState.RUNNING
        words = {"queued": "a free worker", "thinking": "the gateway"}.get(run.state, extras.holder or "a worker")
        return Why(
            tone="danger" if late else "moving",
            icon=run.state,
            sentence=f"{show(run.why)} Nobody has taken it for {write_duration(overdue)}." if late else show(run.why),
            answers=[Answer(label="On whom", words=words), Answer(label="Since", since=run.changed_at)],
        )
    flight = run.in_flight[0]
    since = flight.began_at or flight.taken_at
    answers = [
        Answer(
            label="On whom", words=extras.holder or ("the gateway" if run.state == RunState.THINKING else "a worker")
        ),
        Answer(label="Under way" if flight.began_at else "Taken", since=since),
        Answer(label="At most", words=write_duration(flight.timeout_s)),
        Answer(label="And then", words="it is tried again, or looked up" if flight.tool else "it is called again"),
    ]
    if flight.progress is not None:
        answers.append(Answer(label="It says", words=show(str(flight.progress))[:200]))
    return Why(tone="moving", icon=run.state, sentence=show(run.why), answers=answers)


def _say_end(until: datetime | None, now: datetime, *, person: bool) -> Answer:
    if until is None:
        return Answer(label="Until", words="no time limit")
    end = say_until(until, now)
    return Answer(label="Until", at=until, until=until, css="is-person" if person and end.soon else "")


def _end_of_life(run: RunDetail, now: datetime) -> Answer:
    end = min((at for at in (run.expires_at, run.deadline_at) if at is not None), default=None)
    return _say_end(end, now, person=False)


def _scope(scope: str) -> str:
    return "everything" if scope == "all" else show(scope.replace(":", " ", 1))
