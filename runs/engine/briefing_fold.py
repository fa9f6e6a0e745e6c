"""Which steps the log shows one by one, and which ones a line stands for.

When the log outgrows its share, the oldest closed work folds into one line per item, by rule. When and what folds is
worked out from the tables alone, by going through the thinks of the run in order: each think sees what the one before
it saw, plus the new lines, until the share is full; only then much is folded at once (down to half of the share).

A step belongs to the work items whose titles name one of its arguments ("1001", "r12") and that were open at its time.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from runs.engine.briefing_log import (
    REASON_BYTES,
    THINK,
    Detail,
    Effects,
    Item,
    Line,
    Row,
    Steps,
    outcome_of,
    shown_arguments,
    write_line,
)
from runs.engine.briefing_text import ranges, shorten_text, size

FOLD_TO = 0.5
_NEVER = 1 << 60
EFFECTS_TOLD = 50  # effects that a folded line tells one by one; of more it says how many

_PLAN = "plan"
_WORDS = re.compile(r"\w+(?:[.\-]\w+)*|\n").findall
_ASCII_WORDS = re.compile(r"\w+(?:[.\-]\w+)*|\n", re.ASCII).findall
_GROWS = re.compile(r'[<>&"\\]').search
_AMOUNT = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, kw_only=True)
class Log:
    """The lines, and how many of them each think added (the folded ones first): where the prompt cache may cut."""

    lines: list[Line]
    blocks: list[int]


def choose(steps: Steps, items: Sequence[Item], effects: Effects, *, share: int) -> "Fold":
    """Which steps are shown one by one, and the lines that stand for the others. share: bytes."""
    unlisted = frozenset(row.number for row in steps.rows if row.kind == THINK)
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
    if fold.bytes_folded() + (size(list(lines.values())) - 1 if lines else 0) > fold.share:
        fold.live = {number: fold.live[number]._replace(bytes=size(line) + 1) for number, line in lines.items()}
        fold.fold_now()
    shown = [number for number in sorted(fold.live) if number in lines]
    counts = Counter(bisect_left(steps.thinks, number) for number in shown)
    folded = fold.lines()
    blocks = [len(folded)] if folded else []
    return Log(
        lines=[*folded, *(lines[number] for number in shown)],
        blocks=[*blocks, *(counts[place] for place in sorted(counts))],
    )


def owners(rows: Sequence[Row], items: Sequence[Item]) -> dict[int, tuple[int, ...]]:
    """The places in `items` of the work items that each step belongs to; steps that belong to none are not in it."""
    owned: dict[int, set[int]] = {}
    for number, place in _list_owned(rows, items):
        owned.setdefault(number, set()).add(place)
    return {number: tuple(sorted(places)) for number, places in owned.items()}


def _list_owned(rows: Sequence[Row], items: Sequence[Item]) -> list[tuple[int, int]]:
    """Each step with each work item (its place) that it belongs to, some of them twice.

    A step belongs to the items whose titles name one of its arguments, while they were open; a `plan`, to those that
    it opened and closed.
    """
    owned: list[tuple[int, int]] = []
    if not items:
        return owned
    by_step: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        by_step.setdefault(item.opened, []).append(place)
        if item.closed is not None and item.closed != item.opened:
            by_step.setdefault(item.closed, []).append(place)
    by_word: dict[str, list[int]] = {}
    for place, word in _list_words([item.title.replace("\n", " ") for item in items]):
        # The words of a title that name something: those with a digit.
        if word[-1].isdigit() or (not word.isalpha() and any(map(str.isdigit, word))):
            by_word.setdefault(word, []).append(place)
    texts: list[str] = []
    for row in rows:
        plan = row.tool == _PLAN
        texts.append("" if plan else row.arguments)
        if plan and (mine := by_step.get(row.number)):
            owned += [(row.number, place) for place in mine]
    for at, word in _list_words(texts, by_word):
        number = rows[at].number
        for place in by_word[word]:
            item = items[place]
            if item.opened < number <= (item.closed or number):
                owned.append((number, place))
    return owned


def _list_words(lines: Sequence[str], wanted: Container[str] | None = None) -> list[tuple[int, str]]:
    """The words of each line; of dotted names ("order.1001") also their parts, of amounts ("45.00") not.

    All lines are gone through as one text, which takes a third of the time.
    """
    found: list[tuple[int, str]] = []
    text = "\n".join(lines).lower()
    at = 0
    for word in (_ASCII_WORDS if text.isascii() else _WORDS)(text):
        if word == "\n":
            at += 1
            continue
        if wanted is None or word in wanted:
            found.append((at, word))
        if "." in word and not _AMOUNT.fullmatch(word):
            found += [(at, part) for part in word.split(".") if wanted is None or part in wanted]
    return found


@dataclass(kw_only=True, slots=True)
class Folded:
    """One line that stands for steps: of a closed item, of a stretch of the run, or of many of these.

    bytes: about what the line takes.
    """

    label: str = ""
    item: int | None = None
    rows: list[Row] = field(default_factory=list)
    items: dict[str, int] = field(default_factory=dict)  # of the items that were merged into it, how many by state
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
    # Closed items fold in the order in which they were closed: that order, and how many of them are folded.
    _closing: list[tuple[int, int]] | None = None
    _done: int = 0
    # By step, where the last of its items stands in that order; _NEVER where one of them is open.
    _last: dict[int, int] = field(default_factory=dict)
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
        if self._closing is None:
            self._closing = sorted((item.closed, p) for p, item in enumerate(self.items) if item.closed is not None)
            order = {place: at for at, (_, place) in enumerate(self._closing)}
            last = self._last
            for number, place in _list_owned(rows, self.items):
                if (at := order.get(place, _NEVER)) > last.get(number, -1):
                    last[number] = at

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
        closing = self._closing or []
        end = bisect_left(closing, (think, 0))
        mine: dict[int, list[Row]] = {}
        for number, row in self.live.items():
            # A step of several items folds with the last of them; one of an open item does not fold.
            if self._done <= (last := self._last.get(number, -1)) < end:
                mine.setdefault(last, []).append(row)
        while self._done < end and self._total > target:
            item = self.items[place := closing[self._done][1]]
            frame = 60 + _size_about(item.title) + _size_about(item.outcome)
            self._replace(mine.get(self._done, []), Folded(item=place, bytes=frame))
            self._done += 1

    def _fold_loose(self, think: int, target: int) -> None:
        """What belongs to no item, up to the oldest one that is open: it may have been read for that one."""
        opened = [i.opened for i in self.items if i.closed is None or i.closed >= think]
        end = min([*opened, self._newest()])
        loose = [n for n in sorted(self.live) if n < end and n not in self._last]
        self._fold_oldest(loose, target, "steps of no open work")

    def _fold_open(self, target: int) -> None:
        """The last resort: the oldest steps of open work. Its items, facts and ids stay; its results are recalled."""
        newest = self._newest()
        self._fold_oldest([n for n in sorted(self.live) if n < newest], target, "older steps of open work")

    def _newest(self) -> int:
        """The first step since the newest settled think: what that has just asked for is always shown."""
        return self.last_think + 1

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

    def _replace(self, rows: list[Row], folded: Folded) -> None:
        """rows: ascending."""
        folded.rows = rows
        folded.bytes += 12 * min(len(rows), 10)
        taken = 0
        for row in rows:
            del self.live[row.number]
            taken += row.bytes
            if row.tool in self.effects:
                folded.bytes += 60 + len(row.arguments)
        self.folded.append(folded)
        self._total += folded.bytes - taken

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
            states = each.items if each.item is None else {self.items[each.item].state: 1}
            for state, number in states.items():
                merged.items[state] = merged.items.get(state, 0) + number
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
            told = dict(sorted(Counter(f"{row.tool} {outcome_of(row)}" for row in folded.rows).items()))
            return line | {"tools": told}
        if acted:
            line["effects"] = [
                {
                    "step": row.number,
                    "tool": row.tool,
                    "with": shown_arguments(row, self.effects),
                    "outcome": outcome_of(row),
                }
                for row in acted
            ]
        return line


def _size_about(text: str) -> int:
    """Bytes that a text takes, without writing it."""
    if text.isascii() and not _GROWS(text):
        return min(len(text), REASON_BYTES)
    more = 5 * (text.count("<") + text.count(">") + text.count("&")) + text.count('"') + text.count("\\")
    return min(len(text.encode("utf-8", "surrogatepass")) + more, REASON_BYTES)
