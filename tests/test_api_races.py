"""Two requests at the same moment: one run per key, one decision per card."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from runs.access import Role
from runs.models import Decision, JournalEntry, Run
from tests import situations
from tests.people import Api, make_person, token_of

pytestmark = pytest.mark.django_db(transaction=True)

AT_ONCE = 4


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make the calls at the same moment, each on a connection of its own."""
    barrier = Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        try:
            barrier.wait(timeout=30)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_one_idempotency_key_starts_one_run_however_often_it_is_sent_at_once() -> None:
    token = token_of(make_person("olga", Role.OPERATOR))
    body = {"agent": "refund-desk", "goal": "x"}

    def start() -> Any:
        return Api(token).post("/runs", body, **{"Idempotency-Key": "one"})

    answers = together(*[start] * AT_ONCE)
    assert sorted(answer.status_code for answer in answers) == [200] * (AT_ONCE - 1) + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Run.objects.count() == 1


@pytest.mark.parametrize("verdicts", [("approve", "reject"), ("approve", "approve"), ("approve", "edit")])
def test_of_two_decisions_at_once_one_counts_and_the_other_is_told_who(verdicts: tuple[str, str]) -> None:
    asking = situations.ask_approval(situations.start(User.objects.create_superuser("maker")))
    people = [make_person("anna", Role.APPROVER), make_person("ben", Role.APPROVER)]

    def decide(token: str, verdict: str) -> Callable[[], Any]:
        body = {"version": 1, "verdict": verdict, "arguments": {"order": "1001", "amount": "1"}}
        return lambda: Api(token).post(f"/approvals/{asking.card.pk}/decision", body)

    answers = together(*(decide(token_of(who), verdict) for who, verdict in zip(people, verdicts, strict=True)))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    refused = next(answer.json() for answer in answers if answer.status_code == 409)
    winner = Decision.objects.get().by.username
    assert f"by {winner}" in refused["error"]["message"]
    assert refused["approval"]["decisions"][0]["by"] == winner
    assert JournalEntry.objects.filter(kind="approval.decided").count() == 1
    assert JournalEntry.objects.filter(kind="approval.decision_refused").count() == 1


def test_of_two_stops_at_once_one_counts() -> None:
    run = situations.start(User.objects.create_superuser("maker"))
    token = token_of(make_person("olga", Role.OPERATOR))
    stop = lambda: Api(token).post(f"/runs/{run.pk}/stop", {"reason": "x"})  # noqa: E731
    answers = together(stop, stop)
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert JournalEntry.objects.filter(kind="run.stopped").count() == 1
