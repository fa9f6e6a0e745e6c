"""A think step from its plan to its end: handed to the gateway, settled with its reply, or closed without one.

The gateway makes the call; what its outcome means for the run is decided here, in one transaction per attempt. What an
attempt found out is recorded by its own id, whatever has become of the run meanwhile; only the run's own move needs its
epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.conf import settings
from django.db import transaction

from runs import approvals, budgets, course, journal, lifecycle, notify, sql, steps, switches
from runs.agents import MODEL_CREDENTIAL, Agent, BadArguments, Json, Tool, get_agent
from runs.budgets import Amounts, Pricing
from runs.engine import renewing
from runs.engine.builtin import BUILTINS
from runs.engine.hand import backoff, later
from runs.journal import AGENT, RUNTIME
from runs.models import Approval, Attempt, Run, Step
from runs.states import (
    EXPLAIN,
    MAY_HAVE_ACTED,
    RUN_FINAL,
    STEP_OPEN,
    ApprovalKind,
    ApprovalState,
    AttemptOutcome,
    RunState,
    StepKind,
    StepState,
    WaitingFor,
)

# Tries that failed, and thinks in a row that came to nothing, before a person is asked.
TRIES = 3
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST_CALLS = 512
# Of a run that a person let finish with what it has: what its last reply may still do.
LAST_CALLS = frozenset({"finish", "plan", "record_fact"})

# That a gateway died or was cut off says nothing about the call.
_COUNTED = frozenset({AttemptOutcome.FAILED, AttemptOutcome.UNKNOWN})
# A reply that ended for one of these reasons is whole: its calls may be executed.
_WHOLE = frozenset({"tool_use", "end_turn"})
# Not a tool's own arguments, but what every call may say about itself.
_ABOUT_CALL = ("because", "rests_on", "again")


@dataclass(frozen=True, kw_only=True)
class Called:
    """A tool call as it came. arguments: None where they are no JSON object; `raw` then says what came instead."""

    name: str
    id: str = ""
    arguments: dict[str, Json] | None = field(default_factory=dict)
    raw: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A whole reply, and what it cost. estimated: a part of its usage could not be read. timings: for people."""

    calls: Sequence[Called]
    amounts: Amounts
    pricing: Pricing = field(default_factory=Pricing)
    text: str = ""
    stop_reason: str = "tool_use"
    estimated: bool = False
    timings: Json = None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What an attempt without a reply has used: certainly nothing, an estimate, or (neither given) all it reserved."""

    nothing: bool = False
    estimate: Amounts | None = None
    pricing: Pricing | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """What comes after an attempt without a reply.

    By itself: once more, at once. waiting_for, after_s: it waits first, that long. counts: a failure, after too many
    of which a person is asked; the pause grows with them. card: a person is asked now.
    """

    note: str = ""
    waiting_for: WaitingFor | None = None
    after_s: float = 0.0
    counts: bool = False
    card: ApprovalKind | None = None


# What a worker does with what was planned, in the transaction that plans it.
type Then = Callable[[Sequence[Step]], None]


def plan_step(run: Run) -> Step:
    """Plan the think step of a run that the caller holds and of which no step is open, and hand it to the gateway.

    An agent that decides in plain Python stays with its worker.
    """
    step = steps.plan(run, steps.Asked(kind=StepKind.THINK), actor=RUNTIME)
    if get_agent(run.agent).decide is None:
        lifecycle.move(run, RunState.THINKING)
    return step


def settle(
    attempt_id: int,
    reply: Reply,
    *,
    claim: lifecycle.Claim | None = None,
    then: Then | None = None,
) -> list[Step]:
    """Close an attempt with its reply: the ledger, the planned calls and the run's move, in one transaction.

    Does nothing the second time. A reply that comes after its attempt was given up still counts while nothing has
    taken its place. claim: a worker's, where its try has no last look. then: what that worker does besides, with what
    was planned. Returns what was planned.
    """
    with transaction.atomic(durable=True):
        switches.lock_shared()
        planned = _settle(attempt_id, reply, claim, last=then is None)
        if then is not None:
            then(planned)
    return planned


def _settle(attempt_id: int, reply: Reply, claim: lifecycle.Claim | None, *, last: bool) -> list[Step]:
    planned: list[Step] = []
    with journal.together():
        run, step, attempt = steps.lock_try(attempt_id, claim=claim)
        if attempt.outcome != AttemptOutcome.OPEN and attempt.outcome not in MAY_HAVE_ACTED:
            return planned
        late = attempt.outcome != AttemptOutcome.OPEN or run.state in RUN_FINAL
        wanted = _is_current(step, attempt)
        if attempt.outcome == AttemptOutcome.OPEN and reply.timings is not None:
            steps.note_progress(attempt.pk, reply.timings)
        steps.close_attempt(attempt, AttemptOutcome.DONE, late=late)
        if reply.amounts.usd:
            steps.add_usd(step.pk, reply.amounts.usd)
        if wanted and run.state in RUN_FINAL:
            steps.close(step, StepState.VOID, error=f"the reply arrived after the run had ended ({run.state})")
        elif wanted:
            planned = conclude(run, step, reply.calls, text=reply.text, stop_reason=reply.stop_reason)
            _let_go(run, attempt)
        if run.state in RUN_FINAL:
            lifecycle.mark_drained(run.pk)
        # Last and shortest: the budgets of all ancestors are locked until the commit. What else changes a budget comes
        # after it, since whoever wants one stands in its queue first.
        budgets.settle(attempt.pk, reply.amounts, pricing=reply.pricing, estimated=reply.estimated, last=last)
    return planned


def fail(
    attempt_id: int, *, outcome: AttemptOutcome, error: str, spent: Spent = Spent(), retry: Retry = Retry()
) -> None:
    """Close an attempt that brought no reply, and say what comes next. Does nothing to one that is closed for good.

    outcome: REFUSED (the provider did not take it), NOT_BEGUN, CUT, FAILED, UNKNOWN (what it used is not known), and,
    for the sweep, LOST: then its lease is judged again.
    """
    with transaction.atomic(durable=True), journal.together():
        switches.lock_shared()
        run, step, attempt = steps.lock_try(attempt_id)
        if attempt.outcome != AttemptOutcome.OPEN or (
            outcome == AttemptOutcome.LOST and not steps.lease_is_over(attempt.pk)
        ):
            return
        wanted = _is_current(step, attempt)
        if outcome == AttemptOutcome.LOST:
            lifecycle.close_gap(run, lease_s=settings.LEASE_S, attempt=attempt.pk)
        steps.close_attempt(attempt, outcome, error=error, late=run.state in RUN_FINAL)
        if wanted and run.state in RUN_FINAL:
            steps.close(step, StepState.VOID, error=error)
        elif wanted:
            _go_on(run, step, error, retry)
            _let_go(run, attempt)
        if run.state in RUN_FINAL:
            lifecycle.mark_drained(run.pk)
        _book(attempt, spent, error)


def conclude(
    run: Run, step: Step, calls: Sequence[Called], *, text: str = "", stop_reason: str = "tool_use"
) -> list[Step]:
    """End a think step of a locked run with what was decided: its calls are planned, or it failed and says why.

    The caller moves the run afterwards.
    """
    if step.tool == EXPLAIN:
        _conclude_explanation(step, calls, text)
        return []
    lifecycle.mark_thought(run.pk)
    if step.state == StepState.WAITING:
        # A late reply answers what a person was asked meanwhile.
        approvals.void_all(run.pk, step=step.pk, why="the reply arrived after all")
    result: dict[str, Json] = {"text": text, "stop_reason": stop_reason, "calls": len(calls)}
    if stop_reason in _WHOLE and calls:
        steps.close(step, StepState.DONE, result=result)
        return plan_calls(run, step, calls)
    notice, why = _nothing_came(stop_reason, len(calls))
    result["notice"] = notice
    failed = _failed_in_a_row(step)
    if failed + 1 < TRIES:
        steps.close(step, StepState.FAILED, result=result, error=why)
    elif step.state == StepState.TAKEN and step.tries < step.tries_granted:
        # A person let it be tried again: the same step, so that the count goes on.
        steps.wake(step, why=why)
    else:
        more = f"{failed + 1} replies in a row came to nothing. The last one: {why}"
        ask_person(run, step, title="The model does not go on", why=more, evidence=result)
    return []


def _conclude_explanation(step: Step, calls: Sequence[Called], text: str) -> None:
    """A person asked for more: what was said goes on the card, whatever was called is not done."""
    said = [str(called.arguments["text"]) for called in calls if called.arguments and "text" in called.arguments]
    words = "\n\n".join([*said, *([text] if text.strip() else [])]).strip()
    for card in Approval.objects.filter(step=step.reply_to_id, state=ApprovalState.PENDING, effective_at__isnull=True):
        approvals.explain(approvals.lock(card.pk), words or "The agent said nothing more.", actor=AGENT)
    steps.close(step, StepState.DONE, result={"text": words, "calls": 0, "dropped": len(calls)})


def plan_calls(run: Run, think: Step, calls: Sequence[Called]) -> list[Step]:
    """Turn the calls of a reply into planned steps, in order; a call that cannot be made is a refused step that says why."""
    agent = get_agent(run.agent)
    finishing = budgets.ask_finishing(run.pk)
    read: list[tuple[steps.Asked, str]] = []
    for place, called in enumerate(calls):
        asked, refusal = _read_call(agent, called, think, place)
        if not refusal and place >= MOST_CALLS:
            refusal = f"A reply may make at most {MOST_CALLS} calls; this one was left out."
        if not refusal and asked.kind == StepKind.FINISH and any(a.kind == StepKind.FINISH for a, _ in read):
            refusal = "A reply may finish once."
        read.append((asked, refusal))
    planned = steps.plan_all(run, [asked for asked, _ in read])
    last = bool(finishing.all())
    for step, (_, refusal) in zip(planned, read, strict=True):
        if last and step.tool not in LAST_CALLS:
            refusal = refusal or "The run finishes with what it has: nothing else is begun."
        if refusal:
            steps.close(step, StepState.REFUSED, error=refusal)
    return planned


def ask_person(run: Run, step: Step, *, title: str, why: str, evidence: Json = None) -> None:
    """Let a think step that failed wait for a person, with one card."""
    if not Approval.objects.filter(step=step, kind=ApprovalKind.FAILURE, state=ApprovalState.PENDING).exists():
        approvals.ask(run, ApprovalKind.FAILURE, title=title, why=why, step=step, evidence=evidence)
    steps.wait(step, WaitingFor.FAILURE, note=why, on="an approver")


def has_thought_last(run: Run) -> bool:
    """Whether a run that was let finish with what it has, has had its last think."""
    return sql.fetch_one(
        "SELECT 1 FROM runs_budget b JOIN runs_step s ON s.run_id = b.run_id WHERE b.run_id = %s AND s.kind = 'think'"
        " AND s.tool <> 'explain' AND s.state IN ('done', 'failed') AND s.ended_at > b.finish_asked_at LIMIT 1",
        [run.pk],
    ) is not None  # fmt: skip


def holder_of(run: Run) -> str:
    """What holds a locked run now, in words; "" when nothing does. The caller has the switch lock."""
    if run.paused_at is not None:
        return f"paused: {run.pause_reason}"
    if switch := switches.in_scope(run.pk):
        return f"switch {switch[0]}: {switch[1]}"
    return ""


def _is_current(step: Step, attempt: Attempt) -> bool:
    """Whether the step still has no other outcome than this attempt's, and no later attempt."""
    return step.state in STEP_OPEN and step.tries == attempt.number


def _let_go(run: Run, attempt: Attempt) -> None:
    """Move a run that the gateway holds to where its steps put it; one that thinks once more is due at once, or held."""
    if run.state != RunState.THINKING:
        course.rest(run)
        return
    if run.epoch != attempt.epoch:
        return
    if not Step.objects.filter(run=run, kind=StepKind.THINK, state=StepState.PLANNED).exists():
        course.rest(run, holding=True)
    elif by := holder_of(run):
        lifecycle.hold(run.pk, by)
    else:
        notify.think()


def _go_on(run: Run, step: Step, error: str, retry: Retry) -> None:
    """What comes next for a step whose attempt brought no reply."""
    if step.state != StepState.TAKEN:
        return  # given up before, and so decided before
    if retry.card == ApprovalKind.CREDENTIAL:
        renewing.wait_for_credential(run, step, MODEL_CREDENTIAL, why=retry.note or error)
    elif retry.card is not None:
        ask_person(run, step, title="A model call failed", why=retry.note or error)
    elif retry.counts:
        failures = Attempt.objects.filter(step=step, outcome__in=_COUNTED).count()
        if failures >= TRIES and step.tries >= step.tries_granted:
            why = f"The model call failed {failures} times. The last time: {error}"
            ask_person(run, step, title="A model call keeps failing", why=why)
        else:
            pause_s = max(backoff(FIRST_PAUSE_S, failures, most_s=LONGEST_PAUSE_S), retry.after_s)
            note = f"{error}; it is tried again (failed {failures} of {TRIES} times)"
            steps.wait(step, WaitingFor.RETRY, note=note, wake_at=later(pause_s), and_then="the model is called again")
    elif retry.waiting_for is not None:
        steps.wait(
            step,
            retry.waiting_for,
            note=retry.note or error,
            wake_at=later(retry.after_s),
            and_then="the model is called again",
        )
    else:
        steps.wake(step, why=retry.note or error)


def _book(attempt: Attempt, spent: Spent, error: str) -> None:
    note = spent.note or error
    if spent.nothing:
        budgets.release(attempt.pk, note=note)
    elif spent.estimate is not None:
        budgets.settle(attempt.pk, spent.estimate, pricing=spent.pricing, estimated=True, note=note)
        steps.add_usd(attempt.step_id, spent.estimate.usd)
    else:
        budgets.settle_as_reserved(attempt.pk, note=note)


def _nothing_came(stop_reason: str, calls: int) -> tuple[str, str]:
    """(notice, sentence) of a reply that executes nothing."""
    match stop_reason:
        case "max_tokens" | "model_context_window_exceeded":
            return "cut_off", f"the reply was cut off ({stop_reason}); nothing of it was executed"
        case "refusal":
            return "refusal", "the model refused to answer; nothing of its reply was executed"
        case _ if stop_reason in _WHOLE:
            return "no_call", "the reply called no tool; to end the run call finish, to ask a person call ask"
        case _:
            dropped = f"; its {calls} calls were not executed" if calls else ""
            return (
                "cut_off",
                f"the reply ended for the reason {stop_reason or 'none'}, which is not a whole reply{dropped}",
            )


def _failed_in_a_row(step: Step) -> int:
    """How many thinks right before this one came to nothing."""
    earlier = Step.objects.filter(run_id=step.run_id, kind=StepKind.THINK, number__lt=step.number)
    failed = 0
    for state in earlier.order_by("-number").values_list("state", flat=True)[:TRIES]:
        if state != StepState.FAILED:
            break
        failed += 1
    return failed


def _read_call(agent: Agent, called: Called, think: Step, place: int) -> tuple[steps.Asked, str]:
    """A call as a step to plan, and why it is refused ("" when it is not)."""
    tool = _find_tool(agent, called.name)
    given = dict(called.arguments or {})
    about = {name: given.pop(name) for name in _ABOUT_CALL if name in given and not _takes(tool, name)}
    refusal = ""
    rests_on = _read_names(about.get("rests_on"))
    if tool is None:
        refusal = f"There is no tool {called.name[:100]!r}."
    elif called.arguments is None:
        refusal = f"The arguments of {tool.name} are not a JSON object: {called.raw[:200]}"
    elif rests_on is None:
        refusal = "rests_on is a list of fact names."
    else:
        try:
            given = tool.normalise(given)
        except BadArguments as error:
            refusal = error.message
    own = tool.bound_rests_on(given) if tool is not None and not refusal else []
    asked = steps.Asked(
        kind=StepKind.FINISH if called.name == "finish" and tool is not None else StepKind.ACT,
        tool=called.name[:100] or "?",
        arguments=given,
        because=_text(about.get("because")),
        rests_on=tuple(dict.fromkeys([*own, *(rests_on or [])])),
        again=_text(about.get("again")),
        call_id=called.id[:100],
        contract=tool.contract if tool is not None else "",
        reply_to=think.pk,
        place=place,
    )
    return asked, refusal


def _find_tool(agent: Agent, name: str) -> Tool | None:
    return agent.tool(name) or BUILTINS.get(name)


def _takes(tool: Tool | None, name: str) -> bool:
    return tool is not None and name in tool.arguments.model_fields


def _read_names(value: Json) -> list[str] | None:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [str(each) for each in value]
    return None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
