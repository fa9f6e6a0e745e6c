"""What a page says of time: it tells when its facts move by age alone, and keeps a decided card as it was decided."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runs import clock, operations
from runs.access import Role
from runs.approvals import Said
from runs.engine.advance import expire
from runs.states import Verdict
from tests import page_situations, situations
from tests.page_tools import client_of, read
from tests.people import make_person

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada() -> User:
    return make_person("ada", Role.ADMIN)


@pytest.fixture
def client(ada: User) -> Client:
    return client_of(ada)


def read_seconds(client: Client, path: str) -> list[float]:
    return [float(found) for found in re.findall(r'data-live-in="([^"]*)"', client.get(path).content.decode())]


def test_a_panel_says_in_how_many_seconds_its_facts_are_called_otherwise(client: Client, ada: User) -> None:
    run = situations.start(ada)
    assert read_seconds(client, f"/runs/{run.pk}/panels/facts") == []
    page_situations.record_fact(run, max_age_s=100.0)
    page_situations.record_fact(run, "policy", max_age_s=1000.0)
    for panel in ("head", "facts"):
        assert read_seconds(client, f"/runs/{run.pk}/panels/{panel}") == [pytest.approx(80.0, abs=5.0)]
    clock.shift(timedelta(seconds=85))
    assert read_seconds(client, f"/runs/{run.pk}/panels/facts") == [pytest.approx(15.0, abs=5.0)]
    clock.shift(timedelta(seconds=20))
    assert read_seconds(client, f"/runs/{run.pk}/panels/facts") == [pytest.approx(695.0, abs=5.0)]


def test_the_evidence_and_the_list_say_it_too(client: Client, ada: User) -> None:
    card = situations.ask_approval(situations.start(ada)).card  # its fact may get 900 s old
    assert read_seconds(client, f"/approvals/{card.pk}/panels/evidence") == [pytest.approx(720.0, abs=5.0)]
    assert read_seconds(client, "/approvals/panels/list") == [pytest.approx(900.0, abs=5.0)]
    clock.shift(timedelta(seconds=950))
    for panel in (f"/approvals/{card.pk}/panels/evidence", "/approvals/panels/list"):
        assert read_seconds(client, panel) == []
        assert "not fresh" in read(client.get(panel))


def test_a_decided_card_keeps_the_ages_at_its_decision(client: Client, ada: User) -> None:
    asking = situations.ask_approval(situations.start(ada))
    clock.shift(timedelta(seconds=300))
    operations.decide(asking.card.pk, Said(verdict=Verdict.REJECT, version=1, comment="not twice"), by=ada)
    clock.shift(timedelta(hours=3))
    page = read(client.get(f"/approvals/{asking.card.pk}"))
    assert "Evidence, with its age then 1 fact, all fresh Fresh" in page.replace("State Fact Age and limit ", "")
    assert "5 min of 15 min" in page
    assert "3 h" in page  # ago
    page_situations.record_fact(asking.run, value={"paid": "1.00"})
    assert "Changed" not in read(client.get(f"/approvals/{asking.card.pk}"))


def test_an_end_says_by_whom_and_by_which_limit(client: Client, ada: User) -> None:
    stopped = situations.start(ada)
    operations.stop_run(stopped.pk, reason="wrong batch", by=ada)
    assert "Stopped: wrong batch Ended 0 s ago After 0 s By ada" in read(client.get(f"/runs/{stopped.pk}"))
    aged = situations.start(ada, max_age_s=3600.0)
    late = situations.start(ada, deadline_at=clock.now() + timedelta(minutes=30))
    clock.shift(timedelta(hours=2))
    for run, said in ((aged, "Expired: its max age passed"), (late, "Expired: its deadline passed")):
        expire(run.pk)
        assert said in read(client.get(f"/runs/{run.pk}"))
    assert "Its max age 1 h" in read(client.get(f"/runs/{aged.pk}"))
    assert "Its deadline" in read(client.get(f"/runs/{late.pk}"))
