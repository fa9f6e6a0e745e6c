"""Writer of the provider limits: what a provider last said about a credential, and how its calls start again after it.

The limit belongs to the credential (and the model it was told for), never to one run: while it lasts nothing is sent.
Afterwards calls are let through one by one, the wider apart the more often the limit was met, until it is not met any
more; so runs that waited together do not come back together. All times by the business clock.
"""

import random
from dataclasses import dataclass
from datetime import datetime

from runs import sql
from runs.journal import append, require_transaction

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
RAMP_S = 60.0
FIRST_GAP_S = 0.5
LONGEST_GAP_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Closed:
    """No call may be sent now; try again after so many seconds."""

    wait_s: float
    reason: str


def pass_through(credential: str, model: str) -> Closed | None:
    """Let one call through, or say how long it has to wait. The caller's transaction ends with the call's reservation."""
    require_transaction()
    rows = sql.fetch_all(_LOOK, [credential, model])
    for ident, limited_s, ramping, gap_s, strikes, reason in rows:
        spread = random.random()  # noqa: S311 - spreads runs in time, guards nothing
        if limited_s > 0:
            # Those that wait already are in front of this one: spread over as long as they take.
            return Closed(wait_s=limited_s + spread * _gap_s(strikes) * (_count_waiting() + 1), reason=reason)
        if ramping and gap_s < _gap_s(strikes):
            wait_s = _gap_s(strikes) - gap_s
            return Closed(wait_s=wait_s + spread * _gap_s(strikes) * (_count_waiting() + 1), reason=f"after {reason}")
        if not ramping:
            # A quiet minute: the limit is met less often. The last step ends the ramp.
            sql.execute(
                "UPDATE runs_providerlimit SET strikes = strikes - 1, changed_at = lw_clock(),"
                " ramp_until = CASE WHEN strikes > 1 THEN lw_clock() + make_interval(secs => %s) END WHERE id = %s",
                [RAMP_S, ident],
            )
    if rows:
        sql.execute(
            "UPDATE runs_providerlimit SET spaced_at = lw_clock() WHERE id = ANY(%s)", [[row[0] for row in rows]]
        )
    return None


def strike(credential: str, model: str, *, retry_after_s: float | None, reason: str) -> float:
    """Keep what a provider said. Returns the seconds until its limit ends: as given, else longer each time.

    Several calls that meet one limit together count once.
    """
    require_transaction()
    sql.execute(
        "INSERT INTO runs_providerlimit (credential, model, reason, strikes, changed_at) VALUES (%s, %s, '', 0, lw_clock())"
        " ON CONFLICT (credential, model) DO NOTHING",
        [credential, model],
    )
    ident, strikes, limited_s = sql.fetch_row(
        "SELECT id, strikes, coalesce(extract(epoch FROM not_before - lw_clock()), 0)::float8 FROM runs_providerlimit"
        " WHERE credential = %s AND model = %s FOR UPDATE",
        [credential, model],
    )
    again = limited_s > 0
    strikes = max(strikes, 1) if again else strikes + 1
    pause_s = retry_after_s
    if pause_s is None:
        jitter = 0.75 + random.random() * 0.5  # noqa: S311
        pause_s = limited_s if again else min(FIRST_PAUSE_S * 2.0 ** min(strikes - 1, 30), LONGEST_PAUSE_S) * jitter
    pause_s = max(pause_s, limited_s)
    sql.execute(
        "UPDATE runs_providerlimit SET strikes = %s, reason = %s, changed_at = lw_clock(),"
        " not_before = lw_clock() + make_interval(secs => %s), ramp_until = lw_clock() + make_interval(secs => %s)"
        " WHERE id = %s",
        [strikes, reason, pause_s, pause_s + RAMP_S, ident],
    )
    if not again:
        append("provider.limited", after={"credential": credential, "model": model, "for_s": pause_s}, why=reason)
    return float(pause_s)


def ends_at(credential: str, model: str) -> datetime | None:
    """When the limit on a credential or this model of it ends; None when there is none. For people."""
    (until,) = sql.fetch_row(
        "SELECT max(not_before) FROM runs_providerlimit WHERE credential = %s AND model IN ('', %s)"
        " AND not_before > lw_clock()",
        [credential, model],
    )
    return until if isinstance(until, datetime) else None


# Locked in one order, so that the calls of one credential are judged one after another.
_LOOK = """
    SELECT id, coalesce(extract(epoch FROM not_before - lw_clock()), 0)::float8, coalesce(ramp_until > lw_clock(), false),
           coalesce(extract(epoch FROM lw_clock() - spaced_at), 'infinity')::float8, strikes, reason
    FROM runs_providerlimit WHERE credential = %s AND model IN ('', %s) AND strikes > 0 ORDER BY id FOR UPDATE
"""


def _gap_s(strikes: int) -> float:
    return min(FIRST_GAP_S * 2.0 ** min(max(strikes - 1, 0), 30), LONGEST_GAP_S)


def _count_waiting() -> int:
    (waiting,) = sql.fetch_row(
        "SELECT count(*) FROM runs_step WHERE state = 'waiting' AND waiting_for = 'provider' AND wake_at > lw_clock()"
    )
    return int(waiting)
