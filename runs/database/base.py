"""Django's PostgreSQL backend, whose statements can wait for the next one and go with it, or with the COMMIT.

An answer takes longer to wait for than most statements take, and what one process has locked is waited for meanwhile. So
BEGIN, savepoints and whatever nobody needs an answer to are sent with the next statement, in order, as one pipeline.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import psycopg
from django.db import DatabaseError
from django.db.backends.postgresql import base
from psycopg.generators import send


class Answer:
    """The rows that a statement returned, once it was run. Raises: LookupError, when it was given up with its transaction."""

    def __init__(self, run: Callable[[], None] = lambda: None) -> None:
        self._run = run
        self._rows: list[tuple[Any, ...]] | None = None

    def take(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    def all(self) -> list[tuple[Any, ...]]:
        """Waits for it where nothing has been waited for since."""
        if self._rows is None:
            self._run()
        if self._rows is None:
            raise LookupError("what was asked was never run")
        return self._rows

    def row(self) -> tuple[Any, ...]:
        """The one row that must be there. Raises: LookupError."""
        return self.all()[0]


class Statement(NamedTuple):
    """A statement that waits. refusal: raised where it changes no row. answer: takes what it returns."""

    text: str
    params: Sequence[Any] | Mapping[str, Any] | None = None
    refusal: Exception | None = None
    answer: Answer | None = None


_BEGIN = Statement("BEGIN")


class Message(psycopg.Pipeline):
    """A pipeline that is sent as a whole at its end: psycopg would send each statement by itself, and wake the server."""

    def _communicate_gen(self) -> Any:
        yield from ()

    def _exit_gen(self) -> Any:
        self._enqueue_sync()
        while self.command_queue:
            self.command_queue.popleft()()
        yield from send(self.pgconn)
        yield from self._fetch_gen(flush=False)


class Cursor(base.ServerBindingCursor, psycopg.Cursor[Any]):
    """Runs what is queued on its connection before its own statement, in the same message."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        connection: Any = self.connection
        if params is None:
            # It may be a script, which goes by itself.
            run_queued(connection)
        if not connection.queued:
            return super().execute(query, params, **options)
        run_queued(connection, lambda: super(Cursor, self).execute(query, params, **options))
        return self

    def executemany(self, *arguments: Any, **options: Any) -> None:
        run_queued(self.connection)
        super().executemany(*arguments, **options)

    def copy(self, *arguments: Any, **options: Any) -> Any:
        run_queued(self.connection)
        return super().copy(*arguments, **options)

    def stream(self, *arguments: Any, **options: Any) -> Any:
        run_queued(self.connection)
        return super().stream(*arguments, **options)


def run_queued(connection: Any, then: Callable[[], object] = lambda: None) -> None:
    """Run what waits for the next statement, and what `then` runs, in one message. Raises: what one of them is refused for."""
    statements: list[Statement] = connection.queued[:]
    connection.queued.clear()
    if not statements:
        return
    # Kept, one for each place: a new cursor finds out anew how each type is written and read.
    carriers: list[Cursor] = connection.carriers
    while len(carriers) < len(statements):
        carriers.append(connection.cursor())
    connection._pipeline = Message(connection)
    with connection.pipeline():
        for carrier, statement in zip(carriers, statements, strict=False):
            carrier.execute(statement.text, statement.params)
        then()
    for carrier, statement in zip(carriers, statements, strict=False):
        if statement.answer is not None:
            statement.answer.take(carrier.fetchall())
        if statement.refusal is not None and carrier.rowcount == 0:
            raise statement.refusal


class DatabaseWrapper(base.DatabaseWrapper):
    """`queued`: statements that go with the next one or with the COMMIT, in order; `last`: after all others.

    `after`: in the message of the COMMIT but after it, each by itself. All are forgotten when the
    transaction is rolled back. `kept_cursor`: that of `runs.sql`, of this connection or of one before it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queued: list[Statement] = []
        self.last: list[Statement] = []
        self.after: list[Statement] = []
        self.kept_cursor: Any = None

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens to the statements: then each is run by itself, where it is heard."""
        return bool(self.queries_logged or self.execute_wrappers)

    def get_connection_params(self) -> dict[str, Any]:
        return {**super().get_connection_params(), "cursor_factory": Cursor}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        # Else psycopg would begin each transaction by itself, with an answer to wait for.
        connection.autocommit = True
        self.queued = connection.queued = []
        connection.carriers = []
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        if name:
            self.run_queued()
        cursor = super().create_cursor(name)
        if name:
            # Django asks psycopg, which is always in autocommit here; and FOR UPDATE cannot be held.
            cursor._withhold = not self.in_atomic_block
        return cursor

    def _set_autocommit(self, autocommit: bool) -> None:
        if not autocommit:
            self.queued.append(_BEGIN)

    def _savepoint(self, sid: str) -> None:
        # Whatever is refused is raised in its own block: before a savepoint begins, and at its end.
        self._run_guarded()
        self._queue(self.ops.savepoint_create_sql(sid))

    def _savepoint_commit(self, sid: str) -> None:
        try:
            self.run_queued()
        except DatabaseError:
            raise
        except BaseException:
            # After an error of the database Django gives the savepoint up, after any other one it would keep it.
            self._savepoint_rollback(sid)
            raise
        self._queue(self.ops.savepoint_commit_sql(sid))

    def _savepoint_rollback(self, sid: str) -> None:
        # What was queued since then is undone by never being run.
        begun = Statement(self.ops.savepoint_create_sql(sid))
        del self.queued[self.queued.index(begun) + 1 if begun in self.queued else 0 :]
        super()._savepoint_rollback(sid)  # type: ignore[misc]

    def _run_guarded(self) -> None:
        """Run what is queued, where some of it may be refused."""
        if any(statement.refusal for statement in self.queued):
            self.run_queued()

    def run_queued(self) -> None:
        with self.wrap_database_errors:
            run_queued(self.connection)

    def _queue(self, statement: str) -> None:
        if self.is_heard:
            with self.cursor() as cursor:
                cursor.execute(statement)
        else:
            self.queued.append(Statement(statement))

    def _commit(self) -> None:
        last, after = self.last, self.after
        self.last, self.after = [], []
        if self.connection is None or (self.queued == [_BEGIN] and not last and not after):
            self.queued.clear()
            return
        try:
            with self.wrap_database_errors:
                if self.is_heard:
                    self._commit_aloud(last, after)
                else:
                    self._commit_with(last, after)
        except DatabaseError:
            raise
        except BaseException:
            # After an error of the database Django rolls back, after any other one it would leave the transaction open.
            self.close()
            raise

    def _commit_aloud(self, last: Sequence[Statement], after: Sequence[Statement]) -> None:
        with self.cursor() as cursor:
            for statement in last:
                cursor.execute(statement.text, statement.params)
            run_queued(self.connection)
            super()._commit()  # type: ignore[misc]
            for statement in after:
                cursor.execute(statement.text, statement.params)
                if statement.answer is not None:
                    statement.answer.take(cursor.fetchall())

    def _commit_with(self, last: Sequence[Statement], after: Sequence[Statement]) -> None:
        self._run_guarded()
        self.queued += [*last, Statement("COMMIT"), *after]
        run_queued(self.connection)

    def _rollback(self) -> None:
        self._forget()
        super()._rollback()  # type: ignore[misc]

    def close(self) -> None:
        self._forget()
        self.kept_cursor = None
        super().close()

    def _forget(self) -> None:
        self.queued.clear()
        self.last, self.after = [], []
