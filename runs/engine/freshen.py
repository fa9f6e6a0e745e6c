"""Freshening: a stale fact under a call is checked through its own source before the call is taken."""

from collections.abc import Sequence

from runs import approvals, facts, operations, sql, steps
from runs.engine.hand import later
from runs.facts import Judged
from runs.models import Approval, Fact, Run, Step, WorkItem
from runs.states import ApprovalKind, ApprovalState, FactState, StepKind, WaitingFor, WorkState

_ROUNDS = 3
AWAY_S = 60.0
MOST_AHEAD = 20


def freshen(run: Run, step: Step, stale: Sequence[Judged]) -> None:
    """Check each stale fact under a locked step first; the step waits. Facts nothing can check become cards.

    The rounds are bounded: then a person looks at it.
    """
    under_way = any(
        s.kind == StepKind.CHECK and s.fact_id in {judged.id for judged in stale} for s in steps.open_steps(run)
    )
    if not under_way and steps.count_round(step) > _ROUNDS * max(len(step.rests_on), len(stale), 1):
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


def check_ahead(run: Run) -> int:
    """Before a run that was away thinks again: check what has aged meanwhile, so that it plans on what is so now.

    Each fact once per wake, at most so many; of more, those that open work names. How many checks were planned.
    """
    aged = sql.fetch_all(_AGED, {"run": run.pk, "away": AWAY_S})
    if len(aged) > MOST_AHEAD:
        titles = list(WorkItem.objects.filter(run=run, state=WorkState.OPEN).values_list("title", flat=True))
        aged = [(ident, name) for ident, name in aged if any(name.rpartition(".")[2] in title for title in titles)]
    planned = 0
    for fact in Fact.objects.filter(pk__in=[ident for ident, _ in aged[:MOST_AHEAD]]).order_by("pk"):
        if (checker := operations.checker_of(fact)) is not None:
            operations.plan_check(run, fact, checker)
            planned += 1
    return planned


# Not fresh, and not checked since the last think.
_AGED = """
    SELECT f.id, f.name FROM runs_run r JOIN runs_fact f ON f.run_id = r.id
    WHERE r.id = %(run)s AND r.last_thought_at <= lw_clock() - make_interval(secs => %(away)s)
        AND lw_fact_state(f.observed_at, f.verified_at, f.max_age_s, f.check_failed_at, f.contradicted_at, lw_clock())
            <> 'fresh'
        AND NOT EXISTS (SELECT FROM runs_step s WHERE s.run_id = r.id AND s.kind = 'check' AND s.fact_id = f.id
            AND s.created_at > r.last_thought_at)
    ORDER BY f.id
"""


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
