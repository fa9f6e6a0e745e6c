"""A bar chart of money over hours or days, drawn on the server: the marks in units of the drawing, the figures in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from console.display.figures import write_usd

_STEPS = (1, 2, 5, 10)
_TEXT, _FOOT, _TOP = 52.0, 28.0, 8.0  # for the figures at the left, for the words below, above the highest mark
_HALF_WORD = 32.0


@dataclass(frozen=True, kw_only=True)
class Amount:
    """One hour or day; `estimated` is a part of `usd`. An empty word is not written below it."""

    word: str
    usd: Decimal
    estimated: Decimal


@dataclass(frozen=True, kw_only=True)
class Bar:
    x: float
    width: float
    y: float
    height: float
    estimated_y: float
    estimated_height: float
    word: str
    word_x: float
    anchor: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    y: float
    word: str


@dataclass(frozen=True, kw_only=True)
class Bars:
    width: float
    height: float
    left: float
    foot: float
    words_y: float
    bars: list[Bar]
    ticks: list[Tick]
    limit: Tick | None


def draw(amounts: Sequence[Amount], *, width: float, height: float, limit: Decimal | None = None) -> Bars:
    """limit: drawn as a line, unless it lies so high that nothing else could be seen."""
    highest = max((amount.usd for amount in amounts), default=Decimal(0))
    if limit is not None and limit > highest * 4:
        limit = None
    top, step = _round_up(max(highest, limit or Decimal(0)))
    foot, room = height - _FOOT, height - _FOOT - _TOP
    slot = (width - _TEXT) / max(len(amounts), 1)

    def place(usd: Decimal) -> float:
        return round(foot - float(usd / top) * room, 1)

    bars = []
    for at, amount in enumerate(amounts):
        known_y, whole_y = place(amount.usd - amount.estimated), place(amount.usd)
        x = _TEXT + slot * at
        # A word under the last bars ends with the drawing, not behind its edge.
        middle = round(x + slot / 2, 1)
        at_edge = middle > width - _HALF_WORD
        bars.append(
            Bar(
                x=round(x + slot * 0.14, 1),
                width=round(slot * 0.72, 1),
                y=known_y,
                height=round(foot - known_y, 1),
                estimated_y=whole_y,
                estimated_height=round(known_y - whole_y, 1),
                word=amount.word,
                word_x=width if at_edge else middle,
                anchor="end" if at_edge else "middle",
            )
        )
    return Bars(
        width=width,
        height=height,
        left=_TEXT,
        foot=foot,
        words_y=height - 10,
        bars=bars,
        ticks=[Tick(y=place(usd), word=_write_tick(usd, step)) for usd in _spread(top, step)],
        limit=None if limit is None else Tick(y=place(limit), word=f"limit {write_usd(limit)}"),
    )


def _round_up(usd: Decimal) -> tuple[Decimal, Decimal]:
    """A round figure above all amounts (1, 2, 5 or 10 of the power of ten that fits), and round steps up to it."""
    if usd <= 0:
        return Decimal(1), Decimal("0.5")
    power = Decimal(10) ** usd.adjusted()
    round_one = next(each for each in _STEPS if each * power >= usd)
    return round_one * power, round_one * power / (4 if round_one == 2 else 5)


def _spread(top: Decimal, step: Decimal) -> list[Decimal]:
    return [step * part for part in range(int(top / step) + 1)]


def _write_tick(usd: Decimal, step: Decimal) -> str:
    places = max(2, -int(step.normalize().as_tuple().exponent)) if step != step.to_integral_value() else 0
    return f"${usd:,.{places}f}"
