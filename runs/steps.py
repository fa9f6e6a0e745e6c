"""Writer of steps and attempts. An attempt is counted before the work, and closed by its own id whatever its run did."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.types.json import Jsonb

from runs import lifecycle, processes, sql, switches
from runs.agents import Json
from runs.errors import Untaken, WrongState
from runs.journal import AGENT, RUNTIME, Actor, append, append_all, require_transaction
from runs.models import Attempt, Run, Step
from runs.sanitise import clean_json, clean_text
from runs.states import (
    MAY_HAVE_ACTED,
    STEP_FINAL,
    STEP_MOVES,
    STEP_OPEN,
    AttemptOutcome,
    StepKind,
    StepState,
    WaitingFor,
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A step that is to be planned."""

    kind: StepKind
    tool: str = ""
    arguments: dict[str, Json] | None = None
    because: str = ""
    rests_on: tuple[str, ...] = ()
    again: str = ""
    call_id: str = ""
    contract: str = ""
    reply_to: int | None = None
    place: int = 0
    fact: int | None = None
    subject: int | None = None


def plan(run: Run, asked: Asked, *, actor: Actor = AGENT) -> Step:
    """Append a planned step to a locked run."""
    return plan_all(run, [asked], actor=actor)[0]


def plan_all(run: Run, asked: Sequence[Asked], *, actor: Actor = AGENT) -> list[Step]:
    """Append planned steps to a locked run, in this order, in one statement however many."""
    require_transaction()
    if not asked:
        return []
    cleaned = [_clean(each) for each in asked]
    rows = sql.fetch_all(_PLAN, [len(asked), run.pk, len(asked), Jsonb(cleaned)])
    planned = [_made(run, each, ident, number, at) for each, (ident, _, number, at) in zip(cleaned, rows, strict=True)]
    append_all(
        "step.planned",
        actor=actor,
        run=run.pk,
        entries=[(step.pk, {"number": step.number, "kind": step.kind, "tool": step.tool}) for step in planned],
    )
    return planned


def plan_taken(
    run: Run,
    asked: Asked,
    *,
    holder: uuid.UUID,
    performer: uuid.UUID,
    lease_s: float,
    timeout_s: float,
    reserve: Callable[[], None],
) -> tuple[Step, int]:
    """Append a step to a locked run and take its first try. Returns it with the number of the try.

    reserve: what is reserved for that try, which goes in the same message.
    """
    require_transaction()
    cleaned = _clean(asked)
    planned = sql.ask(
        _PLAN_TAKEN, [1, run.pk, 1, Jsonb([cleaned]), run.epoch, holder, performer, lease_s, lease_s, timeout_s]
    )
    reserve()
    ident, _, number, created_at, attempt = planned.row()
    step = _made(run, cleaned, ident, number, created_at)
    step.state, step.tries, step.began_at = StepState.TAKEN, 1, created_at
    after: dict[str, Json] = {"number": number, "kind": step.kind, "tool": step.tool}
    append("step.planned", run=run.pk, step=ident, after=after)
    append("step.taken", run=run.pk, step=ident, after={"attempt": 1, "key": None})
    return step, attempt


def _clean(asked: Asked) -> dict[str, Json]:
    """As it is stored: by the names of its columns."""
    values = vars(asked) | {"arguments": asked.arguments or {}}
    return {_COLUMNS.get(name, name): clean_json(value) for name, value in values.items()}


_COLUMNS = {"reply_to": "reply_to_id", "fact": "fact_id", "subject": "subject_id"}


def _insert(state: StepState, *, tries: int, began_at: str) -> str:
    return f"""
        INSERT INTO runs_step (run_id, number, kind, state, reply_to_id, place, call_id, tool, contract, asked,
            arguments, because, rests_on, again, fact_id, subject_id, rounds, gate_reason, waiting_for, waiting_on,
            wait_note, and_then, tries, tries_granted, error, usd, created_at, began_at)
        SELECT counted.id, step_seq - %s + nth, kind, '{state}', reply_to_id, place, call_id, tool, contract, arguments,
            arguments, because, rests_on, again, fact_id, subject_id, 0, '', '', '', '', '', {tries}, 0, '', 0,
            (SELECT lw_now()), {began_at}
        FROM counted, ROWS FROM (jsonb_to_recordset(%s) AS (kind text, reply_to_id bigint, place int, call_id text,
            tool text, contract text, arguments jsonb, because text, rests_on jsonb, again text, fact_id bigint,
            subject_id bigint)) WITH ORDINALITY AS asked(kind, reply_to_id, place, call_id, tool, contract, arguments,
            because, rests_on, again, fact_id, subject_id, nth)
        ORDER BY nth RETURNING id, run_id, number, created_at
    """


_PLAN = f"WITH counted AS ({lifecycle.COUNT_STEPS}) {_insert(StepState.PLANNED, tries=0, began_at='NULL')}"

_PLAN_TAKEN = f"""
    WITH counted AS ({lifecycle.COUNT_STEPS}), planned AS ({_insert(StepState.TAKEN, tries=1, began_at="(SELECT lw_now())")}),
    opened AS (
        INSERT INTO runs_attempt (step_id, run_id, number, epoch, holder, performer, outcome, taken_at, lease_until,
            begin_by, timeout_s, visible_within_s, error, late)
        SELECT id, run_id, 1, %s, %s, %s, 'open', lw_clock(), clock_timestamp() + make_interval(secs => %s),
            clock_timestamp() + make_interval(secs => %s), %s, 0, '', false
        FROM planned RETURNING id
    )
    SELECT planned.*, opened.id FROM planned, opened
"""


def _made(run: Run, asked: dict[str, Json], ident: int, number: int, created_at: datetime) -> Step:
    """A step as it was planned, without a way to the database for what is known here."""
    own = {"id": ident, "run_id": run.pk, "number": number, "asked": asked["arguments"], "created_at": created_at}
    step = sql.make(Step, _BLANK | asked | own)
    step.run = run
    return step


# What a step has before anything of it is known.
_BLANK = {field.attname: field.get_default() for field in Step._meta.concrete_fields}


def lock(step: int) -> Step:
    """Lock a step; its run is locked already (lock order)."""
    require_transaction()
    return sql.lock(Step, step)


def open_steps(run: Run) -> list[Step]:
    return _load_open(run, "ORDER BY number")


def lock_open(run: Run) -> list[Step]:
    """Lock all open steps of a locked run."""
    require_transaction()
    return _load_open(run, "ORDER BY id FOR NO KEY UPDATE")


def _load_open(run: Run, rest: str) -> list[Step]:
    found = sql.load(Step, f"run_id = %s AND state IN ({OPEN}) {rest}", [run.pk])
    for step in found:
        step.run = run
    return found


# The open states, in SQL.
OPEN = ", ".join(f"'{state}'" for state in sorted(STEP_OPEN))


def wait(
    step: Step,
    waiting_for: WaitingFor,
    *,
    note: str,
    on: str = "",
    wake_at: datetime | None = None,
    and_then: str = "",
    state: StepState = StepState.WAITING,
) -> None:
    """Let a step wait: for what, on whom, until when, and what happens then."""
    _move(
        step,
        state,
        "waiting_for = %s, waiting_on = %s, wait_note = %s, wake_at = %s, and_then = %s",
        [waiting_for, clean_text(on), clean_text(note), wake_at, clean_text(and_then)],
    )
    append("step.waited", run=step.run_id, step=step.pk, after={"waiting_for": waiting_for, "until": wake_at}, why=note)
    step.waiting_for, step.waiting_on, step.wait_note, step.wake_at = waiting_for, on, note, wake_at


def wake(step: Step, *, why: str = "", actor: Actor = RUNTIME) -> None:
    """Make a waiting step workable again."""
    _move(
        step, StepState.PLANNED, "waiting_for = '', waiting_on = '', wait_note = '', wake_at = NULL, and_then = ''", []
    )
    append("step.woken", actor=actor, run=step.run_id, step=step.pk, why=why)


def close(
    step: Step,
    state: StepState,
    *,
    result: Json = None,
    artifact: int | None = None,
    error: str = "",
    replay_of: int | None = None,
    actor: Actor = RUNTIME,
    why: str = "",
) -> None:
    """Give a step its outcome."""
    if state not in STEP_FINAL:
        raise WrongState(f"Step {step.number}", step.state, state)
    _move(
        step,
        state,
        "waiting_for = '', waiting_on = '', wait_note = '', wake_at = NULL, and_then = '', result = %s, artifact_id = %s,"
        " error = %s, replay_of_id = %s, ended_at = lw_clock()",
        [sql.jsonb(result), artifact, clean_text(error), replay_of],
    )
    append(
        f"step.{state}",
        actor=actor,
        run=step.run_id,
        step=step.pk,
        after={"number": step.number, "tool": step.tool},
        why=why or error,
    )
    step.result, step.error = result, error


def set_arguments(step: Step, arguments: dict[str, Json], contract: str) -> None:
    """The final arguments: normalised, or edited by a person."""
    sql.execute(
        "UPDATE runs_step SET arguments = %s, contract = %s WHERE id = %s",
        [sql.jsonb(arguments), contract, step.pk],
    )
    # As they are stored: an approval is bound to that.
    step.arguments, step.contract = clean_json(arguments), contract


def set_gate(step: Step, reason: str | None) -> None:
    """Store the gate's answer once; it is never asked again for this step and these arguments."""
    sql.execute(
        "UPDATE runs_step SET gated = %s, gate_reason = %s WHERE id = %s",
        [reason is not None, clean_text(reason or ""), step.pk],
    )
    step.gated, step.gate_reason = reason is not None, reason or ""
    append("step.gated" if reason else "step.passed_gate", run=step.run_id, step=step.pk, why=reason or "")


def reset_gate(step: Step) -> None:
    """The call is not the one that the gate judged: it is asked anew."""
    sql.execute("UPDATE runs_step SET gated = NULL, gate_reason = '' WHERE id = %s", [step.pk])
    step.gated, step.gate_reason = None, ""


def count_round(step: Step) -> int:
    step.rounds = sql.fetch_row("UPDATE runs_step SET rounds = rounds + 1 WHERE id = %s RETURNING rounds", [step.pk])[0]
    return step.rounds


def grant_tries(step: Step, more: int) -> None:
    """A person lets a step be tried again."""
    sql.execute("UPDATE runs_step SET tries_granted = tries + %s WHERE id = %s", [more, step.pk])


def count_failures(step: Step) -> int:
    """How many tries of a step failed: not those that never began, and not those whose worker was lost.

    One of which it was found out afterwards that it did nothing has failed like any other, unless it was lost.
    """
    return int(
        sql.fetch_row(
            "SELECT count(*) FROM runs_attempt a WHERE a.step_id = %s AND (a.outcome IN ('failed', 'unknown', 'dead')"
            f" OR (a.outcome = 'disproved' AND NOT {_WAS_LOST}))",
            [step.pk],
        )[0]
    )


def count_lost(step: Step) -> int:
    """How many tries of a step lost their worker, whatever was found out about them afterwards."""
    return int(
        sql.fetch_row(
            "SELECT count(*) FROM runs_attempt a WHERE a.step_id = %s AND (a.outcome = 'lost'"
            f" OR (a.outcome IN ('disproved', 'proved') AND {_WAS_LOST}))",
            [step.pk],
        )[0]
    )


# What was known of a try before it was settled what it did stands in the journal alone.
_WAS_LOST = (
    "EXISTS (SELECT FROM runs_journalentry j WHERE j.run_id = a.run_id AND j.step_id = a.step_id AND j.kind = 'attempt.lost'"
    " AND (j.after->>'attempt')::int = a.number)"
)


def settle_doubt(key: int, outcome: AttemptOutcome, *, why: str) -> None:
    """What the tries of a locked key did is known now: a look-up or a person said so."""
    for attempt in Attempt.objects.select_for_update(of=("self",), no_key=True).filter(
        key_id=key, outcome__in=MAY_HAVE_ACTED
    ):
        if attempt.began_at is not None:
            close_attempt(attempt, outcome, error=why)


def add_usd(step: int, usd: object) -> None:
    sql.execute("UPDATE runs_step SET usd = usd + %s WHERE id = %s", [usd, step])


def open_attempt(
    step: Step,
    *,
    epoch: int,
    holder: uuid.UUID,
    performer: uuid.UUID,
    lease_s: float,
    begin_within_s: float,
    timeout_s: float,
    visible_within_s: float = 0.0,
    key: int | None = None,
    approval: int | None = None,
) -> Attempt:
    """Count a try, and open it, before any work. begin_within_s: how long what was judged now holds.

    A step that keeps a wait is past its tries.
    """
    require_transaction()
    if StepState.TAKEN not in STEP_MOVES[StepState(step.state)]:
        raise WrongState(f"Step {step.number} of run {step.run_id}", step.state, StepState.TAKEN)
    rows = sql.fetch_all(
        "WITH taken AS (UPDATE runs_step SET state = 'taken', tries = tries + 1, began_at = coalesce(began_at, lw_clock()),"
        " error = '' WHERE id = %s AND state = %s AND result IS NULL RETURNING id, run_id, tries)"
        " INSERT INTO runs_attempt (step_id, run_id, number, epoch, holder, performer, key_id, approval_id, outcome,"
        " taken_at, lease_until, begin_by, timeout_s, visible_within_s, error, late)"
        " SELECT id, run_id, tries, %s, %s, %s, %s, %s, 'open', lw_clock(),"
        " clock_timestamp() + make_interval(secs => %s), clock_timestamp() + make_interval(secs => %s), %s, %s, '', false"
        f" FROM taken RETURNING {sql.columns(Attempt)}",
        [
            step.pk,
            step.state,
            epoch,
            holder,
            performer,
            key,
            approval,
            lease_s,
            begin_within_s,
            timeout_s,
            visible_within_s,
        ],
    )
    if not rows:
        raise WrongState(f"Step {step.number} of run {step.run_id}", "changed by another", StepState.TAKEN)
    step.state = StepState.TAKEN
    (attempt,) = sql.build(Attempt, rows)
    append("step.taken", run=step.run_id, step=step.pk, after={"attempt": attempt.number, "key": key})
    return attempt


def begin(attempt: int, *, performer: uuid.UUID | None = None) -> bool:
    """The last look, and the mark that it was passed, in one: called by the performer just before it sends.

    True only if the attempt is still open, within `begin_by` and its lease, its run neither ended, paused nor switched
    off, and every fact version it rests on still the newest. Since every closer of an attempt takes the same row lock,
    an attempt closed without `began_at` has sent nothing and never will.

    performer: whose try it has to be, where its number may be another's by now (see `lock_try`).
    """
    require_transaction()
    # Lock, then judge: the UPDATE below has a snapshot of its own, taken after this lock was granted.
    if sql.fetch_one("SELECT run_id FROM runs_attempt WHERE id = %s FOR NO KEY UPDATE", [attempt]) is None:
        return False
    return sql.execute(_BEGIN, {"attempt": attempt, "performer": performer}) > 0


def may_go_on(attempt: int) -> bool:
    """Whether a call that has begun may go on: its run neither ended nor switched off."""
    return sql.fetch_one(_MAY_GO_ON, {"attempt": attempt}) is not None


def keep_result(step: Step, result: Json) -> None:
    """What an open step has so far: its moment, the child that it started, or the event for which its call waits."""
    sql.execute("UPDATE runs_step SET result = %s WHERE id = %s", [sql.jsonb(result), step.pk])
    step.result = result


_NO_SWITCH = f"NOT EXISTS ({switches.in_scope_of('st.tool')})"

_MAY_GO_ON = f"""
    SELECT 1 FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id JOIN runs_step st ON st.id = a.step_id
    WHERE a.id = %(attempt)s AND a.outcome = 'open' AND r.ended_at IS NULL AND {_NO_SWITCH}
"""

_BEGIN = f"""
    UPDATE runs_attempt a SET began_at = lw_clock()
    FROM runs_run r, runs_step st
    WHERE a.id = %(attempt)s AND r.id = a.run_id AND st.id = a.step_id
      AND coalesce(a.performer = %(performer)s::uuid, true)
      AND a.outcome = 'open' AND a.began_at IS NULL
      AND clock_timestamp() < a.begin_by AND clock_timestamp() < a.lease_until
      AND r.ended_at IS NULL AND r.paused_at IS NULL
      AND {_NO_SWITCH}
      -- Whatever brought it here: a gated call begins on its own approval, used up by this very take, or not at all.
      AND (st.gated IS NOT TRUE OR EXISTS (
          SELECT FROM runs_approval p
          WHERE p.id = a.approval_id AND p.step_id = st.id AND p.kind = 'approval' AND p.state = 'consumed'
      ))
      AND NOT EXISTS (
          SELECT FROM runs_factuse u JOIN runs_fact f ON f.id = u.fact_id
          WHERE u.attempt_id = a.id AND (f.version <> u.version OR f.contradicted_at IS NOT NULL)
      )
"""


def lock_attempt(attempt: int) -> Attempt:
    require_transaction()
    return sql.lock(Attempt, attempt)


def lock_try(attempt: int, *, claim: lifecycle.Claim | None = None) -> tuple[Run, Step, Attempt]:
    """Lock a try with its run and step, in the order of all locks, in one statement. Raises: Untaken.

    claim: that under which it was taken, where it was not on the disk before its number was known. A database that dies
    gives the numbers of the tries that it forgot to others.
    """
    require_transaction()
    row = sql.fetch_one(_LOCK_TRY, [attempt])
    if row is None:
        raise Untaken(attempt)
    after_run = len(Run._meta.concrete_fields)
    after_step = after_run + len(Step._meta.concrete_fields)
    (run,) = sql.build(Run, [row[:after_run]])
    (step,) = sql.build(Step, [row[after_run:after_step]])
    (found,) = sql.build(Attempt, [row[after_step:]])
    if claim is not None and (found.run_id, found.epoch) != (claim.run, claim.epoch):
        raise Untaken(attempt)
    step.run = run
    return run, step, found


# Each row is read again once its lock was waited for. They are locked in the order in which they are named.
_LOCK_TRY = f"""
    SELECT {sql.columns(Run, "r")}, {sql.columns(Step, "s")}, {sql.columns(Attempt, "a")}
    FROM runs_attempt a JOIN runs_step s ON s.id = a.step_id JOIN runs_run r ON r.id = a.run_id
    WHERE a.id = %s FOR NO KEY UPDATE OF r, s, a
"""


def close_attempt(
    attempt: Attempt,
    outcome: AttemptOutcome,
    *,
    error: str = "",
    exit_status: int | None = None,
    exit_signal: int | None = None,
    maxrss_bytes: int | None = None,
    late: bool = False,
) -> None:
    """Close a locked attempt by its own id. What was not known may become known; nothing else changes."""
    if attempt.outcome != AttemptOutcome.OPEN and attempt.outcome not in MAY_HAVE_ACTED:
        raise WrongState(f"Attempt {attempt.number} of step {attempt.step_id}", attempt.outcome, outcome)
    sql.queue(
        "UPDATE runs_attempt SET outcome = %s, error = %s, exit_status = coalesce(%s, exit_status),"
        " exit_signal = coalesce(%s, exit_signal), maxrss_bytes = coalesce(%s, maxrss_bytes), late = late OR %s,"
        " ended_at = coalesce(ended_at, lw_clock()) WHERE id = %s",
        [outcome, clean_text(error), exit_status, exit_signal, maxrss_bytes, late, attempt.pk],
    )
    append(
        f"attempt.{outcome}",
        run=attempt.run_id,
        step=attempt.step_id,
        after={"attempt": attempt.number, "late": late, "signal": exit_signal},
        why=error,
    )
    attempt.outcome = outcome


def renew_attempts(holder: uuid.UUID, *, lease_s: float) -> list[int]:
    """Renew every open attempt of a process in one statement; returns their ids."""
    return [
        row[0]
        for row in sql.fetch_all(
            "UPDATE runs_attempt SET lease_until = clock_timestamp() + make_interval(secs => %s), seen_at = lw_clock()"
            " WHERE holder = %s AND outcome = 'open' RETURNING id",
            [lease_s, holder],
        )
    ]


def renew_attempt(attempt: int, *, lease_s: float) -> None:
    """Renew one open attempt, which its holder knows to be under way."""
    sql.execute(
        "UPDATE runs_attempt SET lease_until = clock_timestamp() + make_interval(secs => %s)"
        " WHERE id = %s AND outcome = 'open'",
        [lease_s, attempt],
    )


def note_progress(attempt: int, progress: object) -> None:
    sql.execute(
        "UPDATE runs_attempt SET progress = %s WHERE id = %s AND outcome = 'open'",
        [sql.jsonb(progress), attempt],
    )


def lease_is_over(attempt: int) -> bool:
    (over,) = sql.fetch_row("SELECT lease_until < clock_timestamp() FROM runs_attempt WHERE id = %s", [attempt])
    return bool(over)


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the tries of one key leave open."""

    may_have_acted: bool  # one of them began, and its outcome is not known
    open: bool  # one of them is still under way
    may_still_act_for_s: float  # seconds until the last of them certainly cannot send any more; 0 when none can
    visible_in_s: float  # seconds until a look-up shows what they did


def judge_past(*, key: int) -> Past:
    """Judge the tries of a key by the database's clock.

    A try cannot send any more once its performer's exit was recorded by its parent, or `begin_by` and its timeout
    have passed. A try that never began has sent nothing.
    """
    acted, still_open, act_s, visible_s = sql.fetch_row(
        "SELECT coalesce(bool_or(a.outcome IN ('unknown', 'lost', 'dead') AND a.began_at IS NOT NULL), false),"
        " coalesce(bool_or(a.outcome = 'open'), false),"
        " coalesce(max(CASE WHEN a.outcome = 'lost' AND a.began_at IS NOT NULL AND p.ended_at IS NULL"
        "   THEN extract(epoch FROM a.begin_by + make_interval(secs => a.timeout_s) - clock_timestamp()) END), 0),"
        # An unknown try had returned, or its group was killed and reaped, when it was closed.
        " coalesce(max(CASE WHEN a.began_at IS NULL THEN NULL WHEN a.outcome = 'unknown'"
        "   THEN a.visible_within_s + extract(epoch FROM a.ended_at - lw_clock())"
        "   WHEN a.outcome IN ('lost', 'dead') THEN a.visible_within_s + extract(epoch FROM"
        "     least(coalesce(p.ended_at, 'infinity'), a.begin_by + make_interval(secs => a.timeout_s)) - clock_timestamp())"
        " END), 0)"
        " FROM runs_attempt a LEFT JOIN runs_process p ON p.id = a.performer WHERE a.key_id = %s",
        [key],
    )
    return Past(
        may_have_acted=acted,
        open=still_open,
        may_still_act_for_s=max(float(act_s), 0.0),
        visible_in_s=max(float(visible_s), 0.0),
    )


def exit_of(performer: uuid.UUID) -> tuple[int | None, int | None, int | None] | None:
    """(status, signal, maxrss in bytes) of a performer whose death is confirmed, else None."""
    process = processes.confirmed_dead(performer)
    return (process.exit_status, process.exit_signal, process.maxrss_bytes) if process else None


def _move(step: Step, to: StepState, columns: str, values: list[object]) -> None:
    """One guarded UPDATE; zero rows raise."""
    require_transaction()
    if to not in STEP_MOVES[StepState(step.state)]:
        raise WrongState(f"Step {step.number} of run {step.run_id}", step.state, to)
    sql.queue(
        f"UPDATE runs_step SET state = %s, {columns} WHERE id = %s AND state = %s",
        [to, *values, step.pk, step.state],
        refusal=WrongState(f"Step {step.number} of run {step.run_id}", "changed by another", to),
    )
    step.state = to
