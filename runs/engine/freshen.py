"""Freshening: a stale fact under a call is checked through its own source before the call is taken."""

from collections.abc import Sequence

from runs import approvals, facts, operations, steps
from runs.engine.hand import later
from runs.facts import Judged
from runs.models import Approval, Fact, Run, Step
from runs.states import ApprovalKind, ApprovalState, FactState, WaitingFor

_ROUNDS = 3


def freshen(run: Run, step: Step, stale: Sequence[Judged]) -> None:
    """Check each stale fact under a locked step first; the step waits. Facts nothing can check become cards.

    The rounds are bounded: then a person looks at it.
    """
    if steps.count_round(step) > _ROUNDS * max(len(step.rests_on), len(stale), 1):
        fact = Fact.objects.get(pk=stale[0].id)
        ask_about(run, step, fact, f"{fact.name} is stale again each time it was checked")
        return
    checked: list[str] = []
    for judged in stale:
        fact = Fact.objects.get(pk=judged.id)
        if judged.state is FactState.CONTRADICTED and operations.checker_of(fact) is None:
            ask_about(run, step, fact, f"what {fact.name} follows from has changed, and nothing can check it again")
            return
        if (uncheckable := _check(run, fact, checked, frozenset())) is not None:
            ask_about(run, step, uncheckable, f"nothing can check {uncheckable.name} again")
            return
    first = stale[0]
    steps.wait(
        step,
        WaitingFor.FACT,
        note=f"{first.name} is {_age(first)}; it is checked before the call",
        on=checked[0],
        wake_at=later(60),
        and_then="it is looked at again",
    )


def _check(run: Run, fact: Fact, checked: list[str], below: frozenset[int]) -> Fact | None:
    """Plan what tells whether a fact still holds: a check of its source, or of all from which alone it follows.

    Adds the names to `checked`; returns what nothing can check.
    """
    if (checker := operations.checker_of(fact)) is not None:
        operations.plan_check(run, fact, checker)
        checked.append(fact.name)
        return None
    parents = list(Fact.objects.filter(run=run, name__in=fact.derived_from).order_by("pk"))
    if fact.source_tool or fact.pk in below or not parents or len(parents) < len(set(fact.derived_from)):
        return fact
    for parent in parents:
        if (uncheckable := _check(run, parent, checked, below | {fact.pk})) is not None:
            return uncheckable
    return None


def ask_about(run: Run, step: Step, fact: Fact, why: str) -> None:
    """Ask a person about a fact: confirm, correct, or stop. The step waits."""
    if not Approval.objects.filter(fact=fact, kind=ApprovalKind.FACT, state=ApprovalState.PENDING).exists():
        judged = facts.judge(run.pk, [fact.name])
        approvals.ask(
            run,
            ApprovalKind.FACT,
            title=f"Is {fact.name} still so?",
            why=why,
            step=step,
            fact=fact.pk,
            facts=facts.shown(judged.values()),
            evidence={"source": fact.source},
        )
    steps.wait(step, WaitingFor.FACT, note=why, on=fact.name)


def _age(judged: Judged) -> str:
    if judged.state is FactState.UNKNOWN:
        return "of unknown age"
    return f"{judged.age_s:.0f} s old, and {judged.max_age_s:g} s is its limit"
