"""A run in a list: its pill and second word, why it waits, on whom, until when, and then."""

from dataclasses import dataclass
from datetime import datetime

from console.display.figures import plural, write_ago, write_duration, write_usd
from console.display.journal import write_actor
from console.display.marks import VERIFIED, Mark, mark_run
from console.display.outside import shorten, show
from console.display.waits import say_and_then, say_until, say_whom
from runs.queries.runlines import RunLine, Waiting
from runs.queries.shapes import RunRow
from runs.states import RUN_FINAL, RunState, Verified

OVERDUE_S = 60


@dataclass(frozen=True, kw_only=True)
class Line:
    """`why` first, then `more`; `urgent` is the part of it that asks for a person, `after` what follows it."""

    id: int
    href: str
    title: str
    agent: str
    pill: Mark
    tags: list[Mark]
    why: str
    more: str
    urgent: str
    after: str
    age: str
    created_at: datetime
    ended: bool
    spent: str
    changed_at: datetime
    changed: str


def show_line(line: RunLine, now: datetime) -> Line:
    run = line.run
    why, more, urgent, after = _say(line, now)
    ended = run.ended_at or now
    return Line(
        id=run.id,
        href=f"/runs/{run.id}",
        title=shorten(show(run.goal)).start,
        agent=run.agent,
        pill=mark_run(
            state=run.state,
            waiting_for=run.waiting_for,
            paused=run.paused is not None,
            held=_is_held(line),
            undrained=line.in_flight > 0 and line.drained_at is None,
        ),
        tags=_tags(line, now),
        why=shorten(why).start,
        more=more,
        urgent=urgent,
        after=after,
        age=write_ago(run.created_at, ended),
        created_at=run.created_at,
        ended=run.ended_at is not None,
        spent=write_usd(run.budget.spent.usd),
        changed_at=run.changed_at,
        changed="now" if (now - run.changed_at).total_seconds() < 1 else write_ago(run.changed_at, now),
    )


def _is_held(line: RunLine) -> bool:
    by_tool = line.waiting is not None and line.waiting.on.startswith("switch.")
    return (line.held_since is not None and line.run.paused is None) or by_tool


def _tags(line: RunLine, now: datetime) -> list[Mark]:
    run, tags = line.run, []
    if run.state in RUN_FINAL:
        if line.in_flight and line.drained_at is None:
            tags.append(Mark(word=f"{plural(line.in_flight, 'call')} in flight", css="danger"))
        if run.state == RunState.SUCCEEDED and run.verified in VERIFIED:
            tags.append(VERIFIED[run.verified])
        return tags
    if line.waiting is not None and line.waiting.stale:
        tags.append(Mark(word="stale", icon="stale", css="person"))
    overdue = (now - run.due_at).total_seconds() if run.due_at else 0.0
    if overdue > OVERDUE_S and run.state != RunState.RUNNING and run.paused is None and not _is_held(line):
        tags.append(Mark(word=f"overdue {write_duration(overdue)}", icon="expired", css="danger"))
    if line.under_way is not None and line.under_way.attempt > 1:
        tags.append(Mark(word=f"{line.under_way.attempt} attempts", css="person"))
    return tags


def _say(line: RunLine, now: datetime) -> tuple[str, str, str, str]:
    run = line.run
    if run.state in RUN_FINAL:
        ended = f"ended {write_ago(run.ended_at, now)} ago{_say_by(line)}" if run.ended_at else ""
        return _say_end(run), ended, "", ""
    if run.paused is not None:
        return (
            show(run.why),
            f"paused {write_ago(run.paused.at, now)} ago{_say_by(line)}",
            "",
            "goes on when somebody resumes it",
        )
    if line.held_since is not None:
        return (
            show(run.why),
            f"held {write_ago(line.held_since, now)}",
            "",
            "goes on when the switch is released",
        )
    if line.waiting is not None:
        return show(run.why), *_say_waiting(line.waiting, run.waiting_for, line.run.changed_at, now)
    if line.under_way is not None:
        work = line.under_way
        what = f"Step {work.step} {show(work.tool) or work.kind}, attempt {work.attempt}"
        since = work.began_at or work.taken_at
        limit, over = write_duration(work.timeout_s), (now - since).total_seconds() - work.timeout_s
        if over > OVERDUE_S:
            return what, f"under way for {write_ago(since, now)}", f"longer than its limit of {limit}", ""
        return what, f"under way for {write_ago(since, now)}, at most {limit}", "", ""
    return show(run.why), "", "", ""


def _say_by(line: RunLine) -> str:
    """Who did it, if a person did; of what ends by itself the reason says why."""
    return f" by {write_actor(line.acted_by)}" if line.acted_by.startswith("person:") else ""


def _say_end(run: RunRow) -> str:
    """How it ended; of one that succeeded, what its claim is worth."""
    if run.state == RunState.SUCCEEDED:
        return _SUCCEEDED.get(run.verified, "It finished")
    return show(run.why)


_SUCCEEDED: dict[str, str] = {
    Verified.VERIFIED: "It finished; what it claims was checked outside, and holds",
    Verified.NOT_VERIFIED: "It finished; what it claims was not checked outside",
    Verified.REFUTED: "It finished; what it claims was checked outside, and does not hold",
}


def _say_waiting(waiting: Waiting, waiting_for: str, changed_at: datetime, now: datetime) -> tuple[str, str, str]:
    since = write_ago(waiting.since or changed_at, now)
    whom = f"{say_whom(waiting.on, waiting_for)} · waits {since}"
    and_then = say_and_then(
        and_then=waiting.and_then,
        on_expiry=waiting.on_expiry,
        kind=waiting.kind,
        waiting_for=waiting_for,
    )
    if waiting.until is None:
        return f"{whom} · {and_then if and_then.startswith('it ') else 'no time limit'}", "", ""
    until = say_until(waiting.until, now)
    if waiting.on_expiry and until.soon:
        return whom, f"{until.left} {and_then}", ""
    return f"{whom} · {until.moment}, {until.left}: {and_then}", "", ""
