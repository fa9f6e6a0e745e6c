"""Verdicts mean what they say: undone before they take effect, by two people, by those who are asked, explained, together."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction

from runs import clock, course, lifecycle, operations
from runs.access import Role
from runs.agents import BadArguments, get_agent
from runs.approvals import Said
from runs.engine.sweep import sweep_once
from runs.errors import AlreadyDecided, AnotherVersion, Conflict, Forbidden, Malformed
from runs.models import Approval, Decision, JournalEntry, Run, Step
from runs.queries import find_approval, find_run
from runs.queries.inbox import list_pending
from runs.queries.paging import EVERY_AGENT
from runs.states import ApprovalKind, ApprovalState, RunState, StepState, Verdict, WaitingFor
from tests import people
from tests.engine_tools import Engine, call, dig, engine, shop_process, workers
from tests.page_tools import client_of, read
from tests.writers import ask, errors, person, plan_act, record, start, together

__all__ = ["engine", "person", "shop_process", "workers"]

_SCRIPTED = get_agent("scripted")
PAY, NOTE = _SCRIPTED.tool("pay_keyed"), _SCRIPTED.tool("note_request")
assert PAY is not None
assert NOTE is not None


@pytest.fixture
def ben(db: None) -> User:
    return people.make_person("ben", Role.APPROVER)


@pytest.fixture
def clara(db: None) -> User:
    return people.make_person("clara", Role.APPROVER)


def card_of(by: User, **given: Any) -> Approval:
    assert PAY is not None
    run = start(by)
    card = ask(run, plan_act(run, PAY, order="7", amount="500"), **given)
    with transaction.atomic():
        course.rest(lifecycle.lock(run.pk))
    return card


def decide(card: Approval, verdict: Verdict, *, by: User, hold_s: float = 0.0, **given: Any) -> Approval:
    return operations.decide(card.pk, Said(verdict=verdict, **given), by=by, hold_s=hold_s)


def fresh(card: Approval) -> Approval:
    return Approval.objects.get(pk=card.pk)


def step_of(card: Approval) -> Step:
    return Step.objects.get(pk=card.step_id or 0)


def kinds_of(card: Approval) -> list[str]:
    entries = JournalEntry.objects.filter(run=card.run_id, kind__startswith="approval.").order_by("pk")
    return [entry.kind.removeprefix("approval.") for entry in entries]


@pytest.mark.django_db
class TestUndo:
    def test_a_held_decision_does_nothing_until_its_time_and_then_all_of_it(self, person: User, ben: User) -> None:
        card = decide(card_of(person), Verdict.APPROVE, by=ben, hold_s=10.0)
        assert (card.state, step_of(card).state) == (ApprovalState.PENDING, StepState.WAITING)
        assert card.effective_at is not None
        sweep_once()
        assert Run.objects.get(pk=card.run_id).state == RunState.WAITING
        clock.shift(timedelta(seconds=11))
        sweep_once()
        card = fresh(card)
        assert (card.state, card.effective_at, step_of(card).state) == (ApprovalState.APPROVED, None, StepState.PLANNED)
        assert Run.objects.get(pk=card.run_id).state == RunState.QUEUED
        assert Decision.objects.filter(approval=card).count() == 1
        assert kinds_of(card) == ["asked", "decided", "took_effect"]

    def test_undone_in_time_the_card_is_open_again_and_both_stand_in_its_history(self, person: User, ben: User) -> None:
        card = decide(card_of(person), Verdict.REJECT, by=ben, hold_s=10.0, comment="no")
        shown = find_approval(card.pk, agents={"*"})
        assert shown is not None
        assert shown.verdicts == ["undo"]
        assert list_pending(agents={"*"}) == []
        card = decide(card, Verdict.UNDO, by=ben, version=card.version)
        assert (card.state, card.effective_at) == (ApprovalState.PENDING, None)
        assert [line.id for line in list_pending(agents={"*"})] == [card.pk]
        clock.shift(timedelta(seconds=60))
        sweep_once()
        assert fresh(card).state == ApprovalState.PENDING
        assert [made.verdict for made in Decision.objects.filter(approval=card).order_by("pk")] == ["reject", "undo"]
        decide(card, Verdict.APPROVE, by=ben)
        assert fresh(card).state == ApprovalState.APPROVED

    def test_only_its_maker_can_undo_it_and_only_before_it_takes_effect(
        self, person: User, ben: User, clara: User
    ) -> None:
        card = decide(card_of(person), Verdict.APPROVE, by=ben, hold_s=10.0)
        with pytest.raises(Conflict, match="only they can undo"):
            decide(card, Verdict.UNDO, by=clara)
        with pytest.raises(AnotherVersion):
            decide(card, Verdict.UNDO, by=ben, version=1)
        clock.shift(timedelta(seconds=11))
        with pytest.raises(Conflict, match="too late"):
            decide(card, Verdict.UNDO, by=ben)
        sweep_once()
        with pytest.raises(Conflict, match="nothing to undo"):
            decide(card, Verdict.UNDO, by=ben)

    def test_nobody_else_decides_what_is_decided_and_held(self, person: User, ben: User, clara: User) -> None:
        card = decide(card_of(person), Verdict.APPROVE, by=ben, hold_s=10.0)
        with pytest.raises(AlreadyDecided, match=r"decided \(approve\) by ben"):
            decide(card, Verdict.REJECT, by=clara, comment="no")
        assert kinds_of(card)[-1] == "decision_refused"

    def test_what_could_not_take_effect_is_refused_at_once(self, person: User, ben: User) -> None:
        card = card_of(person)
        with pytest.raises(BadArguments):
            decide(card, Verdict.EDIT, by=ben, hold_s=10.0, arguments={"order": "7", "amount": "a lot"})
        assert (fresh(card).effective_at, Decision.objects.count()) == (None, 0)
        decide(card, Verdict.EDIT, by=ben, hold_s=10.0, arguments={"order": "7", "amount": "80"})
        assert step_of(card).arguments["amount"] == "500"
        clock.shift(timedelta(seconds=11))
        sweep_once()
        assert step_of(card).arguments["amount"] == (fresh(card).arguments or {})["amount"] == "80"

    def test_a_card_that_was_decided_in_time_does_not_expire_while_it_is_held(self, person: User, ben: User) -> None:
        card = card_of(person, valid_for_s=60.0, on_expiry="reject")
        clock.shift(timedelta(seconds=55))
        decide(card, Verdict.APPROVE, by=ben, hold_s=10.0)
        clock.shift(timedelta(seconds=6))
        sweep_once()
        assert fresh(card).state == ApprovalState.PENDING
        with transaction.atomic():
            run = lifecycle.lock(card.run_id)
            assert course.next_due(run) > clock.now() + timedelta(seconds=30)

    def test_a_run_that_is_stopped_meanwhile_takes_the_decision_with_it(self, person: User, ben: User) -> None:
        card = decide(card_of(person), Verdict.APPROVE, by=ben, hold_s=10.0)
        operations.stop_run(card.run_id, reason="enough", by=person)
        clock.shift(timedelta(seconds=11))
        sweep_once()
        assert (fresh(card).state, step_of(card).state) == (ApprovalState.VOID, StepState.VOID)

    def test_a_stop_is_never_held(self, person: User, ben: User) -> None:
        card = card_of(person, verdicts=[Verdict.APPROVE, Verdict.STOP])
        decide(card, Verdict.STOP, by=ben, hold_s=10.0, comment="enough")
        assert Run.objects.get(pk=card.run_id).state == RunState.STOPPED


@pytest.mark.django_db(transaction=True)
def test_an_undo_and_the_moment_of_effect_at_once_leave_one_of_both(person: User, ben: User) -> None:
    for _ in range(10):
        card = decide(card_of(person), Verdict.APPROVE, by=ben, hold_s=0.02)
        undone, applied = together(
            lambda card=card: decide(card, Verdict.UNDO, by=ben),  # type: ignore[misc]
            lambda card=card: operations.apply_held_decision(card.pk),  # type: ignore[misc]
        )
        assert not isinstance(applied, BaseException)
        sweep_once()
        after = fresh(card)
        if isinstance(undone, Conflict):
            clock.shift(timedelta(seconds=1))
            sweep_once()
            assert fresh(card).state == ApprovalState.APPROVED
        else:
            assert (after.state, step_of(card).state) == (ApprovalState.PENDING, StepState.WAITING)


@pytest.mark.django_db
class TestTwoPeople:
    def test_it_takes_two_different_ones(self, person: User, ben: User, clara: User) -> None:
        card = card_of(person, needed=2)
        decide(card, Verdict.APPROVE, by=ben, version=1)
        assert (fresh(card).state, step_of(card).state) == (ApprovalState.PENDING, StepState.WAITING)
        with pytest.raises(Conflict, match="You have approved this already"):
            decide(card, Verdict.APPROVE, by=ben)
        shown = find_approval(card.pk, agents={"*"})
        assert shown is not None
        assert (shown.needed, shown.approved_by, shown.version) == (2, ["ben"], 2)
        decide(card, Verdict.APPROVE, by=clara)
        assert fresh(card).state == ApprovalState.APPROVED

    def test_an_edit_resets_what_was_approved_before(self, person: User, ben: User, clara: User) -> None:
        card = card_of(person, needed=2)
        decide(card, Verdict.APPROVE, by=ben)
        decide(card, Verdict.EDIT, by=clara, arguments={"order": "7", "amount": "80"})
        card = fresh(card)
        assert (card.state, (card.arguments or {})["amount"]) == (ApprovalState.PENDING, "80")
        assert step_of(card).arguments["amount"] == "80"
        decide(card, Verdict.APPROVE, by=ben)
        assert fresh(card).state == ApprovalState.APPROVED

    def test_one_no_is_enough(self, person: User, ben: User, clara: User) -> None:
        card = card_of(person, needed=2)
        decide(card, Verdict.APPROVE, by=ben)
        decide(card, Verdict.REJECT, by=clara, comment="no")
        assert step_of(card).state == StepState.REJECTED

    def test_the_last_of_two_can_be_undone_and_the_first_still_counts(
        self, person: User, ben: User, clara: User
    ) -> None:
        card = card_of(person, needed=2)
        decide(card, Verdict.APPROVE, by=ben, hold_s=10.0)
        assert fresh(card).effective_at is None
        decide(card, Verdict.APPROVE, by=clara, hold_s=10.0)
        decide(card, Verdict.UNDO, by=clara)
        shown = find_approval(card.pk, agents={"*"})
        assert shown is not None
        assert shown.approved_by == ["ben"]

    def test_two_at_once_are_two_and_one_twice_at_once_is_one(self, person: User, ben: User, clara: User) -> None:
        card = card_of(person, needed=3)
        for by in (ben, clara):
            decide(card, Verdict.APPROVE, by=by)
        assert fresh(card).state == ApprovalState.PENDING

    def test_by_setting_nobody_approves_what_they_started_or_edited(
        self, settings: Any, person: User, ben: User, clara: User
    ) -> None:
        settings.SELF_APPROVAL = False
        ben.groups.add(Group.objects.get(name=Role.OPERATOR))
        card = card_of(ben)
        with pytest.raises(Forbidden, match="You started this run"):
            decide(card, Verdict.APPROVE, by=ben)
        decide(card, Verdict.EDIT, by=clara, arguments={"order": "7", "amount": "80"})
        card = fresh(card)
        assert (card.state, (card.arguments or {})["amount"]) == (ApprovalState.PENDING, "80")
        with pytest.raises(Forbidden, match="You edited this call"):
            decide(card, Verdict.APPROVE, by=clara)
        decide(card, Verdict.APPROVE, by=person)
        assert fresh(card).state == ApprovalState.APPROVED
        own = card_of(ben)
        decide(own, Verdict.REJECT, by=ben, comment="I was wrong")
        assert step_of(own).state == StepState.REJECTED


@pytest.mark.django_db(transaction=True)
def test_two_votes_of_one_person_at_once_are_one(person: User, ben: User) -> None:
    card = card_of(person, needed=2)
    (lost,) = errors(together(*[lambda: decide(card, Verdict.APPROVE, by=ben)] * 2))
    assert isinstance(lost, Conflict)
    assert fresh(card).state == ApprovalState.PENDING


@pytest.mark.django_db
class TestWho:
    def test_a_card_for_a_group_is_decided_by_its_members(self, person: User, ben: User, clara: User) -> None:
        finance = Group.objects.create(name="finance")
        clara.groups.add(finance)
        card = card_of(person, groups=["finance"])
        for verdict in (Verdict.APPROVE, Verdict.REJECT, Verdict.EXPLAIN):
            with pytest.raises(Forbidden, match="for finance"):
                decide(card, verdict, by=ben, comment="x")
        decide(card, Verdict.APPROVE, by=clara)
        assert fresh(card).state == ApprovalState.APPROVED

    def test_a_claim_keeps_others_off_until_they_take_it_over_or_it_lapses(
        self, person: User, ben: User, clara: User
    ) -> None:
        card = operations.claim_approval(card_of(person).pk, by=ben)
        with pytest.raises(Conflict, match="ben is at this card"):
            decide(card, Verdict.APPROVE, by=clara, version=card.version)
        assert [line.claimed_by for line in list_pending(agents={"*"})] == ["ben"]
        with pytest.raises(Conflict, match="not yours"):
            operations.release_approval(card.pk, by=clara)
        operations.claim_approval(card.pk, by=clara)
        with pytest.raises(Conflict, match="clara is at this card"):
            decide(card, Verdict.APPROVE, by=ben)
        operations.release_approval(card.pk, by=clara)
        operations.claim_approval(card.pk, by=ben)
        clock.shift(timedelta(minutes=16))
        decide(card, Verdict.APPROVE, by=clara)
        assert kinds_of(card)[1:] == ["claimed", "claimed", "claim_released", "claimed", "decided"]

    def test_a_viewer_claims_nothing(self, person: User) -> None:
        card = card_of(person)
        with pytest.raises(Forbidden):
            operations.claim_approval(card.pk, by=people.make_person("vera", Role.VIEWER))

    def test_a_wait_that_goes_on_to_others_says_so(self, person: User) -> None:
        card = card_of(person, valid_for_s=600.0, on_expiry="escalate", escalate_to=["managers"])
        run = find_run(card.run_id, agents=[EVERY_AGENT])
        assert run is not None
        assert [wait.and_then for wait in run.waits] == ["others are asked, without an end"]
        page = read(client_of(person).get(f"/runs/{card.run_id}"))
        assert "And then others are asked; nothing runs until someone decides" in page

    def test_what_nobody_decides_goes_to_the_next_group_and_is_no_rejection(
        self, person: User, ben: User, clara: User
    ) -> None:
        clara.groups.add(Group.objects.create(name="managers"))
        card = card_of(person, valid_for_s=600.0, on_expiry="escalate", escalate_to=["managers"], needed=2)
        clock.shift(timedelta(minutes=11))
        sweep_once()
        assert fresh(card).state == ApprovalState.EXPIRED
        again = Approval.objects.get(step=card.step_id, state=ApprovalState.PENDING)
        assert (again.groups, again.needed, again.on_expiry, again.expires_at) == (["managers"], 2, "hold", None)
        assert "nobody decided in time" in again.why
        assert step_of(card).state == StepState.WAITING
        assert "escalated" in kinds_of(card)
        with pytest.raises(Forbidden, match="for managers"):
            decide(again, Verdict.APPROVE, by=ben)


@pytest.mark.django_db
class TestTogether:
    def low(self, by: User, number: int, *, age_s: float = 0.0) -> Approval:
        assert NOTE is not None
        run = start(by)
        fact = record(run, f"order.{number}", {"paid": "5"}, age_s=age_s)
        step = plan_act(run, NOTE, request=f"r{number}", order=str(number), rests_on=(fact.name,))
        from runs import facts

        shown = facts.shown(facts.judge(run.pk, [fact.name]).values())
        card = ask(run, step, facts=shown)
        with transaction.atomic():
            course.rest(lifecycle.lock(run.pk))
        return card

    def test_low_risk_with_fresh_facts_is_approved_and_the_rest_says_why_not(self, person: User, ben: User) -> None:
        good, old, high = self.low(person, 1), self.low(person, 2, age_s=500.0), card_of(person)
        two = self.low(person, 3)
        told = dict(
            operations.approve_batch([(c.pk, c.version) for c in (good, old, high)] + [(two.pk, 9)], comment="", by=ben)
        )
        assert told[good.pk] == ""
        assert "order.2 is not fresh" in told[old.pk]
        assert "cannot be undone" in told[high.pk]
        assert "changed since you saw it" in told[two.pk]
        states = [fresh(card).state for card in (good, old, high, two)]
        assert states == [ApprovalState.APPROVED] + [ApprovalState.PENDING] * 3

    def test_a_stranger_and_a_viewer_approve_nothing_together(self, person: User) -> None:
        card = self.low(person, 1)
        for by in (people.make_stranger(), people.make_person("vera", Role.VIEWER)):
            ((_, why),) = operations.approve_batch([(card.pk, 1)], comment="", by=by)
            assert why
        assert fresh(card).state == ApprovalState.PENDING


@pytest.mark.usefixtures("transactional_db")
class TestInTheEngine:
    def above(self, engine: Engine, amount: str = "420.00", **more: Any) -> tuple[str, Run, Approval]:
        order = engine.order("900.00")
        run = engine.start(*engine.read(order), [call("pay_keyed", order=order, amount=amount)], **more)
        engine.go(run)
        return order, run, engine.card(run)

    def test_asked_for_more_the_agent_explains_and_the_gate_stays(self, engine: Engine) -> None:
        order, run, card = self.above(engine)
        with pytest.raises(Malformed, match="needs a question"):
            decide(card, Verdict.EXPLAIN, by=engine.person)
        asked = decide(card, Verdict.EXPLAIN, by=engine.person, comment="Why so much?")
        assert asked.explained[0]["text"] is None
        engine.go(run)
        card = fresh(card)
        assert (run.state, run.waiting_for, card.state) == (RunState.WAITING, WaitingFor.APPROVAL, "pending")
        assert dig(card.explained, 0, "text") == "You asked: Why so much?"
        assert engine.paid(order) == 0
        with pytest.raises(AnotherVersion):
            decide(card, Verdict.APPROVE, by=engine.person, version=1)
        decide(card, Verdict.APPROVE, by=engine.person, version=card.version)
        engine.go(run)
        assert (run.state, engine.paid(order)) == (RunState.SUCCEEDED, 1)

    def test_a_changed_fact_is_asked_again_with_old_and_new_side_by_side(self, engine: Engine) -> None:
        order = engine.order("900.00")
        pay = call("pay_keyed", order=order, amount="420.00")
        again = [[call("read_order", order=order)], [call("record_fact", name=f"order.{order}", from_step=8)], [pay]]
        run = engine.start(*engine.read(order), [pay], *again)
        engine.go(run)
        card = engine.card(run)
        assert (card.changes, card.replaces) == ([], None)
        engine.shop.change_order(order, paid="500.00")
        clock.shift(timedelta(minutes=5))
        decide(card, Verdict.APPROVE, by=engine.person)
        engine.go(run)
        new = engine.card(run)
        assert (fresh(card).state, new.replaces_id) == (ApprovalState.VOID, card.pk)
        (change,) = new.changes
        assert (change["what"], change["name"]) == ("fact", f"order.{order}")
        assert (dig(change, "old", "paid"), dig(change, "new", "paid")) == ("900.00", "500.00")
        assert engine.paid(order) == 0

    def test_the_first_that_cannot_be_undone_comes_with_what_was_established(self, engine: Engine) -> None:
        order = engine.order("900.00")
        pays = [call("pay_keyed", order=order, amount=amount) for amount in ("420.00", "421.00")]
        run = engine.start(*engine.read(order), [pays[0]], [pays[1]])
        engine.go(run)
        card = engine.card(run)
        assert dig(card.evidence, "established", "facts", f"order.{order}", "paid") == "900.00"
        decide(card, Verdict.REJECT, by=engine.person, comment="no")
        engine.go(run)
        assert engine.card(run).evidence is None

    def test_escalated_the_work_waits_for_a_person(self, engine: Engine) -> None:
        larger = call("escalate", what="Refund all 900 orders", why="the same fault is in all of them")
        run = engine.start([larger], [{**larger, "arguments": {"what": "And more", "why": "why not"}}])
        engine.go(run)
        card = engine.card(run, ApprovalKind.ESCALATION)
        assert (card.title, card.because) == ("Refund all 900 orders", "the same fault is in all of them")
        decide(card, Verdict.APPROVE, by=engine.person, comment="but only this week’s")
        engine.go(run)
        first = engine.steps(run, "escalate")[0]
        assert (first.state, first.result) == (StepState.DONE, {"approved": True, "comment": "but only this week’s"})
        decide(engine.card(run, ApprovalKind.ESCALATION), Verdict.REJECT, by=engine.person, comment="enough")
        engine.go(run)
        assert [step.state for step in engine.steps(run, "escalate")] == [StepState.DONE, StepState.REJECTED]
        assert run.state == RunState.SUCCEEDED

    def test_an_agents_own_gate_first_use_and_approvers(self, engine: Engine) -> None:
        shop = engine.shop.create_batch(7, size=3)
        one, two, three = shop["requests"][:3]
        run = engine.start(
            [call("close_request", request=one, outcome="refused")],
            [call("close_request", request=two, outcome="odd")],
            [call("close_request", request=three, outcome="raise")],
            agent="guarded",
        )
        reasons = []
        for _ in range(3):
            engine.go(run)
            card = engine.card(run)
            assert card.groups == ["finance"]
            reasons.append(card.why)
            decide(card, Verdict.APPROVE, by=engine.person)
            if len(reasons) == 1:
                # Used once: the next calls are not the first.
                engine.go(run)
        assert "has never used close_request" in reasons[0]
        assert reasons[1] == "the outcome is odd"
        assert "policy failed: SystemExit" in reasons[2]

    def test_two_people_pay_once(self, engine: Engine, ben: User) -> None:
        order = engine.order("900.00")
        run = engine.go(engine.start([call("pay_by_two", order=order, amount="5.00")]))
        card = engine.card(run)
        assert (card.needed, card.on_expiry, card.escalate_to) == (2, "escalate", ["managers"])
        decide(card, Verdict.APPROVE, by=engine.person)
        assert (engine.go(run).state, engine.paid(order)) == (RunState.WAITING, 0)
        decide(card, Verdict.APPROVE, by=ben)
        assert (engine.go(run).state, engine.paid(order)) == (RunState.SUCCEEDED, 1)

    def test_a_held_approval_takes_nothing_before_its_time(self, engine: Engine) -> None:
        order, run, card = self.above(engine)
        decide(card, Verdict.APPROVE, by=engine.person, hold_s=10.0)
        engine.until_rest(run)
        assert (run.state, engine.paid(order)) == (RunState.WAITING, 0)
        decide(card, Verdict.UNDO, by=engine.person)
        clock.shift(timedelta(seconds=30))
        engine.until_rest(run)
        assert (run.state, engine.paid(order)) == (RunState.WAITING, 0)
        decide(card, Verdict.APPROVE, by=engine.person, hold_s=10.0)
        clock.shift(timedelta(seconds=11))
        engine.until_rest(run)
        assert (engine.go(run).state, engine.paid(order)) == (RunState.SUCCEEDED, 1)
