"""The journal: append-only, `seq` per run under its lock, and the writing transaction's id for readers' cursors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import connection

from runs import notify, sql
from runs.errors import OutsideTransaction
from runs.sanitise import clean_text

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who did something: `person:NAME` with the user, `agent` for what the model asked, `runtime` for the rest."""

    name: str
    user: int | None = None


RUNTIME = Actor(name="runtime")
AGENT = Actor(name="agent")


def person(user: "AbstractBaseUser") -> Actor:
    return Actor(name=f"person:{user.get_username()}", user=user.pk)


def require_transaction() -> None:
    """Writer modules call this: transactions are opened in operations, engine and gateway, where they can be seen."""
    if not connection.in_atomic_block:
        raise OutsideTransaction


def append(
    kind: str,
    *,
    actor: Actor = RUNTIME,
    run: int | None = None,
    step: int | None = None,
    before: object = None,
    after: object = None,
    why: str = "",
) -> None:
    """Write an entry. `kind` is dotted past tense (`step.settled`). With `run` the caller holds that run's lock."""
    require_transaction()
    values = [kind, actor.name, actor.user, step, sql.jsonb(before), sql.jsonb(after), clean_text(why)]
    columns = "kind, actor, user_id, step_id, before, after, why, xid, at, run_id, seq"
    if run is None:
        sql.execute(
            f"INSERT INTO runs_journalentry ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s,"
            " pg_current_xact_id()::text::bigint, lw_clock(), NULL, NULL)",
            values,
        )
        notify.screen("journal")
    else:
        written = sql.execute(
            "WITH numbered AS (UPDATE runs_run SET journal_seq = journal_seq + 1 WHERE id = %s RETURNING id, journal_seq)"
            f" INSERT INTO runs_journalentry ({columns}) SELECT %s, %s, %s::bigint, %s::bigint, %s, %s, %s,"
            " pg_current_xact_id()::text::bigint, lw_clock(), id, journal_seq FROM numbered",
            [run, *values],
        )
        if not written:
            raise LookupError(f"there is no run {run} to journal {kind} of")
        notify.screen("runs", f"run.{run}")


def append_all(kind: str, *, actor: Actor, run: int, entries: Sequence[tuple[int, object]]) -> None:
    """Write entries of one kind about several steps of a locked run: (step, after) each, in this order."""
    require_transaction()
    written = sql.execute(
        "WITH numbered AS (UPDATE runs_run SET journal_seq = journal_seq + %s WHERE id = %s RETURNING id, journal_seq)"
        " INSERT INTO runs_journalentry (kind, actor, user_id, step_id, after, why, xid, at, run_id, seq)"
        " SELECT %s, %s, %s::bigint, e.step, e.after, '', pg_current_xact_id()::text::bigint, lw_now(), n.id,"
        " n.journal_seq - %s + e.place FROM numbered n,"
        " unnest(%s::bigint[], %s::jsonb[]) WITH ORDINALITY AS e(step, after, place)",
        [
            len(entries),
            run,
            kind,
            actor.name,
            actor.user,
            len(entries),
            [step for step, _ in entries],
            [sql.jsonb(after) for _, after in entries],
        ],
    )
    if written != len(entries):
        raise LookupError(f"there is no run {run} to journal {kind} of")
    notify.screen("runs", f"run.{run}")
