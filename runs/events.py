"""Writer of events from outside: stored first, matched to a waiting step afterwards."""

from django.db import connection
from psycopg.types.json import Jsonb

from runs.journal import require_transaction
from runs.models import Event
from runs.sanitise import clean_json, clean_text


def store(*, name: str, key: str, payload: object, source: str, delivery_id: str) -> tuple[Event, bool]:
    """(event, whether it is new). The same delivery gives the same event."""
    require_transaction()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_event (name, key, payload, source, delivery_id, received_at)"
            " VALUES (%s, %s, %s, %s, %s, lw_clock()) ON CONFLICT (source, delivery_id) DO NOTHING RETURNING id",
            [clean_text(name), clean_text(key), Jsonb(clean_json(payload)), clean_text(source), clean_text(delivery_id)],
        )
        is_new = cursor.fetchone() is not None
    return Event.objects.get(source=source, delivery_id=delivery_id), is_new
