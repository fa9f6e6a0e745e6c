"""What comes from outside."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from runs import access, events
from runs.access import Action
from runs.agents import Json
from runs.models import Event


def store_event(
    *, name: str, key: str, payload: Json, source: str, delivery_id: str, by: AbstractBaseUser
) -> tuple[Event, bool]:
    """Keep an event from outside; (event, whether it is new)."""
    access.require(by, Action.EVENT)
    with transaction.atomic(durable=True):
        return events.store(name=name, key=key, payload=payload, source=source, delivery_id=delivery_id)
