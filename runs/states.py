"""Every state a thing in Longwatch can be in, and every move between them. The only place that says so.

The README's diagram is checked against `RUN_MOVES`; `tests/test_states.py` walks every pair.
"""

from django.db.models import TextChoices


class RunState(TextChoices):
    QUEUED = "queued"  # may be claimed by a worker from `due_at` on
    RUNNING = "running"  # a worker holds it and advances it
    THINKING = "thinking"  # its next step is a model call: the gateway has it
    WAITING = "waiting"  # every open step waits for something; `waiting_for` says what
    SUCCEEDED = "succeeded"  # its finish was accepted
    FAILED = "failed"  # it ended without reaching its goal
    STOPPED = "stopped"  # a person (or its parent's end) stopped it
    EXPIRED = "expired"  # its max age or deadline passed


RUN_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.EXPIRED})
RUN_OPEN = frozenset(RunState) - RUN_FINAL

_ENDS = frozenset({RunState.FAILED, RunState.STOPPED, RunState.EXPIRED})

# from → to. Terminal is final (G8): no final state has a way out.
RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    # claimed · woken to wait when its wait was found again · ended from outside
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.WAITING}) | _ENDS,
    # slice used up or lease lost · handed to the gateway · parked · ended
    RunState.RUNNING: frozenset({RunState.QUEUED, RunState.THINKING, RunState.WAITING, RunState.SUCCEEDED}) | _ENDS,
    # reply settled · no budget, price or provider · ended
    RunState.THINKING: frozenset({RunState.QUEUED, RunState.WAITING}) | _ENDS,
    # woken by a decision, an event, a grant · claimed because its timer is due · its reason changed · ended
    RunState.WAITING: frozenset({RunState.QUEUED, RunState.RUNNING, RunState.WAITING}) | _ENDS,
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.STOPPED: frozenset(),
    RunState.EXPIRED: frozenset(),
}


class StepKind(TextChoices):
    THINK = "think"  # ask the model (or the agent's own function) what to do next
    ACT = "act"  # call a tool
    CHECK = "check"  # verify a fact again through its own source
    RECONCILE = "reconcile"  # look up at the receiver whether an effect happened
    FINISH = "finish"  # the claim that the goal is reached, verified against the world


class StepState(TextChoices):
    PLANNED = "planned"  # may be worked on now
    WAITING = "waiting"  # `waiting_for` says for what, `wake_at` when it is looked at again
    TAKEN = "taken"  # an attempt is open
    IN_DOUBT = "in_doubt"  # its effect may or may not have happened; a person settles it
    DONE = "done"  # it has its result
    FAILED = "failed"  # tried, and given up
    REFUSED = "refused"  # certainly nothing happened: the tool, a rule or the schema refused it
    REJECTED = "rejected"  # a person said no
    EXPIRED = "expired"  # nobody decided in time
    VOID = "void"  # dropped untaken: what it rested on changed, or its run ended


STEP_FINAL = frozenset(
    {StepState.DONE, StepState.FAILED, StepState.REFUSED, StepState.REJECTED, StepState.EXPIRED, StepState.VOID}
)
STEP_OPEN = frozenset(StepState) - STEP_FINAL

STEP_MOVES: dict[StepState, frozenset[StepState]] = {
    StepState.PLANNED: frozenset({StepState.WAITING, StepState.TAKEN, StepState.IN_DOUBT}) | STEP_FINAL,
    StepState.WAITING: frozenset({StepState.PLANNED, StepState.WAITING, StepState.IN_DOUBT}) | STEP_FINAL,
    # settled · given back (not begun, retry, lease lost) · not known
    StepState.TAKEN: frozenset({StepState.PLANNED, StepState.WAITING, StepState.IN_DOUBT}) | STEP_FINAL,
    # verdict "it did not" → again; late result, verdict "it happened", reconcile → done; stop → void
    StepState.IN_DOUBT: frozenset({StepState.PLANNED, StepState.DONE, StepState.FAILED, StepState.VOID}),
    # the outcome of a step of an ended run may still arrive: its own record is completed (G8)
    StepState.VOID: frozenset({StepState.DONE, StepState.FAILED, StepState.REFUSED}),
    StepState.DONE: frozenset(),
    StepState.FAILED: frozenset(),
    StepState.REFUSED: frozenset(),
    StepState.REJECTED: frozenset(),
    StepState.EXPIRED: frozenset(),
}


class WaitingFor(TextChoices):
    APPROVAL = "approval"  # a person approves a call
    QUESTION = "question"  # a person answers the agent
    VERDICT = "verdict"  # a person says whether an effect happened
    FAILURE = "failure"  # a person looks at what keeps failing
    BUDGET = "budget"  # a limit is raised, or a missing price is added
    FACT = "fact"  # a fact is confirmed, or its source answers again
    CREDENTIAL = "credential"  # a credential is renewed
    CONTRACT = "contract"  # code that fits this run is deployed again
    TIMER = "timer"  # a moment
    EVENT = "event"  # something from outside
    CHILD = "child"  # a run that it started
    LOCK = "lock"  # another run holds what it would act on
    RETRY = "retry"  # the next try, or the end of an old one that may still act
    PROVIDER = "provider"  # the model provider's limit
    CAPACITY = "capacity"  # a free place


# The name of a think step in which the agent explains one of its calls to a person, and can do nothing else.
EXPLAIN = "explain"

# On whom the clock of a waiting run counts.
WAITS_ON_PEOPLE = frozenset(
    {
        WaitingFor.APPROVAL,
        WaitingFor.QUESTION,
        WaitingFor.VERDICT,
        WaitingFor.FAILURE,
        WaitingFor.BUDGET,
        WaitingFor.FACT,
        WaitingFor.CREDENTIAL,
        WaitingFor.CONTRACT,
    }
)
# Of several open waits the run shows the first of these; people before the world.
WAIT_ORDER = tuple(WaitingFor)


class AttemptOutcome(TextChoices):
    OPEN = "open"  # under way, under a lease
    DONE = "done"  # it returned its result
    FAILED = "failed"  # it failed, and that is certain: a read, a check, a model call without a reply
    REFUSED = "refused"  # the receiver refused it: this attempt did nothing
    NOT_BEGUN = "not_begun"  # it gave up at its last look, before anything was sent
    UNKNOWN = "unknown"  # it was sent, and what came of it is not known
    LOST = "lost"  # its lease ran out; whether its process still lives is not known
    DEAD = "dead"  # its process was reaped by its parent
    CUT = "cut"  # a stop or a hold cut the model's stream
    DISPROVED = "disproved"  # it was not known, and a look-up or a person settled that it did nothing
    PROVED = "proved"  # it was not known, and a look-up, a person or a late answer settled that it acted


# An attempt with one of these, once it has begun, may have had its effect.
MAY_HAVE_ACTED = frozenset({AttemptOutcome.UNKNOWN, AttemptOutcome.LOST, AttemptOutcome.DEAD})


class KeyState(TextChoices):
    TAKEN = "taken"  # an attempt may use it, or used it and its outcome is not settled
    IN_DOUBT = "in_doubt"  # a person has to say whether it happened
    DONE = "done"  # it happened; the result is kept
    FAILED = "failed"  # it certainly did not happen; the next call opens a new generation


KEY_OPEN = frozenset({KeyState.TAKEN, KeyState.IN_DOUBT})

KEY_MOVES: dict[KeyState, frozenset[KeyState]] = {
    KeyState.TAKEN: frozenset({KeyState.DONE, KeyState.FAILED, KeyState.IN_DOUBT}),
    KeyState.IN_DOUBT: frozenset({KeyState.TAKEN, KeyState.DONE, KeyState.FAILED}),
    KeyState.DONE: frozenset(),
    KeyState.FAILED: frozenset(),
}


class ApprovalKind(TextChoices):
    APPROVAL = "approval"
    QUESTION = "question"
    VERDICT = "verdict"
    FAILURE = "failure"
    BUDGET = "budget"
    FACT = "fact"
    CREDENTIAL = "credential"
    ESCALATION = "escalation"


class Verdict(TextChoices):
    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"
    EXPLAIN = "explain"
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    GRANT = "grant"
    FINISH = "finish"
    CONFIRM = "confirm"
    CORRECT = "correct"
    RENEWED = "renewed"
    RETRY = "retry"
    STOP = "stop"
    UNDO = "undo"  # taken back by whoever decided, before it took effect


VERDICTS: dict[ApprovalKind, tuple[Verdict, ...]] = {
    ApprovalKind.APPROVAL: (Verdict.APPROVE, Verdict.EDIT, Verdict.REJECT, Verdict.RESPOND, Verdict.EXPLAIN),
    ApprovalKind.QUESTION: (Verdict.RESPOND,),
    ApprovalKind.VERDICT: (Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN, Verdict.STOP),
    ApprovalKind.BUDGET: (Verdict.GRANT, Verdict.FINISH, Verdict.STOP),
    ApprovalKind.FACT: (Verdict.CONFIRM, Verdict.CORRECT, Verdict.STOP),
    ApprovalKind.CREDENTIAL: (Verdict.RENEWED, Verdict.STOP),
    ApprovalKind.FAILURE: (Verdict.RETRY, Verdict.RESPOND, Verdict.STOP),
    ApprovalKind.ESCALATION: (Verdict.APPROVE, Verdict.REJECT, Verdict.STOP),
}


class ApprovalState(TextChoices):
    PENDING = "pending"  # waits for a person
    APPROVED = "approved"  # in effect until it is used, void or expired
    CONSUMED = "consumed"  # used by the one call that it allowed
    REJECTED = "rejected"  # a person said no
    ANSWERED = "answered"  # closed by another verdict: an answer, a grant, what happened
    EXPIRED = "expired"  # nobody decided in time; never "rejected"
    VOID = "void"  # what it showed has changed, or its run ended


APPROVAL_MOVES: dict[ApprovalState, frozenset[ApprovalState]] = {
    ApprovalState.PENDING: frozenset(
        {
            ApprovalState.APPROVED,
            ApprovalState.REJECTED,
            ApprovalState.ANSWERED,
            ApprovalState.EXPIRED,
            ApprovalState.VOID,
        }
    ),
    ApprovalState.APPROVED: frozenset({ApprovalState.CONSUMED, ApprovalState.EXPIRED, ApprovalState.VOID}),
    # its attempt gave up before it began: the approval is given back
    ApprovalState.CONSUMED: frozenset({ApprovalState.APPROVED}),
    ApprovalState.REJECTED: frozenset(),
    ApprovalState.ANSWERED: frozenset(),
    ApprovalState.EXPIRED: frozenset(),
    ApprovalState.VOID: frozenset(),
}


AGEING = 0.8
"""The share of its max age from which on a fact is called ageing; as in lw_fact_state."""


class FactState(TextChoices):
    """Computed at the moment of asking by the database clock, never stored."""

    FRESH = "fresh"
    AGEING = "ageing"  # past 80 % of its max age
    STALE = "stale"
    CHECK_FAILED = "check_failed"  # stale, and its source could not be reached when it was checked
    CONTRADICTED = "contradicted"  # its source says otherwise and nobody has settled it
    UNKNOWN = "unknown"  # no date, or a date in the future: never fresh


FACT_USABLE = (FactState.FRESH, FactState.AGEING)
"""The states in which an effect may rest on a fact."""


class CheckOutcome(TextChoices):
    SAME = "same"
    CHANGED = "changed"
    UNREACHABLE = "unreachable"
    MALFORMED = "malformed"


class WorkState(TextChoices):
    OPEN = "open"
    CLOSED = "closed"
    DROPPED = "dropped"


class EntryKind(TextChoices):
    RESERVE = "reserve"  # what an attempt may use at most
    SETTLE = "settle"  # what it used, or an estimate of it: replaces the reserve
    RELEASE = "release"  # it certainly used nothing: replaces the reserve
    CORRECT = "correct"  # the truth about an estimate: the difference
    GRANT = "grant"  # how a limit changed


class ProcessKind(TextChoices):
    WEB = "web"
    CLUSTER = "cluster"
    WORKER = "worker"
    TOOL = "tool"
    GATEWAY = "gateway"


class Verified(TextChoices):
    """What the agent's `verify` said of the claim that the goal is reached."""

    UNCLAIMED = "unclaimed"
    VERIFIED = "verified"
    NOT_VERIFIED = "claimed_not_verified"
    REFUTED = "claimed_refuted"
