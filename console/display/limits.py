"""How full the limits over many runs are, and those of runs that ask for more: in words, and what happens next."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from console.display.figures import percent, write_count, write_moment, write_usd
from console.display.outside import show
from console.display.runs import HIGH
from console.display.waits import say_until
from runs.queries.spend import AllowanceNow, ShortRun, Spend

_NOTHING = Decimal(0)
_UNITS = {"usd": "", "tokens": "tokens", "calls": "model calls", "effects": "effects", "steps": "steps"}


@dataclass(frozen=True, kw_only=True)
class LimitLine:
    """A limit, and the parts of its gauge in percent. `urgent` is the part of `after` that asks for a person."""

    name: str
    href: str
    of: str
    spent: str
    reserved: str
    left: str
    most: str
    x: float
    x_reserved: float
    css: str
    label: str
    urgent: str
    after: str


def is_near(each: AllowanceNow) -> bool:
    """So much of it is used or reserved that a person should know."""
    return each.spent + each.reserved >= each.hard * HIGH / 100


def show_limits(spend: Spend, *, may_edit: bool) -> list[LimitLine]:
    return [
        *(show_allowance(each, spend.now, may_edit=may_edit) for each in spend.allowances),
        *(_show_short(each, spend.now) for each in spend.short),
    ]


def _writer(dimension: str) -> Callable[[Decimal], str]:
    return write_usd if dimension == "usd" else lambda amount: write_count(int(amount))


def show_allowance(each: AllowanceNow, now: datetime, *, may_edit: bool = False) -> LimitLine:
    write = _writer(each.dimension)
    left = max(each.hard - each.spent - each.reserved, _NOTHING)
    urgent, after = _foresee(each, left, now)
    unit = _UNITS[each.dimension]
    name = "everything" if each.scope == "all" else show(each.scope.partition(":")[2])
    share = percent(each.spent, each.hard)
    return LimitLine(
        name=name,
        href=f"/admin/runs/allowance/{each.id}/change/" if may_edit else "",
        of=f"{unit} a {each.period}".strip(),
        spent=write(each.spent),
        reserved=write(each.reserved),
        left=write(left),
        most=write(each.hard),
        x=share,
        x_reserved=min(percent(each.reserved, each.hard), round(100 - share, 2)),
        css=_shade(each.spent + each.reserved, each.hard),
        label=f"{name}: {write(each.spent)} spent, {write(each.reserved)} reserved of {write(each.hard)} {unit}".strip(),
        urgent=urgent,
        after=after,
    )


def _shade(used: Decimal, most: Decimal) -> str:
    return "over" if used >= most else "high" if percent(used, most) >= HIGH else "spent"


def _foresee(each: AllowanceNow, left: Decimal, now: datetime) -> tuple[str, str]:
    """What happens next at the rate so far: what asks for a person, and what follows it."""
    frees = f"frees up at {write_moment(each.ends_at, now)}"
    if left <= 0:
        return "nothing more is taken", frees
    passed = (now - each.starts_at).total_seconds()
    if each.spent > 0 and passed > 0:
        # In seconds of a float: a limit that lies a thousand years ahead is not reached.
        ahead = float(left) / float(each.spent) * passed
        if ahead < (each.ends_at - now).total_seconds():
            return f"used up at {write_moment(now + timedelta(seconds=ahead), now)}", f"at this rate; {frees}"
    if each.soft is not None and each.spent >= each.soft:
        return "", f"above the {_writer(each.dimension)(each.soft)} that is told of"
    return "", "not reached at this rate"


def _show_short(each: ShortRun, now: datetime) -> LimitLine:
    most = each.usd_limit
    left = None if most is None else max(most - each.usd_spent - each.usd_reserved, _NOTHING)
    until = say_until(each.expires_at, now) if each.expires_at else None
    share = percent(each.usd_spent, most) if most else 0.0
    return LimitLine(
        name=f"run {each.run}",
        href=f"/approvals/{each.card}",
        of=each.agent,
        spent=write_usd(each.usd_spent),
        reserved=write_usd(each.usd_reserved),
        left="no limit" if left is None else write_usd(left),
        most="–" if most is None else write_usd(most),
        x=share,
        x_reserved=min(percent(each.usd_reserved, most), round(100 - share, 2)) if most else 0.0,
        css="spent" if most is None else _shade(each.usd_spent + each.usd_reserved, most),
        label=f"run {each.run}: {write_usd(each.usd_spent)} spent" + ("" if most is None else f" of {write_usd(most)}"),
        # The figures are of money alone, and it may be steps or tokens that are short.
        urgent=show(each.title),
        after=f"waits for a person, {until.expires if until else 'no time limit'}",
    )
