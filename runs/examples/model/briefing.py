"""Read the briefing back out of a request: goal, inputs, log, facts, work, notices.

The parts stand between tags, and JSON inside them never holds `<` or `>`, so nothing from outside can open or close
one. Lines that cannot be read are kept as `unreadable`: a player that meets them says so.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from runs.examples.model.values import Json, JsonObject, as_integer, as_list, as_number, as_object, as_text
from runs.examples.model.wire import Request

PART = re.compile(r"<(goal|constraints|inputs|log|facts|work|notices|budget|now)>(.*?)</\1>", re.DOTALL)
GOOD = frozenset({"done", "replayed"})
LOST = frozenset({"failed", "refused"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A tool as offered: its name and the schemas of its arguments."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One finished step of the log."""

    step: int
    tool: str
    given: JsonObject
    """`with`: the arguments that say which thing was meant."""
    outcome: str
    result: Json
    raw: JsonObject

    @property
    def good(self) -> bool:
        """Say whether the step did, or had already done, what was asked."""
        return self.outcome in GOOD

    @property
    def reason(self) -> str:
        """Return what the line says about why it did not work, or an empty string."""
        said = as_object(self.result)
        return as_text(self.raw.get("reason")) or as_text(said.get("reason")) or as_text(said.get("message"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A fact that the run rests on, as it stands now."""

    name: str
    value: Json
    state: str
    from_step: int
    age_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """An item of the list of outstanding work."""

    item: str
    title: str
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Briefing:
    """What the model is told at one think."""

    instructions: str
    goal: str
    constraints: tuple[str, ...]
    inputs: JsonObject
    log: tuple[Line, ...]
    folded: tuple[str, ...]
    """Lines of the log that stand for several steps, as text."""
    facts: dict[str, Fact]
    work: tuple[WorkItem, ...]
    notices: tuple[JsonObject, ...]
    budget: JsonObject
    now: datetime
    tools: dict[str, Tool]
    unreadable: tuple[str, ...]

    def lines(self, tool: str, **given: str) -> list[Line]:
        """Return the log's lines of that tool, oldest first, whose arguments are these."""
        return [
            line
            for line in self.log
            if line.tool == tool and all(as_text(line.given.get(name)) == value for name, value in given.items())
        ]

    def noticed(self, kind: str) -> list[JsonObject]:
        """Return the notices of that kind."""
        return [notice for notice in self.notices if notice.get("notice") == kind]

    def last_step(self) -> int:
        """Return the number of the latest finished step, or 0."""
        return max((line.step for line in self.log), default=0)


def read_briefing(request: Request) -> Briefing | None:
    """Return the briefing that the request holds, or none if it holds none."""
    parts = {name: text.strip() for name, text in PART.findall(request.asked)}
    if "goal" not in parts or "log" not in parts:
        return None
    unreadable: list[str] = []

    def read_one(name: str) -> Json:
        text = parts.get(name, "")
        try:
            parsed: Json = json.loads(text) if text else None
        except ValueError:
            unreadable.append(text)
            return None
        return parsed

    def read_lines(name: str) -> Iterator[JsonObject]:
        for text in parts.get(name, "").splitlines():
            try:
                parsed: Json = json.loads(text)
            except ValueError:
                unreadable.append(text)
                continue
            if isinstance(parsed, dict):
                yield parsed

    log: list[Line] = []
    folded: list[str] = []
    for raw in read_lines("log"):
        step = as_integer(raw.get("step"))
        if step is None or not isinstance(raw.get("tool"), str):
            folded.append(json.dumps(raw, ensure_ascii=False))
        else:
            log.append(_read_line(step, raw))
    facts = {fact.name: fact for fact in map(_read_fact, read_lines("facts"))}
    work = tuple(
        WorkItem(item=as_text(raw.get("item")), title=as_text(raw.get("title")), state=as_text(raw.get("state")))
        for raw in read_lines("work")
    )
    goal = read_one("goal")
    return Briefing(
        instructions="\n".join(request.system),
        goal=as_text(goal) or as_text(as_object(goal).get("goal")),
        constraints=tuple(as_text(each) for each in as_list(read_one("constraints"))),
        inputs=as_object(read_one("inputs")),
        log=tuple(log),
        folded=tuple(folded),
        facts=facts,
        work=work,
        notices=tuple(read_lines("notices")),
        budget=as_object(read_one("budget")),
        now=_read_time(as_object(read_one("now")).get("time")),
        tools=read_tools(request),
        unreadable=tuple(unreadable),
    )


def read_tools(request: Request) -> dict[str, Tool]:
    """Return the tools that the request offers, by name."""
    found = {}
    for tool in map(as_object, as_list(request.body.get("tools"))):
        name = as_text(tool.get("name"))
        schema = as_object(tool.get("input_schema"))
        found[name] = Tool(name=name, arguments=as_object(schema.get("properties")))
    return found


def _read_line(step: int, raw: JsonObject) -> Line:
    return Line(
        step=step,
        tool=as_text(raw.get("tool")),
        given=as_object(raw.get("with")),
        outcome=as_text(raw.get("outcome")),
        result=raw.get("result"),
        raw=raw,
    )


def _read_fact(raw: JsonObject) -> Fact:
    return Fact(
        name=as_text(raw.get("fact")),
        value=raw.get("value"),
        state=as_text(raw.get("state")),
        from_step=as_integer(raw.get("from_step")) or 0,
        age_s=as_number(raw.get("age_s")),
    )


def _read_time(value: Json) -> datetime:
    try:
        read = datetime.fromisoformat(as_text(value))
    except ValueError:
        return datetime.now(UTC)
    return read if read.tzinfo else read.replace(tzinfo=UTC)
