"""Which steps the log shows one by one, and which ones a line stands for.

When the log outgrows its share, the oldest closed work folds into one line per item, by rule. When and what folds is
worked out from the tables alone, by going through the thinks of the run in order: each think sees what the one before
it saw, plus the new lines, until the share is full; only then much is folded at once (down to half of the share).

A step belongs to the work items whose titles name one of its arguments ("1001", "r12") and that were open at its time.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runs.engine.briefing_log import (
    REASON_BYTES,
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
from runs.states import StepKind

FOLD_TO = 0.5
EFFECTS_TOLD = 50  # effects that a folded line tells one by one; of more it says how many

_WORDS = re.compile(r"\w+(?:[.\-]\w+)*").findall
_AMOUNT = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, kw_only=True)
class Log:
    """The lines, and how many of them each think added (the folded ones first): where the prompt cache may cut."""

    lines: list[Line]
    blocks: list[int]


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
    more = 5 * (text.count("<") + text.count(">") + text.count("&")) + text.count('"') + text.count("\\")
    return min(len(text.encode("utf-8", "surrogatepass")) + more, REASON_BYTES)


def _names(text: str) -> set[str]:
    """The words of a title that name something: those with a digit."""
    return {word for word in _parts(text) if not word.isalpha() and any(map(str.isdigit, word))}


def _parts(text: str) -> list[str]:
    """The words of a text; of dotted names ("order.1001") also their parts, of amounts ("45.00") not."""
    words: list[str] = _WORDS(text.lower())
    if "." in text:
        words += [p for w in words if "." in w and not _AMOUNT.fullmatch(w) for p in w.split(".")]
    return words
