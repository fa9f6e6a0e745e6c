"""The frame around every page: counts, and the bar of engaged switches, in words."""

from dataclasses import dataclass
from datetime import datetime

from console.display.outside import show
from runs.queries.shell import COUNTED, Engaged, Shell


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One engaged switch across the page; `loud` when it holds everything."""

    id: int
    css: str
    kind: str
    name: str
    by: str
    at: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class Frame:
    now: datetime
    to_decide: str
    doubts: int
    bars: list[Bar]


def show_frame(shell: Shell) -> Frame:
    many = shell.to_decide >= COUNTED
    return Frame(
        now=shell.now,
        to_decide="" if not shell.to_decide else f"{COUNTED - 1}+" if many else str(shell.to_decide),
        doubts=shell.doubts,
        bars=[_show_bar(switch) for switch in shell.switches],
    )


def _show_bar(switch: Engaged) -> Bar:
    kind, _, name = switch.scope.partition(":")
    everything = kind == "all"
    return Bar(
        id=switch.id,
        css="loud" if everything else "",
        kind="Everything is held" if everything else f"Switch engaged: {kind}",
        name=show(name),
        by=show(switch.by) or "somebody",
        at=switch.at,
        reason=show(switch.reason),
    )
