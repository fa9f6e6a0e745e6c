"""Writer of credentials: what is known of each secret, never the secret itself."""

from datetime import datetime

from runs import sql
from runs.agents import Json
from runs.journal import RUNTIME, Actor, append, require_transaction
from runs.sanitise import clean_text


def note_refused(name: str, why: str) -> None:
    """Its receiver did not accept it. Locks its row: who asks a person about it does so one after another."""
    require_transaction()
    sql.execute(
        "INSERT INTO runs_credential (name, renewed_by, refused_at, refused_because)"
        " VALUES (%(name)s, '', lw_clock(), %(why)s)"
        " ON CONFLICT (name) DO UPDATE SET refused_at = lw_clock(), refused_because = %(why)s",
        {"name": name, "why": clean_text(why)},
    )


def note_renewed(name: str, *, expires_at: datetime | None = None, actor: Actor = RUNTIME, why: str = "") -> None:
    """There is a new one: by a refresh, or because a person says so."""
    require_transaction()
    sql.execute(
        "INSERT INTO runs_credential (name, expires_at, renewed_at, renewed_by, refused_because)"
        " VALUES (%(name)s, %(until)s, lw_clock(), %(by)s, '')"
        " ON CONFLICT (name) DO UPDATE SET expires_at = %(until)s,"
        " renewed_at = lw_clock(), renewed_by = %(by)s, refused_at = NULL, refused_because = ''",
        {"name": name, "until": expires_at, "by": actor.name},
    )
    after: dict[str, Json] = {"credential": name}
    if expires_at is not None:
        after["expires_at"] = expires_at.isoformat()
    append("credential.renewed", actor=actor, after=after, why=why)
