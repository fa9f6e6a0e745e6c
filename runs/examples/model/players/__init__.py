"""The players: who answers, decided by the request alone."""

from runs.examples.model.briefing import Briefing
from runs.examples.model.players import refund_desk, script
from runs.examples.model.reply import Call, Said


def play(briefing: Briefing | None) -> Said:
    """Answer by the script in the instructions, else as refund-desk if its tools are offered, else plainly."""
    if briefing is None:
        return Said(text="This is the rehearsal model. It plays agents whose briefing it can read; this is not one.")
    written = script.find_script(briefing.instructions)
    if written is not None:
        return script.play(written, briefing)
    if briefing.tools.keys() >= refund_desk.TOOLS:
        return refund_desk.play(briefing)
    return _admit_ignorance(briefing)


def _admit_ignorance(briefing: Briefing) -> Said:
    question = "The rehearsal model has no script for this agent. What is to be reported?"
    asked = briefing.lines("ask")
    if "ask" in briefing.tools and not asked:
        return Said(text="I do not know this work.", calls=(Call(tool="ask", arguments={"question": question}),))
    outcome = "Nothing was done: the rehearsal model has no script for this agent."
    if "finish" in briefing.tools and not briefing.lines("finish"):
        return Said(text="I stop here.", calls=(Call(tool="finish", arguments={"outcome": outcome, "evidence": []}),))
    return Said(text=outcome)
