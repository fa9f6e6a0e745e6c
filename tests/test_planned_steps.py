"""A step that was just planned is what the database has of it: nobody reads it back."""

import uuid

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.forms.models import model_to_dict

from runs import lifecycle, steps
from runs.models import Attempt, JournalEntry, Step
from runs.states import StepKind
from tests.writers import person, start

__all__ = ["person"]
pytestmark = pytest.mark.django_db(transaction=True)

ASKED = steps.Asked(
    kind=StepKind.ACT,
    tool="pay\x00",
    arguments={"order": "10\x0001", "amounts": [1, 2.5, 10**400, None, True], "deep": {"a": {"b": []}}},
    because="\ud800 why",
    rests_on=("price", "st\x00ock"),
    again="once more",
    call_id="call\x00-1",
    contract="c" * 64,
    place=3,
)


def stored(step: Step) -> dict[str, object]:
    return model_to_dict(Step.objects.get(pk=step.pk)) | {"created": Step.objects.get(pk=step.pk).created_at}


def known(step: Step) -> dict[str, object]:
    return model_to_dict(step) | {"created": step.created_at}


def test_planned_steps_are_what_is_stored(person: User) -> None:
    run = start(person)
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        planned = steps.plan_all(locked, [ASKED, steps.Asked(kind=StepKind.THINK), ASKED])
        planned += [steps.plan(locked, steps.Asked(kind=StepKind.CHECK, tool="look", reply_to=planned[0].pk))]
    assert [step.number for step in planned] == [1, 2, 3, 4]
    for step in planned:
        assert known(step) == stored(step)
        assert step.run is locked


def test_one_that_is_taken_at_once_is_what_is_stored_with_its_try(person: User) -> None:
    run, holder, performer = start(person), uuid.uuid4(), uuid.uuid4()
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        reserved: list[bool] = []
        step, number = steps.plan_taken(
            locked,
            steps.Asked(kind=StepKind.THINK),
            holder=holder,
            performer=performer,
            lease_s=9.0,
            timeout_s=60.0,
            reserve=lambda: reserved.append(True),
        )
    assert reserved == [True]
    assert known(step) == stored(step)
    assert step.began_at == Step.objects.get(pk=step.pk).began_at
    opened = Attempt.objects.get(step=step)
    assert (opened.pk, opened.number, opened.outcome, opened.run_id) == (number, 1, "open", run.pk)
    assert (opened.epoch, opened.holder, opened.performer, opened.timeout_s) == (locked.epoch, holder, performer, 60.0)
    assert (opened.lease_until - opened.begin_by).total_seconds() == pytest.approx(0.0, abs=0.01)
    entries = JournalEntry.objects.filter(step_id=step.pk).order_by("seq").values_list("kind", "after")
    assert list(entries) == [
        ("step.planned", {"number": 1, "kind": "think", "tool": ""}),
        ("step.taken", {"attempt": 1, "key": None}),
    ]
