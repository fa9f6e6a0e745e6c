"""The log of the briefing: one line per finished step, in order, never changed once written, so that its prefix caches.

When the log outgrows its share, the oldest closed work folds into one line per item, by rule. When and what folds is
worked out from the tables alone, by going through the thinks of the run in order: each think sees what the one before
it saw, plus the new lines, until the share is full; only then much is folded at once (down to half of the share).

A step belongs to the work items whose titles name one of its arguments ("1001", "r12") and that were open at its time.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from runs import sql
from runs.agents import Agent, Tool
from runs.engine.briefing_text import ranges, shorten, shorten_strings, shorten_text, size
from runs.states import STEP_FINAL, StepKind, StepState

RESULT_BYTES = 4_000
# What was recalled is there to be read in full; the step itself keeps no more inline. A fact's value stands in <facts>.
RESULT_BYTES_OF = {"recall": 16_400, "record_fact": 600}
ARGUMENT_BYTES = 2_000
REASON_BYTES = 600
FOLD_TO = 0.5

_LINE_BYTES = 70
_FINAL = frozenset(str(state) for state in STEP_FINAL)
_GOOD = frozenset({"done", "replayed"})
_WORD = re.compile(r"[\w.\-]*\d[\w.\-]*")
_AMOUNT = re.compile(r"\d+\.\d+")

type Line = dict[str, Any]


class Row(NamedTuple):
    """What is read of every step, however many: `arguments` is JSON text, `bytes` about what its line takes."""

    number: int
    kind: str
    state: str
    tool: str
    arguments: str
    bytes: int
    replayed: bool


@dataclass(frozen=True, kw_only=True)
class Item:
    """A work item, and the numbers of the steps that opened and closed it."""

    ref: str
    title: str
    state: str
    outcome: str
    opened: int
    closed: int | None


@dataclass(frozen=True, kw_only=True)
class Steps:
    """All steps of a run: the rows, the numbers of its settled thinks."""

    rows: list[Row]
    thinks: list[int]

    @property
    def last_think(self) -> int:
        return self.thinks[-1] if self.thinks else 0

    @property
    def finished(self) -> list[Row]:
        return [row for row in self.rows if row.kind != StepKind.THINK and row.state in _FINAL]


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What is read of the steps that are shown one by one."""

    number: int
    asked: dict[str, Any]
    result: Any
    result_bytes: int | None  # set where `result` is only the beginning of its JSON text
    error: str
    again: str
    tries: int
    first_step: int | None
    fact: str
    check: str
    subject: str


@dataclass(frozen=True, kw_only=True)
class Log:
    """The lines, and how many of them each think added (the folded ones first): where the prompt cache may cut."""

    lines: list[Line]
    blocks: list[int]


def read_steps(run: int) -> Steps:
    """Read every step of a run, as little of each as the choice of what to show needs."""
    rows = [Row._make(row) for row in sql.fetch_all(_ROWS, {"run": run})]
    thinks = [row.number for row in rows if row.kind == StepKind.THINK and row.state == StepState.DONE]
    return Steps(rows=rows, thinks=thinks)


def read_details(run: int, numbers: Iterable[int]) -> dict[int, Detail]:
    """Read these steps as they are shown."""
    return {row[0]: _to_detail(*row) for row in sql.fetch_all(_DETAILS, {"run": run, "numbers": sorted(set(numbers))})}


def choose(steps: Steps, items: Sequence[Item], agent: Agent | None, *, share: int) -> "Fold":
    """Which steps are shown one by one, and the lines that stand for the others. share: bytes."""
    fold = Fold(items=items, agent=agent, share=share)
    finished = steps.finished
    if sum(row.bytes for row in finished) > share:
        fold.play(finished, steps.thinks)
    else:
        fold.live, fold.last_think = {row.number: row for row in finished}, steps.last_think
    return fold


def write(
    fold: "Fold", steps: Steps, details: Mapping[int, Detail], agent: Agent | None, edited: frozenset[int]
) -> Log:
    """Write the log: what is folded, then the finished steps in order, one block per think."""
    lines = {
        number: write_line(row, details[number], agent, edited=number in edited)
        for number, row in fold.live.items()
        if number in details
    }
    # An estimate decided what is shown. Text that grows by escaping can pass it: then fold once more, by what it takes.
    exact = {number: size(line) + 1 for number, line in lines.items()}
    if fold.bytes_folded() + sum(exact.values()) > fold.share:
        fold.live = {number: fold.live[number]._replace(bytes=exact[number]) for number in lines}
        fold.fold_now()
    shown = [lines[number] for number in sorted(fold.live) if number in lines]
    blocks = [len(fold.lines)] if fold.lines else []
    bounds = [0, *steps.thinks, 1 << 62]
    for low, high in pairwise(bounds):
        blocks.append(sum(low < number <= high for number in fold.live if number in lines))
    return Log(lines=[*fold.lines, *shown], blocks=[count for count in blocks if count])


def write_line(row: Row, detail: Detail, agent: Agent | None, *, edited: bool = False) -> Line:
    """One finished step as the model sees it. Its first four words are what the rehearsal model reads."""
    outcome = "replayed" if detail.first_step is not None and row.state == StepState.DONE else row.state
    line: Line = {"step": row.number}
    if row.kind == StepKind.CHECK:
        line |= {"check": detail.fact, "outcome": detail.check or outcome}
        if detail.error and not detail.check:
            line["reason"] = shorten_text(detail.error, REASON_BYTES)
        return line
    if row.kind == StepKind.RECONCILE:
        line |= {"looked_up": detail.subject or row.tool, "outcome": outcome}
    else:
        line |= {"tool": row.tool or str(row.kind), "with": shown_arguments(row, agent), "outcome": outcome}
    if detail.first_step is not None:
        line["first_step"] = detail.first_step
    if detail.again:
        line["again"] = shorten_text(detail.again, REASON_BYTES)
    if edited:
        line["edited_from"] = shorten_strings(_identity(row.tool, detail.asked, agent), ARGUMENT_BYTES)
    if detail.error and outcome not in _GOOD:
        line["reason"] = shorten_text(detail.error, REASON_BYTES)
    if detail.result is not None:
        most = RESULT_BYTES_OF.get(row.tool, RESULT_BYTES)
        line["result"] = shorten(detail.result, most, bytes_full=detail.result_bytes)
    return line


def shown_arguments(row: Row, agent: Agent | None) -> dict[str, Any]:
    """The arguments that say which thing was meant: the identity of a call that acts, all of any other."""
    shown = shorten_strings(_identity(row.tool, json.loads(row.arguments), agent), ARGUMENT_BYTES)
    return shown if isinstance(shown, dict) else {}


def acts(tool: str, agent: Agent | None) -> bool:
    found = agent.tool(tool) if agent else None
    return found is not None and found.acts


def owners(rows: Sequence[Row], items: Sequence[Item]) -> dict[int, tuple[int, ...]]:
    """The places in `items` of the work items that each step belongs to; steps that belong to none are not in it."""
    by_word: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        for word in _words(item.title):
            by_word.setdefault(word, []).append(place)
    owned: dict[int, tuple[int, ...]] = {}
    for row in rows:
        if row.tool == "plan":
            continue
        found: set[int] = set()
        for word in _words(row.arguments):
            for place in by_word.get(word, ()):
                closed = items[place].closed
                if items[place].opened < row.number and (closed is None or row.number <= closed):
                    found.add(place)
        if found:
            owned[row.number] = tuple(sorted(found))
    return owned


@dataclass(kw_only=True)
class Fold:
    """The state of the folding while the thinks of a run are gone through, and at the end what is shown."""

    items: Sequence[Item]
    agent: Agent | None
    share: int
    live: dict[int, Row] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    last_think: int = 0  # the newest settled think that was gone through
    _owned: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)
    _folded: set[int] = field(default_factory=set)
    _total: int = 0

    def play(self, finished: Sequence[Row], thinks: Sequence[int]) -> None:
        """Go through the thinks: add what each one saw first, and fold whenever the share is passed."""
        self._owned = owners(finished, self.items)
        place = 0
        for think in [*thinks, 1 << 62]:
            while place < len(finished) and finished[place].number < think:
                row = finished[place]
                self.live[row.number] = row
                self._total += row.bytes
                place += 1
            if self._total > self.share:
                self._fold(think)
            self.last_think = min(think, thinks[-1] if thinks else 0)

    def fold_now(self) -> None:
        """Fold by the sizes that `live` has now."""
        if not self._owned:
            self._owned = owners(list(self.live.values()), self.items)
        self._total = self.bytes_folded() + sum(row.bytes for row in self.live.values())
        self._fold(1 << 62)

    def bytes_folded(self) -> int:
        return sum(self._sizes)

    def _fold(self, think: int) -> None:
        """Closed items first, then what belongs to none, then folded lines into fewer, at last what is open."""
        target = int(self.share * FOLD_TO)
        self._fold_closed(think, target)
        if self._total > target:
            self._fold_loose(think, target)
        if self._total > target:
            self._merge_lines(target)
        if self._total > target:
            self._fold_open(target)
            self._merge_lines(target)

    def _fold_closed(self, think: int, target: int) -> None:
        closed = [
            (item.closed, place)
            for place, item in enumerate(self.items)
            if item.closed is not None and item.closed < think and place not in self._folded
        ]
        order = {place: rank for rank, (_, place) in enumerate(sorted(closed))}
        mine: dict[int, list[int]] = {}
        for number in self.live:
            # A step of several items folds with the last of them; one of an open item does not fold.
            if (places := self._owned.get(number)) and all(p in order or p in self._folded for p in places):
                last = max((p for p in places if p in order), key=order.__getitem__, default=None)
                if last is not None:
                    mine.setdefault(last, []).append(number)
        for place in order:
            if self._total <= target:
                return
            item = self.items[place]
            rows = [self.live[number] for number in sorted(mine.get(place, []))]
            self._folded.add(place)
            self._replace(
                rows,
                {
                    "item": item.ref,
                    "title": shorten_text(item.title, REASON_BYTES),
                    "state": item.state,
                    "outcome": shorten_text(item.outcome, REASON_BYTES),
                },
            )

    def _fold_loose(self, think: int, target: int) -> None:
        """What belongs to no item, up to the oldest one that is open: it may have been read for that one."""
        opened = [i.opened for i in self.items if i.closed is None or i.closed >= think]
        end = min([*opened, self._newest()])
        loose = [n for n in sorted(self.live) if n < end and not self._owned.get(n)]
        self._fold_oldest(loose, target, {"folded": "steps of no open work"})

    def _fold_open(self, target: int) -> None:
        """The last resort: the oldest steps of open work. Its items, facts and ids stay; its results are recalled."""
        newest = self._newest()
        self._fold_oldest([n for n in sorted(self.live) if n < newest], target, {"folded": "older steps of open work"})

    def _newest(self) -> int:
        """The first step since the newest settled think: what that has just asked for is always shown."""
        return self.last_think + 1

    def _fold_oldest(self, numbers: Sequence[int], target: int, line: Line) -> None:
        rows: list[Row] = []
        left = self._total
        for number in numbers:
            if left <= target:
                break
            rows.append(self.live[number])
            left -= self.live[number].bytes
        if rows:
            self._replace(rows, line)

    def _replace(self, rows: Sequence[Row], line: Line) -> None:
        """Put one line in the place of steps: which they were, and each effect with its exact identity."""
        if rows:
            line["steps"] = ranges([row.number for row in rows])
            line["tools"] = dict(sorted(Counter(row.tool or row.kind for row in rows).items()))
        effects = [
            {
                "step": row.number,
                "tool": row.tool,
                "with": shown_arguments(row, self.agent),
                "outcome": "replayed" if row.replayed and row.state == StepState.DONE else row.state,
            }
            for row in rows
            if acts(row.tool, self.agent)
        ]
        if effects:
            line["effects"] = effects
        for row in rows:
            del self.live[row.number]
        self._add_line(line)
        self._total -= sum(row.bytes for row in rows)

    def _add_line(self, line: Line) -> None:
        self.lines.append(line)
        self._sizes.append(size(line) + 1)
        self._total += self._sizes[-1]

    def _merge_lines(self, target: int) -> None:
        """Fold the oldest folded lines into one, where they themselves take too much."""
        if self.bytes_folded() <= target // 2:
            return
        left, count = self._total, 0
        while count < len(self.lines) and left > target:
            left -= self._sizes[count]
            count += 1
        # Half of the folded lines at least, so that this does not move the prefix again soon.
        count = max(count, len(self.lines) // 2)
        if count < 2:
            return
        merged, self.lines[:count] = _merge(self.lines[:count]), []
        self._total -= sum(self._sizes[:count])
        self._sizes[:count] = []
        self.lines.insert(0, merged)
        self._sizes.insert(0, size(merged) + 1)
        self._total += self._sizes[0]


def _merge(lines: Sequence[Line]) -> Line:
    states: Counter[str] = Counter()
    tools: Counter[str] = Counter()
    effects: Counter[str] = Counter()
    numbers: set[int] = set()
    for line in lines:
        states.update([line["state"]] if "state" in line else line.get("items", {}))
        tools.update(line.get("tools", {}))
        numbers.update(_numbers(line.get("steps", "")))
        if isinstance(done := line.get("effects"), dict):
            effects.update(done)
        else:
            effects.update(f"{each['tool']} {each['outcome']}" for each in done or ())
    merged: Line = {"folded": "older closed work"}
    if states:
        merged["items"] = dict(sorted(states.items()))
    merged |= {"steps": ranges(sorted(numbers)), "tools": dict(sorted(tools.items()))}
    if effects:
        merged["effects"] = dict(sorted(effects.items()))
    return merged


def _numbers(text: str) -> Iterable[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _identity(tool: str, arguments: dict[str, Any], agent: Agent | None) -> dict[str, Any]:
    found: Tool | None = agent.tool(tool) if agent else None
    return found.identity_of(arguments) if found is not None and found.acts else arguments


def _words(text: str) -> set[str]:
    """The words of a text that name something: those with a digit; of dotted names also their parts."""
    words: set[str] = set()
    for found in _WORD.findall(text):
        word = found.strip(".-_").lower()
        words.add(word)
        if "." in word and not _AMOUNT.fullmatch(word):
            words.update(part for part in word.split(".") if any(c.isdigit() for c in part))
    return words


def _to_detail(
    number: int,
    asked: str,
    result: str | None,
    result_bytes: int,
    most: int,
    error: str,
    again: str,
    tries: int,
    first_step: int | None,
    fact: str | None,
    check: str | None,
    subject: str | None,
) -> Detail:
    whole = result is None or result_bytes <= most
    return Detail(
        number=number,
        asked=json.loads(asked),
        result=(None if result is None else json.loads(result)) if whole else result,
        result_bytes=None if whole else result_bytes,
        error=error,
        again=again,
        tries=tries,
        first_step=first_step,
        fact=fact or "",
        check=check or "",
        subject=subject or "",
    )


_MOST = (
    "CASE s.tool "
    + " ".join(f"WHEN '{tool}' THEN {most}" for tool, most in RESULT_BYTES_OF.items())
    + f" ELSE {RESULT_BYTES} END"
)

# The estimate is of what the line takes at most: `<`, `>` and `&` take six bytes each. A result that is large even when
# compressed is not unpacked to be measured.
_ROWS = f"""
    SELECT s.number, s.kind, s.state, s.tool, s.arguments::text,
           {_LINE_BYTES} + octet_length(s.arguments::text) + least(octet_length(s.error), {REASON_BYTES})
           + CASE WHEN s.result IS NULL THEN 0
                  WHEN pg_column_size(s.result) > m.most THEN m.most
                  ELSE least(m.most, 6 * octet_length(s.result::text)
                                     - 5 * octet_length(translate(s.result::text, '<>&', ''))) END,
           s.replay_of_id IS NOT NULL
    FROM runs_step s, LATERAL (SELECT {_MOST} AS most) m
    WHERE s.run_id = %(run)s ORDER BY s.number
"""

_DETAILS = f"""
    SELECT s.number, s.asked::text, left(s.result::text, m.most), coalesce(octet_length(s.result::text), 0), m.most,
           s.error, s.again, s.tries, o.number, f.name,
           CASE WHEN s.kind = 'check' THEN
               (SELECT c.outcome FROM runs_factcheck c WHERE c.step_id = s.id ORDER BY c.id DESC LIMIT 1) END,
           k.tool
    FROM runs_step s
    CROSS JOIN LATERAL (SELECT {_MOST} AS most) m
    LEFT JOIN runs_step o ON o.id = s.replay_of_id
    LEFT JOIN runs_fact f ON f.id = s.fact_id
    LEFT JOIN runs_key k ON k.id = s.subject_id
    WHERE s.run_id = %(run)s AND s.number = ANY(%(numbers)s) ORDER BY s.number
"""
