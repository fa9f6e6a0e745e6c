"""The lines of the log: one per finished step, never changed once it is written, so that a cached prefix stays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runs import sql
from runs.agents import Agent, Tool
from runs.engine.briefing_kept import Kept
from runs.engine.briefing_text import load, shorten, shorten_strings, shorten_text
from runs.states import EXPLAIN, STEP_FINAL, StepKind, StepState

RESULT_BYTES = 4_000
# What was recalled is there to be read in full; the step itself keeps no more inline. A fact's value stands in <facts>.
RESULT_BYTES_OF = {"recall": 16_400, "record_fact": 600}
ARGUMENT_BYTES = 2_000
REASON_BYTES = 600
CLOSED_ITEMS_SHOWN = 40
_LINE_BYTES = 70
# As plain text: the rows are many, and comparing with an enumeration takes longer than all the rest.
_FINAL = frozenset(str(state) for state in STEP_FINAL)
THINK, _CHECK, _RECONCILE = str(StepKind.THINK), str(StepKind.CHECK), str(StepKind.RECONCILE)
_DONE, _FAILED = str(StepState.DONE), str(StepState.FAILED)
_GOOD = frozenset({"done", "replayed"})
type Line = dict[str, Any]
# The agent's tools that act, by name: what tells one call of them from another is their identity, of any other call all.
type Effects = Mapping[str, Tool]


class Row(NamedTuple):
    """What is read of every step that is not folded yet: `arguments` is JSON text, `bytes` about what its line takes."""

    number: int
    kind: str
    state: str
    tool: str
    arguments: str
    bytes: int
    replayed: bool


class Item(NamedTuple):
    """A work item, and the numbers of the steps that opened and closed it."""

    id: int
    ref: str
    title: str
    state: str
    outcome: str
    opened: int
    closed: int | None


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a run, but for what is folded already: the rows, numbers by id, and the thinks that were carried out.

    From the think at which it was folded on, all; of those before it the shown and the unsettled ones. Of the thinks
    before it, those after which a block of shown lines begins.
    """

    kept: Kept
    rows: list[Row]
    numbers: dict[int, int]
    thinks: list[int]
    last_reply: int  # the newest think that had a reply, carried out or not; 0 before the first

    @property
    def last_think(self) -> int:
        return self.thinks[-1] if self.thinks else 0

    @property
    def finished(self) -> list[Row]:
        """Those that are not part of what is kept."""
        since = self.kept.think
        return [row for row in self.rows if row.number > since and row.state in _FINAL and row.kind != THINK]

    @property
    def unlisted(self) -> frozenset[int]:
        """The thinks: never listed, so a range may pass over them."""
        return frozenset([*self.kept.passed, *(row.number for row in self.rows if row.kind == THINK)])

    def has_open_before(self, think: int) -> bool:
        return any(row.number < think and row.state not in _FINAL for row in self.rows)


class Detail(NamedTuple):
    """What is read of the steps that are shown one by one."""

    number: int
    asked: dict[str, Any]  # empty where the arguments are what was asked
    result: Any
    result_bytes: int | None  # set where `result` is only the beginning of its JSON text
    error: str
    again: str
    tries: int
    first_step: int | None
    fact: str
    check: str
    subject: str


def read_steps(run: int, kept: Kept) -> Steps:
    """Read the steps of a run that what is kept does not stand for, as little of each as the choice of what to show needs.

    By columns, each in one piece: of thousands of rows, most of the time would go into taking them apart.
    """
    wanted = {"run": run, "since": kept.think, "before": sql.array(kept.before)}
    arguments, kinds, states, *columns = sql.fetch_row(_ROWS, wanted)
    if arguments is None:
        return no_steps(kept)
    ids, numbers, tools, sizes, replayed = map(load, columns)
    table = zip(numbers, kinds.split(), states.split(), tools, arguments.split("\n"), sizes, replayed, strict=True)
    rows = list(map(Row._make, table))
    # A think that only explained something has not looked at what happened since the one before.
    thought = [row for row in rows if row.kind == THINK and row.tool != EXPLAIN]
    thinks = [row.number for row in thought if row.state == _DONE]
    replied = [row.number for row in thought if row.state in (_DONE, _FAILED)]
    return Steps(
        kept=kept,
        rows=rows,
        numbers=kept.numbers | dict(zip(ids, numbers, strict=True)),
        thinks=[*kept.cuts, *thinks],
        last_reply=max(replied, default=0),
    )


def no_steps(kept: Kept) -> Steps:
    return Steps(kept=kept, rows=[], numbers={}, thinks=[], last_reply=0)


def read_details(run: int, numbers: Iterable[int]) -> dict[int, Detail]:
    """Read these steps as they are shown."""
    wanted = sorted(set(numbers))
    rows = sql.fetch_all(_DETAILS, {"run": run, "numbers": sql.array(wanted)}) if wanted else []
    results = _load_all(["null" if result is None or bytes_cut else result for _, _, result, bytes_cut, *_ in rows])
    return {
        number: Detail(number, load(asked) if asked else {}, result if bytes_cut else whole, bytes_cut, *rest)
        for (number, asked, result, bytes_cut, *rest), whole in zip(rows, results, strict=True)
    }


def write_line(row: Row, detail: Detail, effects: Effects, *, edited: bool = False) -> Line:
    """One finished step as the model sees it. Its first four words are what the rehearsal model reads."""
    outcome = outcome_of(row)
    line: Line = {"step": row.number}
    if row.kind == _CHECK:
        found = detail.result.get("outcome") if isinstance(detail.result, dict) else None
        line |= {"check": detail.fact, "outcome": detail.check or found or outcome}
        if detail.error and not detail.check:
            line["reason"] = shorten_text(detail.error, REASON_BYTES)
        return line
    if row.kind == _RECONCILE:
        line |= {"looked_up": detail.subject or row.tool, "outcome": outcome}
    else:
        line |= {"tool": row.tool or str(row.kind), "with": shown_arguments(row, effects), "outcome": outcome}
    if detail.first_step is not None:
        line["first_step"] = detail.first_step
    if detail.again:
        line["again"] = shorten_text(detail.again, REASON_BYTES)
    if edited:
        line["edited_from"] = _shorten_each(_identity(row.tool, detail.asked, effects))
    if detail.error and outcome not in _GOOD:
        line["reason"] = shorten_text(detail.error, REASON_BYTES)
    if detail.result is not None:
        most = RESULT_BYTES_OF.get(row.tool, RESULT_BYTES)
        # One byte becomes six at most, so a line that is this short needs no measuring.
        short = row.bytes * 6 <= most
        line["result"] = detail.result if short else shorten(detail.result, most, bytes_full=detail.result_bytes)
    return line


def shown_arguments(row: Row, effects: Effects) -> dict[str, Any]:
    """The arguments that say which thing was meant: the identity of a call that acts, all of any other."""
    shown = _identity(row.tool, load(row.arguments), effects)
    # Twelve bytes at most for one character: so short a text needs no measuring.
    return shown if len(row.arguments) * 12 <= ARGUMENT_BYTES else _shorten_each(shown)


def list_effects(agent: Agent | None) -> Effects:
    return {tool.name: tool for tool in agent.tools if tool.acts} if agent else {}


def outcome_of(row: Row) -> str:
    return "replayed" if row.replayed and row.state == _DONE else row.state


def _identity(tool: str, arguments: dict[str, Any], effects: Effects) -> dict[str, Any]:
    return effects[tool].identity_of(arguments) if tool in effects else arguments


def _shorten_each(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: shorten_strings(value, ARGUMENT_BYTES) for name, value in arguments.items()}


def _load_all(texts: list[str]) -> list[Any]:
    """Read many in one piece."""
    try:
        whole: list[Any] = load(f"[{','.join(texts)}]")
    except ValueError:  # one of them is as deep as a value may be
        return [load(text) for text in texts]
    return whole


_MOST = (
    "CASE s.tool "
    + " ".join(f"WHEN '{tool}' THEN {most}" for tool, most in RESULT_BYTES_OF.items())
    + f" ELSE {RESULT_BYTES} END"
)

# The estimate is of what the line takes at most: `<`, `>` and `&` take six bytes each, which `result_bytes` counts. What
# PostgreSQL writes as JSON has no line feed in it.
_ROWS = f"""
    SELECT string_agg(s.given, chr(10)), string_agg(s.kind, ' '), string_agg(s.state, ' '), json_agg(s.id)::text,
           json_agg(s.number)::text, json_agg(s.tool)::text, json_agg(s.bytes + octet_length(s.given))::text,
           json_agg(s.replayed)::text
    FROM (SELECT id, number, kind, state, tool, arguments::text AS given,
                 {_LINE_BYTES} + least(octet_length(error), {REASON_BYTES}) + least(coalesce(result_bytes, 0), {_MOST})
                     AS bytes,
                 replay_of_id IS NOT NULL AS replayed
          FROM runs_step s
          WHERE run_id = %(run)s AND (number >= %(since)s OR number = ANY(%(before)s::integer[])) ORDER BY number OFFSET 0) s
"""

_DETAILS = f"""
    SELECT s.number, CASE WHEN s.asked <> s.arguments THEN s.asked::text END,
           CASE WHEN r.cut THEN left(s.result::text, m.most) ELSE s.result::text END,
           CASE WHEN r.cut THEN octet_length(s.result::text) END,
           s.error, s.again, s.tries,
           CASE WHEN s.replay_of_id IS NOT NULL THEN (SELECT o.number FROM runs_step o WHERE o.id = s.replay_of_id) END,
           CASE WHEN s.fact_id IS NULL THEN '' ELSE (SELECT f.name FROM runs_fact f WHERE f.id = s.fact_id) END,
           coalesce(CASE WHEN s.kind = 'check' THEN
               (SELECT c.outcome FROM runs_factcheck c WHERE c.step_id = s.id ORDER BY c.id DESC LIMIT 1) END, ''),
           CASE WHEN s.subject_id IS NULL THEN '' ELSE (SELECT k.tool FROM runs_key k WHERE k.id = s.subject_id) END
    FROM runs_step s
    CROSS JOIN LATERAL (SELECT {_MOST} AS most) m
    CROSS JOIN LATERAL (SELECT s.result_bytes > m.most AND octet_length(s.result::text) > m.most AS cut) r
    WHERE s.run_id = %(run)s AND s.number = ANY(%(numbers)s::integer[]) ORDER BY s.number
"""
