"""Play an agent by the small script in its own instructions.

The instructions hold one line `rehearsal: {"script": {"replies": […]}}`. Each reply:

    {"say": "text", "calls": [["read_order", {"order": "1001"}], …], "when": {…}, "repeat": true}

Which reply is given follows from the log alone, so a crash changes nothing. The log's lines are matched to the calls of
the replies in order, by tool name (and by equal values of the arguments that both name). The first reply that has a
call without a line, and whose `when` holds, is given, with the calls that have no line yet. When none is left:
`finish`, with the done steps of the log as evidence, or `after` of the script, a reply, if it has one.

`repeat`: given again for ever, whatever the log says (for loops). A reply without calls is given again and again too:
nothing in the log can show that it was given.

`when`: all of the conditions that it names hold:

    {"notice": "rejected"}                      such a notice stands in the briefing
    {"no_notice": "rejected"}
    {"line": {"tool": "refund", "outcome": "rejected"}}   such a line stands in the log (either key may be left out)
    {"no_line": {…}}
    {"fact": "order.1001"}, {"fact": ["order.1001", "stale"]}   such a fact, in that state
    {"lines": 3}                                the log has at least that many lines
    {"text": "words"}                           they stand somewhere in the goal, the constraints or the notices

In `calls` and `say`, a whole string is replaced by what it names, keeping its type; inside a longer text write ${…}:

    "$step(read_order).result.amount"    the latest done line of that tool; "$step(read_order, 2)" the second one
    "$step(read_order).step"             its number (for from_step and evidence)
    "$fact(order.1001).value.paid"       also .state, .from_step
    "$inputs.batch"  "$goal"  "$now"  "$work(title words).item"  "$notice(rejected).reason"

What is not there stops the script: the reply then is one `ask` (or a text) saying so.
"""

import json
import re
from dataclasses import dataclass

from runs.examples.model.briefing import Briefing, Line
from runs.examples.model.reply import Call, Said
from runs.examples.model.values import Json, JsonObject, as_integer, as_list, as_object, as_text, look_up

MARK = re.compile(r"^\s*rehearsal:\s*(\{.*\})\s*$", re.MULTILINE)
INSIDE = re.compile(r"\$\{([^}]*)\}")
NAME = re.compile(r"\$?(?P<kind>step|fact|work|notice)\((?P<what>.*?)\)(?P<path>(\.[^.]+)*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The replies of a script, and what comes after the last."""

    replies: tuple[JsonObject, ...]
    after: JsonObject


def find_script(instructions: str) -> Script | None:
    """Return the script in the instructions, or none. A line that is not JSON is no script."""
    found = MARK.search(instructions)
    if found is None:
        return None
    try:
        parsed: Json = json.loads(found.group(1))
    except ValueError:
        return None
    script = as_object(as_object(parsed).get("script"))
    if "replies" not in script:
        return None
    return Script(
        replies=tuple(as_object(reply) for reply in as_list(script["replies"])), after=as_object(script.get("after"))
    )


def play(script: Script, briefing: Briefing) -> Said:
    """Give the reply that the log calls for."""
    unmatched = list(briefing.log)
    chosen: Said | None = None
    for reply in script.replies:
        missing = [call for call in _calls(reply, briefing) if not _match(call, unmatched)]
        done = bool(as_list(reply.get("calls"))) and not missing and reply.get("repeat") is not True
        if chosen is None and not done and _holds(as_object(reply.get("when")), briefing):
            calls = _calls(reply, briefing) if reply.get("repeat") is True else missing
            chosen = _say(reply, calls, briefing)
    if chosen is not None:
        return chosen
    if script.after:
        return _say(script.after, _calls(script.after, briefing), briefing)
    evidence: list[Json] = [line.step for line in briefing.log if line.good]
    return Said(text="Done.", calls=(Call(tool="finish", arguments={"outcome": "Done.", "evidence": evidence}),))


def _calls(reply: JsonObject, briefing: Briefing) -> list[tuple[str, JsonObject]]:
    calls = []
    for call in as_list(reply.get("calls")):
        tool, *rest = as_list(call) or [""]
        calls.append((as_text(tool), as_object(rest[0]) if rest else {}))
    return calls


def _match(call: tuple[str, JsonObject], unmatched: list[Line]) -> bool:
    tool, arguments = call
    for line in unmatched:
        # An argument that is filled in from the log cannot be compared before it is known: the name decides.
        plain = {name: value for name, value in arguments.items() if "$" not in json.dumps(value)}
        if line.tool == tool and all(line.given[name] == value for name, value in plain.items() if name in line.given):
            unmatched.remove(line)
            return True
    return False


def _say(reply: JsonObject, calls: list[tuple[str, JsonObject]], briefing: Briefing) -> Said:
    try:
        text = as_text(_fill(reply.get("say", ""), briefing))
        filled = tuple(Call(tool=tool, arguments=as_object(_fill(given, briefing))) for tool, given in calls)
    except KeyError as error:
        question = f"The rehearsal script names something that is not in the briefing: {error.args[0]}"
        if "ask" in briefing.tools and not briefing.lines("ask"):
            return Said(text=question, calls=(Call(tool="ask", arguments={"question": question}),))
        return Said(text=question)
    return Said(text=text, calls=filled)


def _holds(when: JsonObject, briefing: Briefing) -> bool:
    for name, wanted in when.items():
        match name:
            case "notice":
                held = bool(briefing.noticed(as_text(wanted)))
            case "no_notice":
                held = not briefing.noticed(as_text(wanted))
            case "line":
                held = _has_line(as_object(wanted), briefing)
            case "no_line":
                held = not _has_line(as_object(wanted), briefing)
            case "fact":
                fact, *state = as_list(wanted) or [wanted]
                found = briefing.facts.get(as_text(fact))
                held = found is not None and (not state or found.state == state[0])
            case "lines":
                held = len(briefing.log) >= (as_integer(wanted) or 0)
            case "text":
                said = [briefing.goal, *briefing.constraints, *(json.dumps(each) for each in briefing.notices)]
                held = as_text(wanted) in "\n".join(said)
            case _:
                held = False  # a condition nobody knows never holds: better silent than wrong
        if not held:
            return False
    return True


def _has_line(wanted: JsonObject, briefing: Briefing) -> bool:
    tool, outcome = as_text(wanted.get("tool")), as_text(wanted.get("outcome"))
    return any((not tool or line.tool == tool) and (not outcome or line.outcome == outcome) for line in briefing.log)


def _fill(value: Json, briefing: Briefing) -> Json:
    if isinstance(value, dict):
        return {name: _fill(each, briefing) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, briefing) for each in value]
    if not isinstance(value, str):
        return value
    if value.startswith("$") and not value.startswith("${"):
        return _resolve(value[1:], briefing)
    return INSIDE.sub(lambda found: _show(_resolve(found.group(1), briefing)), value)


def _show(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _resolve(name: str, briefing: Briefing) -> Json:
    if name == "goal":
        return briefing.goal
    if name == "now":
        return briefing.now.isoformat()
    if name.startswith("inputs."):
        return look_up(briefing.inputs, name.split(".")[1:])
    found = NAME.fullmatch(name)
    if found is None:
        raise KeyError(f"${name}")
    path = [part for part in found["path"].split(".") if part]
    try:
        return look_up(_find(found["kind"], found["what"], briefing), path)
    except KeyError:
        raise KeyError(f"${name}") from None


def _find(kind: str, what: str, briefing: Briefing) -> Json:
    match kind:
        case "step":
            tool, _, nth = (part.strip() for part in what.partition(","))
            lines = [line for line in briefing.log if line.tool == tool and line.good]
            position = int(nth) - 1 if nth.isdigit() else len(lines) - 1
            if not 0 <= position < len(lines):
                raise KeyError(what)
            line = lines[position]
            return {**line.raw, "step": line.step, "result": line.result, "with": line.given}
        case "fact":
            fact = briefing.facts[what]
            return {"value": fact.value, "state": fact.state, "from_step": fact.from_step}
        case "work":
            for item in briefing.work:
                if what in item.title:
                    return {"item": item.item, "title": item.title, "state": item.state}
        case "notice":
            notices = briefing.noticed(what)
            if notices:
                return notices[-1]
    raise KeyError(what)
