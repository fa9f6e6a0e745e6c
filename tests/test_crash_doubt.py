"""Must show: a call that can neither be repeated nor looked up, killed between acting and recording, waits in doubt."""

import pytest

from runs import operations
from runs.approvals import Said
from runs.errors import AlreadyDecided
from runs.models import JournalEntry, Lock, Run
from runs.states import KeyState, RunState, StepState, Verdict, WaitingFor
from tests.engine_tools import dig
from tests.stage import Stage, fleet_on_stage, stage

__all__ = ["fleet_on_stage", "stage"]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]


@pytest.mark.parametrize("verdict", [Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN, Verdict.STOP])
def test_the_card_shows_the_evidence_and_each_verdict_does_what_it_says_once(stage: Stage, verdict: Verdict) -> None:
    order = stage.order()
    run = stage.start_payment("pay_once", order)
    acted = verdict is not Verdict.DID_NOT_HAPPEN
    # After it has paid and before anybody wrote that down; or after its last look and before it has paid.
    point = "performed" if acted else "looked"
    stage.arm(point, "kill")
    stage.approve(run)
    stage.until_reached(point, "kill")
    card = stage.until_card(run, "verdict")
    stage.until(run, lambda: run.state == RunState.WAITING)  # its worker parks it after that
    assert stage.paid(order) == int(acted)

    # What was attempted, when, by which worker, what is known of its end.
    run.refresh_from_db()
    step = stage.act(run, "pay_once")
    assert (run.state, run.waiting_for, step.state) == (RunState.WAITING, WaitingFor.VERDICT, StepState.IN_DOUBT)
    assert "not known whether pay_once happened" in run.why
    attempt = stage.attempt(run, "pay_once")
    (told,) = dig(card.evidence, "tries")
    assert (card.tool, dig(card.arguments, "order")) == ("pay_once", order)
    assert (told["worker"], told["signal"]) == (str(attempt.holder), 9)
    assert attempt.began_at is not None
    assert told["began_at"] == attempt.began_at.isoformat()
    assert dig(card.evidence, "key") == stage.key(run).header
    assert set(card.verdicts) == {Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN, Verdict.STOP}

    operations.decide(card.pk, Said(verdict=verdict, result={"seen": "at the bank"}), by=stage.person)
    with pytest.raises(AlreadyDecided):
        operations.decide(card.pk, Said(verdict=Verdict.DID_NOT_HAPPEN), by=stage.person)
    stage.until_over(run)
    step.refresh_from_db()
    key = stage.key(run)
    match verdict:
        case Verdict.HAPPENED:
            assert (run.state, step.state, step.result) == (RunState.SUCCEEDED, StepState.DONE, {"seen": "at the bank"})
            assert (key.state, key.closed_how) == (KeyState.DONE, "verdict")
        case Verdict.DID_NOT_HAPPEN:
            assert (run.state, step.state, step.tries) == (RunState.SUCCEEDED, StepState.DONE, 2)
            assert (key.state, key.closed_how) == (KeyState.DONE, "settled")
        case _:
            # The run is over; whether it happened is still asked, and what it holds is still held.
            assert (run.state, key.state) == (RunState.STOPPED, KeyState.IN_DOUBT)
            assert Lock.objects.filter(run=run).exists()
            again = stage.until_card(run, "verdict")
            operations.decide(again.pk, Said(verdict=Verdict.HAPPENED), by=stage.person)
            assert stage.key(run).state == KeyState.DONE
    assert stage.paid(order) == 1
    assert not Lock.objects.filter(run=run).exists()
    assert count_decisions(run, card.pk) == 1


def count_decisions(run: Run, card: int) -> int:
    return JournalEntry.objects.filter(run=run, kind="approval.decided", after__approval=card).count()
