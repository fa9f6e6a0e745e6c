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
    facts: str
    bars: list[Bar]


def show_frame(shell: Shell) -> Frame:
    return Frame(
        now=shell.now,
        to_decide=_write_capped(shell.to_decide),
        doubts=shell.doubts,
        facts=_write_capped(shell.facts),
        bars=[_show_bar(switch) for switch in shell.switches],
    )


def _write_capped(count: int) -> str:
    return "" if not count else f"{COUNTED - 1}+" if count >= COUNTED else str(count)


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
