"""Django's PostgreSQL backend, whose COMMIT can bring statements along: before it in the transaction, or right after it.

A round trip to the server takes longer than most statements, and what one process has locked is waited for meanwhile.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import DatabaseError
from django.db.backends.postgresql import base
from psycopg import ClientCursor
from psycopg.pq import TransactionStatus

type _Statement = tuple[str, Sequence[Any] | Mapping[str, Any]]


class DatabaseWrapper(base.DatabaseWrapper):
    """`last`, then `last_shared`: statements with their parameters, run at the end of the transaction.

    `after`: without any, run after it. All are forgotten when it is rolled back.
    `kept_cursor`: that of `runs.sql`, of this connection or of one before it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last: list[_Statement] = []
        self.last_shared: list[_Statement] = []
        self.after: list[str] = []
        self.kept_cursor: Any = None

    def begin_with(self, statement: str) -> None:
        """Run a statement without parameters: in one message with BEGIN, where it is the first of its transaction."""
        listens = self.queries_logged or self.execute_wrappers
        if self.connection is None or listens or self.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            with self.cursor() as cursor:
                cursor.execute(statement)
            return
        with self.wrap_database_errors:
            # Else psycopg would begin with a message of its own.
            self.connection.autocommit = True
            self.connection.execute(f"BEGIN; {statement}", prepare=False)

    def _commit(self) -> None:
        last, after = self._forget()
        if self.connection is None or not (last or after):
            super()._commit()  # type: ignore[misc]
            return
        listens = self.queries_logged or self.execute_wrappers
        try:
            with self.wrap_database_errors:
                (self._commit_aloud if listens else self._commit_with)(last, after)
        except DatabaseError:
            raise
        except BaseException:
            # After an error of the database Django rolls back, after any other one it would leave the transaction open.
            self.close()
            raise

    def _commit_aloud(self, last: Sequence[_Statement], after: Sequence[str]) -> None:
        """Each statement by itself, where whoever listens hears it."""
        with self.cursor() as cursor:
            for statement, params in last:
                cursor.execute(statement, params)
            super()._commit()  # type: ignore[misc]
            self.connection.autocommit = True
            for statement in after:
                cursor.execute(statement)

    def _commit_with(self, last: Sequence[_Statement], after: Sequence[str]) -> None:
        """One message, which the server runs statement by statement. What comes after the COMMIT commits by itself."""
        literals = ClientCursor(self.connection)
        statements = [*(literals.mogrify(statement, params) for statement, params in last), "COMMIT", *after]
        if self.connection.pgconn.transaction_status == TransactionStatus.IDLE:
            # Nothing was asked before: psycopg would begin with a message of its own.
            self.connection.autocommit = True
            statements.insert(0, "BEGIN")
        self.connection.execute("; ".join(statements), prepare=False)

    def _savepoint(self, sid: str) -> None:
        """What was to come at the end comes before what a savepoint does: the order of both stays."""
        while self.last:
            with self.cursor() as cursor:
                cursor.execute(*self.last.pop(0))
        super()._savepoint(sid)  # type: ignore[misc]

    def _rollback(self) -> None:
        self._forget()
        super()._rollback()  # type: ignore[misc]

    def close(self) -> None:
        self._forget()
        self.kept_cursor = None
        super().close()

    def _forget(self) -> tuple[list[_Statement], list[str]]:
        last, after = self.last + self.last_shared, self.after
        self.last, self.last_shared, self.after = [], [], []
        return last, after
