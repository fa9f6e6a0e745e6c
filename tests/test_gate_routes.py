"""Every route by which a tool can run, found in the code: none lets a gated call through without a consumable approval.

The list of places is read from the source. A new place fails here until somebody has said what keeps it shut.
"""

import ast
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from runs import approvals, course, lifecycle, operations, sql, steps
from runs.approvals import Said
from runs.clock import shift
from runs.engine.sweep import sweep_once
from runs.errors import LongwatchError
from runs.models import Approval, Attempt, Run, Step
from runs.states import ApprovalKind, ApprovalState, StepState, Verdict, WaitingFor
from tests.conftest import PROJECT
from tests.engine_tools import Engine, call, engine, shop_process, workers
from tests.people import api_of

__all__ = ["engine", "shop_process", "workers"]

# Where an agent's own code is asked to run: (module, function).
PERFORMS = {
    ("engine/act.py", "perform"),  # what was taken: behind the gate, or a plain read that nothing says to ask about
    ("engine/orphans.py", "look_up_one"),  # looks up at the receiver what an ended run did: a reconcile function only
    ("engine/harmless.py", "carry_out"),  # checks, look-ups, verifications, decisions: no effect, no gate
}
# Who calls the one function that takes a call, or `harmless.perform` with which function of the agent.
HARMLESS = {
    ("engine/check.py", "CHECK"),
    ("engine/check.py", "RECONCILE"),
    ("engine/finish.py", "VERIFY"),
    ("engine/decide.py", "DECIDE"),
    ("engine/orphans.py", "RECONCILE"),
}
# Where a step becomes workable again, and so comes to its gate once more.
WAKES = {
    "course.py",
    "operations/budget_cards.py",
    "operations/verdicts.py",
    "operations/events.py",  # a step whose call is over, and only waited
    "engine/awaiting.py",  # the same, out of doubt
    "engine/check.py",  # the check itself
    "engine/doubt.py",
    "engine/finish.py",  # the finish itself
    "engine/renewing.py",  # a refused credential is renewed: the call is taken anew, through its gate
    "engine/settle.py",
    "engine/think.py",
}
# Where an attempt is opened: nothing runs without one. The benchmark of the ledger books its own, and performs none.
OPENS = {"console/bench/ledger.py", "engine/act.py", "engine/harmless.py", "engine/orphans.py", "gateway/claims.py"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((PROJECT / "runs").rglob("*.py")):
        if "migrations" not in path.parts and "examples" not in path.parts:
            yield str(path.relative_to(PROJECT / "runs")), ast.parse(path.read_text())
    for path in sorted((PROJECT / "console").rglob("*.py")):
        yield f"console/{path.relative_to(PROJECT / 'console')}", ast.parse(path.read_text())


def calls_of(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def functions_that_call(tree: ast.Module, test: Callable[[ast.Call], bool]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and test(inner):
                    yield node.name


def is_tool_host_perform(node: ast.Call) -> bool:
    """`….tools.perform(…)` or `tools.perform(…)`: work for a tool process."""
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr != "perform":
        return False
    match func.value:
        case ast.Attribute(attr="tools") | ast.Name(id="tools"):
            return True
    return False


def test_only_these_places_give_work_to_a_tool_process() -> None:
    found = {
        (name, function) for name, tree in modules() for function in functions_that_call(tree, is_tool_host_perform)
    }
    assert found == PERFORMS


def test_a_call_of_a_tool_is_performed_by_the_act_step_alone() -> None:
    """`Function.CALL` stands where the gate is; the other functions of an agent have no effect by contract."""
    said = {
        (name, node.attr)
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Function"
    }
    asked = {(name, word) for name, word in said if name not in ("engine/toolprocess.py", "engine/toolwire.py")}
    calls = {name for name, word in asked if word == "CALL"}
    # A check calls a read tool; the tool process refuses an effect that comes without its last look.
    assert calls == {"engine/act.py", "engine/check.py", "engine/reads.py"}
    assert {name for name, _ in asked} <= {"engine/act.py", "engine/reads.py"} | {name for name, _ in HARMLESS}


def test_the_agents_own_functions_are_run_in_the_tool_process_alone() -> None:
    found = {name for name, tree in modules() for node in calls_of(tree, "function") if len(node.args) or node.keywords}
    assert found == {"agents/tools.py", "engine/toolprocess.py"}


def test_an_attempt_is_opened_in_these_places_alone() -> None:
    assert {name for name, tree in modules() if any(calls_of(tree, "open_attempt"))} == OPENS


def test_a_step_is_woken_in_these_places_alone() -> None:
    found = {
        name
        for name, tree in modules()
        for node in calls_of(tree, "wake")
        if isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "steps"
    }
    assert found <= WAKES, found - WAKES


# The routes themselves, each tried on a call that is gated and not approved -----------------------------------------


def wake_by_force(run: Run, step: Step, by: User) -> None:
    """Whatever wakes a step: a lost hint, a sweep, a mistake of ours."""
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        waiting = steps.lock(step.pk)
        if waiting.state == StepState.WAITING:
            steps.wake(waiting, why="by force")
        course.rest(locked)


def resume(run: Run, step: Step, by: User) -> None:
    operations.pause_run(run.pk, reason="x", by=by)
    operations.resume_run(run.pk, reason="x", by=by)
    wake_by_force(run, step, by)


def release(run: Run, step: Step, by: User) -> None:
    switch = operations.engage_switch("all", reason="x", by=by)
    operations.release_switch(switch.pk, reason="x", by=by)
    wake_by_force(run, step, by)


def retry_by_operator(run: Run, step: Step, by: User) -> None:
    """A failure card of the same step, and `retry` on it."""
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        waiting = steps.lock(step.pk)
        card = approvals.ask(locked, ApprovalKind.FAILURE, title="it failed", step=waiting)
        steps.wait(waiting, WaitingFor.FAILURE, note="it failed")
    operations.decide(card.pk, Said(verdict=Verdict.RETRY), by=by)


def batch(run: Run, step: Step, by: User) -> None:
    card = Approval.objects.get(step=step, state=ApprovalState.PENDING)
    ((_, why),) = operations.approve_batch([(card.pk, card.version)], comment="", by=by)
    assert "approved alone" in why
    wake_by_force(run, step, by)


def api(run: Run, step: Step, by: User) -> None:
    card = Approval.objects.get(step=step, state=ApprovalState.PENDING)
    client = api_of(by)
    assert client.post(f"/approvals/{card.pk}/decision", {"version": 99, "verdict": "approve"}).status_code == 409
    assert client.post(f"/approvals/{card.pk}/decision", {"version": 1, "verdict": "retry"}).status_code == 400
    wake_by_force(run, step, by)


def admin(run: Run, step: Step, by: User) -> None:
    """The admin changes no card."""
    by.is_staff = True
    by.save()
    client = Client()
    client.force_login(by)
    card = Approval.objects.get(step=step)
    client.post(f"/admin/runs/approval/{card.pk}/change/", {"state": "approved"})
    assert Approval.objects.get(pk=card.pk).state == ApprovalState.PENDING
    wake_by_force(run, step, by)


def held_decision(run: Run, step: Step, by: User) -> None:
    """Decided and still to be undone: not in effect yet."""
    card = Approval.objects.get(step=step, state=ApprovalState.PENDING)
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=by, hold_s=60.0)
    wake_by_force(run, step, by)


def explained(run: Run, step: Step, by: User) -> None:
    card = Approval.objects.get(step=step, state=ApprovalState.PENDING)
    operations.decide(card.pk, Said(verdict=Verdict.EXPLAIN, comment="why?"), by=by)


def expired(run: Run, step: Step, by: User) -> None:
    shift(timedelta(days=1, minutes=1))
    sweep_once()


def rejected(run: Run, step: Step, by: User) -> None:
    card = Approval.objects.get(step=step, state=ApprovalState.PENDING)
    operations.decide(card.pk, Said(verdict=Verdict.REJECT, comment="no"), by=by)
    with transaction.atomic():
        lifecycle.lock(run.pk)
        closed = steps.lock(step.pk)
        with pytest.raises(LongwatchError):
            steps.wake(closed, why="by force")


def forged(run: Run, step: Step, by: User) -> None:
    """An approval of another call does not fit this one: its digest differs."""
    card = Approval.objects.get(step=step, state=ApprovalState.PENDING)
    sql.execute("UPDATE runs_approval SET digest = repeat('0', 64) WHERE id = %s", [card.pk])
    operations.decide(card.pk, Said(verdict=Verdict.APPROVE), by=by)


ROUTES = [
    wake_by_force,
    resume,
    release,
    retry_by_operator,
    batch,
    api,
    admin,
    held_decision,
    explained,
    expired,
    rejected,
    forged,
]


@pytest.mark.usefixtures("transactional_db")
class TestRoutes:
    @pytest.mark.parametrize("route", ROUTES, ids=[route.__name__ for route in ROUTES])
    def test_a_gated_call_without_an_approval_is_not_taken(
        self, engine: Engine, route: Callable[[Run, Step, User], None]
    ) -> None:
        order = engine.order("900.00")
        run = engine.go(engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")]))
        (step,) = engine.steps(run, "pay_keyed")
        route(run, step, engine.person)
        engine.until_rest(run)
        assert engine.paid(order) == 0
        assert not Attempt.objects.filter(step=step).exists()

    def test_the_last_look_itself_refuses_a_gated_call_without_its_approval(self, engine: Engine) -> None:
        """Whatever brought it there: an attempt that was opened past the gate never begins."""
        order = engine.order("900.00")
        run = engine.go(engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")]))
        (step,) = engine.steps(run, "pay_keyed")
        card = engine.card(run)
        for approval in (None, card.pk):
            with transaction.atomic():
                lifecycle.lock(run.pk)
                locked = steps.lock(step.pk)
                if locked.state == StepState.WAITING:
                    steps.wake(locked)
                attempt = steps.open_attempt(
                    locked, epoch=0, holder=engine.worker.ident, performer=engine.worker.ident, lease_s=60.0,
                    begin_within_s=60.0, timeout_s=5.0, approval=approval,
                )  # fmt: skip
                assert not steps.begin(attempt.pk)
                transaction.set_rollback(True)
