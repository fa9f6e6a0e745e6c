"""The writers' way to the database: plain SQL on Django's connection, with types that are true of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter, methodcaller
from typing import Any, cast

from django.core.exceptions import ObjectDoesNotExist
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import Model
from django.db.models.base import ModelState
from psycopg.types.json import Jsonb

from runs.database.base import Answer as Answer
from runs.database.base import DatabaseWrapper, Statement
from runs.sanitise import clean_json

type Params = Sequence[Any] | Mapping[str, Any]


def connection_parameters() -> dict[str, Any]:
    """Django's own, for a connection of psycopg beside it that listens: in autocommit, given up after 5 s."""
    parameters: dict[str, Any] = connection.get_connection_params()
    for name in ("pool", "cursor_factory", "context", "prepare_threshold"):
        parameters.pop(name, None)
    return parameters | {"autocommit": True, "connect_timeout": 5}


def execute(statement: str, params: Params = ()) -> int:
    """Run a statement; how many rows it changed."""
    return int(_ask(statement, params, attrgetter("rowcount")))


def queue(statement: str, params: Params = (), *, last: bool = False, refusal: Exception | None = None) -> None:
    """Run a statement whose answer nobody waits for: in one message with the next one, or with the commit.

    What it is refused for, the next statement or the commit raises. Outside a transaction it is run at once.
    last: it locks what others wait for, and comes after all that do not; within a savepoint it is run in its turn.
    refusal: raised where it changes no row.
    """
    database = _database()
    database.close_if_health_check_failed()
    # As any statement would say it now: later nobody hears of it.
    database.validate_no_broken_transaction()
    if not database.in_atomic_block or database.is_heard:
        if execute(statement, params) == 0 and refusal is not None:
            raise refusal
    elif last and not database.savepoint_ids:
        database.last.append(Statement(statement, params))
    else:
        database.queued.append(Statement(statement, params, refusal))


def ask(statement: str, params: Params = ()) -> Answer:
    """Run a statement whose answer is not needed yet: with the next one that is waited for, or when it is asked for.

    What it is refused for, whatever runs it raises. Outside a transaction it is run at once.
    """
    database = _database()
    database.close_if_health_check_failed()
    database.validate_no_broken_transaction()
    answer = Answer(database.run_queued)
    if not database.in_atomic_block or database.is_heard:
        answer.take(fetch_all(statement, params))
    else:
        database.queued.append(Statement(statement, params, answer=answer))
    return answer


def run_after_commit(statement: str) -> None:
    """Have the server run a statement right after the commit of this transaction, in the same message; the same one once."""
    after = _database().after
    if Statement(statement) not in after:
        after.append(Statement(statement))


def ask_after_commit(statement: str, params: Params = ()) -> Answer:
    """The answer to a statement that is run by itself right after the commit of this transaction, in the same message."""
    answer = Answer()
    _database().after.append(Statement(statement, params, answer=answer))
    return answer


def fetch_all(statement: str, params: Params = ()) -> list[tuple[Any, ...]]:
    return list(_ask(statement, params, methodcaller("fetchall")))


def fetch_one(statement: str, params: Params = ()) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = _ask(statement, params, methodcaller("fetchone"))
    return row


def fetch_row(statement: str, params: Params = ()) -> tuple[Any, ...]:
    """The one row that must be there. Raises: LookupError."""
    row = fetch_one(statement, params)
    if row is None:
        raise LookupError(f"no row from: {statement}")
    return row


def load[M: Model](model: type[M], rest: str, params: Params = ()) -> list[M]:
    """The rows of a model that a WHERE clause chooses, with what follows it (ORDER BY, FOR NO KEY UPDATE).

    For what is read at every step: Django would put the same statement together anew each time.
    """
    return build(model, fetch_all(f"SELECT {columns(model)} FROM {model._meta.db_table} WHERE {rest}", params))


def lock[M: Model](model: type[M], ident: int) -> M:
    """One row by its id, locked FOR NO KEY UPDATE. Raises: ObjectDoesNotExist."""
    found = load(model, "id = %s FOR NO KEY UPDATE", [ident])
    if not found:
        raise ObjectDoesNotExist(f"{model.__name__} {ident}")
    return found[0]


@cache
def columns(model: type[Model], alias: str = "") -> str:
    """The columns of a model as `build` takes them: for a SELECT, or a RETURNING."""
    of = f"{alias}." if alias else ""
    return ", ".join(f'{of}"{field.column}"' for field in model._meta.concrete_fields)


def build[M: Model](model: type[M], rows: Sequence[Sequence[Any]]) -> list[M]:
    """The objects of rows that have the `columns` of a model.

    As `Model.from_db` makes them, without its loop over the fields of each: many steps are read at every turn.
    """
    names, converters = _reading(model)
    built = []
    for row in rows:
        values = dict(zip(names, row, strict=True))
        for name, convert in converters:
            values[name] = convert(values[name], None, connection)
        built.append(make(model, values))
    return built


def make[M: Model](model: type[M], values: Mapping[str, Any]) -> M:
    """The object of a row of which all values are known, by the names of its attributes."""
    made = model.__new__(model)
    made._state = ModelState()
    made._state.adding, made._state.db = False, DEFAULT_DB_ALIAS
    made.__dict__.update(values)
    return made


@cache
def _reading(model: type[Model]) -> tuple[list[str], list[tuple[str, Callable[..., Any]]]]:
    """The attributes of a model in the order of its columns, and what makes Python values of those that need it."""
    fields = model._meta.concrete_fields
    converters = [(field.attname, field.from_db_value) for field in fields if hasattr(field, "from_db_value")]
    return [field.attname for field in fields], converters


def _ask(statement: str, params: Params, take: Callable[[Any], Any]) -> Any:
    """What `take` takes from a cursor that has run a statement.

    It is psycopg's own, kept: a new one of Django's for each statement takes as long as the driver. What Django does
    besides is done here too; and where somebody listens to what is asked, Django does it.
    """
    database = _database()
    database.close_if_health_check_failed()
    if database.connection is None or database.queries_logged or database.execute_wrappers:
        with database.cursor() as listened:
            listened.execute(statement, params)
            return take(listened)
    database.validate_no_broken_transaction()
    with database.wrap_database_errors:
        cursor = database.kept_cursor
        if cursor is None or cursor.connection is not database.connection:
            cursor = database.kept_cursor = database.connection.cursor()
        # The rows of a statement are taken before the next one is run.
        cursor.execute(statement, params)
        return take(cursor)


def _database() -> DatabaseWrapper:
    return cast("DatabaseWrapper", connections[DEFAULT_DB_ALIAS])


def fill[T](shape: type[T], row: Sequence[Any]) -> T:
    """A dataclass from a row that has its fields, in their order."""
    return shape(**dict(zip(shape.__dataclass_fields__, row, strict=True)))  # type: ignore[attr-defined]


def array(numbers: Iterable[int]) -> str:
    """Whole numbers as PostgreSQL writes an array, for a parameter that is cast to one: psycopg would weigh each of them."""
    return f"{{{','.join(map(str, numbers))}}}"


def jsonb(value: object) -> Jsonb | None:
    """A cleaned value for a jsonb column; None is SQL's NULL. A raw read gives jsonb back as text."""
    return None if value is None else Jsonb(clean_json(value))


def records(rows: Iterable[Mapping[str, object]]) -> Jsonb:
    """What many rows are made of, as one argument for `jsonb_to_recordset`; each value is cleaned by itself."""
    return Jsonb([{name: clean_json(value) for name, value in row.items()} for row in rows])
