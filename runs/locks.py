"""Writer of locks across runs: taken all at once and sorted, held from take until the key closes."""

import hashlib
from collections.abc import Iterable

from runs import sql
from runs.journal import require_transaction
from runs.models import Lock

_NAME_CHARS = 200


class Blocked(Exception):
    """Another run holds a lock. The caller rolls back and waits for it."""

    def __init__(self, name: str, run: int) -> None:
        super().__init__(f"{name} is held by run {run}")
        self.name, self.run = name, run


def take(names: Iterable[str], *, key: int, run: int) -> None:
    """Take every name or none (the caller's transaction rolls back). Raises: Blocked."""
    require_transaction()
    for name in sorted({fit(name) for name in names}):
        while not sql.execute(
            "INSERT INTO runs_lock (name, key_id, run_id, taken_at) VALUES (%s, %s, %s, lw_clock())"
            " ON CONFLICT (name) DO NOTHING",
            [name, key, run],
        ):
            holder = Lock.objects.filter(name=name).first()
            if holder is None:  # freed since: it is tried again
                continue
            if holder.key_id != key:
                raise Blocked(name, holder.run_id)
            break


def watch(name: str) -> bool:
    """Hold a lock's row as it is until the commit, so that whoever frees it finds who waits. False: it is free by now."""
    require_transaction()
    return sql.fetch_one("SELECT 1 FROM runs_lock WHERE name = %s FOR KEY SHARE", [name]) is not None


def release(key: int) -> list[str]:
    """Free what `key` held; the caller wakes who waits for these names, in a transaction of its own."""
    require_transaction()
    return [row[0] for row in sql.fetch_all("DELETE FROM runs_lock WHERE key_id = %s RETURNING name", [key])]


def fit(name: str) -> str:
    """A name as it is kept: one that is too long keeps its beginning and gets its digest."""
    if len(name) <= _NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: _NAME_CHARS - len(digest) - 1]}…{digest}"
