"""The first page in words: what needs a person, most urgent first, each with where to go; then counts and agents."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from console.display.figures import plural, write_ago, write_duration, write_usd
from console.display.limits import LimitLine, is_near, show_allowance
from console.display.marks import HELD, IN_DOUBT, KIND, PAUSED, RUN, Mark
from console.display.outside import show, show_title
from console.display.waits import say_until
from runs.queries.counts import RunCounts
from runs.queries.overview import AgentLine, Need, Overview
from runs.states import ApprovalKind, RunState


@dataclass(frozen=True, kw_only=True)
class NeedLine:
    """`urgent` first, then `when`."""

    icon: str
    css: str
    title: str
    words: str
    urgent: str
    when: str
    button: str
    href: str
    primary: bool = False


@dataclass(frozen=True, kw_only=True)
class CountLine:
    mark: Mark
    count: int
    href: str


@dataclass(frozen=True, kw_only=True)
class AgentRow:
    name: str
    href: str
    mark: Mark
    at_work: int
    queued: int
    on_people: int
    on_the_world: int
    failed: int
    spent: str
    reserved: str
    limit: LimitLine | None
    moved: str


_NAMES: dict[str, tuple[str, str, str]] = {
    ApprovalKind.APPROVAL: ("approval to decide", "approvals to decide", "Review"),
    ApprovalKind.VERDICT: ("effect is in doubt", "effects are in doubt", "Decide"),
    ApprovalKind.QUESTION: ("question to answer", "questions to answer", "Answer"),
    ApprovalKind.FAILURE: ("step keeps failing", "steps keep failing", "Look"),
    ApprovalKind.BUDGET: ("budget is used up", "budgets are used up", "Grant"),
    ApprovalKind.FACT: ("fact to confirm", "facts to confirm", "Look"),
    ApprovalKind.CREDENTIAL: ("credential to renew", "credentials to renew", "Renew"),
    ApprovalKind.ESCALATION: ("escalation to decide", "escalations to decide", "Review"),
}
# Of equal urgency: what may have gone wrong outside comes before what waits.
_ORDER = [
    ApprovalKind.VERDICT,
    ApprovalKind.APPROVAL,
    ApprovalKind.ESCALATION,
    ApprovalKind.CREDENTIAL,
    ApprovalKind.QUESTION,
    ApprovalKind.FAILURE,
    ApprovalKind.FACT,
    ApprovalKind.BUDGET,
]


def show_needs(overview: Overview) -> list[NeedLine]:
    now = overview.now
    cards = sorted(overview.needs, key=lambda need: _urgency(need, now))
    lines = [_show_need(need, now) for need in cards]
    if overview.overdue.count:
        late = write_ago(overview.overdue.at, now) if overview.overdue.at else ""
        lines.insert(
            0,
            NeedLine(
                icon="alarm",
                css="danger",
                title=_say_overdue(overview.overdue.count),
                words="A worker or the gateway may be down. Nothing is lost; nothing moves.",
                urgent=f"for {late}",
                when="",
                button="Look",
                href=f"/runs/{overview.overdue.run}" if overview.overdue.count == 1 else "/runs?state=queued,thinking",
            ),
        )
    if overview.near_limit.count:
        near = overview.near_limit
        lines.append(
            NeedLine(
                icon="budget",
                css="person",
                title=f"{plural(near.count, 'budget')} above 90 %",
                words=f"{near.agent}: {show(near.words)}",
                urgent="",
                when="it stops and asks when it is used up",
                button="See",
                href=f"/runs/{near.run}",
            )
        )
    if near_ones := [each for each in overview.allowances if is_near(each)]:
        fullest = show_allowance(max(near_ones, key=lambda a: (a.spent + a.reserved) / (a.hard or 1)), now)
        lines.append(
            NeedLine(
                icon="budget",
                css="person",
                title=f"{plural(len(near_ones), 'allowance')} above 90 %",
                words=f"{fullest.name}: {fullest.spent} spent and {fullest.reserved} reserved of {fullest.most} {fullest.of}",
                urgent=fullest.urgent,
                when=fullest.after,
                button="See",
                href="/spend",
            )
        )
    if overview.failed.count:
        failed = overview.failed
        lines.append(
            NeedLine(
                icon="failed",
                css="danger",
                title=f"{plural(failed.count, 'run')} failed in 24 h",
                words=f"The last: {failed.agent}, run {failed.run}: {show(failed.words)}",
                urgent="",
                when=f"{write_ago(failed.at, now)} ago" if failed.at else "",
                button="See",
                href=f"/runs/{failed.run}" if failed.count == 1 else "/runs?state=failed",
            )
        )
    # One primary button on a page.
    return [replace(line, primary=place == 0) for place, line in enumerate(lines)]


def count_needs(overview: Overview) -> int:
    troubles = (overview.overdue, overview.near_limit, overview.failed)
    near = any(is_near(each) for each in overview.allowances)
    return sum(need.count for need in overview.needs) + sum(1 for trouble in troubles if trouble.count) + near


def _say_overdue(count: int) -> str:
    return f"{plural(count, 'run is', 'runs are')} due and nobody takes {'it' if count == 1 else 'them'}"


def _urgency(need: Need, now: datetime) -> tuple[bool, int]:
    soon = need.soonest_at is not None and (need.soonest_at - now).total_seconds() < 3600
    return not soon, _ORDER.index(ApprovalKind(need.kind))


def _show_need(need: Need, now: datetime) -> NeedLine:
    one, many, button = _NAMES[need.kind]
    mark = KIND[need.kind]
    until = say_until(need.soonest_at, now) if need.soonest_at else None
    first = "" if need.count == 1 else "The first: "
    oldest = f"{'' if need.count == 1 else 'oldest '}waits {write_ago(need.oldest_at, now)}"
    return NeedLine(
        icon=mark.icon,
        css=mark.css,
        title=plural(need.count, one, many),
        words=f"{first}{need.agent}, run {need.run}: {show_title(need.title)}",
        urgent=until.expires if until and until.soon else "",
        when=oldest if until is None or until.soon else f"{oldest} · {until.expires}",
        button=button,
        href=f"/approvals/{need.first}",
    )


def show_open_counts(counts: RunCounts) -> list[CountLine]:
    by_state = counts.by_state
    return [
        *(
            CountLine(mark=RUN[state], count=by_state.get(state, 0), href=f"/runs?state={state}")
            for state in (RunState.RUNNING, RunState.THINKING, RunState.QUEUED)
        ),
        CountLine(
            mark=Mark(word="Waiting on people", icon="waiting", css="waiting"),
            count=counts.on_people,
            href="/runs?waiting_for=people",
        ),
        CountLine(
            mark=Mark(word="Waiting on the world", icon="timer", css="asleep"),
            count=counts.on_the_world,
            href="/runs?waiting_for=world",
        ),
        CountLine(
            mark=Mark(word="Of these, paused or held", icon="paused", css="paused"),
            count=counts.held,
            href="/runs?state=open",
        ),
    ]


def show_ended_counts(counts: RunCounts) -> list[CountLine]:
    succeeded = counts.ended.get(RunState.SUCCEEDED, 0)
    return [
        CountLine(
            mark=Mark(word="Succeeded, verified", icon="succeeded", css="succeeded"),
            count=succeeded - counts.ended_unverified,
            href="/runs?state=succeeded",
        ),
        CountLine(
            mark=Mark(word="Succeeded, not verified", icon="doubt", css="claimed"),
            count=counts.ended_unverified,
            href="/runs?state=succeeded",
        ),
        *(
            CountLine(mark=RUN[state], count=counts.ended.get(state, 0), href=f"/runs?state={state}")
            for state in (RunState.FAILED, RunState.STOPPED, RunState.EXPIRED)
        ),
    ]


def show_agents(overview: Overview, known: Iterable[str]) -> list[AgentRow]:
    """Each agent with open runs, and each that is deployed here and rests; with what it may spend a day, if that is set."""
    lines, now = overview.agents, overview.now
    limits = {
        each.scope.removeprefix("agent:"): show_allowance(each, now)
        for each in overview.allowances
        if each.scope.startswith("agent:") and (each.dimension, each.period) == ("usd", "day")
    }
    rows = [_show_agent(line, limits.get(line.agent), now) for line in lines]
    with_runs = {line.agent for line in lines}
    rows += [
        AgentRow(
            name=name,
            href=f"/runs?agent={name}",
            mark=Mark(word="At rest", icon="queued", css="queued"),
            at_work=0,
            queued=0,
            on_people=0,
            on_the_world=0,
            failed=0,
            spent=write_usd(Decimal(0)),
            reserved="",
            limit=limits.get(name),
            moved="–",
        )
        for name in known
        if name not in with_runs
    ]
    return sorted(rows, key=lambda row: row.name)


def _show_agent(line: AgentLine, limit: LimitLine | None, now: datetime) -> AgentRow:
    return AgentRow(
        name=line.agent,
        href=f"/runs?agent={line.agent}&state=open",
        mark=_mark_agent(line),
        at_work=line.at_work,
        queued=line.queued,
        on_people=line.on_people,
        on_the_world=line.on_the_world,
        failed=line.failed,
        spent=write_usd(line.spent),
        reserved=write_usd(line.reserved) if line.reserved else "",
        limit=limit,
        moved=f"{write_duration((now - line.moved_at).total_seconds())} ago" if line.moved_at else "–",
    )


def _mark_agent(line: AgentLine) -> Mark:
    if line.in_doubt:
        return Mark(word=f"{line.in_doubt} in doubt", icon=IN_DOUBT.icon, css=IN_DOUBT.css)
    if line.held:
        return Mark(word=f"{line.held} held or paused", icon=HELD.icon, css=PAUSED.css)
    if line.at_work:
        return Mark(word="At work", icon="running", css="running")
    if line.on_people:
        return Mark(word="Waits for people", icon="waiting", css="waiting")
    if line.queued:
        return Mark(word="Queued", icon="queued", css="queued")
    return Mark(word="Waits for the world", icon="timer", css="asleep")
