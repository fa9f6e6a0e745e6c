"""The briefing says what the tables say: each block in its exact shape, in an order that a cache can keep."""

import pytest

from runs.engine.briefing import build, from_json, parts, request, to_json
from tests.briefing_runs import DESK, start

pytestmark = pytest.mark.django_db


def test_the_blocks_stand_in_order_and_can_be_read_back() -> None:
    scene = start()
    scene.think()
    order = scene.read("1001")
    scene.plan("Request r1: order 1001")
    scene.record("order.1001", {"paid": "45.00"}, step=order)
    scene.think()
    scene.refund("1001")
    briefing = build(scene.run.pk)
    assert from_json(to_json(briefing)) == briefing
    for block in request(DESK, briefing).messages[0]["content"]:
        print(block["text"])
    print(parts(request(DESK, briefing)))
