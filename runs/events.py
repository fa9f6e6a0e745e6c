"""Writer of events from outside: each delivery is stored once. No step waits for events yet."""

from runs import sql
from runs.journal import require_transaction
from runs.models import Event
from runs.sanitise import clean_text


def store(*, name: str, key: str, payload: object, source: str, delivery_id: str) -> tuple[Event, bool]:
    """(event, whether it is new). The same delivery gives the same event."""
    require_transaction()
    name, key, source, delivery_id = (clean_text(text) for text in (name, key, source, delivery_id))
    is_new = (
        sql.fetch_one(
            "INSERT INTO runs_event (name, key, payload, source, delivery_id, received_at)"
            " VALUES (%s, %s, %s, %s, %s, lw_clock()) ON CONFLICT (source, delivery_id) DO NOTHING RETURNING id",
            [name, key, sql.jsonb(payload), source, delivery_id],
        )
        is not None
    )
    return Event.objects.get(source=source, delivery_id=delivery_id), is_new
