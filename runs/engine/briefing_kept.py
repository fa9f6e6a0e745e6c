"""What is kept of a fold from one think to the next: a briefing goes on from there instead of from the run's first step.

Valid is what is there and was made by the same rules. It says only what cannot change any more: of steps that have their
outcome, and of which of the closed work items are folded. The one outcome that may still change is that of a void step,
and the guard that lets it removes what is kept (migration 0023). So it is written only while no step before its think is
open, and only while nothing happened to the run since it was read. It may be deleted at any time: then the fold is worked
out from the first step on, comes to the same, and is kept anew.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runs import sql
from runs.agents import Tool, digest
from runs.engine.briefing_text import Span, dump, load

# Whatever the briefing's code is: what other code has folded may not be what this one would.
_CODE = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(Path(__file__).parent.glob("briefing*.py")))).hexdigest()


class KeptLine(NamedTuple):
    """A folded line as it was written, and what it takes to fold it into another one."""

    line: dict[str, Any]
    bytes: int
    spans: list[Span]  # its steps
    tools: dict[str, int]  # how many of them by tool and outcome
    items: dict[str, int]  # how many work items it stands for, by state


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A fold as it was at a settled think: every finished step before that is in one of the lines, or shown."""

    think: int = 0
    lines: list[KeptLine] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # the thinks after which a new block of what is shown begins
    passed: list[int] = field(default_factory=list)  # the thinks right behind a step, which a range may pass over
    unsettled: list[int] = field(default_factory=list)  # calls that led nowhere and were not done since
    # Work items by id: all up to `last_item` that are not folded, and those folded ones that <work> still shows.
    items: list[int] = field(default_factory=list)
    folded_items: list[int] = field(default_factory=list)
    last_item: int = 0
    items_left_out: int = 0
    numbers: dict[int, int] = field(default_factory=dict)  # of the steps that opened and closed these items, by id

    @property
    def before(self) -> list[int]:
        """The steps before its think that are read all the same."""
        return [*self.shown, *self.unsettled]


NOTHING = Kept()


def name_rules(effects: Mapping[str, Tool], share: int) -> str:
    """What a fold follows from besides the tables."""
    return digest({"code": _CODE, "share": share, "tools": {name: tool.contract for name, tool in effects.items()}})


def read(text: str) -> Kept:
    """Read what `write` wrote."""
    kept = load(text)
    lines = [KeptLine(*line) for line in kept.pop("lines")]
    return Kept(lines=lines, numbers=dict(kept.pop("numbers")), **kept)


def write(run: int, kept: Kept, *, rules: str, seq: int) -> None:
    """Keep it, unless something happened to the run since its journal was at `seq`, or is about to."""
    state = dump(kept.__dict__ | {"numbers": list(kept.numbers.items())})
    sql.execute(_KEEP, {"run": run, "seq": seq, "think": kept.think, "rules": rules, "state": state})


def pass_over(thinks: Iterable[int], ends: Iterable[int]) -> list[int]:
    """Of ascending thinks those that come right after one of these steps, or after one another behind it."""
    reached = set(ends)
    behind = []
    for think in thinks:
        if think - 1 in reached:
            reached.add(think)
            behind.append(think)
    return behind


_KEEP = """
    INSERT INTO runs_keptfold (run_id, think, rules, state)
    SELECT id, %(think)s, %(rules)s, %(state)s FROM runs_run WHERE id = %(run)s AND journal_seq = %(seq)s
    FOR NO KEY UPDATE SKIP LOCKED
    ON CONFLICT (run_id) DO UPDATE SET think = excluded.think, rules = excluded.rules, state = excluded.state
"""
