"""The log of the briefing: one line per finished step, in order, never changed once written, so that its prefix caches.

When the log outgrows its share, the oldest closed work folds into one line per item, by rule. When and what folds is
worked out from the tables alone, by going through the thinks of the run in order: each think sees what the one before
it saw, plus the new lines, until the share is full; only then much is folded at once (down to half of the share).

A step belongs to the work items whose titles name one of its arguments ("1001", "r12") and that were open at its time.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runs import sql
from runs.agents import Agent, Tool
from runs.engine.briefing_text import load, ranges, shorten, shorten_strings, shorten_text, size
from runs.states import STEP_FINAL, StepKind, StepState

RESULT_BYTES = 4_000
# What was recalled is there to be read in full; the step itself keeps no more inline. A fact's value stands in <facts>.
RESULT_BYTES_OF = {"recall": 16_400, "record_fact": 600}
ARGUMENT_BYTES = 2_000
REASON_BYTES = 600
FOLD_TO = 0.5
EFFECTS_TOLD = 50  # effects that a folded line tells one by one; of more it says how many

_LINE_BYTES = 70
_FINAL = frozenset(str(state) for state in STEP_FINAL)
_GOOD = frozenset({"done", "replayed"})
_WORDS = re.compile(r"\w+(?:[.\-]\w+)*").findall
_AMOUNT = re.compile(r"\d+\.\d+")

type Line = dict[str, Any]
# The agent's tools that act, by name: what tells one call of them from another is their identity, of any other call all.
type Effects = Mapping[str, Tool]


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
    """All steps of a run: the rows, and the numbers of the thinks whose reply was carried out."""

    rows: list[Row]
    thinks: list[int]
    last_reply: int  # the newest think that had a reply, carried out or not; 0 before the first

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
    asked: dict[str, Any]  # empty where the arguments are what was asked
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
    replied = [r.number for r in rows if r.kind == StepKind.THINK and r.state in (StepState.DONE, StepState.FAILED)]
    return Steps(rows=rows, thinks=thinks, last_reply=max(replied, default=0))


def read_details(run: int, numbers: Iterable[int]) -> dict[int, Detail]:
    """Read these steps as they are shown."""
    return {row[0]: _to_detail(*row) for row in sql.fetch_all(_DETAILS, {"run": run, "numbers": sorted(set(numbers))})}


def choose(steps: Steps, items: Sequence[Item], effects: Effects, *, share: int) -> "Fold":
    """Which steps are shown one by one, and the lines that stand for the others. share: bytes."""
    unlisted = frozenset(row.number for row in steps.rows if row.kind == StepKind.THINK)
    fold = Fold(items=items, effects=effects, share=share, unlisted=unlisted)
    finished = steps.finished
    if sum(row.bytes for row in finished) > share:
        fold.play(finished, steps.thinks)
    else:
        fold.live, fold.last_think = {row.number: row for row in finished}, steps.last_think
    return fold


def write(fold: "Fold", steps: Steps, details: Mapping[int, Detail], effects: Effects, edited: frozenset[int]) -> Log:
    """Write the log: what is folded, then the finished steps in order, one block per think."""
    lines = {
        number: write_line(row, details[number], effects, edited=number in edited)
        for number, row in fold.live.items()
        if number in details
    }
    # An estimate decided what is shown. Text that grows by escaping can pass it: then fold once more, by what it takes.
    exact = {number: size(line) + 1 for number, line in lines.items()}
    if fold.bytes_folded() + sum(exact.values()) > fold.share:
        fold.live = {number: fold.live[number]._replace(bytes=exact[number]) for number in lines}
        fold.fold_now()
    shown = [number for number in sorted(fold.live) if number in lines]
    counts = Counter(bisect_left(steps.thinks, number) for number in shown)
    folded = fold.lines()
    blocks = [len(folded)] if folded else []
    return Log(
        lines=[*folded, *(lines[number] for number in shown)],
        blocks=[*blocks, *(counts[place] for place in sorted(counts))],
    )


def write_line(row: Row, detail: Detail, effects: Effects, *, edited: bool = False) -> Line:
    """One finished step as the model sees it. Its first four words are what the rehearsal model reads."""
    outcome = _outcome(row)
    line: Line = {"step": row.number}
    if row.kind == StepKind.CHECK:
        found = detail.result.get("outcome") if isinstance(detail.result, dict) else None
        line |= {"check": detail.fact, "outcome": detail.check or found or outcome}
        if detail.error and not detail.check:
            line["reason"] = shorten_text(detail.error, REASON_BYTES)
        return line
    if row.kind == StepKind.RECONCILE:
        line |= {"looked_up": detail.subject or row.tool, "outcome": outcome}
    else:
        line |= {"tool": row.tool or str(row.kind), "with": shown_arguments(row, effects), "outcome": outcome}
    if detail.first_step is not None:
        line["first_step"] = detail.first_step
    if detail.again:
        line["again"] = shorten_text(detail.again, REASON_BYTES)
    if edited:
        line["edited_from"] = _shorten_each(_identity(row.tool, detail.asked, effects))
    if detail.error and outcome not in _GOOD:
        line["reason"] = shorten_text(detail.error, REASON_BYTES)
    if detail.result is not None:
        most = RESULT_BYTES_OF.get(row.tool, RESULT_BYTES)
        line["result"] = shorten(detail.result, most, bytes_full=detail.result_bytes)
    return line


def shown_arguments(row: Row, effects: Effects) -> dict[str, Any]:
    """The arguments that say which thing was meant: the identity of a call that acts, all of any other."""
    shown = _identity(row.tool, load(row.arguments), effects)
    # Twelve bytes at most for one character: so short a text needs no measuring.
    return shown if len(row.arguments) * 12 <= ARGUMENT_BYTES else _shorten_each(shown)


def list_effects(agent: Agent | None) -> Effects:
    return {tool.name: tool for tool in agent.tools if tool.acts} if agent else {}


def owners(rows: Sequence[Row], items: Sequence[Item]) -> dict[int, tuple[int, ...]]:
    """The places in `items` of the work items that each step belongs to; steps that belong to none are not in it.

    A step belongs to the items whose titles name one of its arguments, while they were open; a `plan`, to those that
    it opened and closed.
    """
    by_word: dict[str, list[int]] = {}
    by_step: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        for word in _names(item.title):
            by_word.setdefault(word, []).append(place)
        by_step.setdefault(item.opened, []).append(place)
        if item.closed is not None and item.closed != item.opened:
            by_step.setdefault(item.closed, []).append(place)
    owned: dict[int, tuple[int, ...]] = {}
    for row in rows:
        if row.tool == "plan":
            found = by_step.get(row.number, [])
        else:
            named = {p for word in _parts(row.arguments) if word in by_word for p in by_word[word]}
            found = [p for p in named if items[p].opened < row.number <= (items[p].closed or row.number)]
        if found:
            owned[row.number] = tuple(sorted(found))
    return owned


@dataclass(kw_only=True)
class Folded:
    """One line that stands for steps: of a closed item, of a stretch of the run, or of many of these.

    bytes: about what the line takes.
    """

    label: str = ""
    item: int | None = None
    rows: list[Row] = field(default_factory=list)
    items: Counter[str] = field(default_factory=Counter)  # states of the items that were merged into it
    bytes: int = 0


@dataclass(kw_only=True)
class Fold:
    """The state of the folding while the thinks of a run are gone through, and at the end what is shown."""

    items: Sequence[Item]
    effects: Effects
    share: int
    live: dict[int, Row] = field(default_factory=dict)
    folded: list[Folded] = field(default_factory=list)
    last_think: int = 0  # the newest settled think that was gone through
    unlisted: frozenset[int] = frozenset()  # steps that are never listed (thinks): a range may pass over them
    _owned: dict[int, tuple[int, ...]] | None = None
    _left: set[int] = field(default_factory=set)  # places of closed items that are not folded yet
    _total: int = 0

    def play(self, finished: Sequence[Row], thinks: Sequence[int]) -> None:
        """Go through the thinks: add what each one saw first, and fold whenever the share is passed."""
        self._begin(finished)
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
        self._begin(list(self.live.values()))
        self._total = self.bytes_folded() + sum(row.bytes for row in self.live.values())
        self._fold(1 << 62)

    def bytes_folded(self) -> int:
        return sum(folded.bytes for folded in self.folded)

    def lines(self) -> list[Line]:
        return [self._write(folded) for folded in self.folded]

    def _begin(self, rows: Sequence[Row]) -> None:
        if self._owned is None:
            self._owned = owners(rows, self.items)
            self._left = {place for place, item in enumerate(self.items) if item.closed is not None}

    def _fold(self, think: int) -> None:
        """Closed items first, then what belongs to none, then folded lines into fewer, at last what is open."""
        target = int(self.share * FOLD_TO)
        self._fold_closed(think, target)
        if self._total > target:
            self._fold_loose(think, target)
        if self._total > target:
            self._merge(target)
        if self._total > target:
            self._fold_open(target)
            self._merge(target)

    def _fold_closed(self, think: int, target: int) -> None:
        closed = [(self.items[p].closed or 0, p) for p in self._left]
        order = [place for number, place in sorted(closed) if number < think]
        rank = {place: at for at, place in enumerate(order)}
        mine: dict[int, list[Row]] = {}
        for number, row in self.live.items():
            # A step of several items folds with the last of them; one of an open item does not fold.
            waiting = [p for p in self._owners_of(number) if p in self._left or self.items[p].closed is None]
            if waiting and all(p in rank for p in waiting):
                mine.setdefault(max(waiting, key=rank.__getitem__), []).append(row)
        for place in order:
            if self._total <= target:
                return
            self._left.discard(place)
            item = self.items[place]
            frame = 60 + _size_about(item.title) + _size_about(item.outcome)
            self._replace(mine.get(place, []), Folded(item=place, bytes=frame))

    def _fold_loose(self, think: int, target: int) -> None:
        """What belongs to no item, up to the oldest one that is open: it may have been read for that one."""
        opened = [i.opened for i in self.items if i.closed is None or i.closed >= think]
        end = min([*opened, self._newest()])
        loose = [n for n in sorted(self.live) if n < end and not self._owners_of(n)]
        self._fold_oldest(loose, target, "steps of no open work")

    def _fold_open(self, target: int) -> None:
        """The last resort: the oldest steps of open work. Its items, facts and ids stay; its results are recalled."""
        newest = self._newest()
        self._fold_oldest([n for n in sorted(self.live) if n < newest], target, "older steps of open work")

    def _newest(self) -> int:
        """The first step since the newest settled think: what that has just asked for is always shown."""
        return self.last_think + 1

    def _owners_of(self, number: int) -> tuple[int, ...]:
        return (self._owned or {}).get(number, ())

    def _fold_oldest(self, numbers: Sequence[int], target: int, label: str) -> None:
        rows: list[Row] = []
        left = self._total
        for number in numbers:
            if left <= target:
                break
            rows.append(self.live[number])
            left -= self.live[number].bytes
        if rows:
            self._replace(rows, Folded(label=label, bytes=120))

    def _replace(self, rows: Sequence[Row], folded: Folded) -> None:
        folded.rows = sorted(rows)
        folded.bytes += 12 * min(len(rows), 10)
        folded.bytes += sum(60 + len(row.arguments) for row in rows if row.tool in self.effects)
        for row in rows:
            del self.live[row.number]
        self.folded.append(folded)
        self._total += folded.bytes - sum(row.bytes for row in rows)

    def _merge(self, target: int) -> None:
        """Fold the oldest folded lines into one, where they themselves take too much."""
        if self.bytes_folded() <= target // 2:
            return
        left, count = self._total, 0
        while count < len(self.folded) and left > target:
            left -= self.folded[count].bytes
            count += 1
        # Half of the folded lines at least, so that this does not move the prefix again soon.
        count = max(count, len(self.folded) // 2)
        if count < 2:
            return
        merged = Folded(label="older closed work", bytes=400)
        for each in self.folded[:count]:
            merged.rows += each.rows
            merged.items += each.items if each.item is None else Counter([self.items[each.item].state])
        merged.rows.sort()
        self._total += merged.bytes - sum(each.bytes for each in self.folded[:count])
        self.folded[:count] = [merged]

    def _write(self, folded: Folded) -> Line:
        """Which steps they were; of an item, each effect with its exact identity, of many, how many there were."""
        line: Line
        if folded.item is not None:
            item = self.items[folded.item]
            line = {"item": item.ref, "title": shorten_text(item.title, REASON_BYTES), "state": item.state}
            line["outcome"] = shorten_text(item.outcome, REASON_BYTES)
        else:
            line = {"folded": folded.label}
        if folded.items:
            line["items"] = dict(sorted(folded.items.items()))
        if folded.rows:
            line["steps"] = ranges([row.number for row in folded.rows], self.unlisted)
        acted = [row for row in folded.rows if row.tool in self.effects]
        if folded.items or len(acted) > EFFECTS_TOLD:
            told = dict(sorted(Counter(f"{row.tool} {_outcome(row)}" for row in folded.rows).items()))
            return line | {"tools": told}
        if acted:
            line["effects"] = [
                {
                    "step": row.number,
                    "tool": row.tool,
                    "with": shown_arguments(row, self.effects),
                    "outcome": _outcome(row),
                }
                for row in acted
            ]
        return line


def _outcome(row: Row) -> str:
    return "replayed" if row.replayed and row.state == StepState.DONE else row.state


def _size_about(text: str) -> int:
    """Bytes that a text takes, without writing it."""
    more = 5 * (text.count("<") + text.count(">") + text.count("&")) + text.count('"') + text.count("\\")
    return min(len(text.encode("utf-8", "surrogatepass")) + more, REASON_BYTES)


def _identity(tool: str, arguments: dict[str, Any], effects: Effects) -> dict[str, Any]:
    return effects[tool].identity_of(arguments) if tool in effects else arguments


def _shorten_each(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: shorten_strings(value, ARGUMENT_BYTES) for name, value in arguments.items()}


def _names(text: str) -> set[str]:
    """The words of a title that name something: those with a digit."""
    return {word for word in _parts(text) if not word.isalpha() and any(map(str.isdigit, word))}


def _parts(text: str) -> list[str]:
    """The words of a text; of dotted names ("order.1001") also their parts, of amounts ("45.00") not."""
    words: list[str] = _WORDS(text.lower())
    if "." in text:
        words += [p for w in words if "." in w and not _AMOUNT.fullmatch(w) for p in w.split(".")]
    return words


def _to_detail(
    number: int,
    asked: str | None,
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
        asked=load(asked) if asked else {},
        result=(None if result is None else load(result)) if whole else result,
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
# compressed is not unpacked to be measured; OFFSET 0 keeps the text from being made anew at each use.
_ROWS = f"""
    SELECT s.number, s.kind, s.state, s.tool, s.given,
           {_LINE_BYTES} + octet_length(s.given) + least(s.error, {REASON_BYTES})
           + CASE WHEN s.large THEN s.most
                  ELSE least(s.most, 6 * octet_length(s.result) - 5 * octet_length(translate(s.result, '<>&', ''))) END,
           s.replayed
    FROM (SELECT number, kind, state, tool, arguments::text AS given, octet_length(error) AS error, {_MOST} AS most,
                 coalesce(pg_column_size(result) > {_MOST}, false) AS large,
                 CASE WHEN pg_column_size(result) <= {_MOST} THEN result::text ELSE '' END AS result,
                 replay_of_id IS NOT NULL AS replayed
          FROM runs_step s WHERE run_id = %(run)s OFFSET 0) s
    ORDER BY s.number
"""

_DETAILS = f"""
    SELECT s.number, CASE WHEN s.asked <> s.arguments THEN s.asked::text END,
           left(s.result::text, m.most), coalesce(octet_length(s.result::text), 0), m.most,
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
