"""A card is decided once, as it was shown, while it stands (case B1); its approval is used once and may be given back."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import approvals, budgets, clock, course, facts, keys, lifecycle, operations, steps
from runs.access import Role
from runs.agents import get_agent
from runs.approvals import Said
from runs.errors import AlreadyDecided, AnotherVersion, Conflict, Forbidden, Malformed, WrongState
from runs.models import Approval, Decision, JournalEntry, Key, Run, Step
from runs.states import (
    VERDICTS,
    ApprovalKind,
    ApprovalState,
    AttemptOutcome,
    KeyState,
    RunState,
    StepKind,
    StepState,
    Verdict,
    WaitingFor,
)
from tests import people
from tests.writers import ask, claim, errors, person, plan_act, start, start_child, take, together

__all__ = ["person"]

TOOL = get_agent("scripted").tool("pay_keyed")
assert TOOL is not None
PAY = TOOL


@pytest.fixture
def run(person: User) -> Run:
    return start(person)


def card_of(run: Run, *, order: str = "7", amount: str = "500", **given: Any) -> Approval:
    card = ask(run, plan_act(run, PAY, order=order, amount=amount), **given)
    with transaction.atomic():
        course.rest(lifecycle.lock(run.pk))
    return card


def decide(card: Approval, verdict: Verdict, *, by: User, **given: Any) -> Approval:
    return operations.decide(card.pk, Said(verdict=verdict, **given), by=by)


def fresh(card: Approval) -> Approval:
    return Approval.objects.get(pk=card.pk)


def step_of(card: Approval) -> Step:
    assert card.step_id is not None
    return Step.objects.get(pk=card.step_id)


@pytest.mark.django_db(transaction=True)
class TestB1DecidedAtOnce:
    """Both have seen the card as pending before either writes."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"verdict": Verdict.APPROVE}, {"verdict": Verdict.REJECT, "comment": "no"}),
            ({"verdict": Verdict.APPROVE}, {"verdict": Verdict.APPROVE}),
            ({"verdict": Verdict.EDIT, "arguments": {"order": "7", "amount": "400"}}, {"verdict": Verdict.APPROVE}),
            ({"verdict": Verdict.REJECT, "comment": "no"}, {"verdict": Verdict.STOP}),
        ],
        ids=["approve-reject", "double click", "edit-approve", "reject-stop"],
    )
    def test_one_decision_stands_and_the_other_is_told_who_decided_what_and_when(
        self, person: User, one: dict[str, Any], other: dict[str, Any]
    ) -> None:
        ben = User.objects.create_superuser("ben")
        run = start(person)
        allowed = [*VERDICTS[ApprovalKind.APPROVAL], Verdict.STOP]
        card = card_of(run, verdicts=allowed)
        results = together(
            lambda: operations.decide(card.pk, Said(version=1, **one), by=person),
            lambda: operations.decide(card.pk, Said(version=1, **other), by=ben),
        )
        (lost,) = errors(results)
        assert isinstance(lost, AlreadyDecided), lost
        decision = Decision.objects.get(approval=card)
        winner = "ana" if results.index(lost) == 1 else "ben"
        assert decision.by.get_username() == winner
        assert f"by {winner} at {decision.at:%Y-%m-%d}" in lost.message
        assert fresh(card).verdict == decision.verdict == (one if winner == "ana" else other)["verdict"]
        kinds = list(JournalEntry.objects.filter(run=run).values_list("kind", flat=True))
        assert (kinds.count("approval.decided"), kinds.count("approval.decision_refused")) == (1, 1)
        woken = kinds.count("step.woken")
        assert woken == (1 if decision.verdict in (Verdict.APPROVE, Verdict.EDIT) else 0)

    def test_ten_decisions_at_once_leave_one(self, person: User) -> None:
        card = card_of(start(person))
        verdicts = [Verdict.APPROVE, Verdict.REJECT] * 5
        results = together(*(lambda v=v: decide(card, v, by=person) for v in verdicts))
        assert len(errors(results)) == 9
        assert all(isinstance(error, AlreadyDecided) for error in errors(results))
        assert Decision.objects.count() == 1

    def test_a_decision_and_a_stop_at_once_end_in_a_stopped_run_whose_card_is_decided_or_void(
        self, person: User
    ) -> None:
        run = start(person)
        card = card_of(run)
        results = together(
            lambda: decide(card, Verdict.APPROVE, by=person),
            lambda: operations.stop_run(run.pk, reason="enough", by=person),
        )
        assert all(isinstance(error, AlreadyDecided) for error in errors(results))
        assert Run.objects.get(pk=run.pk).state == RunState.STOPPED
        assert fresh(card).state == ApprovalState.VOID
        assert step_of(card).state == StepState.VOID

    def test_an_approval_is_consumed_by_one_of_two_takes(self, person: User) -> None:
        run = start(person)
        card = card_of(run)
        decide(card, Verdict.APPROVE, by=person)

        def consume() -> None:
            with transaction.atomic():
                lifecycle.lock(run.pk)
                locked = approvals.in_effect(step_of(card))
                assert locked is not None
                approvals.consume(locked)

        (lost,) = errors(together(consume, consume))
        assert isinstance(lost, WrongState)
        assert fresh(card).state == ApprovalState.CONSUMED


@pytest.mark.django_db
class TestDeciding:
    def test_what_a_person_has_decided_goes_on_before_all_that_is_merely_due(self, run: Run, person: User) -> None:
        card = card_of(run)
        due = [start(person) for _ in range(3)]
        decide(card, Verdict.APPROVE, by=person)
        claimed = []
        for _ in range(4):
            with transaction.atomic():
                found = lifecycle.claim(uuid.uuid4(), lease_s=60.0)
            assert isinstance(found, lifecycle.Claim)
            claimed.append(found.run)
        assert claimed == [run.pk, *(other.pk for other in due)]
        run.refresh_from_db()
        assert run.priority == 0

    def test_another_version_than_was_seen_is_refused(self, run: Run, person: User) -> None:
        card = card_of(run)
        with pytest.raises(AnotherVersion, match="version 7, now 1"):
            decide(card, Verdict.APPROVE, by=person, version=7)
        assert fresh(card).state == ApprovalState.PENDING

    def test_a_verdict_that_the_card_does_not_allow_is_refused(self, run: Run, person: User) -> None:
        card = card_of(run)
        with pytest.raises(Malformed, match="not a verdict"):
            decide(card, Verdict.HAPPENED, by=person)
        assert not Decision.objects.exists()

    def test_a_rejection_closes_its_step_with_the_reason_and_lets_the_run_go_on(self, run: Run, person: User) -> None:
        card = decide(card_of(run), Verdict.REJECT, by=person, comment="too much")
        assert (step_of(card).state, step_of(card).error) == (StepState.REJECTED, "too much")
        run.refresh_from_db()
        assert run.state == RunState.QUEUED

    def test_an_edit_is_validated_and_the_card_allows_exactly_what_it_became(self, run: Run, person: User) -> None:
        card = card_of(run)
        with pytest.raises(Exception, match="wrong arguments"):
            decide(card, Verdict.EDIT, by=person, arguments={"order": "7", "amount": "a lot"})
        assert fresh(card).state == ApprovalState.PENDING
        edited = decide(card, Verdict.EDIT, by=person, arguments={"order": "7", "amount": "80.00"})
        step = step_of(card)
        assert edited.arguments == step.arguments == {"order": "7", "amount": "80.00", "memo": ""}
        assert step.asked["amount"] == "500"
        assert edited.digest == approvals.bind(
            run=run, step=step, contract=PAY.contract, arguments=dict(step.arguments)
        )

    def test_a_binding_is_the_same_before_and_after_its_arguments_were_stored(self, run: Run) -> None:
        step = plan_act(run, PAY, order="7", amount="5")
        odd: dict[str, Any] = {"count": 2**60, "share": 1e20, "low": -0.0, "word": "\ud83d"}
        with transaction.atomic():
            lifecycle.lock(run.pk)
            steps.set_arguments(step, odd, PAY.contract)
            card = approvals.ask(
                run, ApprovalKind.APPROVAL, title="?", step=step, contract=PAY.contract, arguments=dict(step.arguments)
            )
        stored = Step.objects.get(pk=step.pk)
        assert stored.arguments == step.arguments
        for arguments in (odd, dict(stored.arguments), dict(fresh(card).arguments or {})):
            assert card.digest == approvals.bind(run=run, step=stored, contract=PAY.contract, arguments=arguments)

    def test_an_edit_into_a_call_that_was_made_already_is_refused(self, run: Run, person: User) -> None:
        done = plan_act(run, PAY, order="7", amount="80.00")
        attempt = take(run, done, PAY)
        with transaction.atomic():
            lifecycle.lock(run.pk)
            steps.close_attempt(steps.lock_attempt(attempt.pk), AttemptOutcome.DONE)
            keys.close(Key.objects.get(pk=attempt.key_id or 0), KeyState.DONE, how="settled")
            steps.close(steps.lock(done.pk), StepState.DONE)
        card = card_of(run, amount="500")
        with pytest.raises(Conflict, match="has made exactly this call"):
            decide(card, Verdict.EDIT, by=person, arguments={"order": "7", "amount": "80.00"})
        assert fresh(card).state == ApprovalState.PENDING
        decide(card, Verdict.EDIT, by=person, arguments={"order": "7", "amount": "90.00"})

    def test_what_changed_or_ended_is_void_and_says_why_to_whoever_decides(self, run: Run, person: User) -> None:
        card = card_of(run)
        with transaction.atomic():
            lifecycle.lock(run.pk)
            assert approvals.void_all(run.pk, why="order.7 changed") == 1
        with pytest.raises(AlreadyDecided, match="already void"):
            decide(card, Verdict.APPROVE, by=person)
        assert fresh(card).closed_because == "order.7 changed"

    def test_an_answer_needs_words(self, run: Run, person: User) -> None:
        card = card_of(run)
        with pytest.raises(Malformed):
            decide(card, Verdict.RESPOND, by=person, answer="  ")
        assert fresh(card).state == ApprovalState.PENDING
        decide(card, Verdict.RESPOND, by=person, answer="use a voucher")
        assert step_of(card).result == {"answer": "use a voucher"}


@pytest.mark.django_db
class TestUse:
    def approved(self, run: Run, person: User) -> Approval:
        return decide(card_of(run), Verdict.APPROVE, by=person)

    def within(self, run: Run, do: Callable[[Approval], None], card: Approval) -> None:
        with transaction.atomic():
            lifecycle.lock(run.pk)
            do(approvals.lock(card.pk))

    def test_it_is_consumed_once_given_back_and_consumed_again(self, run: Run, person: User) -> None:
        card = self.approved(run, person)
        self.within(run, approvals.consume, card)
        with pytest.raises(WrongState):
            self.within(run, approvals.consume, card)
        self.within(run, approvals.give_back, card)
        self.within(run, approvals.consume, card)
        assert fresh(card).state == ApprovalState.CONSUMED

    def test_what_is_pending_rejected_or_void_is_not_consumed(self, run: Run, person: User) -> None:
        card = card_of(run)
        with pytest.raises(WrongState):
            self.within(run, approvals.consume, card)
        decide(card, Verdict.REJECT, by=person)
        with pytest.raises(WrongState):
            self.within(run, approvals.consume, card)
        assert step_of(card).state == StepState.REJECTED

    def test_what_is_consumed_is_void_only_after_it_was_given_back(self, run: Run, person: User) -> None:
        card = self.approved(run, person)
        self.within(run, approvals.consume, card)
        with pytest.raises(WrongState):
            self.within(run, lambda c: approvals.void(c, why="changed"), card)
        self.within(run, approvals.give_back, card)
        self.within(run, lambda c: approvals.void(c, why="changed"), card)
        with transaction.atomic():
            lifecycle.lock(run.pk)
            assert approvals.in_effect(step_of(card)) is None


@pytest.mark.django_db
class TestExpiry:
    def test_nobody_decided_is_an_outcome_of_its_own(self, run: Run, person: User) -> None:
        card = card_of(run, valid_for_s=3600.0, on_expiry="reject")
        clock.shift(timedelta(hours=2))
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            assert course.expire_cards(locked) == 1
            course.rest(locked)
        assert (fresh(card).state, step_of(card).state) == (ApprovalState.EXPIRED, StepState.EXPIRED)
        assert step_of(card).error == "nobody decided in time"
        run.refresh_from_db()
        assert run.state == RunState.QUEUED

    def test_held_it_is_asked_again_without_an_end_and_with_all_that_it_showed(self, run: Run, person: User) -> None:
        card = card_of(run, valid_for_s=3600.0, on_expiry="hold", facts=[{"name": "order.7"}], evidence={"tries": []})
        clock.shift(timedelta(hours=2))
        with transaction.atomic():
            course.expire_cards(lifecycle.lock(run.pk))
        again = Approval.objects.get(step=card.step_id, state=ApprovalState.PENDING)
        assert (again.expires_at, again.digest, again.facts, again.evidence) == (
            None, card.digest, card.facts, card.evidence
        )  # fmt: skip
        assert "nobody decided in time" in again.why
        assert step_of(card).state == StepState.WAITING
        decide(again, Verdict.APPROVE, by=person)
        assert step_of(card).state == StepState.PLANNED

    def test_what_was_approved_and_not_used_in_time_expires_and_says_so(self, run: Run, person: User) -> None:
        card = decide(card_of(run, valid_for_s=3600.0, on_expiry="reject"), Verdict.APPROVE, by=person)
        clock.shift(timedelta(hours=2))
        with transaction.atomic():
            course.expire_cards(lifecycle.lock(run.pk))
        assert (fresh(card).state, step_of(card).error) == (
            ApprovalState.EXPIRED, "the approval was not used in time"
        )  # fmt: skip

    def test_what_has_expired_by_the_clock_cannot_be_approved_though_no_sweep_has_come(
        self, run: Run, person: User
    ) -> None:
        card = card_of(run, valid_for_s=3600.0, on_expiry="reject")
        clock.shift(timedelta(hours=2))
        with pytest.raises(AlreadyDecided, match="already expired"):
            decide(card, Verdict.APPROVE, by=person)
        assert (fresh(card).state, step_of(card).state) == (ApprovalState.EXPIRED, StepState.EXPIRED)
        assert not Decision.objects.exists()

    def test_the_run_is_looked_at_when_its_card_expires(self, run: Run) -> None:
        card = card_of(run, valid_for_s=3600.0)
        run.refresh_from_db()
        assert (run.state, run.due_at) == (RunState.WAITING, card.expires_at)


@pytest.mark.django_db
class TestDoubt:
    def in_doubt(self, run: Run) -> Approval:
        step = plan_act(run, PAY, order="7", amount="5")
        attempt = take(run, step, PAY)
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            step = steps.lock(step.pk)
            begun = steps.lock_attempt(attempt.pk)
            assert steps.begin(attempt.pk)
            begun.refresh_from_db()
            steps.close_attempt(begun, AttemptOutcome.UNKNOWN)
            key = keys.lock(attempt.key_id or 0)
            keys.close(key, KeyState.IN_DOUBT, how="")
            steps.wait(step, WaitingFor.VERDICT, note="it is not known", state=StepState.IN_DOUBT)
            card = approvals.ask(locked, ApprovalKind.VERDICT, title="Did it happen?", step=step, key=key)
            course.rest(locked)
            return card

    def test_stopping_the_run_leaves_the_question_and_both_answers(self, run: Run, person: User) -> None:
        card = self.in_doubt(run)
        decide(card, Verdict.STOP, by=person)
        again = Approval.objects.get(run=run, state=ApprovalState.PENDING)
        assert (again.kind, again.key_id, again.verdicts) == (
            ApprovalKind.VERDICT, card.key_id, ["happened", "did_not_happen"]
        )  # fmt: skip
        assert Key.objects.get(pk=card.key_id or 0).state == KeyState.IN_DOUBT

    @pytest.mark.parametrize(
        ("verdict", "key_state", "step_state"),
        [
            (Verdict.HAPPENED, KeyState.DONE, StepState.DONE),
            (Verdict.DID_NOT_HAPPEN, KeyState.FAILED, StepState.FAILED),
        ],
    )
    def test_a_verdict_after_the_stop_settles_the_key_and_moves_no_run(
        self, run: Run, person: User, verdict: Verdict, key_state: KeyState, step_state: StepState
    ) -> None:
        decide(self.in_doubt(run), Verdict.STOP, by=person)
        again = Approval.objects.get(run=run, state=ApprovalState.PENDING)
        decide(again, verdict, by=person, result={"refund": 1} if verdict == Verdict.HAPPENED else None)
        assert Key.objects.get(pk=again.key_id or 0).state == key_state
        assert step_of(again).state == step_state
        assert Run.objects.get(pk=run.pk).state == RunState.STOPPED

    def test_a_second_verdict_is_refused(self, run: Run, person: User) -> None:
        card = self.in_doubt(run)
        decide(card, Verdict.HAPPENED, by=person, result={"refund": 1})
        with pytest.raises(AlreadyDecided):
            decide(card, Verdict.DID_NOT_HAPPEN, by=person)
        assert Key.objects.get(pk=card.key_id or 0).result == {"refund": 1}


@pytest.mark.django_db
class TestGrants:
    def short(self, run: Run, by: Run) -> Approval:
        """A run that waits for budget, and a card that says whose is short."""
        with transaction.atomic():
            locked = lifecycle.lock(run.pk)
            step = steps.plan(locked, steps.Asked(kind=StepKind.THINK))
            steps.wait(step, WaitingFor.BUDGET, note="short", on="an operator")
            card = approvals.ask(
                locked,
                ApprovalKind.BUDGET,
                title="short",
                step=step,
                evidence={"run": by.pk, "dimension": "usd"},
                verdicts=(Verdict.GRANT, Verdict.STOP),
            )
            course.rest(locked)
            return card

    def test_a_grant_raises_the_budget_that_is_short_and_wakes_who_waits_in_the_tree(
        self, run: Run, person: User
    ) -> None:
        child, sibling = start_child(run), start_child(run)
        cards = [self.short(child, run), self.short(sibling, run)]
        decide(cards[0], Verdict.GRANT, by=person, grant={"usd": "2.50"})
        assert Run.objects.get(pk=run.pk).budget.usd_limit == Decimal("3.50")
        assert Run.objects.get(pk=child.pk).budget.usd_limit == Decimal("1.00")
        assert [Run.objects.get(pk=r.pk).state for r in (child, sibling)] == [RunState.QUEUED] * 2
        assert fresh(cards[1]).state == ApprovalState.VOID

    def test_who_may_not_decide_for_the_run_above_does_not_raise_its_limit(self, run: Run) -> None:
        child = start_child(run)
        card = self.short(child, start(User.objects.get(username="ana"), agent="refund-desk"))
        narrow = people.make_person("nora", Role.APPROVER, agents=("scripted",))
        with pytest.raises(Forbidden):
            decide(card, Verdict.GRANT, by=narrow, grant={"usd": "2.50"})
        assert fresh(card).state == ApprovalState.PENDING

    @pytest.mark.parametrize("grant", [None, {}, {"usd": "-1"}, {"usd": "NaN"}, {"steps": "some"}])
    def test_a_grant_says_how_much(self, run: Run, person: User, grant: dict[str, str] | None) -> None:
        card = self.short(run, run)
        with pytest.raises(Malformed):
            decide(card, Verdict.GRANT, by=person, grant=grant)
        assert fresh(card).state == ApprovalState.PENDING
        assert budgets.mismatches() == []


@pytest.mark.django_db
def test_the_values_that_a_card_showed_are_kept_with_their_digests(run: Run, person: User) -> None:
    claim(run)
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        facts.record(locked, name="order.7", value={"paid": "9.00"}, source={}, observed_at=clock.now(), max_age_s=60.0)
        shown = facts.shown(facts.judge(run.pk, ["order.7"]).values())
    card = card_of(run, facts=shown)
    assert [(f["name"], f["version"], f["value"]) for f in fresh(card).facts] == [("order.7", 1, {"paid": "9.00"})]
    assert len(fresh(card).facts[0]["digest"]) == 64
