"""A run's page in words and figures: header, clocks, limits, what is outstanding, and what it was started with."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from console.display.figures import (
    percent,
    plural,
    write_ago,
    write_clock,
    write_count,
    write_duration,
    write_limit,
    write_usd,
)
from console.display.marks import KIND, VERIFIED, WAITING, Mark, mark_run
from console.display.outside import SENTENCE, Shown, Text, shorten, show, show_value, write_brief
from console.display.waits import Until, say_until, say_whom
from console.display.why import Answer, Why, explain
from runs.queries import RunDetail
from runs.queries.runpage import RunExtras
from runs.states import RUN_FINAL, WaitingFor

HIGH = 90
MOST_WAITS = 10


@dataclass(frozen=True, kw_only=True)
class Clock:
    """`running`: it goes on from so many seconds."""

    name: str
    css: str
    took: str
    seconds: float
    running: bool
    x: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit: figures in text, and the parts of its gauge in percent. Without a limit there is no gauge."""

    name: str
    used: str
    of: str
    note: str
    has_limit: bool
    spent: float = 0.0
    estimated: float = 0.0
    reserved: float = 0.0
    css: str = "spent"

    @property
    def used_x(self) -> float:
        """Where what is reserved begins."""
        return round(self.spent + self.estimated, 2)


@dataclass(frozen=True, kw_only=True)
class Todo:
    icon: str
    css: str
    title: str
    href: str
    note: str
    urgent: str = ""


@dataclass(frozen=True, kw_only=True)
class Amendment:
    text: Text
    by: str
    at: datetime

    @property
    def whole_id(self) -> str:
        return f"whole-amended-{self.at:%Y%m%d%H%M%S%f}"


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """`amended`: the newest amendment, which wins; `amended_before`: the others, oldest first."""

    id: int
    title: Text
    amended: Amendment | None
    amended_before: list[Amendment]
    agent: str
    pill: Mark
    tags: list[Mark]
    why: Why
    clocks: list[Clock]
    clocks_label: str
    age: str
    age_s: float
    max_age: str
    todo: list[Todo]
    limits: list[Limit]
    ended: bool
    may_stop: bool
    may_limit: bool
    paused: bool
    settled: bool
    stop_says: list[str]
    end: Answer | None


def show_head(
    run: RunDetail, extras: RunExtras, *, may_stop: bool, may_decide: bool, may_limit: bool = False
) -> RunHead:
    ended = run.state in RUN_FINAL
    mark = mark_run(
        state=run.state,
        waiting_for=run.waiting_for,
        paused=run.paused is not None,
        held=bool(run.held) or any(w.on.startswith("switch.") for w in run.waits if w.waiting_for == run.waiting_for),
        undrained=bool(run.in_flight) or any(below.in_flight for below in run.descendants),
    )
    why = explain(run, extras, may_decide=may_decide)
    clocks = _clocks(run)
    amendments = [
        Amendment(text=shorten(show(a.text)), by=show(a.by) or "the runtime", at=a.at) for a in extras.amendments
    ]
    return RunHead(
        id=run.id,
        title=shorten(show(run.goal)),
        amended=amendments[-1] if amendments else None,
        amended_before=amendments[:-1],
        agent=run.agent,
        pill=Mark(word=_long_word(run, mark), icon=mark.icon, css=mark.css),
        tags=_tags(run),
        why=why,
        clocks=clocks,
        clocks_label=", ".join(f"{clock.name.lower()} {clock.took}" for clock in clocks),
        age=write_clock(age_s := sum(seconds for _, _, seconds, _ in _clock_parts(run))),
        age_s=age_s,
        max_age=_max_age(run),
        todo=_todo(run, extras),
        limits=_limits(run, extras),
        ended=ended,
        may_stop=may_stop and not ended,
        may_limit=may_limit and not ended,
        paused=run.paused is not None,
        settled=ended and not run.in_flight,
        stop_says=_say_stop(run),
        end=next((a for a in why.answers if a.until is not None), None),
    )


def _say_stop(run: RunDetail) -> list[str]:
    """What pressing the button does, to this run as it is."""
    says = [
        "The run"
        + (f" and the {plural(run.counts.children, 'run')} it started" if run.counts.children else "")
        + " ends as stopped; this can’t be undone"
    ]
    calls = [flight for flight in run.in_flight if flight.tool and flight.behind is None]
    if calls:
        says.append(
            f"{plural(len(calls), 'call')} under way: it is asked to give up, then killed; what it did is still recorded"
        )
    elif run.in_flight:
        says.append("The model call under way is cut at once")
    if run.counts.work_open:
        says.append(
            f"{plural(run.counts.work_open, 'work item')} stay{'s' if run.counts.work_open == 1 else ''} open, as recorded"
        )
    if run.counts.approvals_pending:
        says.append("Cards that wait for a decision become void")
    return says


def _long_word(run: RunDetail, mark: Mark) -> str:
    if mark.word == "Waiting" and run.waiting_for in WAITING:
        return f"Waiting for {WAITING[run.waiting_for].word}"
    return mark.word


def _tags(run: RunDetail) -> list[Mark]:
    tags = []
    if run.in_flight and run.state in RUN_FINAL:
        tags.append(Mark(word=f"{plural(len(run.in_flight), 'call')} in flight", css="danger"))
    if run.state in RUN_FINAL and run.verified in VERIFIED:
        tags.append(VERIFIED[run.verified])
    if run.state not in RUN_FINAL and run.counts.facts_stale:
        tags.append(Mark(word=f"{plural(run.counts.facts_stale, 'fact')} not fresh", icon="stale", css="person"))
    if run.counts.keys_in_doubt and run.waiting_for != WaitingFor.VERDICT:
        tags.append(Mark(word=f"{plural(run.counts.keys_in_doubt, 'effect')} in doubt", icon="doubt", css="unknown"))
    return tags


def _age(run: RunDetail, now: datetime) -> float:
    return max(((run.ended_at or now) - run.created_at).total_seconds(), 0.0)


def _max_age(run: RunDetail) -> str:
    return write_limit(round((run.expires_at - run.created_at).total_seconds())) if run.expires_at else ""


def _clock_parts(run: RunDetail) -> list[tuple[str, str, float, bool]]:
    return [
        (word, css, getattr(run.clocks, name), run.clocks.running == name)
        for word, css, name in (
            ("Working", "a", "working_s"),
            ("Queued", "b", "queued_s"),
            ("On the world", "c", "world_s"),
            ("On people", "d", "people_s"),
            ("Paused or held", "e", "held_s"),
        )
    ]


def _clocks(run: RunDetail) -> list[Clock]:
    parts = _clock_parts(run)
    whole = sum(seconds for _, _, seconds, _ in parts)
    clocks, before = [], 0.0
    for name, css, seconds, running in parts:
        # Whole seconds between two whole moments, so that the five add up to the age that stands beside them.
        took = write_clock(int(before + seconds) - int(before))
        x = percent(before, whole)
        width = round(percent(before + seconds, whole) - x, 2)
        clocks.append(
            Clock(
                name=name,
                css=css,
                took=took,
                seconds=int(before + seconds) - int(before),
                running=running,
                x=x,
                width=width,
            )
        )
        before += seconds
    return clocks


def _limits(run: RunDetail, extras: RunExtras) -> list[Limit]:
    budget = run.budget
    limits, spent, reserved = budget.limits, budget.spent, budget.reserved
    found = [
        _limit(
            "Money",
            write_usd,
            spent.usd,
            limits.usd,
            reserved.usd,
            extras.estimated_usd,
            over=budget.overrun.usd,
            unpriced=extras.unpriced,
        ),
        _limit(
            "Tokens",
            write_count,
            spent.tokens,
            limits.tokens,
            reserved.tokens,
            extras.estimated_tokens,
            over=budget.overrun.tokens,
        ),
        _limit("Steps", write_count, spent.steps, limits.steps, reserved.steps),
        _limit("Model calls", write_count, spent.calls, limits.calls, reserved.calls),
        _limit("Effects", write_count, spent.effects, limits.effects, reserved.effects),
        _limit("Working time", write_duration, spent.working_s, limits.working_s),
        _limit_age(run, extras.now),
        *([_limit_deadline(run, extras.now, run.deadline_at)] if run.deadline_at else []),
    ]
    # What has neither a limit nor a figure says nothing; working time stands among the clocks anyway.
    used = {"Model calls": spent.calls, "Effects": spent.effects, "Working time": 0}
    silent = {name for name, figure in used.items() if not figure}
    return [limit for limit in found if limit.has_limit or limit.name not in silent]


def _limit[N: (Decimal, int, float)](
    name: str,
    write: Callable[[N], str],
    spent: N,
    limit: N | None,
    reserved: N | None = None,
    estimated: N | None = None,
    over: N | None = None,
    unpriced: int = 0,
) -> Limit:
    notes = []
    if reserved:
        notes.append(f"{write(reserved)} reserved")
    if estimated:
        notes.append(f"{write(estimated)} of it estimated")
    if unpriced:
        notes.append(f"{plural(unpriced, 'call')} without a price")
    if over:
        notes.append(f"{write(over)} passed what was reserved")
    if limit is None:
        return Limit(name=name, used=write(spent), of="no limit", note=", ".join(notes), has_limit=False)
    left = limit - spent - (reserved or 0)
    if reserved or name == "Money":
        notes.append(f"{write(max(left, type(left)(0)))} left")
    share = percent(spent, limit)
    used_up = left <= 0
    return Limit(
        name=name,
        used=write(spent),
        of=f"of {write(limit)}",
        note=", ".join(notes),
        has_limit=True,
        spent=round(share - percent(estimated or 0, limit), 2),
        estimated=percent(estimated or 0, limit),
        reserved=min(percent(reserved or 0, limit), 100 - share),
        css="over" if used_up else "high" if share >= HIGH else "spent",
    )


def _limit_age(run: RunDetail, now: datetime) -> Limit:
    age = _age(run, now)
    if run.expires_at is None:
        return Limit(name="Age", used=write_duration(age), of="no limit", note="", has_limit=False)
    whole = (run.expires_at - run.created_at).total_seconds()
    share = percent(age, whole)
    until = say_until(run.expires_at, now)
    note = "" if run.state in RUN_FINAL else f"expires {until.moment}, whatever happens"
    return Limit(
        name="Age",
        used=write_duration(age),
        of=f"of {write_limit(round(whole))}",
        note=note,
        has_limit=True,
        spent=share,
        css="high" if share >= HIGH else "spent",
    )


def _limit_deadline(run: RunDetail, now: datetime, deadline: datetime) -> Limit:
    whole = (deadline - run.created_at).total_seconds()
    share = percent(_age(run, now), whole)
    until = say_until(deadline, now)
    return Limit(
        name="Deadline",
        used=until.moment,
        of="",
        note="" if run.state in RUN_FINAL else f"{until.left}, then it expires",
        has_limit=True,
        spent=share,
        css="high" if share >= HIGH else "spent",
    )


def _todo(run: RunDetail, extras: RunExtras) -> list[Todo]:
    now, found = extras.now, []
    for flight in run.in_flight:
        if flight.behind is not None:
            continue
        since = flight.began_at or flight.taken_at
        found.append(
            Todo(
                icon="effect" if flight.tool else "thinking",
                css="quiet",
                title=f"Step {flight.step} {show(flight.tool) or flight.kind} is under way",
                href=f"/runs/{run.id}?tab=timeline#step-{flight.step}",
                note=f"attempt {flight.attempt} · {write_ago(since, now)}, at most {write_duration(flight.timeout_s)}",
            )
        )
    if behind := [flight for flight in run.in_flight if flight.behind is not None]:
        names = ", ".join(f"{flight.step} {show(flight.tool)}" for flight in behind[:3])
        others = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
        found.append(
            Todo(
                icon="waiting",
                css="quiet",
                title=f"{'Step' if len(behind) == 1 else 'Steps'} {names}{others}: next",
                href=f"/runs/{run.id}?tab=timeline#step-{behind[0].step}",
                note=f"taken {write_ago(behind[0].taken_at, now)} ago; each is called when the one before it has returned",
            )
        )
    for card in extras.cards:
        until = say_until(card.expires_at, now) if card.expires_at else None
        mark = KIND[card.kind]
        found.append(
            Todo(
                icon=mark.icon,
                css=f"is-{mark.css}",
                title=f"{mark.word}: {show(card.title)}",
                href=f"/approvals/{card.id}",
                note=_join(f"waits {write_ago(card.created_at, now)}", _say_card_end(until)),
                urgent=until.expires if until and until.soon else "",
            )
        )
    with_card = {wait.approval for wait in run.waits if wait.approval is not None}
    for wait in run.waits[:MOST_WAITS]:
        if wait.approval in with_card:
            continue
        end = f" · {say_until(wait.until, now).left}" if wait.until else ""
        found.append(
            Todo(
                icon=WAITING[wait.waiting_for].icon,
                css="quiet",
                title=f"Step {wait.step}{f' {show(wait.tool)}' if wait.tool else ''}: {show(wait.note)}",
                href=f"/runs/{run.id}?tab=timeline#step-{wait.step}",
                note=f"on {say_whom(wait.on, wait.waiting_for)}{end}{f', then {show(wait.and_then)}' if wait.and_then else ''}",
            )
        )
    if run.counts.work_open:
        names = ", ".join(show(title) for _, title in extras.open_work[:3])
        more = run.counts.work_open - 3
        ended = run.state in RUN_FINAL
        comes_of_it = "Left open when the run ended." if ended else "The run isn’t finished while one is open."
        found.append(
            Todo(
                icon="work",
                css="quiet",
                title=f"{run.counts.work_open} of {plural(run.counts.work, 'work item')} open",
                href=f"/runs/{run.id}?tab=work",
                note=f"{names}{f' and {more} more' if more > 0 else ''}. {comes_of_it}",
            )
        )
    return found


def _say_card_end(until: Until | None) -> str:
    if until is None:
        return "no time limit"
    return "" if until.soon else until.expires


def _join(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class About:
    """What the run was started with, and who it is. `inputs`: the name of each, all of it, and in a line."""

    id: int
    uid: str
    agent: str
    model: str
    started_at: datetime
    started_by: str
    epoch: int
    holder: str
    constraints: list[Text]
    inputs: list[tuple[str, Shown, str]]
    labels: Text
    parent: int | None
    children: int
    deadline_at: datetime | None


def show_about(run: RunDetail, extras: RunExtras, *, model: str) -> About:
    return About(
        id=run.id,
        uid=str(run.uid),
        agent=run.agent,
        model=model,
        started_at=run.created_at,
        started_by=show(run.started_by) or "the runtime",
        epoch=run.epoch,
        holder=extras.holder,
        constraints=[shorten(show(str(constraint)), SENTENCE) for constraint in run.constraints],
        inputs=[(show(name), show_value(value), write_brief(value)) for name, value in run.inputs.items()],
        labels=shorten(", ".join(f"{show(name)}={show(str(value))}" for name, value in run.labels.items()), SENTENCE),
        parent=run.parent,
        children=run.counts.children,
        deadline_at=run.deadline_at,
    )
