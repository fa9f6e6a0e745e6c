"""The notices of the briefing: what the model has to know and would not see in the log, or must not overlook in it.

What happened since the last think; and what is still open of what went wrong before it: a call that failed, was refused,
rejected or dropped, and whose same intent has not been done since.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from runs import sql
from runs.engine.briefing_fold import NONE, OPEN, Fold
from runs.engine.briefing_kept import Kept
from runs.engine.briefing_log import (
    REASON_BYTES,
    Detail,
    Effects,
    Row,
    Steps,
    shown_arguments,
)
from runs.engine.briefing_now import Head
from runs.engine.briefing_text import dump, load, shorten, shorten_text
from runs.models import Amendment, Approval
from runs.states import STEP_OPEN, ApprovalState, StepKind, StepState, Verdict

OLD_SHOWN = 20
NOTICE_BYTES = 1_500  # of one value in a notice; `recall` has it whole
_REFUTED = "refuted: "  # how a finish step's error begins when the outside system said otherwise
_BAD = frozenset({"failed", "refused", "rejected", "expired", "void"})
_LAST_THINK = (
    "The budget is used up, and a person let you finish with what you have. This is your last reply: call finish now, with"
    " the outcome as it is. You may use plan and record_fact in the same reply; every other call is refused."
)
_OPEN = frozenset(str(state) for state in STEP_OPEN)
_IN_DOUBT = str(StepState.IN_DOUBT)
_number_of = attrgetter("number")

type Notice = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a person decided about a step: the last decision."""

    verdict: str
    comment: str
    answer: str
    by: str


def read_decisions(run: int, kept: Kept) -> dict[int, Decided]:
    """The last decision that took effect, of each step that is not just folded, by its number.

    An edit stays one when it is approved.
    """
    rows = sql.fetch_all(_DECISIONS, {"run": run, "since": kept.think, "before": sql.array(kept.before)})
    decided: dict[int, Decided] = {}
    for number, verdict, comment, answer, by in rows:
        before = decided.pop(number, None)
        if verdict == Verdict.UNDO:
            continue
        if before is not None and before.verdict == Verdict.EDIT and verdict == Verdict.APPROVE:
            verdict, comment = before.verdict, comment or before.comment
        decided[number] = Decided(verdict=verdict, comment=comment, answer=answer, by=by)
    return decided


def choose_noticed(steps: Steps, fold: Fold, effects: Effects, decided: Mapping[int, Decided]) -> set[int]:
    """The numbers of the steps that a notice is about, the last reply among them."""
    after = bisect_right(steps.rows, steps.last_think, key=_number_of)
    recent = [row for row in steps.rows[after:] if row.kind != StepKind.THINK]
    chosen = {row.number for row in recent if row.state in _BAD or row.state in _OPEN or row.replayed}
    chosen |= {row.number for row in recent if row.number in decided}
    chosen |= set(list_unsettled(steps, fold, effects, before=steps.last_think)[-OLD_SHOWN:])
    chosen |= {row.number for row in steps.rows if row.state == _IN_DOUBT}
    return chosen | ({steps.last_reply} if steps.last_reply else set())


def write_notices(
    head: Head,
    steps: Steps,
    details: Mapping[int, Detail],
    numbers: Iterable[int],
    effects: Effects,
    decided: Mapping[int, Decided],
) -> list[Notice]:
    """Amendments first, then the steps in order, then facts that changed, then the last reply."""
    rows = {row.number: row for row in steps.rows}
    notices = _amendments(head) if "amendments" in head.holds else []
    if "finishing" in head.holds:
        notices.append({"notice": "last_think", "reason": _LAST_THINK})
    for number in sorted(numbers):
        row, detail = rows[number], details.get(number)
        if row.kind != StepKind.THINK and detail is not None:
            notices += _step(row, detail, effects, decided.get(number))
    if "facts" in head.holds:
        notices += _changed_facts(head, steps.last_think)
    if "children" in head.holds:
        notices += _children(head)
    notices += _last_reply(steps, details)
    return notices + (_asked_for_more(head.id, rows, effects) if "cards" in head.holds else [])


def list_unsettled(steps: Steps, fold: Fold, effects: Effects, *, before: int) -> list[int]:
    """Calls from before a think that led nowhere, the newest of each intent, unless it or its item is done."""
    known = frozenset(steps.kept.unsettled)
    bad = [
        row
        for row in steps.rows
        if row.state in _BAD
        and row.number < before
        and row.kind in (StepKind.ACT, StepKind.FINISH)
        and (row.number > steps.kept.think or row.number in known)
    ]
    if not bad:
        return []
    intents = {row.number: _intent(row, effects) for row in bad}
    tools = {row.tool for row in bad}
    newest: dict[str, int] = {}
    for row in steps.rows:
        if row.tool in tools and row.number >= bad[0].number and row.kind in (StepKind.ACT, StepKind.FINISH):
            newest[intents.get(row.number) or _intent(row, effects)] = row.number
    open_bad = [row for row in bad if newest[intents[row.number]] == row.number]
    # An item that was closed after the step has settled what the step left open.
    return [row.number for row in open_bad if fold.closing.find(row) in (NONE, OPEN)]


def _intent(row: Row, effects: Effects) -> str:
    return row.tool if row.kind == StepKind.FINISH else row.tool + dump(shown_arguments(row, effects))


def _amendments(head: Head) -> list[Notice]:
    """All of them, whole, for ever: they belong to the goal."""
    rows = Amendment.objects.filter(run_id=head.id).order_by("pk").values_list("text", "by__username", "at")
    return [
        {"notice": "amended", "text": text, "by": by, "at": at.isoformat(timespec="seconds")}
        | ({"new": True} if head.told_at is None or at >= head.told_at else {})
        for text, by, at in rows
    ]


def _step(row: Row, detail: Detail, effects: Effects, decision: Decided | None) -> list[Notice]:
    about: Notice = {"step": row.number}
    if row.kind == StepKind.CHECK:
        about["fact"] = detail.fact
    elif row.tool:
        about |= {"tool": row.tool, "with": shown_arguments(row, effects)}
    reason = {"reason": shorten_text(detail.error, REASON_BYTES)} if detail.error else {}
    by = _by(decision)
    if row.kind == StepKind.FINISH and row.state in _BAD:
        refuted = detail.error.startswith(_REFUTED)
        said = {"reason": shorten_text(detail.error.removeprefix(_REFUTED), REASON_BYTES)}
        return [{"notice": "refuted" if refuted else row.state} | about | said | _result(detail)]
    if row.kind == StepKind.CHECK and row.state in _BAD:
        return [{"notice": "check_failed"} | about | reason]
    if row.state in _BAD:
        more: Notice = {"tries": detail.tries} if row.state == StepState.FAILED else {}
        if row.state in (StepState.VOID, StepState.REJECTED):
            more |= _inside(detail)
        return [{"notice": row.state} | about | reason | more | by]
    if row.state == StepState.IN_DOUBT:
        return [{"notice": "in_doubt"} | about | reason]
    if row.state in _OPEN:
        return [{"notice": "under_way"} | about]
    if detail.first_step is not None:
        return [{"notice": "replayed"} | about | {"first_step": detail.first_step}]
    if decision is not None and decision.verdict == Verdict.EDIT:
        return [{"notice": "edited"} | about | {"asked": shorten(detail.asked, NOTICE_BYTES)} | by]
    if decision is not None and decision.comment:
        return [{"notice": "commented"} | about | by]
    return []


def _by(decision: Decided | None) -> Notice:
    if decision is None:
        return {}
    said = decision.comment or decision.answer
    return {"by": decision.by} | ({"comment": shorten_text(said, REASON_BYTES)} if said else {})


def _result(detail: Detail) -> Notice:
    if detail.result is None:
        return {}
    return {"result": shorten(detail.result, NOTICE_BYTES, bytes_full=detail.result_bytes)}


def _inside(detail: Detail) -> Notice:
    """What a dropped or answered call says in its result: {"changed", "old", "new"} or {"answer"}."""
    if detail.result_bytes is not None or not isinstance(detail.result, dict):
        return _result(detail)
    names = ("changed", "old", "new", "answer")
    return {name: shorten(detail.result[name], NOTICE_BYTES) for name in names if name in detail.result}


def _asked_for_more(run: int, rows: Mapping[int, Row], effects: Effects) -> list[Notice]:
    """A person wants to know more before they decide. Last, because this reply is to answer nothing else."""
    cards = Approval.objects.filter(run_id=run, state=ApprovalState.PENDING).exclude(explained=[])
    asked = [
        (number, each)
        for number, explained in cards.order_by("pk").values_list("step__number", "explained")
        for each in explained
        if each["text"] is None
    ]
    return [
        {
            "notice": "explain",
            "step": number,
            "tool": rows[number].tool,
            "with": shown_arguments(rows[number], effects),
            "question": shorten_text(each["question"], REASON_BYTES),
            "by": each["by"],
        }
        for number, each in asked
        if number in rows
    ]


def _changed_facts(head: Head, since: int) -> list[Notice]:
    rows = sql.fetch_all(_CHANGED, {"run": head.id, "since": since, "told_at": head.told_at})
    return [
        {
            "notice": "changed",
            "fact": name,
            "old": shorten(load(old) if old is not None else None, NOTICE_BYTES),
            "new": shorten(load(new) if new is not None else None, NOTICE_BYTES),
        }
        | ({"step": step} if step is not None else {"by": "a person"})
        for name, old, new, step in rows
    ]


def _children(head: Head) -> list[Notice]:
    rows = sql.fetch_all(_CHILDREN, {"run": head.id, "told_at": head.told_at})
    return [
        {
            "notice": "child_ended",
            "run": run,
            "agent": agent,
            "state": state,
            "outcome": shorten(load(outcome) if outcome is not None else None, NOTICE_BYTES),
        }
        | ({"reason": shorten_text(reason, REASON_BYTES)} if reason else {})
        for run, agent, state, outcome, reason in rows
    ]


def _last_reply(steps: Steps, details: Mapping[int, Detail]) -> list[Notice]:
    """A reply that came to nothing: cut off, refused, or text alone. It stands until a reply was carried out."""
    detail = details.get(steps.last_reply)
    if detail is None or steps.last_reply == steps.last_think or not isinstance(detail.result, dict):
        return []
    kind, text = str(detail.result.get("notice") or "cut_off"), str(detail.result.get("text") or "")
    notice: Notice = {"notice": kind, "reply": detail.number, "reason": shorten_text(detail.error, REASON_BYTES)}
    return [notice | ({"text": shorten_text(text, REASON_BYTES)} if text and kind != "cut_off" else {})]


# Neither what can still be undone, nor one of several voices.
_DECISIONS = """
    SELECT s.number, d.verdict, d.comment, d.answer, u.username
    FROM runs_step s
    JOIN runs_approval a ON a.step_id = s.id AND a.state <> 'pending'
    JOIN runs_decision d ON d.approval_id = a.id AND d.verdict <> 'explain'
    JOIN auth_user u ON u.id = d.by_id
    WHERE s.run_id = %(run)s AND (s.number >= %(since)s OR s.number = ANY(%(before)s::integer[])) ORDER BY d.id
"""

_CHANGED = """
    SELECT f.name, o.value::text, v.value::text, s.number
    FROM runs_fact f
    JOIN runs_factversion v ON v.fact_id = f.id
    JOIN runs_factversion o ON o.fact_id = f.id AND o.version = v.version - 1
    LEFT JOIN runs_step s ON s.id = v.step_id
    WHERE f.run_id = %(run)s AND f.version > 1
      AND ((s.kind = 'check' AND s.number > %(since)s)
           OR (v.step_id IS NULL AND v.recorded_at >= coalesce(%(told_at)s::timestamptz, '-infinity')))
    ORDER BY f.name COLLATE "C", v.version
"""

_CHILDREN = """
    SELECT c.id, c.agent, c.state, c.outcome::text, c.end_reason FROM runs_run c
    WHERE c.parent_id = %(run)s AND c.ended_at >= coalesce(%(told_at)s::timestamptz, '-infinity') ORDER BY c.id
"""
