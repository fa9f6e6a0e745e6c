"""One refund request, judged by what the briefing says of it: what is the next move, if any?

Everything is read from the briefing at every think, nothing is remembered: the same briefing, the same move. Each way
of going wrong is counted in the log, from the last answer of a person on, so that no move is repeated for ever.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from runs.examples.model.briefing import Briefing, Fact, Line
from runs.examples.model.values import Json, JsonObject, as_integer, as_list, as_object, as_text
from runs.examples.shop.rules import decide, moment
from runs.examples.shop.shapes import Order, Policy
from runs.examples.shop.shapes import Request as RefundRequest

PATIENCE = {"failed": 2, "refused": 2, "expired": 2, "void": 5, "changed": 5}
MISTRUSTED = frozenset({"changed", "contradicted", "check_failed", "unknown"})
"""A fact in such a state is read again first. A stale one is not: its check comes before the effect, by itself."""
READS_MOST = 12
LATE_READ_S = 5
FORBIDDEN = re.compile(r"(?:do not|don't|never) refund (?:order |request )?#?(\w+)", re.IGNORECASE)
CHOICES = ["try again", "refuse", "leave it open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Read the order at the shop."""

    order: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Record what a step read as the fact about the order."""

    name: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Wait: the parcel is still on its way."""

    until: datetime
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refund:
    """Pay that amount back."""

    order: str
    amount: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """Close the request at the shop with that outcome."""

    outcome: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Ask a person: it went wrong too often, or in a way that nobody here knows."""

    question: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """Do nothing about it now."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Concluded:
    """Nothing is left to do. `left_open`: a person said so, and the request stands open at the shop."""

    outcome: str
    evidence: tuple[int, ...] = ()
    left_open: bool = False


type Move = Read | Record | Wait | Refund | Close | Trouble | Hold | Concluded


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a person said about this request, and when."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One request of the list, as it stood when the list was read (listed_at: that step)."""

    request: JsonObject
    listed_at: int

    @property
    def id(self) -> str:
        """Return the request's id."""
        return as_text(self.request.get("request"))

    @property
    def order(self) -> str:
        """Return the id of its order."""
        return as_text(self.request.get("order"))

    @property
    def fact(self) -> str:
        """Return the name of the fact about its order."""
        return f"order.{self.order}"

    @property
    def title(self) -> str:
        """Return the title of its work item."""
        reason, amount = as_text(self.request.get("reason")), as_text(self.request.get("amount"))
        return f"Request {self.id}: order {self.order}, {reason}, asks {amount}"


def find_move(case: Case, briefing: Briefing, policy: Json) -> Move:
    """Return what to do next about one request."""
    answer = _find_answer(case, briefing)
    closing = _judge_closing(case, briefing, answer)
    if closing is not None:
        return closing
    attempts = _attempts(case, briefing)
    done = [line for line in attempts if line.good]
    if done:
        amount = as_text(as_object(done[-1].result).get("amount")) or as_text(done[-1].given.get("amount"))
        return Close(outcome=f"refunded {amount}", why=f"step {done[-1].step} paid {amount} back")
    if answer is not None and "again" not in answer.text.lower():
        if "refuse" in answer.text.lower():
            return Close(outcome=f"refused: {answer.text}", why="a person decided so")
        return Concluded(outcome=f"left open: {answer.text}", left_open=True)
    trouble = _judge_attempts(case, briefing, attempts, answer)
    if trouble is not None:
        return trouble
    return _judge_order(case, briefing, policy, attempts, answer)


def _find_answer(case: Case, briefing: Briefing) -> Answer | None:
    for line in reversed(briefing.lines("ask")):
        question = as_text(line.given.get("question"))
        if not question or case.id in question:
            said = as_text(as_object(line.result).get("answer")) if line.good else "leave it open: nobody answered"
            return Answer(step=line.step, text=said or "leave it open: nothing was said")
    return None


def _since(lines: list[Line], answer: Answer | None) -> list[Line]:
    return [line for line in lines if answer is None or line.step > answer.step]


def _judge_closing(case: Case, briefing: Briefing, answer: Answer | None) -> Move | None:
    closes = briefing.lines("close_request", request=case.id)
    closed = [line for line in closes if line.good and line.step > case.listed_at]
    if closed:
        outcome = as_text(closed[-1].given.get("outcome")) or as_text(as_object(closed[-1].result).get("outcome"))
        return Concluded(outcome=outcome, evidence=_evidence(case, briefing, closed[-1].step))
    if case.request.get("state") == "closed":
        outcome = as_text(case.request.get("outcome"))
        return Concluded(outcome=outcome, evidence=_evidence(case, briefing, case.listed_at))
    if any(f"Request {case.id}:" in text for text in briefing.folded):
        return Concluded(outcome="closed earlier")
    lost = [line for line in _since(closes, answer) if not line.good and line.step > case.listed_at]
    if len(lost) >= 2:
        return Trouble(question=f"Request {case.id} could not be closed: {lost[-1].outcome}, {lost[-1].reason}.")
    return None


def _evidence(case: Case, briefing: Briefing, step: int) -> tuple[int, ...]:
    return (*(line.step for line in _attempts(case, briefing) if line.good), step)


def _attempts(case: Case, briefing: Briefing) -> list[Line]:
    """Return the refund steps of this request: of its order, and not marked as another request's."""
    found = []
    for line in briefing.lines("refund", order=case.order):
        memo = as_text(as_object(line.result).get("memo")) or as_text(line.given.get("memo"))
        if not memo or case.id in memo or not re.search(r"\br\d+\b", memo):
            found.append(line)
    return found


def _judge_attempts(case: Case, briefing: Briefing, attempts: list[Line], answer: Answer | None) -> Move | None:
    for notice in briefing.noticed("in_doubt"):
        step = as_integer(notice.get("step")) or 0
        about = as_text(as_object(notice.get("with")).get("order"))
        if about == case.order and not any(line.step >= step for line in attempts):
            return Hold(why=f"the refund for order {case.order} is in doubt")
    tried = _since(attempts, answer)
    if not tried:
        return None
    last = tried[-1]
    if last.outcome == "rejected":
        reason = _reason(last, briefing) or "no reason given"
        return Close(outcome=f"refused by reviewer: {reason}", why=f"step {last.step} was rejected")
    alike = [line for line in tried if line.outcome == last.outcome]
    if len(alike) >= PATIENCE.get(last.outcome, 1):
        said = _reason(last, briefing)
        return Trouble(
            question=f"The refund of order {case.order} for request {case.id} ended as {last.outcome}"
            f"{f' ({said})' if said else ''}, {len(alike)} times. How to go on?"
        )
    return None


def _reason(line: Line, briefing: Briefing) -> str:
    for notice in briefing.notices:
        if notice.get("step") == line.step and as_text(notice.get("reason")):
            return as_text(notice.get("reason"))
    return line.reason


def _judge_order(case: Case, briefing: Briefing, policy: Json, attempts: list[Line], answer: Answer | None) -> Move:
    fact = briefing.facts.get(case.fact)
    reads = briefing.lines("read_order", order=case.order)
    newer_than = _newer_than(case, briefing, fact, attempts)
    if fact is None or not _is_newer(fact, newer_than, briefing):
        return _renew(case, briefing, newer_than, reads, answer)
    if case.order in _forbidden(briefing) or case.id in _forbidden(briefing):
        return Close(outcome="refused: an operator forbade it", why="the briefing says not to refund it")
    try:
        found = decide(
            policy=cast(Policy, policy),
            order=cast(Order, fact.value),
            request=cast(RefundRequest, case.request),
            now=briefing.now,
        )
        until = moment(found.until) if found.until else None
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return Trouble(question=f"What the shop says about order {case.order} cannot be read: {error!r}.")
    if found.act == "refund" and found.amount is not None:
        return Refund(order=case.order, amount=found.amount, why=found.why)
    if until is None:
        return Close(outcome=f"refused: {found.why}", why=found.why)
    if briefing.now < until:
        return Wait(until=until, why=f"the parcel of order {case.order} arrives then")
    if fact.age_s is not None and briefing.now - timedelta(seconds=fact.age_s) >= until:
        # Read after it should have come, and still on its way: look again in a little while, not at once.
        if len(_since(reads, answer)) >= READS_MOST:
            return Trouble(question=f"The parcel of order {case.order} (request {case.id}) does not arrive.")
        if not any(line.step > max(each.step for each in reads) for line in briefing.lines("wait_until")):
            return Wait(
                until=briefing.now + timedelta(seconds=LATE_READ_S), why=f"the parcel of order {case.order} is late"
            )
    return _renew(case, briefing, fact.from_step, reads, answer)


def _newer_than(case: Case, briefing: Briefing, fact: Fact | None, attempts: list[Line]) -> int:
    """Return the step that the fact has to be newer than: what was known before it led nowhere, or changed."""
    steps = [0]
    steps += [line.step for line in attempts if not line.good]
    steps += [line.step for line in briefing.lines("refund", order=case.order) if line.good]
    if fact is not None and fact.state in MISTRUSTED:
        recorded = [line.step for line in briefing.lines("record_fact", name=fact.name) if line.good]
        steps += [fact.from_step, *recorded]
    for notice in briefing.noticed("changed"):
        if as_text(notice.get("fact")) == case.fact:
            steps.append(as_integer(notice.get("step")) or 0)
    return max(steps)


def _is_newer(fact: Fact, step: int, briefing: Briefing) -> bool:
    if step == 0 or fact.from_step > step:
        return True
    # A check may have renewed the fact without moving `from_step`; the step that recorded it is as good.
    return any(line.good and line.step > step for line in briefing.lines("record_fact", name=fact.name))


def _renew(case: Case, briefing: Briefing, newer_than: int, reads: list[Line], answer: Answer | None) -> Move:
    records = briefing.lines("record_fact", name=case.fact)
    good = [line for line in reads if line.good and line.step > newer_than]
    if good and not any(line.good and line.step > good[-1].step for line in records):
        if sum(not line.good for line in _since(records, answer)) >= 3:
            return Trouble(question=f"The fact {case.fact} cannot be recorded (request {case.id}).")
        return Record(name=case.fact, step=good[-1].step)
    lost = [line for line in _since(reads, answer) if not line.good]
    if len(lost) >= 2 or len(_since(reads, answer)) >= READS_MOST:
        said = f" ({lost[-1].reason})" if lost and lost[-1].reason else ""
        return Trouble(question=f"Order {case.order} of request {case.id} cannot be read{said}.")
    return Read(order=case.order)


def _forbidden(briefing: Briefing) -> set[str]:
    said = [*briefing.constraints]
    for notice in briefing.noticed("amended"):
        said += [as_text(value) for value in notice.values()]
    return {name for text in said for name in FORBIDDEN.findall(text)}


def list_cases(line: Line | None, found: Json) -> list[Case]:
    """Return the requests of a list that was read, each with its order."""
    step = line.step if line is not None else 0
    cases = [Case(request=as_object(each), listed_at=step) for each in as_list(as_object(found).get("requests"))]
    return [case for case in cases if case.id and case.order]
