"""Writer of locks across runs: taken all at once and sorted, held from take until the key closes."""

from runs import sql
from runs.journal import require_transaction
from runs.models import Lock


class Blocked(Exception):
    """Another run holds a lock. The caller rolls back and waits for it."""

    def __init__(self, name: str, run: int) -> None:
        super().__init__(f"{name} is held by run {run}")
        self.name, self.run = name, run


def take(names: list[str], *, key: int, run: int) -> None:
    """Take every name or none (the caller's transaction rolls back). Raises: Blocked."""
    require_transaction()
    for name in sorted(names):
        if sql.execute(
            "INSERT INTO runs_lock (name, key_id, run_id, taken_at) VALUES (%s, %s, %s, lw_clock())"
            " ON CONFLICT (name) DO NOTHING",
            [name, key, run],
        ):
            continue
        holder = Lock.objects.filter(name=name).first()
        if holder is None or holder.key_id != key:
            raise Blocked(name, holder.run_id if holder else 0)


def release(key: int) -> list[str]:
    """Free what `key` held; the caller wakes who waits for these names, in a transaction of its own."""
    require_transaction()
    return [row[0] for row in sql.fetch_all("DELETE FROM runs_lock WHERE key_id = %s RETURNING name", [key])]
