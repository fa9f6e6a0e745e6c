"""Writer of the provider limits: how often a credential may call, and what the provider last said about it.

Both belong to the credential (or to one model of it), never to one run. Whoever cannot be let through is given a turn: a
place in one row, some seconds apart, which nobody else can take. So runs that waited together do not come back together,
and none is passed over. After a 429 or an overload nothing is sent for as long as was said; then calls start one by one,
the wider apart the more often the limit was met, until it is not met any more. All times by the business clock.
"""

import random
from dataclasses import dataclass
from datetime import datetime

from runs import sql
from runs.errors import Conflict, Malformed
from runs.journal import Actor, append, require_transaction
from runs.models import ProviderLimit

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
RAMP_S = 60.0
FIRST_GAP_S = 0.5
LONGEST_GAP_S = 8.0
BURST_S = 6.0
"""Of a rate per minute so many seconds' worth may go at once, and never less than one call."""


@dataclass(frozen=True, kw_only=True)
class Closed:
    """No call may be sent now; try again after so many seconds."""

    wait_s: float
    reason: str


def know(credential: str) -> None:
    """Let a credential be listed, so that its rate can be set."""
    require_transaction()
    _make_row(credential, "")


def pass_through(credential: str, model: str, *, step: int) -> Closed | None:
    """Let the call of a step through, or give it a turn and say how long that is from now.

    The caller's transaction ends with the call's reservation: what is rolled back has used no turn.
    """
    require_transaction()
    rows = [_Row(*row) for row in sql.fetch_all(_LOOK, [credential, model])]
    waits = [(_judge(row, step), row) for row in rows]
    wait_s, row = max(waits, key=lambda wait: wait[0], default=(0.0, None))
    if row is not None and wait_s > 0:
        reason = row.reason if row.limited_s > 0 else f"after {row.reason}" if row.ramping else _say_rate(row)
        return Closed(wait_s=wait_s, reason=reason)
    for each in rows:
        _count(each, step)
    return None


def strike(credential: str, model: str, *, retry_after_s: float | None, reason: str) -> float:
    """Keep what a provider said. Returns the seconds until its limit ends: as given, else longer each time.

    Several calls that meet one limit together count once. Whoever has a turn has it after the limit's end.
    """
    require_transaction()
    _make_row(credential, model)
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
    _space_turns(ident)
    if not again:
        append("provider.limited", after={"credential": credential, "model": model, "for_s": pause_s}, why=reason)
    return float(pause_s)


def set_rate(
    limit: int, calls_per_minute: int | None, *, actor: Actor, why: str, version: int | None = None
) -> ProviderLimit:
    """Set how often a credential may call; None: as often as the provider lets it. Raises: Malformed, Conflict."""
    require_transaction()
    found = ProviderLimit.objects.select_for_update(no_key=True).get(pk=limit)
    if version is not None and version != found.version:
        raise Conflict("This limit was changed since you opened it.", remedy="Look at the fresh one and edit again.")
    if calls_per_minute is not None and not 1 <= calls_per_minute <= 100_000:
        raise Malformed("A rate is at least one call a minute.", remedy="To send nothing, engage a switch.")
    sql.execute(
        "UPDATE runs_providerlimit SET calls_per_minute = %s, version = version + 1, changed_at = lw_clock() WHERE id = %s",
        [calls_per_minute, limit],
    )
    _space_turns(limit)
    append(
        "provider.rate_set",
        actor=actor,
        before={"credential": found.credential, "calls_per_minute": found.calls_per_minute},
        after={"credential": found.credential, "calls_per_minute": calls_per_minute},
        why=why,
    )
    found.refresh_from_db()
    return found


def ends_at(credential: str, model: str) -> datetime | None:
    """When the limit on a credential or this model of it ends; None when there is none. For people."""
    (until,) = sql.fetch_row(
        "SELECT max(not_before) FROM runs_providerlimit WHERE credential = %s AND model IN ('', %s)"
        " AND not_before > lw_clock()",
        [credential, model],
    )
    return until if isinstance(until, datetime) else None


@dataclass(frozen=True)
class _Row:
    ident: int
    limited_s: float
    ramping: bool
    strikes: int
    reason: str
    calls_per_minute: int | None
    free_in_s: float  # until the place of the next call; negative when it has passed

    @property
    def gap_s(self) -> float:
        """Seconds between two calls; 0: they need not wait for each other."""
        rate = 60.0 / self.calls_per_minute if self.calls_per_minute else 0.0
        return max(rate, _ramp_gap_s(self.strikes) if self.ramping or self.limited_s > 0 else 0.0)

    @property
    def burst_s(self) -> float:
        return 0.0 if self.ramping or self.limited_s > 0 else max(BURST_S - self.gap_s, 0.0)


_ROW = """
    SELECT id, coalesce(extract(epoch FROM not_before - lw_clock()), 0)::float8, coalesce(ramp_until > lw_clock(), false),
           strikes, reason, calls_per_minute, coalesce(extract(epoch FROM free_at - lw_clock()), '-infinity')::float8
    FROM runs_providerlimit
"""
# Locked in one order, so that the calls of one credential are judged one after another.
_LOOK = f"""
    {_ROW} WHERE credential = %s AND model IN ('', %s) AND (strikes > 0 OR calls_per_minute IS NOT NULL)
    ORDER BY id FOR UPDATE
"""


def _judge(row: _Row, step: int) -> float:
    """Seconds that a step has to wait for this limit, and then it has a turn; 0: its call may be let through."""
    if not row.ramping and row.limited_s <= 0 and row.strikes > 0:
        # A quiet minute: the limit is met less often. The last step ends the ramp.
        sql.execute(
            "UPDATE runs_providerlimit SET strikes = strikes - 1, changed_at = lw_clock(),"
            " ramp_until = CASE WHEN strikes > 1 THEN lw_clock() + make_interval(secs => %s) END WHERE id = %s",
            [RAMP_S, row.ident],
        )
    if row.gap_s == 0:
        return 0.0
    turn = sql.fetch_one(
        "SELECT extract(epoch FROM at - lw_clock())::float8 FROM runs_providerturn WHERE limit_id = %s AND step_id = %s",
        [row.ident, step],
    )
    if turn is not None and row.limited_s <= 0 and turn[0] < -max(row.gap_s, BURST_S):
        # Another limit lasted longer than its turn. All that were missed at once would be a burst: it gets a new one.
        sql.execute("DELETE FROM runs_providerturn WHERE limit_id = %s AND step_id = %s", [row.ident, step])
        turn = None
    if turn is not None:
        at_s = max(float(turn[0]), row.limited_s)
    else:
        at_s = max(row.free_in_s - row.burst_s, row.limited_s)
        if at_s > 0:
            at_s = _give_turn(row, step, at_s)
    return at_s + _jitter(row.gap_s) if at_s > 0 else 0.0


def _count(row: _Row, step: int) -> None:
    """Count a call that is let through: a turn was counted when it was given."""
    had = sql.execute("DELETE FROM runs_providerturn WHERE limit_id = %s AND step_id = %s", [row.ident, step])
    if not had and row.gap_s > 0:
        _move_free(row, max(row.free_in_s, 0.0))


def _move_free(row: _Row, at_s: float) -> None:
    sql.execute(
        "UPDATE runs_providerlimit SET free_at = lw_clock() + make_interval(secs => %s) WHERE id = %s",
        [at_s + row.gap_s, row.ident],
    )


def _give_turn(row: _Row, step: int, at_s: float) -> float:
    if (left := _inherit_turn(row, step)) is not None:
        return left
    _move_free(row, max(row.free_in_s, at_s))
    sql.execute(
        "INSERT INTO runs_providerturn (limit_id, step_id, at) VALUES (%s, %s, lw_clock() + make_interval(secs => %s))",
        [row.ident, step, at_s],
    )
    return at_s


def _inherit_turn(row: _Row, step: int) -> float | None:
    """Take over the first turn of a step that needs it no more (its run was stopped): no place is lost."""
    taken = sql.fetch_one(
        "UPDATE runs_providerturn SET step_id = %s WHERE id = (SELECT t.id FROM runs_providerturn t"
        " JOIN runs_step s ON s.id = t.step_id WHERE t.limit_id = %s AND t.at > lw_clock() AND s.ended_at IS NOT NULL"
        " ORDER BY t.at LIMIT 1) RETURNING extract(epoch FROM at - lw_clock())::float8",
        [step, row.ident],
    )
    return None if taken is None else max(float(taken[0]), row.limited_s)


def _space_turns(limit: int) -> None:
    """Put the turns one gap apart behind the end of a locked limit, in their order; those of ended steps go."""
    sql.execute(
        "DELETE FROM runs_providerturn t USING runs_step s WHERE s.id = t.step_id AND s.ended_at IS NOT NULL"
        " AND t.limit_id = %s",
        [limit],
    )
    row = _Row(*sql.fetch_row(f"{_ROW} WHERE id = %s", [limit]))
    start_s = max(row.limited_s, 0.0)
    (turns,) = sql.fetch_row(
        "WITH placed AS (UPDATE runs_providerturn t SET at = lw_clock() + make_interval(secs => %s + %s * o.place)"
        " FROM (SELECT id, row_number() OVER (ORDER BY at, id) - 1 AS place FROM runs_providerturn WHERE limit_id = %s) o"
        " WHERE o.id = t.id RETURNING 1) SELECT count(*) FROM placed",
        [start_s, row.gap_s, limit],
    )
    sql.execute(
        # What was not used before a limit is not made up for after it.
        "UPDATE runs_providerlimit SET free_at = lw_clock() + make_interval(secs => %s) WHERE id = %s",
        [start_s + row.gap_s * turns + row.burst_s, limit],
    )


def _make_row(credential: str, model: str) -> None:
    sql.execute(
        "INSERT INTO runs_providerlimit (credential, model, reason, strikes, changed_at) VALUES (%s, %s, '', 0, lw_clock())"
        " ON CONFLICT (credential, model) DO NOTHING",
        [credential, model],
    )


def _ramp_gap_s(strikes: int) -> float:
    return min(FIRST_GAP_S * 2.0 ** min(max(strikes - 1, 0), 30), LONGEST_GAP_S)


def _jitter(gap_s: float) -> float:
    """Turns are apart already; this only keeps programs from waking in the same instant."""
    return random.random() * min(gap_s * 0.2, 0.5)  # noqa: S311 - spreads runs in time, guards nothing


def _say_rate(row: _Row) -> str:
    return f"the credential makes at most {row.calls_per_minute} calls a minute"
