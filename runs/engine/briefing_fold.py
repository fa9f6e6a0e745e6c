"""Which steps the log shows one by one, and which ones a line stands for.

When the log outgrows its share, the oldest closed work folds into one line per item, by rule. When and what folds is
worked out from the tables alone, by going through the thinks of the run in order: each think sees what the one before
it saw, plus the new lines, until the share is full; only then much is folded at once (down to half of the share). What
was folded at a settled think stays, so it is kept (`briefing_kept`), and the next briefings go on from that think.

A step belongs to the work items whose titles name one of its arguments ("1001", "r12") and that were open at its time.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import attrgetter, itemgetter

from runs.engine.briefing_kept import Kept, KeptLine, pass_over
from runs.engine.briefing_log import (
    CLOSED_ITEMS_SHOWN,
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
from runs.engine.briefing_text import Span, join, ranges, shorten_text, size

FOLD_TO = 0.5
NONE, OPEN = -1, 1 << 60  # places in the order of closing: of a step without items, of what is open
_END = 1 << 62
EFFECTS_TOLD = 50  # effects that a folded line tells one by one; of more it says how many

_PLAN = "plan"
_WORDS = re.compile(r"\w+(?:[.\-]\w+)*").findall
_GROWS = re.compile(r'[<>&"\\]').search
_AMOUNT = re.compile(r"\d+\.\d+")
_closed_of = attrgetter("closed")
_step_of = itemgetter("step")


@dataclass(frozen=True, kw_only=True)
class Log:
    """The lines, and how many of them each think added (the folded ones first): where the prompt cache may cut."""

    lines: list[Line]
    blocks: list[int]


def choose(steps: Steps, items: Sequence[Item], effects: Effects, *, share: int) -> "Fold":
    """Which steps are shown one by one, and the lines that stand for the others. share: bytes."""
    fold = Fold(steps=steps, items=items, effects=effects, share=share)
    fold.play()
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
    kept: list[KeptLine] = field(default_factory=list)  # the line itself without a label, else what was merged into it
    items: dict[str, int] = field(default_factory=dict)  # of the items that were merged into it, how many by state
    bytes: int = 0

    def count_items(self) -> dict[str, int]:
        return self.items if self.item is None else {self.item.state: 1}


@dataclass(kw_only=True)
class Fold:
    """The state of the folding while the thinks of a run are gone through, and at the end what is shown."""

    steps: Steps
    items: Sequence[Item]
    effects: Effects
    share: int
    live: dict[int, Row] = field(default_factory=dict)
    folded: list[Folded] = field(default_factory=list)
    last_think: int = 0  # the newest settled think that was gone through
    to_keep: Kept | None = None  # what is to be kept instead of what was: the run has folded since
    # Closed items fold in the order in which they were closed: how many of them are folded, the steps by where they stand
    # in that order, and those for which that was not looked up yet.
    _done: int = 0
    _steps_of: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _new: list[Row] = field(default_factory=list)
    _total: int = 0

    def play(self) -> None:
        """Go through the thinks: add what each one saw first, and fold whenever the share is passed."""
        kept = self.steps.kept
        self.folded = [_unfold(line) for line in kept.lines]
        self._total = self.bytes_folded()
        before = {row.number: row for row in self.steps.rows if row.number < kept.think}
        self._add([before[number] for number in kept.shown])
        finished = self.steps.finished
        thinks = [think for think in self.steps.thinks if think > kept.think]
        numbers = [row.number for row in finished]
        sums = list(accumulate((row.bytes for row in finished), initial=0))
        ends = [bisect_left(numbers, think) for think in thinks]
        added, folded_at = 0, 0
        for last, think, end in zip([kept.think, *thinks], [*thinks, _END], [*ends, len(finished)], strict=True):
            if think == _END and folded_at and not self.steps.has_open_before(folded_at):
                self.to_keep = self._keep(folded_at)
            self.last_think = last
            if self._total + sums[end] - sums[added] > self.share:
                self._add(finished[added:end])
                added = end
                self._fold(think)
                folded_at = think
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
    def unlisted(self) -> frozenset[int]:
        return self.steps.unlisted

    @cached_property
    def closing(self) -> Closing:
        """Of the items that were not folded before: what belonged to one that was, was folded with it."""
        folded = frozenset(self.steps.kept.folded_items)
        return Closing([item for item in self.items if item.id not in folded])

    def _add(self, rows: Sequence[Row]) -> None:
        self.live |= {row.number: row for row in rows}
        self._total += sum([row.bytes for row in rows])
        self._new += rows

    def _find_items(self) -> None:
        for row in self._new:
            self._steps_of[self.closing.find(row)].append(row.number)
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
        order = self.closing.order
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
            merged.kept += each.kept
            for state, number in each.count_items().items():
                merged.items[state] = merged.items.get(state, 0) + number
        merged.rows.sort()
        self._total += merged.bytes - sum(each.bytes for each in self.folded[:count])
        self.folded[:count] = [merged]

    def _write(self, folded: Folded) -> Line:
        """Which steps they were; of an item, each effect with its exact identity, of many, how many there were."""
        line: Line
        if not folded.label and folded.item is None:
            return folded.kept[0].line
        if folded.item is not None:
            item = folded.item
            line = {"item": item.ref, "title": shorten_text(item.title, REASON_BYTES), "state": item.state}
            line["outcome"] = shorten_text(item.outcome, REASON_BYTES)
        else:
            line = {"folded": folded.label}
        if folded.items:
            line["items"] = dict(sorted(folded.items.items()))
        if spans := self._spans(folded):
            line["steps"] = ranges(spans)
        acted = [row for row in folded.rows if row.tool in self.effects]
        told = [effect for each in folded.kept for effect in each.line.get("effects", ())]
        if folded.items or len(acted) + len(told) > EFFECTS_TOLD or any("tools" in each.line for each in folded.kept):
            return line | {"tools": dict(sorted(_count_tools(folded).items()))}
        if acted or told:
            new = [
                {
                    "step": row.number,
                    "tool": row.tool,
                    "with": shown_arguments(row, self.effects),
                    "outcome": outcome_of(row),
                }
                for row in acted
            ]
            line["effects"] = sorted([*told, *new], key=_step_of)
        return line

    def _spans(self, folded: Folded) -> list[Span]:
        spans = [(row.number, row.number) for row in folded.rows]
        if folded.kept:
            spans = sorted([*spans, *((first, last) for each in folded.kept for first, last in each.spans)])
        return join(spans, self.unlisted)

    def _keep(self, think: int) -> Kept:
        """What stays of a fold at a settled think; from here on, this goes on from what is kept as well."""
        before, thinks, shown = self.steps.kept, self.steps.thinks, sorted(self.live)
        lines = [
            KeptLine(
                line=self._write(each),
                bytes=each.bytes,
                spans=self._spans(each),
                tools=_count_tools(each),
                items=each.count_items(),
            )
            for each in self.folded
        ]
        self.folded = [_unfold(line) for line in lines]
        folded = [*before.folded_items, *(item.id for item in self.closing.order[: self._done])]
        recent = folded[-CLOSED_ITEMS_SHOWN:]
        gone = frozenset(folded) - frozenset(recent)
        known = [item for item in self.items if item.id not in gone]
        named = {number for item in known for number in (item.opened, item.closed)}
        return Kept(
            think=think,
            lines=lines,
            shown=shown,
            cuts=sorted({cut for cut in (thinks[bisect_left(thinks, number)] for number in shown) if cut < think}),
            passed=pass_over(sorted(self.unlisted), [*shown, *(last for line in lines for _, last in line.spans)]),
            items=[item.id for item in known],
            folded_items=recent,
            last_item=max([before.last_item, *(item.id for item in self.items)]),
            items_left_out=before.items_left_out + len(gone),
            numbers={ident: number for ident, number in self.steps.numbers.items() if number in named},
        )


def _unfold(line: KeptLine) -> Folded:
    return Folded(kept=[line], items=line.items, bytes=line.bytes)


def _count_tools(folded: Folded) -> Counter[str]:
    tools = Counter([f"{row.tool} {outcome_of(row)}" for row in folded.rows])
    for each in folded.kept:
        tools.update(each.tools)
    return tools


def _size_about(text: str) -> int:
    """Bytes that a text takes, without writing it."""
    if text.isascii() and not _GROWS(text):
        return min(len(text), REASON_BYTES)
    more = 5 * (text.count("<") + text.count(">") + text.count("&")) + text.count('"') + text.count("\\")
    return min(len(text.encode("utf-8", "surrogatepass")) + more, REASON_BYTES)
