"""Must show: a worker that is killed between a tool's `Wait` and its settlement costs neither a second effect nor the event."""

import pytest

from runs import operations
from runs.approvals import Said
from runs.models import Event
from runs.states import RunState, Verdict
from tests.engine_tools import call, dig
from tests.stage import Stage, fleet_on_stage, stage

__all__ = ["fleet_on_stage", "stage"]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]


@pytest.mark.parametrize("tool", ["order_keyed", "order_checkable", "order_once"])
def test_the_call_is_settled_by_its_effect_and_the_event_that_came_meanwhile_is_its_own(
    stage: Stage, tool: str
) -> None:
    order = stage.order()
    wait = {**call(tool, order=order, key=order), "again": "so that a person is asked"}
    script = [[call("read_order", order=order)], [call("record_fact", name=f"order.{order}", from_step=2)], [wait]]
    run = stage.start("scripted", inputs={"script": script})
    stage.until_card(run, "approval")
    stage.arm("returned", "kill")
    stage.approve(run)
    stage.until_reached("returned", "kill")
    assert stage.paid(order) == 1

    event, _ = operations.store_event(
        name="paid", key=order, payload="yes", source="bank", delivery_id=order, by=stage.person
    )
    assert event.step is None
    if tool == "order_once":  # nobody can know, so a person says; then that is the result
        card = stage.until_card(run, "verdict")
        operations.decide(card.pk, Said(verdict=Verdict.HAPPENED, result={"seen": True}), by=stage.person)
    stage.until_over(run)

    step, event = stage.act(run, tool), Event.objects.get(pk=event.pk)
    assert (run.state, stage.paid(order)) == (RunState.SUCCEEDED, 1)
    if tool == "order_once":
        assert (step.result, event.step) == ({"seen": True}, None)
    else:
        assert (dig(step.result, "payload"), event.step) == ("yes", step)
