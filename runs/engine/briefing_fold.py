"""Which steps the log shows one by one, and which ones a line stands for.

When the log outgrows its share, the oldest closed work folds into one line per item, by rule. When and what folds is
worked out from the tables alone, by going through the thinks of the run in order: each think sees what the one before
it saw, plus the new lines, until the share is full; only then much is folded at once (down to half of the share).

A step belongs to the work items whose titles name one of its arguments ("1001", "r12") and that were open at its time.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import attrgetter

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
NONE, OPEN = -1, 1 << 60  # places in the order of closing: of a step without items, of what is open
_END = 1 << 62
EFFECTS_TOLD = 50  # effects that a folded line tells one by one; of more it says how many

_PLAN = "plan"
_WORDS = re.compile(r"\w+(?:[.\-]\w+)*").findall
_GROWS = re.compile(r'[<>&"\\]').search
_AMOUNT = re.compile(r"\d+\.\d+")
_closed_of = attrgetter("closed")


@dataclass(frozen=True, kw_only=True)
class Log:
    """The lines, and how many of them each think added (the folded ones first): where the prompt cache may cut."""

    lines: list[Line]
    blocks: list[int]


def choose(steps: Steps, items: Sequence[Item], effects: Effects, *, share: int) -> "Fold":
    """Which steps are shown one by one, and the lines that stand for the others. share: bytes."""
    unlisted = frozenset(row.number for row in steps.rows if row.kind == THINK)
    fold = Fold(items=items, effects=effects, share=share, unlisted=unlisted)
    fold.play(steps.finished, steps.thinks)
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


class Closing:
    """The order in which the work items were closed, and where in it a step stands: it folds with the last of its items.

    A step belongs to the items whose titles name one of its arguments, while they were open; a `plan`, to those that it
    opened and closed.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.order = sorted((item for item in items if item.closed is not None), key=_closed_of)
        still_open = [item for item in items if item.closed is None]
        self._by_step: dict[int | None, int] = {}
        self._by_name: dict[str, list[tuple[int, int, int]]] = {}
        for at, item in [*enumerate(self.order), *((OPEN, item) for item in still_open)]:
            self._by_step[item.opened] = self._by_step[item.closed] = at
            for name in _list_names(item.title):
                self._by_name.setdefault(name, []).append((item.opened, item.closed or OPEN, at))

    def find(self, row: Row) -> int:
        """The place in the order of the last item that the step belongs to; OPEN where one of them is, NONE without any."""
        if row.tool == _PLAN:
            return self._by_step.get(row.number, NONE)
        last = NONE
        for name in _list_names(row.arguments):
            for opened, closed, at in self._by_name.get(name, ()):
                if opened < row.number <= closed and at > last:
                    last = at
        return last


@lru_cache(8_192)  # of one text always the same, and every think of a run asks for all of them
def _list_names(text: str) -> tuple[str, ...]:
    """The words with a digit; of dotted names ("order.1001") also the parts, of amounts ("45.00") not."""
    words = _WORDS(text.lower())
    words += [part for word in words if "." in word and not _AMOUNT.fullmatch(word) for part in word.split(".")]
    return tuple(word for word in words if not word.isalpha() and any(map(str.isdigit, word)))


@dataclass(kw_only=True, slots=True)
class Folded:
    """One line that stands for steps: of a closed item, of a stretch of the run, or of many of these.

    bytes: about what the line takes.
    """

    label: str = ""
    item: Item | None = None
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
    # Closed items fold in the order in which they were closed: how many of them are folded, the steps by where they stand
    # in that order, and those for which that was not looked up yet.
    _done: int = 0
    _steps_of: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _new: list[Row] = field(default_factory=list)
    _total: int = 0

    def play(self, finished: Sequence[Row], thinks: Sequence[int]) -> None:
        """Go through the thinks: add what each one saw first, and fold whenever the share is passed."""
        numbers = [row.number for row in finished]
        sums = list(accumulate((row.bytes for row in finished), initial=0))
        ends = [bisect_left(numbers, think) for think in thinks]
        added = 0
        for before, think, end in zip([0, *thinks], [*thinks, _END], [*ends, len(finished)], strict=True):
            self.last_think = before
            if self._total + sums[end] - sums[added] > self.share:
                self._add(finished[added:end])
                added = end
                self._fold(think)
        self._add(finished[added:])

    def fold_now(self) -> None:
        """Fold by the sizes that `live` has now."""
        self._total = self.bytes_folded() + sum(row.bytes for row in self.live.values())
        self._fold(_END)

    def bytes_folded(self) -> int:
        return sum(folded.bytes for folded in self.folded)

    def lines(self) -> list[Line]:
        return [self._write(folded) for folded in self.folded]

    @cached_property
    def _closing(self) -> Closing:
        return Closing(self.items)

    def _add(self, rows: Sequence[Row]) -> None:
        self.live |= {row.number: row for row in rows}
        self._total += sum([row.bytes for row in rows])
        self._new += rows

    def _find_items(self) -> None:
        for row in self._new:
            self._steps_of[self._closing.find(row)].append(row.number)
        self._new = []

    def _fold(self, think: int) -> None:
        """Closed items first, then what belongs to none, then folded lines into fewer, at last what is open."""
        self._find_items()
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
        order = self._closing.order
        end = bisect_left(order, think, key=_closed_of)
        while self._done < end and self._total > target:
            item = order[self._done]
            frame = 60 + _size_about(item.title) + _size_about(item.outcome)
            self._replace(self._steps_of.pop(self._done, []), Folded(item=item, bytes=frame))
            self._done += 1

    def _fold_loose(self, think: int, target: int) -> None:
        """What belongs to no item, up to the oldest one that is open: it may have been read for that one."""
        opened = [i.opened for i in self.items if i.closed is None or i.closed >= think]
        end = min([*opened, self._newest()])
        loose = self._steps_of[NONE] = [number for number in self._steps_of[NONE] if number in self.live]
        self._fold_oldest(loose[: bisect_left(loose, end)], target, "steps of no open work")

    def _fold_open(self, target: int) -> None:
        """The last resort: the oldest steps of open work. Its items, facts and ids stay; its results are recalled."""
        newest = self._newest()
        self._fold_oldest([n for n in sorted(self.live) if n < newest], target, "older steps of open work")

    def _newest(self) -> int:
        """The first step since the newest settled think: what that has just asked for is always shown."""
        return self.last_think + 1

    def _fold_oldest(self, numbers: Sequence[int], target: int, label: str) -> None:
        left, count = self._total, 0
        while count < len(numbers) and left > target:
            left -= self.live[numbers[count]].bytes
            count += 1
        if count:
            self._replace(numbers[:count], Folded(label=label, bytes=120))

    def _replace(self, numbers: Sequence[int], folded: Folded) -> None:
        """numbers: ascending."""
        rows = folded.rows = [self.live.pop(number) for number in numbers if number in self.live]
        acted = [row for row in rows if row.tool in self.effects]
        folded.bytes += 12 * min(len(rows), 10) + sum([60 + len(row.arguments) for row in acted])
        self.folded.append(folded)
        self._total += folded.bytes - sum([row.bytes for row in rows])

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
            states = each.items if each.item is None else {each.item.state: 1}
            for state, number in states.items():
                merged.items[state] = merged.items.get(state, 0) + number
        merged.rows.sort()
        self._total += merged.bytes - sum(each.bytes for each in self.folded[:count])
        self.folded[:count] = [merged]

    def _write(self, folded: Folded) -> Line:
        """Which steps they were; of an item, each effect with its exact identity, of many, how many there were."""
        line: Line
        if folded.item is not None:
            item = folded.item
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
