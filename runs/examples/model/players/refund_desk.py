"""Play refund-desk: decide by the briefing what a good model would do next.

The course: list the requests and read the policy → record the policy, plan one item per request, read the orders →
record them → wait where a parcel is on its way, and read again → refund what the policy allows, refuse the rest →
close the requests, then their items → finish with the evidence.

What the shop refuses, rejections, voided and expired approvals and changed facts lead back to reading and deciding
again (refund_case.py); what goes wrong too often is asked.
"""

import re
from collections.abc import Iterator
from datetime import UTC, timedelta

from runs.examples.model.briefing import Briefing, Line, WorkItem
from runs.examples.model.players.refund_case import (
    CHOICES,
    Case,
    Close,
    Concluded,
    Hold,
    Move,
    Read,
    Record,
    Refund,
    Trouble,
    Wait,
    find_move,
    list_cases,
)
from runs.examples.model.reply import Call, Said
from runs.examples.model.values import Json, JsonObject, as_integer, as_object, as_text

TOOLS = frozenset({"list_requests", "read_order", "read_policy", "refund", "close_request", "finish"})
POLICY = "policy.refunds"
SOON = timedelta(minutes=10)
CALLS_MOST = 24
CALLS_AFTER_CUT = 3
ASKS_MOST = 6
FINISHES_MOST = 4
WAITS_MOST = 40


def play(briefing: Briefing) -> Said:
    """Return the next reply."""
    said = _next(briefing)
    most = CALLS_AFTER_CUT if briefing.noticed("cut_off") else CALLS_MOST
    return Said(text=said.text, calls=tuple(_fit(call, briefing) for call in said.calls[:most]))


def _next(briefing: Briefing) -> Said:
    batch = _find_batch(briefing)
    if not batch:
        return _ask(briefing, "Which batch of refund requests is meant? The inputs name none.", [])
    learn = _learn_batch(briefing, batch)
    if learn is not None:
        return learn
    line, cases = _find_cases(briefing, batch)
    policy = briefing.facts.get(POLICY)
    if policy is None:
        return _record_policy(briefing, batch, cases)
    moves = _list_moves(briefing, cases, policy.value)
    said = _act(briefing, moves)
    if said is not None:
        return said
    return _conclude(briefing, moves, line)


# --- the start: what is there to do, and under which policy ---


def _find_batch(briefing: Briefing) -> str:
    named = as_text(briefing.inputs.get("batch"))
    if named:
        return named
    answers = [as_text(as_object(line.result).get("answer")) for line in briefing.lines("ask") if line.good]
    for text in [briefing.goal, *reversed(answers)]:
        found = re.search(r"\bb\d+\b", text)
        if found:
            return found.group()
    return ""


def _learn_batch(briefing: Briefing, batch: str) -> Said | None:
    calls: list[Call] = []
    line, _ = _find_cases(briefing, batch)
    refuted = max((as_integer(each.get("step")) or 0 for each in briefing.noticed("refuted")), default=0)
    if line is None or line.step < refuted:
        lists = briefing.lines("list_requests", batch=batch)
        shortened = [each for each in lists if each.good and as_object(each.result).get("shortened") is True]
        if shortened and shortened[-1].step > refuted and "recall" in briefing.tools:
            if not briefing.lines("recall", step=str(shortened[-1].step)):
                calls.append(Call(tool="recall", arguments={"step": shortened[-1].step}))
            else:
                return _ask(briefing, f"The list of requests of batch {batch} cannot be read, not even recalled.", [])
        elif _is_hopeless(lists, briefing):
            return _ask(briefing, f"The requests of batch {batch} cannot be listed: {_why(lists)}.", CHOICES[:1])
        else:
            calls.append(Call(tool="list_requests", arguments={"batch": batch}))
    if POLICY not in briefing.facts and not any(each.good for each in briefing.lines("read_policy", batch=batch)):
        reads = briefing.lines("read_policy", batch=batch)
        if _is_hopeless(reads, briefing):
            return _ask(briefing, f"The policy of batch {batch} cannot be read: {_why(reads)}.", CHOICES[:1])
        calls.append(Call(tool="read_policy", arguments={"batch": batch}))
    if not calls:
        return None
    return Said(text=f"I look at the requests of batch {batch} and at the policy.", calls=tuple(calls))


def _is_hopeless(lines: list[Line], briefing: Briefing) -> bool:
    answered = max((each.step for each in briefing.lines("ask")), default=0)
    recent = [each for each in lines if each.step > answered]
    return sum(not each.good for each in recent) >= 2 or len(recent) >= 6


def _why(lines: list[Line]) -> str:
    return f"{lines[-1].outcome} {lines[-1].reason}".strip() if lines else "no reason known"


def _find_cases(briefing: Briefing, batch: str) -> tuple[Line | None, list[Case]]:
    for line in reversed(briefing.lines("list_requests", batch=batch)):
        if not line.good:
            continue
        found = line.result
        if as_object(found).get("shortened") is True:
            for recalled in reversed(briefing.lines("recall", step=str(line.step))):
                found = as_object(recalled.result).get("result", recalled.result)
        if "requests" in as_object(found):
            return line, list_cases(line, found)
    return None, []


def _record_policy(briefing: Briefing, batch: str, cases: list[Case]) -> Said:
    reads = [line for line in briefing.lines("read_policy", batch=batch) if line.good]
    recorded = briefing.lines("record_fact", name=POLICY)
    if len(recorded) >= 3:
        return _ask(briefing, f"The fact {POLICY} cannot be recorded: {_why(recorded)}.", CHOICES[:1])
    calls = [Call(tool="record_fact", arguments={"name": POLICY, "from_step": reads[-1].step, "pointer": ""})]
    calls += _plan_items(briefing, cases)
    calls += [
        Call(tool="read_order", arguments={"order": order})
        for order in dict.fromkeys(case.order for case in cases if case.request.get("state") != "closed")
        if f"order.{order}" not in briefing.facts and not briefing.lines("read_order", order=order)
    ]
    return Said(text=f"{len(cases)} requests. I note the policy and read the orders.", calls=tuple(calls))


def _plan_items(briefing: Briefing, cases: list[Case]) -> list[Call]:
    titles: list[Json] = [
        case.title
        for case in cases
        if case.request.get("state") != "closed"
        and _find_item(briefing, case) is None
        and not any(f"Request {case.id}:" in str(line.raw) for line in briefing.lines("plan") if line.good)
    ]
    if not titles or "plan" not in briefing.tools or len(briefing.lines("plan")) >= 3:
        return []
    return [Call(tool="plan", arguments={"add": titles})]


def _find_item(briefing: Briefing, case: Case) -> WorkItem | None:
    return next((item for item in briefing.work if f"Request {case.id}:" in item.title), None)


# --- the middle: each request has its next move ---


def _list_moves(briefing: Briefing, cases: list[Case], policy: Json) -> list[tuple[Case, Move]]:
    moves: list[tuple[Case, Move]] = []
    busy: set[str] = set()
    for case in cases:
        move = find_move(case, briefing, policy)
        if case.order in busy and not isinstance(move, Concluded):
            move = Hold(why=f"order {case.order} has another request open")
        if not isinstance(move, Concluded):
            busy.add(case.order)
        moves.append((case, move))
    return moves


def _act(briefing: Briefing, moves: list[tuple[Case, Move]]) -> Said | None:
    """Return the calls that move the requests on; none when all are concluded."""
    settled = list(_settle(moves))
    learning = list(_learn(moves))
    if learning:
        return Said(text="I read and note what these orders say.", calls=(*learning, *settled))
    waits = [move for _, move in moves if isinstance(move, Wait)]
    refunds = list(_refund(moves))
    if waits and (not refunds or min(wait.until for wait in waits) <= briefing.now + SOON):
        return _wait(briefing, waits, settled)
    if refunds:
        return Said(text="The policy allows these refunds.", calls=(*refunds, *settled, *_tidy(briefing, moves)))
    if settled:
        return Said(text="These requests are decided.", calls=(*settled, *_tidy(briefing, moves)))
    troubled = [(case, move) for case, move in moves if isinstance(move, Trouble)]
    if troubled:
        case, move = troubled[0]
        assert isinstance(move, Trouble)
        question = move.question if case.id in move.question else f"{move.question} (request {case.id})"
        return _ask(briefing, question, CHOICES)
    held = [move for _, move in moves if isinstance(move, Hold)]
    if held:
        return _stand_by(briefing, held[0])
    return None


def _learn(moves: list[tuple[Case, Move]]) -> Iterator[Call]:
    for _, move in moves:
        if isinstance(move, Read):
            yield Call(tool="read_order", arguments={"order": move.order})
        elif isinstance(move, Record):
            yield Call(tool="record_fact", arguments={"name": move.name, "from_step": move.step, "pointer": ""})


def _refund(moves: list[tuple[Case, Move]]) -> Iterator[Call]:
    for case, move in moves:
        if isinstance(move, Refund):
            reason = as_text(case.request.get("reason"))
            arguments: JsonObject = {
                "order": move.order,
                "amount": move.amount,
                "memo": f"{case.id} {reason}",
                "because": f"Request {case.id} asks {as_text(case.request.get('amount'))} back; {move.why}.",
            }
            yield Call(tool="refund", arguments=arguments)


def _settle(moves: list[tuple[Case, Move]]) -> Iterator[Call]:
    for case, move in moves:
        if isinstance(move, Close):
            arguments: JsonObject = {"request": case.id, "outcome": move.outcome, "because": f"{move.why}."}
            yield Call(tool="close_request", arguments=arguments)


def _wait(briefing: Briefing, waits: list[Wait], settled: list[Call]) -> Said:
    first = min(waits, key=lambda wait: wait.until)
    if "wait_until" not in briefing.tools or len(briefing.lines("wait_until")) >= WAITS_MOST:
        return _ask(briefing, f"It still has to be waited: {first.why}. Go on without?", CHOICES)
    until = first.until.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1 if first.until.microsecond else 0)
    arguments: JsonObject = {"time": until.isoformat().replace("+00:00", "Z"), "reason": first.why}
    return Said(text=f"I wait: {first.why}.", calls=(*settled, Call(tool="wait_until", arguments=arguments)))


def _stand_by(briefing: Briefing, hold: Hold) -> Said:
    waited = [line for line in briefing.lines("wait_until") if line.step > _last_act(briefing)]
    if "wait_until" in briefing.tools and len(waited) < 3:
        arguments: JsonObject = {"seconds": 30, "reason": hold.why}
        return Said(text=f"I wait: {hold.why}.", calls=(Call(tool="wait_until", arguments=arguments),))
    return _ask(briefing, f"Nothing moves: {hold.why}. How to go on?", CHOICES)


def _last_act(briefing: Briefing) -> int:
    return max((line.step for line in briefing.log if line.tool not in ("wait_until", "ask")), default=0)


# --- the end: items closed, the claim made ---


def _tidy(briefing: Briefing, moves: list[tuple[Case, Move]]) -> list[Call]:
    """Close the work items of concluded requests, drop those left open."""
    close: list[Json] = []
    drop: list[Json] = []
    for case, move in moves:
        item = _find_item(briefing, case)
        if item is None or item.state not in ("open", "") or not isinstance(move, Concluded):
            continue
        if move.left_open:
            drop.append({"item": item.item, "reason": move.outcome})
        else:
            close.append({"item": item.item, "outcome": move.outcome})
    if "plan" not in briefing.tools or not (close or drop):
        return []
    arguments: JsonObject = {}
    if close:
        arguments["close"] = close
    if drop:
        arguments["drop"] = drop
    return [Call(tool="plan", arguments=arguments)]


def _conclude(briefing: Briefing, moves: list[tuple[Case, Move]], line: Line | None) -> Said:
    lost_plans = [each for each in briefing.lines("plan") if not each.good]
    tidy = _tidy(briefing, moves)
    if tidy and len(lost_plans) < 3:
        return Said(text="All requests are closed; I close their items.", calls=tuple(tidy))
    mine = {item.item for case, _ in moves if (item := _find_item(briefing, case)) is not None}
    strange = [item for item in briefing.work if item.state in ("open", "") and item.item not in mine]
    if strange and len(lost_plans) < 3:
        return _settle_strange(briefing, strange[0])
    finishes = briefing.lines("finish")
    refuted = briefing.noticed("refuted")
    asked_since = line is not None and any(each.step > line.step for each in briefing.lines("ask"))
    if refuted and not asked_since and len(briefing.lines("ask")) < ASKS_MOST:
        said = as_text(refuted[-1].get("reason")) or "it does not hold"
        return _ask(briefing, f"My claim was refuted ({said}), but I see every request closed. What is open?", [])
    if len(finishes) >= FINISHES_MOST:
        return Said(text=f"I cannot bring this to an end by myself. {_sum_up(moves)}")
    return Said(text="Everything that could be done is done.", calls=(_finish(moves, ""),))


def _settle_strange(briefing: Briefing, item: WorkItem) -> Said:
    for line in reversed(briefing.lines("ask")):
        question = as_text(line.given.get("question"))
        if not question or item.item in question:
            said = as_text(as_object(line.result).get("answer")) or "nobody answered"
            arguments: JsonObject = {"drop": [{"item": item.item, "reason": said}]}
            return Said(text="So be it.", calls=(Call(tool="plan", arguments=arguments),))
    question = f"Work item {item.item} ({item.title!r}) is open and is none of mine. What is its outcome?"
    return _ask(briefing, question, [])


def _finish(moves: list[tuple[Case, Move]], remark: str) -> Call:
    evidence: list[Json] = []
    for _, move in moves:
        if isinstance(move, Concluded):
            evidence += [step for step in move.evidence if step not in evidence]
    outcome = " ".join(part for part in (_sum_up(moves), remark) if part)
    return Call(tool="finish", arguments={"outcome": outcome, "evidence": evidence})


def _sum_up(moves: list[tuple[Case, Move]]) -> str:
    told = []
    for case, move in moves:
        state = move.outcome if isinstance(move, Concluded) else "still open"
        told.append(f"{case.id} (order {case.order}): {state}")
    return f"{len(moves)} requests. " + "; ".join(told) + "." if told else "There were no requests."


def _ask(briefing: Briefing, question: str, options: list[str]) -> Said:
    if "ask" in briefing.tools and len(briefing.lines("ask")) < ASKS_MOST:
        arguments: JsonObject = {"question": question}
        if options:
            arguments["options"] = [*options]
        return Said(text="I need a person here.", calls=(Call(tool="ask", arguments=arguments),))
    if len(briefing.lines("finish")) < FINISHES_MOST:
        arguments = {"outcome": f"I could not go on. Open: {question}", "evidence": []}
        return Said(text="I stop here.", calls=(Call(tool="finish", arguments=arguments),))
    return Said(text=f"I cannot go on. Open: {question}")


def _fit(call: Call, briefing: Briefing) -> Call:
    """Leave out what the tool does not offer, and give numbers where it wants numbers."""
    tool = briefing.tools.get(call.tool)
    if tool is None or not tool.arguments:
        return call
    fitted: JsonObject = {}
    for name, value in call.arguments.items():
        schema = tool.arguments.get(name)
        if schema is None:
            continue
        wants_number = as_object(schema).get("type") == "number"
        fitted[name] = float(value) if wants_number and isinstance(value, str) else value
    return Call(tool=call.tool, arguments=fitted)
