"""The players: who answers, decided by the request alone."""

from runs.examples.model.briefing import Briefing
from runs.examples.model.players import refund_desk, script
from runs.examples.model.reply import Call, Said
from runs.examples.model.values import Json, JsonObject, as_integer, as_text


def play(briefing: Briefing | None) -> Said:
    """Answer by the script in the instructions, else as refund-desk if its tools are offered, else plainly."""
    if briefing is None:
        return Said(text="This is the rehearsal model. It plays agents whose briefing it can read; this is not one.")
    if asked := briefing.noticed("explain"):
        return _explain(briefing, asked[-1])
    if briefing.noticed("last_think") and "finish" in briefing.tools:
        return _finish_as_it_is(briefing)
    written = script.find_script(briefing.instructions)
    if written is not None:
        return script.play(written, briefing)
    if briefing.tools.keys() >= refund_desk.TOOLS:
        return refund_desk.play(briefing)
    return _admit_ignorance(briefing)


def _explain(briefing: Briefing, asked: JsonObject) -> Said:
    """A person wants to know more about a call: what it is, and what it is known from."""
    call = f"step {as_integer(asked.get('step'))}, {as_text(asked.get('tool'))}"
    known = "; ".join(f"{name} (from step {fact.from_step})" for name, fact in briefing.facts.items())
    said = f"You asked about {call}: {as_text(asked.get('question'))} I know it from {known or 'the log alone'}."
    return Said(text=said)


def _finish_as_it_is(briefing: Briefing) -> Said:
    done: list[Json] = [line.step for line in briefing.log if line.outcome == "done"]
    left = [item.title for item in briefing.work if item.state == "open"]
    outcome = "The budget was used up." + (f" Not done: {'; '.join(left)}." if left else "")
    call = Call(tool="finish", arguments={"outcome": outcome, "evidence": done[-20:]})
    return Said(text="This is my last reply: I finish with what I have.", calls=(call,))


def _admit_ignorance(briefing: Briefing) -> Said:
    question = "The rehearsal model has no script for this agent. What is to be reported?"
    asked = briefing.lines("ask")
    if "ask" in briefing.tools and not asked:
        return Said(text="I do not know this work.", calls=(Call(tool="ask", arguments={"question": question}),))
    outcome = "Nothing was done: the rehearsal model has no script for this agent."
    if "finish" in briefing.tools and not briefing.lines("finish"):
        return Said(text="I stop here.", calls=(Call(tool="finish", arguments={"outcome": outcome, "evidence": []}),))
    return Said(text=outcome)
