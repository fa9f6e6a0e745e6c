"""What comes from outside."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, course, events, lifecycle, steps
from runs.access import Action
from runs.agents import Json
from runs.errors import Malformed
from runs.journal import person
from runs.models import Event
from runs.operations.amounts import LONGEST_S
from runs.sanitise import clean_text

KEEP_LEAST_S = 86_400.0
"""Senders repeat a delivery for hours. Once its event is deleted, a repeated one is a new one."""


def store_event(
    *, name: str, key: str, payload: Json, source: str, delivery_id: str, by: AbstractBaseUser
) -> tuple[Event, bool]:
    """Keep an event from outside, and wake the step that waits for it; (event, whether it is new)."""
    access.require(by, Action.EVENT)
    agents = access.visible_agents(by)
    name, key, source, delivery_id = (clean_text(text) for text in (name, key, source, delivery_id))

    def store(waiter: events.Waiter | None) -> tuple[Event, bool]:
        """Steps are locked before events; so who waits is guessed, and judged again when all is locked."""
        run = lifecycle.lock(waiter.run) if waiter else None
        step = steps.lock(waiter.step) if waiter else None
        events.hold(name=name, key=key)
        event, is_new = events.store(
            name=name, key=key, payload=payload, source=source, delivery_id=delivery_id, agents=agents
        )
        if is_new and events.find_waiter(name=name, key=key, agents=agents) != waiter:
            raise _Changed
        if is_new and run is not None and step is not None:
            events.match(event, step, actor=person(by))
            steps.wake(step, why=f"the event {name} arrived")
            course.rest(run)
        return event, is_new

    while True:
        try:
            with transaction.atomic(durable=True):
                return store(events.find_waiter(name=name, key=key, agents=agents))
        except _Changed:
            continue


def delete_events(*, older_than_s: float, by: AbstractBaseUser) -> int:
    """Delete the events that ended no wait, were received so many seconds ago, and can end none any more; how many."""
    access.require(by, Action.DELETE)
    if not KEEP_LEAST_S <= older_than_s <= LONGEST_S:
        raise Malformed(
            f"Events cannot be deleted {older_than_s:g} s after they came.",
            remedy="Keep them for a day at least: their senders may repeat them.",
        )
    with transaction.atomic(durable=True):
        return events.delete_unmatched(older_than_s=older_than_s, actor=person(by))


class _Changed(Exception):
    """Another step waits than when its row was looked for."""
