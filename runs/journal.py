"""The journal: append-only, `seq` per run under its lock, and the writing transaction's id for readers' cursors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
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
    if run is None:
        sql.execute(
            "INSERT INTO runs_journalentry (kind, actor, user_id, step_id, before, after, why, xid, at, run_id, seq)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, pg_current_xact_id()::text::bigint, lw_clock(), NULL, NULL)",
            [kind, actor.name, actor.user, step, sql.jsonb(before), sql.jsonb(after), clean_text(why)],
        )
        notify.screen("journal")
        return
    entry = _Entry(kind=kind, actor=actor, step=step, before=before, after=after, why=why)
    gathering = _gathering.get()
    if gathering is not None and gathering.run in (None, run):
        gathering.run = run
        gathering.entries.append(entry)
    else:
        _write(run, [entry])


def append_all(kind: str, *, actor: Actor, run: int, entries: Sequence[tuple[int, object]]) -> None:
    """Write entries of one kind about several steps of a locked run: (step, after) each, in this order."""
    with together():
        for step, after in entries:
            append(kind, actor=actor, run=run, step=step, after=after)


@contextmanager
def together() -> Iterator[None]:
    """Write what is appended about one locked run, the first one, in one statement with the commit.

    If the block fails, nothing is written; so it also stands around a savepoint, within another such block. What is
    asked of the journal meanwhile does not see these entries.
    """
    require_transaction()
    around = _gathering.get()
    if around is not None:
        kept = len(around.entries)
        try:
            yield
        except BaseException:
            del around.entries[kept:]
            raise
        return
    gathering = _Gathering()
    token = _gathering.set(gathering)
    try:
        yield
    finally:
        _gathering.reset(token)
    if gathering.run is not None and gathering.entries:
        _write(gathering.run, gathering.entries)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: str
    actor: Actor
    step: int | None
    before: object
    after: object
    why: str


@dataclass(kw_only=True)
class _Gathering:
    """What is written about a run at the end of the block that gathers it."""

    run: int | None = None
    entries: list[_Entry] = field(default_factory=list)


_gathering: ContextVar[_Gathering | None] = ContextVar("gathering", default=None)


def _write(run: int, entries: Sequence[_Entry]) -> None:
    told = (
        {
            "kind": e.kind,
            "actor": e.actor.name,
            "user_id": e.actor.user,
            "step_id": e.step,
            "before": e.before,
            "after": e.after,
            "why": e.why,
        }
        for e in entries
    )
    sql.queue("SELECT lw_journal(%s, %s)", [run, sql.records(told)])
    notify.screen("runs", f"run.{run}")
