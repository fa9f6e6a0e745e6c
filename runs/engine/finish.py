"""A finish step: the claim that the goal is reached, verified at the outside system before it is accepted."""

from collections.abc import Callable
from dataclasses import asdict, replace

from django.db import transaction

from runs import allowances, budgets, course, journal, lifecycle, operations, sql, steps, switches
from runs.agents import Agent, Claim, Json
from runs.engine import harmless
from runs.engine.hand import Hand, backoff, later
from runs.engine.harmless import Order
from runs.engine.persist import persist
from runs.engine.reading import full_result
from runs.engine.settle import finish_late
from runs.engine.toolhost import Outcome
from runs.engine.toolwire import Function, Said
from runs.engine.waits import ask_about_failure
from runs.errors import Lost
from runs.journal import AGENT
from runs.models import Fact, Run, Step, WorkItem
from runs.sanitise import clean_json
from runs.states import RunState, StepKind, StepState, Verified, WaitingFor, WorkState

_VERIFY_S = 60.0
_TRIES = 3
_REFUTED = 3


def advance_finish(hand: Hand, step_id: int, agent: Agent) -> bool:
    """Verify a claim, and end the run if it stands. True: it has ended."""
    if agent.verify is None:
        return _succeed(hand, step_id, Verified.NOT_VERIFIED, evidence=None)
    with transaction.atomic(durable=True):
        switches.lock_shared()
        run = lifecycle.lock_held(hand.claim)
        if _judge(run, sql.ask(_JUDGED, [step_id])) is None:
            return False
    performed = harmless.perform(hand, step_id, _order)
    if performed is None:
        return False
    attempt, outcome = performed
    ended: list[bool] = []
    persist(lambda: ended.append(_settle(hand, step_id, attempt, outcome)))
    return ended[-1]


def end_after(hand: Hand, step_id: int, settle: Callable[[], Callable[[], object]]) -> bool:
    """End the run with a claim that nobody verifies, once the last call before it is settled. True: it has ended.

    settle: settles that call with the next statement; what it returns is called after that, and raises if it could not.

    Raises: Lost, or what `settle` raises; nothing is settled then.
    """
    return _succeed(hand, step_id, Verified.NOT_VERIFIED, evidence=None, settle=settle)


_JUDGED = f"""
    SELECT {sql.columns(Step, "f")},
        r.paused_at IS NOT NULL OR coalesce(least(r.expires_at, r.deadline_at) <= lw_clock(), false)
            OR EXISTS ({switches.in_scope_of("''")})
            OR EXISTS (SELECT FROM runs_step s WHERE s.run_id = r.id AND s.id <> f.id AND s.state IN ({steps.OPEN})),
        EXISTS (SELECT FROM runs_workitem w WHERE w.run_id = r.id AND w.state = 'open')
    FROM runs_step f JOIN runs_run r ON r.id = f.run_id WHERE f.id = %s FOR NO KEY UPDATE OF f
"""


def _judge(run: Run, judged: sql.Answer) -> Step | None:
    """A finish step of a locked run, locked by `_JUDGED`. None: something stands against it; what holds its run, or is to
    be done first, is chosen next.

    Open work items refuse the claim; of a run that finishes with what it has, they are dropped.
    """
    *columns, stands, works = judged.row()
    (step,) = sql.build(Step, [columns])
    step.run = run
    if stands or not works:
        return None if stands else step
    open_items = list(WorkItem.objects.filter(run=run, state=WorkState.OPEN).order_by("pk"))
    if budgets.is_finishing(run.pk):
        for item in open_items:
            why = "not done: the run finished with what it had"
            lifecycle.close_work(item, state=WorkState.DROPPED, outcome=why, step=step.pk)
        return step
    named = ", ".join(f"{item.ref} ({item.title})" for item in open_items[:10])
    if step.state == StepState.PLANNED:
        steps.close(
            step, StepState.REFUSED, error=f"{len(open_items)} work items are open: {named}. Close or drop them."
        )
    return None


def _settle(hand: Hand, step_id: int, attempt: int, outcome: Outcome) -> bool:
    report = harmless.result_of(outcome)
    verdict = None if report is None else _read_verdict(report.result)
    if verdict is not None and verdict["holds"]:
        return _succeed(
            hand, step_id, Verified.VERIFIED, evidence=verdict.get("evidence"), attempt=attempt, outcome=outcome
        )
    if report is not None and verdict is None:
        # A try that failed like any other, so that it is counted.
        outcome = replace(report, said=Said.FAILED, error="its verify function did not return a Verdict")
    with transaction.atomic(durable=True):
        settling = harmless.close(hand.claim, attempt, outcome)
        if settling is None:
            return False
        if settling.counts:
            _not_accepted(settling.run, settling.step, outcome, verdict)
        finish_late(settling.run, late=settling.late)
    return False


def _order(run: Run, step: Step, agent: Agent) -> Order | None:
    done = Step.objects.filter(run=run, kind=StepKind.ACT, state=StepState.DONE, replay_of__isnull=True)
    effects: list[dict[str, Json]] = []
    for act in done.select_related("artifact").order_by("number"):
        tool = agent.tool(act.tool)
        if tool is not None and tool.acts:
            effects.append(
                {"step": act.number, "tool": act.tool, "arguments": dict(act.arguments), "result": full_result(act)}
            )
    claim = Claim(
        run=run.pk,
        outcome=str(step.arguments.get("outcome") or ""),
        evidence=list(step.arguments.get("evidence") or []),
        inputs=dict(run.inputs),
        facts={f.name: f.value for f in Fact.objects.filter(run=run)},
        effects=effects,
    )
    arguments = clean_json(asdict(claim))
    assert isinstance(arguments, dict)
    return Order(function=Function.VERIFY, arguments=arguments, timeout_s=_VERIFY_S)


def _succeed(
    hand: Hand,
    step_id: int,
    verified: Verified,
    *,
    evidence: Json,
    attempt: int | None = None,
    outcome: Outcome | None = None,
    settle: Callable[[], Callable[[], object]] = lambda: lambda: None,
) -> bool:
    """End the run with its claim: its whole tree is locked first, child before parent. True: it has ended."""
    with transaction.atomic(durable=True), journal.together():
        switches.lock_shared()
        asked: list[tuple[Callable[[], object], sql.Answer]] = []

        def ask() -> None:
            asked[:] = [(settle(), sql.ask(_JUDGED, [step_id]))]

        tree = lifecycle.lock_with_descendants(hand.claim.run, then=ask)
        run = tree[-1]
        settling = None
        if attempt is not None and outcome is not None:
            settling = harmless.close(hand.claim, attempt, outcome)
            if settling is None or settling.late:
                if settling is not None and settling.step.state == StepState.TAKEN:
                    # Nobody else has it: whoever holds the run now verifies it again.
                    steps.wake(settling.step, why="its run had moved on while it was verified")
                finish_late(run, late=True)
                return False
        elif run.epoch != hand.claim.epoch or run.state != RunState.RUNNING:
            raise Lost(hand.claim.run, hand.claim.epoch)
        ((require_settled, judged),) = asked
        require_settled()
        step = _judge(run, judged)
        if step is None:
            if settling is not None:
                steps.wake(settling.step, why="something came between while it was verified; it is verified again")
            return False
        claimed: dict[str, Json] = {
            "outcome": step.arguments.get("outcome"),
            "evidence": step.arguments.get("evidence"),
            "verified_by": evidence,
        }
        steps.close(step, StepState.DONE, result=claimed, actor=AGENT)
        freed = course.end(
            tree, RunState.SUCCEEDED, reason="its finish was accepted", outcome=claimed, verified=verified, actor=AGENT
        )
        counting = allowances.ask_of_runs()
    operations.wake_after_end(tree, freed, counting)
    return True


def _read_verdict(result: Json) -> dict[str, Json] | None:
    """What was found; None where it is no Verdict."""
    return result if isinstance(result, dict) and isinstance(result.get("holds"), bool) else None


def _not_accepted(run: Run, step: Step, outcome: Outcome, verdict: dict[str, Json] | None) -> None:
    """The claim was refuted: the agent thinks again; or it could not be verified: tried again, then a person looks."""
    if verdict is not None:
        reason = str(verdict.get("reason") or "the outside system says otherwise")
        claimed: Json = {"outcome": step.arguments.get("outcome"), "refuted": reason}
        lifecycle.set_claim(run.pk, outcome=claimed, verified=Verified.REFUTED)
        refuted = Step.objects.filter(run=run, kind=StepKind.FINISH, error__startswith="refuted: ").count()
        if refuted + 1 >= _REFUTED:
            ask_about_failure(run, step, f"its claim was refuted {refuted + 1} times", reason)
        else:
            steps.close(step, StepState.REFUSED, result=verdict, error=f"refuted: {reason}")
    elif steps.count_failures(step) < max(_TRIES, step.tries_granted):
        steps.wait(
            step,
            WaitingFor.RETRY,
            note=f"the claim could not be verified: {harmless.told(outcome)}",
            wake_at=later(backoff(1.0, step.tries)),
            and_then="it is verified again",
        )
    else:
        ask_about_failure(run, step, "its claim could not be verified", harmless.told(outcome))
