"""Every outcome of a check × every place of the call that rests on the fact (cases E1 and B3, an approval overnight).

The clock is shifted, the shop and the tool process are real; what was paid is counted at the shop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from runs import clock, operations, sql
from runs.approvals import Said
from runs.engine.briefing import build
from runs.engine.sweep import sweep_once
from runs.errors import AlreadyDecided
from runs.models import Approval, Attempt, Fact, FactCheck, Run, Step
from runs.states import ApprovalState, RunState, StepKind, StepState, Verdict
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers

__all__ = ["engine", "shop_process", "workers"]
pytestmark = pytest.mark.django_db(transaction=True)

LIMIT_S = 60
OVERNIGHT = timedelta(hours=10)


def decide(engine: Engine, card: Approval, verdict: Verdict, **said: Any) -> None:
    operations.decide(card.pk, Said(verdict=verdict, **said), by=engine.person)


@dataclass(kw_only=True)
class Case:
    """A call that rests on an order which is older than its limit, about to be checked."""

    engine: Engine
    run: Run
    order: str
    card: Approval | None
    check: Callable[[], object]  # what makes the check happen
    folder: Path

    @property
    def fact(self) -> Fact:
        return Fact.objects.get(run=self.run)

    @property
    def step(self) -> Step:
        return Step.objects.filter(run=self.run, tool="pay_keyed").latest("number")

    def go(self) -> None:
        """Until nothing more happens by itself; the pause before a check is tried again is over at once."""
        for _ in range(8):
            self.engine.go(self.run)
            pauses = Step.objects.filter(run=self.run, kind=StepKind.CHECK, state="waiting")
            if not pauses.update(wake_at=clock.now()):
                return
            Run.objects.filter(pk=self.run.pk, state=RunState.WAITING).update(due_at=clock.now())


def planned(engine: Engine, order: str) -> tuple[Run, Approval | None, Callable[[], object]]:
    """The call was planned and is held by a switch, which is released in the morning."""
    switch = operations.engage_switch("tool:pay_keyed", reason="overnight", by=engine.person)
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="5.00")])
    engine.go(run)
    return run, None, lambda: operations.release_switch(switch.pk, reason="morning", by=engine.person)


def pending(engine: Engine, order: str) -> tuple[Run, Approval | None, Callable[[], object]]:
    """The call waits for an approval, and somebody asks for a check."""
    run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount="420.00")])
    engine.go(run)
    return run, engine.card(run), lambda: operations.recheck_fact(Fact.objects.get(run=run).pk, by=engine.person)


def approved(engine: Engine, order: str) -> tuple[Run, Approval | None, Callable[[], object]]:
    """The call is approved and not taken yet."""
    run, card, _ = pending(engine, order)
    assert card is not None
    return run, card, lambda: decide(engine, card, Verdict.APPROVE)


def same(case: Case) -> None:
    case.go()
    if case.card is not None and case.card.state == ApprovalState.PENDING:
        case.card.refresh_from_db()
        assert case.card.state == ApprovalState.PENDING
        assert case.fact.verified_at > case.fact.observed_at + timedelta(seconds=LIMIT_S)  # type: ignore[operator]
        decide(case.engine, case.card, Verdict.APPROVE)
        case.go()
    assert case.engine.paid(case.order) == 1
    assert (case.fact.version, case.step.state) == (1, StepState.DONE)
    if case.card is not None:
        case.card.refresh_from_db()
        assert case.card.state == ApprovalState.CONSUMED
        # Nobody was asked twice for nothing.
        assert Approval.objects.filter(run=case.run).count() == 1
    use = Attempt.objects.get(step=case.step).facts.get()
    assert (use.version, use.age_s < LIMIT_S) == (1, True)


def changed(case: Case) -> None:
    case.engine.shop.change_order(case.order, paid="77.00")
    case.go()
    assert case.engine.paid(case.order) == 0
    assert case.step.state == StepState.VOID
    assert dig(case.step.result, "old", "paid") == "900.00"
    assert dig(case.step.result, "new", "paid") == "77.00"
    values = case.fact.versions.order_by("version").values_list("value", flat=True)
    assert [dig(value, "paid") for value in values] == ["900.00", "77.00"]
    if case.card is not None:
        case.card.refresh_from_db()
        assert (case.card.state, case.card.closed_because) == (
            ApprovalState.VOID, f"order.{case.order} changed"
        )  # fmt: skip
    # The agent thinks again, with both.
    assert Step.objects.filter(run=case.run, kind=StepKind.THINK, number__gt=case.step.number).exists()


def could_not_say(case: Case, outcome: str, mend: Callable[[], object]) -> None:
    before = case.fact
    case.go()
    after = case.fact
    assert case.engine.paid(case.order) == 0
    assert (after.value, after.observed_at, after.verified_at) == (before.value, before.observed_at, before.verified_at)
    assert set(FactCheck.objects.filter(fact=after).values_list("outcome", flat=True)) == {outcome}
    assert FactCheck.objects.filter(fact=after).count() == 3
    cards = Approval.objects.filter(run=case.run, kind="fact", state=ApprovalState.PENDING)
    if case.card is not None and case.card.state == ApprovalState.PENDING and not cards:
        # Nothing is held up yet, and the approval stands; the source can say again when it is used.
        mend()
        decide(case.engine, case.card, Verdict.APPROVE)
    else:
        decide(case.engine, cards.get(), Verdict.CONFIRM)
    case.go()
    assert (case.engine.paid(case.order), case.run.state) == (1, RunState.SUCCEEDED)


def unreachable(case: Case) -> None:
    case.engine.shop.add_fault("fail", status=503, match={"path_regex": f"/orders/{case.order}$", "method": "GET"})
    could_not_say(case, "unreachable", case.engine.shop.clear_faults)


def malformed(case: Case) -> None:
    fact = case.fact
    # As when the source answers in another shape than before.
    Fact.objects.filter(pk=fact.pk).update(source={**fact.source, "pointer": "/order/total"})
    could_not_say(case, "malformed", lambda: Fact.objects.filter(pk=fact.pk).update(source=fact.source))


def killed(case: Case, settings: Any) -> None:
    """The worker dies after the check was taken; another one finds it by its lease."""
    armed = case.folder / "armed"
    armed.touch()
    settings.FAIL_POINT = f"check.taken=raise@{armed}"
    case.engine.go(case.run)
    assert not armed.exists()
    check = Attempt.objects.get(step__kind=StepKind.CHECK, step__run=case.run)
    assert (check.outcome, case.engine.paid(case.order)) == ("open", 0)
    sql.execute("UPDATE runs_attempt SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s", [check.pk])
    sweep_once()
    same(case)
    check.refresh_from_db()
    assert (check.outcome, check.step.tries) == ("lost", 2)


@pytest.mark.parametrize("place", [planned, pending, approved])
@pytest.mark.parametrize("outcome", [same, changed, unreachable, malformed, killed])
def test_what_a_check_finds_decides_what_becomes_of_the_call(
    engine: Engine, settings: Any, tmp_path: Path, place: Callable[..., Any], outcome: Callable[..., None]
) -> None:
    order = engine.order("900.00")
    run, card, check = place(engine, order)
    clock.shift(OVERNIGHT)
    case = Case(engine=engine, run=run, order=order, card=card, check=check, folder=tmp_path)
    check()
    if card is not None:
        card.refresh_from_db()
    if outcome is killed:
        killed(case, settings)
    else:
        outcome(case)


def test_three_days_later_over_midnight_the_run_is_told_the_right_date_and_acts_on_what_it_reads_then(
    engine: Engine, settings: Any
) -> None:
    settings.RUN_ZONE = "Europe/Berlin"
    order = engine.order("900.00")
    zone = ZoneInfo("Europe/Berlin")
    # Five minutes to midnight, where the run is.
    now = clock.now().astimezone(zone)
    clock.shift(now.replace(hour=23, minute=55, second=0, microsecond=0) - now)
    began = clock.now().astimezone(zone).date()
    day = (began + timedelta(days=3)).isoformat()
    run = engine.start(
        *engine.read(order),
        [call("wait_until", time=f"{day}T09:00:00", reason="after the weekend")],
        [call("pay_keyed", order=order, amount="5.00")],
        max_age_s=10 * 86_400.0,
    )
    engine.go(run)
    assert build(run.pk).now["time"].startswith(began.isoformat())
    step = Step.objects.get(run=run, tool="wait_until")
    assert step.wake_at is not None
    assert step.wake_at.astimezone(zone).isoformat().startswith(f"{day}T09:00:00")
    clock.shift(step.wake_at - clock.now() + timedelta(seconds=1))
    told = build(run.pk).now
    assert (told["time"][:16], told["zone"]) == (f"{day}T09:00", "Europe/Berlin")
    assert told["day"] == f"{began + timedelta(days=3):%A}"
    assert told["away_s"] == pytest.approx(2 * 86_400 + 9 * 3600 + 300, abs=120)
    engine.go(run)
    # What it knew was three days old: it was read again, and then acted upon.
    assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
    assert list(FactCheck.objects.filter(fact__run=run).values_list("outcome", flat=True)) == ["same"]


def test_what_has_aged_while_a_run_slept_is_read_again_before_it_thinks(engine: Engine) -> None:
    orders = [engine.order("900.00") for _ in range(2)]
    run = engine.start(
        [call("read_order", order=orders[0]), call("read_order", order=orders[1])],
        [call("record_fact", name=f"order.{o}", from_step=n) for n, o in enumerate(orders, 2)],
        [call("record_fact", name="mood", value="good", max_age_s=30)],
        [call("wait_until", seconds=300, reason="a parcel")],
        [call("pay_keyed", order=orders[0], amount="5.00")],
    )
    engine.go(run)
    asleep = Step.objects.filter(run=run).latest("number").number
    engine.shop.change_order(orders[1], paid="77.00")
    clock.shift(timedelta(seconds=400))
    engine.go(run)
    assert (run.state, engine.paid(orders[0])) == (RunState.SUCCEEDED, 1)
    after = Step.objects.filter(run=run, number__gt=asleep).order_by("number").values_list("kind", "tool")
    # Both were read again, once each; then it thought, told what had changed; the call needed no check of its own.
    kinds = [kind for kind, _ in after]
    assert kinds == ["check", "check", "think", "act", "think", "finish"]
    (changed,) = FactCheck.objects.filter(fact__run=run, outcome="changed")
    assert changed.fact.name == f"order.{orders[1]}"


def test_b3_an_amount_that_follows_from_a_fact_which_changed_while_the_approval_waited_is_not_paid(
    engine: Engine,
) -> None:
    """The value under the shown arguments is another one now, though the arguments are the same."""
    order = engine.order("900.00")
    half = call("record_fact", name="half", value="450.00", derived_from=[f"order.{order}"], max_age_s=LIMIT_S)
    pay = call("pay_keyed", order=order, amount="450.00", rests_on=["half"])
    run = engine.start(*engine.read(order), [half], [pay])
    engine.go(run)
    card = engine.card(run)
    assert [fact["name"] for fact in card.facts] == ["half", f"order.{order}"]
    engine.shop.change_order(order, paid="300.00")
    operations.recheck_fact(Fact.objects.get(run=run, name=f"order.{order}").pk, by=engine.person)
    engine.go(run)
    # Before anybody clicks: void, with old and new.
    card.refresh_from_db()
    (step,) = engine.steps(run, "pay_keyed")
    assert (card.state, card.closed_because) == (ApprovalState.VOID, f"half, order.{order} changed")
    assert (dig(step.result, "old", "paid"), dig(step.result, "new", "paid")) == ("900.00", "300.00")
    with pytest.raises(AlreadyDecided):
        decide(engine, card, Verdict.APPROVE)
    assert (engine.paid(order), engine.go(run).state) == (0, RunState.SUCCEEDED)


def test_a_fact_that_was_read_anew_voids_the_calls_asked_for_before_that(engine: Engine) -> None:
    order = engine.order("900.00")
    pay = call("pay_keyed", order=order, amount="420.00")
    later = call("pay_checkable", order=order, amount="7.00")
    run = engine.start(
        *engine.read(order),
        [call("give", value={"paid": "20.00"})],
        [pay, call("record_fact", name=f"order.{order}", from_step=6), later],
    )
    engine.go(run)
    (first,) = engine.steps(run, "pay_keyed")
    (second,) = engine.steps(run, "pay_checkable")
    assert (first.state, second.state) == (StepState.VOID, StepState.DONE)
    assert Approval.objects.get(step=first).state == ApprovalState.VOID


def test_what_is_too_old_again_at_every_check_is_asked_about_in_the_end(engine: Engine) -> None:
    """The rounds are bounded: a source that always answers from an old copy does not keep a run busy for ever."""
    order = engine.order()
    at = clock.now().isoformat()
    run = engine.start(
        *engine.read(order),
        [call("give_copy", value={"at": at})],
        [call("record_fact", name="copy", from_step=6)],
        [call("wait_until", seconds=30, reason="a while")],
        [call("pay_keyed", order=order, amount="1.00", rests_on=["copy"])],
    )
    engine.go(run)
    clock.shift(timedelta(seconds=40))
    engine.go(run)
    (step,) = engine.steps(run, "pay_keyed")
    assert (step.waiting_for, engine.paid(order)) == ("fact", 0)
    card = engine.card(run, "fact")
    assert (card.title, card.why) == ("Is copy still so?", "copy is stale again each time it was checked")
    assert 2 < FactCheck.objects.filter(fact__run=run, fact__name="copy").count() < 10
    decide(engine, card, Verdict.CONFIRM)
    assert (engine.go(run).state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
