"""The timeline of a run: a table that reads without the drawing, and a lane of SVG rectangles in each row.

Positions are percent of a lane. Long stretches in which nothing was worked on are cut to a narrow hatched strip, so that a
run which slept for two days still shows what it did.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from console.display.figures import write_duration, write_moment, write_took, write_usd
from console.display.marks import STEP, Mark
from console.display.outside import show, write_brief
from runs.agents import Json
from runs.queries.timeline import TimelineStep
from runs.states import AttemptOutcome, StepKind, StepState

GAP_WIDTH = 4.5
MOST_GAPS = 6
LEAST_WIDTH = 0.35
CHARACTER = 1.8
"""The width of a character of a label, in percent of the narrowest lane that has labels."""
AHEAD = 5.0
"""Room to the right of now, for what an open wait still has."""

_BAD = frozenset(
    {
        AttemptOutcome.FAILED,
        AttemptOutcome.REFUSED,
        AttemptOutcome.UNKNOWN,
        AttemptOutcome.LOST,
        AttemptOutcome.DEAD,
        AttemptOutcome.CUT,
        AttemptOutcome.DISPROVED,
    }
)
_OVER = frozenset({StepState.FAILED, StepState.REFUSED, StepState.EXPIRED, StepState.REJECTED, StepState.VOID})


@dataclass(frozen=True, kw_only=True)
class Rect:
    """A piece of a lane. `css`: what kind of time; tall is work, low is waiting."""

    css: str
    x: str
    width: str
    height: str
    y: str = ""


@dataclass(frozen=True, kw_only=True)
class Label:
    css: str
    x: str
    text: str
    anchor: str = "start"


@dataclass(frozen=True, kw_only=True)
class Row:
    number: int
    name: str
    what: str
    tags: list[Mark]
    when: str
    rects: list[Rect]
    took: str
    cost: str
    open: bool
    error: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    rows: list[Row]
    labels: list[Label]
    cut: bool


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A stretch of time and the stretch of the lane that it takes."""

    start: float
    end: float
    x: float
    width: float
    cut: bool


def draw(
    steps: Sequence[TimelineStep],
    *,
    now: datetime,
    ended: bool,
    collapse: bool,
    signatures: Mapping[str, Sequence[str]] | None = None,
) -> Drawing:
    """Draw steps, oldest first. now: the right edge, unless the run has ended.

    signatures: the arguments of each tool in the order in which they say most; the database keeps none.
    """
    if not steps:
        return Drawing(rows=[], labels=[], cut=False)
    first = min(step.created_at for step in steps)
    last = max((step.ended_at or now for step in steps), default=now) if ended else now
    scale = _Scale(first, max(last, first + timedelta(seconds=1)), _busy(steps, now), collapse=collapse, ended=ended)
    rows = [_draw_row(step, scale, now, (signatures or {}).get(step.tool, ())) for step in steps]
    return Drawing(rows=rows, labels=scale.write_labels(now, ended), cut=scale.has_gaps)


class _Scale:
    """Moments to percent."""

    def __init__(
        self, first: datetime, last: datetime, busy: list[tuple[float, float]], *, collapse: bool, ended: bool
    ) -> None:
        self._zero = first
        self.right = 100.0 if ended else 100.0 - AHEAD
        end = (last - first).total_seconds()
        gaps = _find_gaps(busy, end) if collapse else []
        shown = end - sum(stop - start for start, stop in gaps)
        room = self.right - GAP_WIDTH * len(gaps)
        self._pieces: list[_Piece] = []
        at = x = 0.0
        for start, stop in [*gaps, (end, end)]:
            width = room * (start - at) / shown if shown > 0 else room / (len(gaps) + 1)
            self._pieces.append(_Piece(start=at, end=start, x=x, width=width, cut=False))
            if stop > start:
                self._pieces.append(_Piece(start=start, end=stop, x=x + width, width=GAP_WIDTH, cut=True))
                x += GAP_WIDTH
            x += width
            at = stop

    @property
    def has_gaps(self) -> bool:
        return any(piece.cut for piece in self._pieces)

    def place(self, at: datetime) -> float:
        seconds = (at - self._zero).total_seconds()
        for piece in self._pieces:
            if seconds <= piece.end:
                share = (seconds - piece.start) / (piece.end - piece.start) if piece.end > piece.start else 0.0
                return piece.x + piece.width * min(max(share, 0.0), 1.0)
        return self.right

    def write_gaps(self) -> list[Rect]:
        return [
            Rect(css="idle", x=f"{p.x:.2f}%", width=f"{p.width:.2f}%", height="100%") for p in self._pieces if p.cut
        ]

    def write_labels(self, now: datetime, ended: bool) -> list[Label]:
        """When each stretch begins, and how long each cut is, right before its end; none over another."""
        labels, free = [], 0.0
        limit = 100.0 if ended else self.right - CHARACTER
        for piece in self._pieces:
            if piece.cut:
                text, end = _write_gap(piece.end - piece.start), piece.x + piece.width
                if end - CHARACTER * len(text) >= free:
                    labels.append(Label(css="between", x=f"{end:.2f}%", text=text, anchor="end"))
                    free = end
            elif piece.width > 2 and piece.x >= free:
                text = self._write_begin(self._zero + timedelta(seconds=piece.start), now)
                end = piece.x + CHARACTER * (len(text) + 1)
                if end <= limit:
                    labels.append(Label(css="", x=f"{piece.x + CHARACTER / 2:.2f}%", text=text))
                    free = end
        if not ended:
            labels.append(Label(css="now-label", x=f"{self.right + 0.7:.2f}%", text="now"))
        return labels

    def _write_begin(self, at: datetime, now: datetime) -> str:
        """As short as it can be: seconds where the whole is minutes, and the day where it is not today's."""
        at, now = at.astimezone(UTC), now.astimezone(UTC)
        if self._pieces[-1].end < 900 and at.date() == now.date():
            return f"{at:%H:%M:%S}"
        if at.date() == now.date():
            return f"{at:%H:%M}"
        return f"{at:%a %H:%M}" if (now - at).days < 6 else f"{at.day} {at:%b %H:%M}"


def _write_gap(seconds: float) -> str:
    text = write_duration(seconds)
    return text.removesuffix(" min") if " h " in text else text


def _find_gaps(busy: list[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """The longest stretches in which nothing was worked on, if they are long beside the whole."""
    least = max(60.0, end * 0.08)
    gaps, at = [], 0.0
    for start, stop in [*sorted(busy), (end, end)]:
        if start - at > least:
            gaps.append((at, start))
        at = max(at, stop)
    longest = sorted(sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MOST_GAPS])
    # A margin on both sides, so that work does not touch the cut.
    margin = min((end - sum(stop - start for start, stop in longest)) * 0.03, least * 0.05)
    return [(start + margin, stop - margin) for start, stop in longest]


def _busy(steps: Iterable[TimelineStep], now: datetime) -> list[tuple[float, float]]:
    steps = list(steps)
    zero = min(step.created_at for step in steps)
    found = []
    for step in steps:
        spans = [(made.taken_at, made.ended_at or now) for made in step.attempts]
        spans += [(step.created_at, step.created_at), *([(step.ended_at, step.ended_at)] if step.ended_at else [])]
        found += [((start - zero).total_seconds(), (stop - zero).total_seconds()) for start, stop in spans]
    return found


def _draw_row(step: TimelineStep, scale: _Scale, now: datetime, order: Sequence[str]) -> Row:
    began, over = _find_begin(step), step.ended_at or now
    took = (over - began).total_seconds()
    when = f"{write_moment(began, now)} to {write_moment(over, now) if step.ended_at else 'now'}"
    return Row(
        number=step.number,
        name=show(step.tool) or step.kind,
        what=_say_what(step, order),
        tags=_tags(step),
        when=when,
        rects=_draw_lane(step, scale, now),
        took=f"{write_took(took)} so far" if step.ended_at is None else write_took(took),
        cost=write_usd(step.usd) if step.usd else "",
        open=step.ended_at is None,
        error=show(step.error) if step.state != StepState.DONE else "",
    )


def _find_begin(step: TimelineStep) -> datetime:
    """When it was first worked on or asked about: what was planned together is done one after the other."""
    firsts = [step.attempts[0].taken_at] if step.attempts else []
    firsts += [step.cards[0].created_at] if step.cards else []
    return min(firsts, default=step.created_at)


def _say_what(step: TimelineStep, order: Sequence[str]) -> str:
    if step.kind == StepKind.CHECK:
        return show(step.fact)
    if step.replay_of:
        return f"as in step {step.replay_of}, not done again"
    if isinstance(step.arguments, dict):
        names = sorted(step.arguments, key=lambda name: order.index(name) if name in order else len(order))
        given: dict[str, Json] = {n: step.arguments[n] for n in names if step.arguments[n] not in (None, "", [], {})}
        if given:
            return write_brief(given)
    return show(step.because)


def _tags(step: TimelineStep) -> list[Mark]:
    tags = []
    if step.state == StepState.IN_DOUBT:
        tags.append(Mark(word="in doubt", icon="doubt", css="unknown"))
    elif step.state in _OVER:
        word = STEP[step.state].word.lower()
        tags.append(Mark(word=word, css="danger" if step.state == StepState.FAILED else ""))
    elif step.state == StepState.WAITING and step.cards and step.cards[-1].closed_at is None:
        tags.append(Mark(word="waits for a person", icon="approval", css="person"))
    if step.tries > 1:
        tags.append(Mark(word=f"{step.tries} attempts", css="person"))
    return tags


def _draw_lane(step: TimelineStep, scale: _Scale, now: datetime) -> list[Rect]:
    rects = scale.write_gaps()
    end = step.ended_at or now
    people = [(card.created_at, card.closed_at or now) for card in step.cards]
    work = [(made.began_at or made.taken_at, made.ended_at or now, made.outcome) for made in step.attempts]
    if not step.attempts and not people:
        waited = (end - step.created_at).total_seconds() > 1
        rects.append(
            _low("world", step.created_at, end, scale) if waited else _tall("done", step.created_at, end, scale)
        )
    elif work:
        # Between two tries, and after the last one while it is not over, the step waits for its next try.
        starts = [start for start, _, _ in work[1:]] + ([now] if step.ended_at is None else [])
        for (_, stop, _), start in zip(work, starts, strict=False):
            if (start - stop).total_seconds() > 0:
                rects.append(_low("wait", stop, start, scale))
    rects += [_low("person", start, stop, scale) for start, stop in people]
    rects += [_tall("bad" if how in _BAD else "done", start, stop, scale) for start, stop, how in work]
    if step.ended_at is None:
        until = step.cards[-1].expires_at if step.cards and step.cards[-1].closed_at is None else step.wake_at
        if until is not None and until > now:
            rects.append(
                Rect(css="until low", x=f"{scale.right:.2f}%", width=f"{AHEAD - 0.5:.2f}%", height="8", y="50%")
            )
    if scale.right < 100:
        rects.append(Rect(css="now", x=f"{scale.right:.2f}%", width="1.5", height="100%"))
    return rects


def _tall(css: str, start: datetime, stop: datetime, scale: _Scale) -> Rect:
    x = scale.place(start)
    width = max(scale.place(stop) - x, LEAST_WIDTH)
    return Rect(css=f"{css} tall", x=f"{min(x, 100 - width):.2f}%", width=f"{width:.2f}%", height="12", y="50%")


def _low(css: str, start: datetime, stop: datetime, scale: _Scale) -> Rect:
    x = scale.place(start)
    width = max(scale.place(stop) - x, LEAST_WIDTH)
    return Rect(css=f"{css} low", x=f"{min(x, 100 - width):.2f}%", width=f"{width:.2f}%", height="8", y="50%")
