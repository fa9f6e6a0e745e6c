"""The mark of each state: word, icon, CSS classes. Filled (`loud`) only where a person has to act."""

from dataclasses import dataclass

from runs.states import (
    RUN_FINAL,
    ApprovalKind,
    ApprovalState,
    EntryKind,
    FactState,
    KeyState,
    RunState,
    StepState,
    Verified,
    WaitingFor,
    WorkState,
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """`css` follows `pill` or `tag`; an empty icon is none."""

    word: str
    icon: str = ""
    css: str = ""


RUN: dict[str, Mark] = {
    RunState.QUEUED: Mark(word="Queued", icon="queued", css="queued"),
    RunState.RUNNING: Mark(word="Running", icon="running", css="running"),
    RunState.THINKING: Mark(word="Thinking", icon="thinking", css="thinking"),
    RunState.WAITING: Mark(word="Waiting", icon="waiting", css="asleep"),
    RunState.SUCCEEDED: Mark(word="Succeeded", icon="succeeded", css="succeeded"),
    RunState.FAILED: Mark(word="Failed", icon="failed", css="failed"),
    RunState.STOPPED: Mark(word="Stopped", icon="stopped", css="stopped"),
    RunState.EXPIRED: Mark(word="Expired", icon="expired", css="expired"),
}
PAUSED = Mark(word="Paused", icon="paused", css="paused")
HELD = Mark(word="Held", icon="switch", css="held loud danger")
STOPPING = Mark(word="Stopping", icon="stopped", css="stopped")
IN_DOUBT = Mark(word="In doubt", icon="doubt", css="doubt loud unknown")

_PERSON, _WORLD = "waiting loud person", "asleep"
WAITING: dict[str, Mark] = {
    WaitingFor.APPROVAL: Mark(word="an approval", icon="approval", css=_PERSON),
    WaitingFor.QUESTION: Mark(word="an answer", icon="answer", css=_PERSON),
    WaitingFor.VERDICT: Mark(word="a verdict", icon="doubt", css="waiting loud unknown"),
    WaitingFor.FAILURE: Mark(word="a look at a failure", icon="failed", css=_PERSON),
    WaitingFor.BUDGET: Mark(word="budget", icon="budget", css=_PERSON),
    WaitingFor.FACT: Mark(word="a fact", icon="stale", css=_PERSON),
    WaitingFor.CREDENTIAL: Mark(word="a credential", icon="credential", css=_PERSON),
    WaitingFor.CONTRACT: Mark(word="a deploy", icon="migration", css=_PERSON),
    WaitingFor.TIMER: Mark(word="a time", icon="timer", css=_WORLD),
    WaitingFor.EVENT: Mark(word="an event", icon="event", css=_WORLD),
    WaitingFor.CHILD: Mark(word="a child run", icon="child", css=_WORLD),
    WaitingFor.LOCK: Mark(word="another run", icon="lock", css=_WORLD),
    WaitingFor.RETRY: Mark(word="the next try", icon="refresh", css=_WORLD),
    WaitingFor.PROVIDER: Mark(word="the model provider", icon="provider", css=_WORLD),
    WaitingFor.CAPACITY: Mark(word="a free place", icon="queued", css=_WORLD),
}

VERIFIED: dict[str, Mark] = {
    Verified.VERIFIED: Mark(word="verified", css="line"),
    Verified.NOT_VERIFIED: Mark(word="not verified", css="unknown"),
    Verified.REFUTED: Mark(word="refuted", css="danger"),
}

FACT: dict[str, Mark] = {
    FactState.FRESH: Mark(word="Fresh", icon="fresh", css="fresh"),
    FactState.AGEING: Mark(word="Ageing", icon="ageing", css="ageing"),
    FactState.STALE: Mark(word="Stale", icon="stale", css="stale loud person"),
    FactState.CHECK_FAILED: Mark(word="Check failed", icon="stale", css="stale loud person"),
    FactState.CONTRADICTED: Mark(word="Contradicted", icon="conflict", css="conflict loud danger"),
    FactState.UNKNOWN: Mark(word="Unknown", icon="doubt", css="unknown loud"),
}
FACT_GAUGE: dict[str, str] = {FactState.FRESH: "fresh", FactState.AGEING: "spent", FactState.CONTRADICTED: "over"}

STEP: dict[str, Mark] = {
    StepState.PLANNED: Mark(word="Planned", icon="queued", css="queued"),
    StepState.WAITING: Mark(word="Waiting", icon="waiting", css="waiting"),
    StepState.TAKEN: Mark(word="Under way", icon="running", css="running"),
    StepState.IN_DOUBT: IN_DOUBT,
    StepState.DONE: Mark(word="Done", icon="fresh", css="done"),
    StepState.FAILED: Mark(word="Failed", icon="failed", css="failed"),
    StepState.REFUSED: Mark(word="Refused", icon="close", css="queued"),
    StepState.REJECTED: Mark(word="Rejected", icon="close", css="queued"),
    StepState.EXPIRED: Mark(word="Expired", icon="expired", css="expired"),
    StepState.VOID: Mark(word="Dropped", icon="undo", css="queued"),
}

KEY: dict[str, Mark] = {
    KeyState.TAKEN: Mark(word="In flight", icon="running", css="running"),
    KeyState.IN_DOUBT: IN_DOUBT,
    KeyState.DONE: Mark(word="Happened", icon="fresh", css="done"),
    KeyState.FAILED: Mark(word="Did not happen", icon="undo", css="queued"),
}

WORK: dict[str, Mark] = {
    WorkState.OPEN: Mark(word="Open", icon="work", css="queued"),
    WorkState.CLOSED: Mark(word="Closed", icon="fresh", css="done"),
    WorkState.DROPPED: Mark(word="Dropped", icon="undo", css="queued"),
}

ENTRY: dict[str, Mark] = {
    EntryKind.RESERVE: Mark(word="Reserved", icon="lock", css="queued"),
    EntryKind.SETTLE: Mark(word="Spent", icon="fresh", css="done"),
    EntryKind.RELEASE: Mark(word="Given back", icon="undo", css="queued"),
    EntryKind.CORRECT: Mark(word="Corrected", icon="undo", css="done"),
    EntryKind.GRANT: Mark(word="Granted", icon="budget", css="running"),
}

KIND: dict[str, Mark] = {
    ApprovalKind.APPROVAL: Mark(word="Approval", icon="approval", css="person"),
    ApprovalKind.QUESTION: Mark(word="Question", icon="answer", css="person"),
    ApprovalKind.VERDICT: Mark(word="In doubt", icon="doubt", css="unknown"),
    ApprovalKind.FAILURE: Mark(word="Failure", icon="failed", css="danger"),
    ApprovalKind.BUDGET: Mark(word="Budget", icon="budget", css="person"),
    ApprovalKind.FACT: Mark(word="Fact", icon="stale", css="person"),
    ApprovalKind.CREDENTIAL: Mark(word="Credential", icon="credential", css="person"),
    ApprovalKind.ESCALATION: Mark(word="Escalation", icon="alarm", css="person"),
}

APPROVAL: dict[str, Mark] = {
    ApprovalState.PENDING: Mark(word="To decide", icon="approval", css="waiting loud person"),
    ApprovalState.APPROVED: Mark(word="Approved", icon="fresh", css="done"),
    ApprovalState.CONSUMED: Mark(word="Approved and used", icon="fresh", css="done"),
    ApprovalState.REJECTED: Mark(word="Rejected", icon="close", css="queued"),
    ApprovalState.ANSWERED: Mark(word="Decided", icon="fresh", css="done"),
    ApprovalState.EXPIRED: Mark(word="Expired", icon="expired", css="expired"),
    ApprovalState.VOID: Mark(word="Void", icon="undo", css="queued"),
}


def mark_run(
    *, state: str, waiting_for: str = "", paused: bool = False, held: bool = False, undrained: bool = False
) -> Mark:
    """What a run's pill says: a hold or a pause before the state it holds; an end before everything."""
    if state == RunState.STOPPED and undrained:
        return STOPPING
    if state not in RUN_FINAL:
        if paused:
            return PAUSED
        if held:
            return HELD
    if state == RunState.WAITING:
        if waiting_for == WaitingFor.VERDICT:
            return IN_DOUBT
        if waiting_for in WAITING:
            kind = WAITING[waiting_for]
            return Mark(word="Waiting", icon=kind.icon, css=kind.css)
    return RUN[state]
