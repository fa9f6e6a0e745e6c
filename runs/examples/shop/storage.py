"""Where the shop keeps what happened: one SQLite file in WAL mode, one writer at a time, and a log that only grows.

Two connections under one lock. What the shop acknowledges (effects, keys, changes) is committed with
synchronous=FULL. Log lines and reads go through the second one, without a sync of their own: a killed process
loses nothing the kernel has, and the next synced commit writes them out as well, because the WAL is one file.
"""

import fcntl
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from runs.examples.shop.faults import Fault, Target, choose_faults

SCHEMA = """
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value REAL NOT NULL);
CREATE TABLE IF NOT EXISTS batch (
    number INTEGER PRIMARY KEY AUTOINCREMENT, seed INTEGER NOT NULL, created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS policy (batch TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, batch TEXT NOT NULL, body TEXT NOT NULL);
-- An order's `refunded` and `status` are not stored: they follow from the refunds and from the time.
CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, batch TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS request (
    name TEXT PRIMARY KEY, batch TEXT NOT NULL, order_name TEXT NOT NULL REFERENCES orders (name), body TEXT NOT NULL,
    outcome TEXT, closed_at REAL, CHECK ((outcome IS NULL) = (closed_at IS NULL))
);
CREATE INDEX IF NOT EXISTS request_batch ON request (batch);
CREATE TABLE IF NOT EXISTS refund (
    number INTEGER PRIMARY KEY AUTOINCREMENT, order_name TEXT NOT NULL REFERENCES orders (name),
    cents INTEGER NOT NULL CHECK (cents > 0), created_at REAL NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS refund_order ON refund (order_name);
-- A key is stored with the effect, in its transaction: there is no key without an effect, so none can be stuck.
CREATE TABLE IF NOT EXISTS key (
    name TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, status INTEGER NOT NULL, answer TEXT NOT NULL,
    stored_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS fault (
    number INTEGER PRIMARY KEY AUTOINCREMENT, times INTEGER CHECK (times >= 0), body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, arrival INTEGER, method TEXT,
    path TEXT, batch TEXT, order_name TEXT, key TEXT, caller TEXT, status INTEGER, value TEXT
);
CREATE INDEX IF NOT EXISTS log_order ON log (order_name, seq);
CREATE INDEX IF NOT EXISTS log_batch ON log (batch, seq);
CREATE INDEX IF NOT EXISTS log_kind ON log (kind, seq);
CREATE TRIGGER IF NOT EXISTS log_stays BEFORE UPDATE ON log BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS log_grows BEFORE DELETE ON log BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
"""
NOTE = """
INSERT INTO log (at, kind, arrival, method, path, batch, order_name, key, caller, status, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
LOG_FILTERS = {
    "kind": "kind = ?",
    "order": "order_name = ?",
    "batch": "batch = ?",
    "key": "key = ?",
    "caller": "caller = ?",
    "path": "path = ?",
    "method": "method = ?",
    "after": "seq > ?",
    "before": "seq < ?",
    "arrival": "arrival = ?",
}
SETTINGS = {"key_lifetime_s": 86400.0, "clock_shift_s": 0.0}


class AlreadyOpen(RuntimeError):
    """Another shop works on this folder; two would not see each other's requests in flight."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request as it came in: its line in the log, and the faults it meets."""

    seq: int
    method: str
    path: str
    batch: str | None
    order: str | None
    key: str | None
    caller: str | None
    faults: tuple[Fault, ...] = ()


class Storage:
    """The open data folder. Every method may be called from any thread."""

    def __init__(self, folder: Path, *, patience_s: float = 2.0) -> None:
        """Open or create the folder. Waits `patience_s` for a predecessor that is just dying.

        Raises:
            AlreadyOpen: when another process still holds the folder after that.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._held = hold(folder / "shop.lock", patience_s=patience_s)
        self._lock = threading.RLock()
        self._sure = connect(folder / "shop.sqlite3", synchronous="FULL")
        self._sure.executescript(SCHEMA)
        self._quick = connect(folder / "shop.sqlite3", synchronous="NORMAL")
        self._settings = SETTINGS | dict(self._sure.execute("SELECT name, value FROM setting").fetchall())

    def close(self) -> None:
        """Write the WAL back and let go of the folder; threads that are still at work wait for ever."""
        self._lock.acquire()
        self._quick.close()
        self._sure.close()
        self._held.close()

    def now(self) -> float:
        """The shop's clock, in Unix seconds; `clock_shift_s` moves it for time-lapse rehearsals."""
        return time.time() + self._settings["clock_shift_s"]

    @contextmanager
    def acting(self) -> Iterator[sqlite3.Connection]:
        """Open the transaction that makes something true; its commit is on disk when the block ends."""
        with self._transaction(self._sure) as db:
            yield db

    @contextmanager
    def looking(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction for a look-up and its log line: no effect falls between the two."""
        with self._transaction(self._quick) as db:
            yield db

    @contextmanager
    def _transaction(self, db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    # The log

    def arrive(self, *, target: Target, caller: str | None, body: object, faulty: bool) -> Arrival:
        """Log a request before anything is done about it, and take the faults it meets, in one transaction."""
        with self.looking() as db:
            met = take_faults(db, target) if faulty else ()
            value = {"body": body, "faults": [fault.kind for fault in met]}
            arrival = Arrival(
                seq=0,
                method=target.method,
                path=target.path,
                batch=target.batch,
                order=target.order,
                key=target.key,
                caller=caller,
                faults=met,
            )
            seq = self.note(db, arrival, kind="arrived", value=value)
        return replace(arrival, seq=seq)

    def note(
        self, db: sqlite3.Connection, arrival: Arrival, *, kind: str, value: object = None, status: int | None = None
    ) -> int:
        """Append one line about a request inside the caller's transaction; answers its number."""
        row = (
            self.now(),
            kind,
            arrival.seq or None,
            arrival.method,
            arrival.path,
            arrival.batch,
            arrival.order,
            arrival.key,
            arrival.caller,
            status,
            None if value is None else json.dumps(value),
        )
        seq = db.execute(NOTE, row).lastrowid
        assert seq is not None
        return seq

    def note_end(self, arrival: Arrival, *, kind: str, status: int | None = None, value: object = None) -> None:
        """Append how a request ended for its caller: answered, dropped, hung."""
        with self.looking() as db:
            self.note(db, arrival, kind=kind, status=status, value=value)

    def read_log(self, *, filters: Mapping[str, str], limit: int, newest: bool = False) -> list[dict[str, object]]:
        """Read log lines by LOG_FILTERS, oldest first; with `newest`, the last `limit` of them."""
        where = " AND ".join(LOG_FILTERS[name] for name in filters) or "1"
        order = "DESC" if newest else "ASC"
        with self._lock:
            # Only the clauses of LOG_FILTERS are pasted in; values are bound.
            sql = f"SELECT * FROM log WHERE {where} ORDER BY seq {order} LIMIT ?"
            rows = self._quick.execute(sql, (*filters.values(), limit)).fetchall()
        return [log_line(row) for row in (reversed(rows) if newest else rows)]

    def fetch(self, sql: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Read outside of a transaction, for answers that need not be logged."""
        with self._lock:
            return self._quick.execute(sql, tuple(values)).fetchall()

    # Faults and settings: kept on disk, so they outlast a kill as the rest does

    def add_fault(self, fault: Fault) -> Fault:
        """Store a fault; it applies to every request that arrives from now on."""
        with self.acting() as db:
            names = ("kind", "chance", "seconds", "status", "retry_after", "match")
            body = json.dumps({name: getattr(fault, name) for name in names}, default=dict)
            number = db.execute("INSERT INTO fault (times, body) VALUES (?, ?)", (fault.times, body)).lastrowid
        return replace(fault, number=number or 0)

    def list_faults(self) -> list[Fault]:
        """The faults that will still be played, oldest first."""
        with self._lock:
            return standing_faults(self._quick)

    def clear_faults(self, number: int | None = None) -> int:
        """Take back one fault, or all; answers how many were still to be played."""
        with self.acting() as db:
            return db.execute(
                "DELETE FROM fault WHERE (? IS NULL OR number = ?) AND (times IS NULL OR times > 0)", (number, number)
            ).rowcount

    def settings(self) -> dict[str, float]:
        """How long keys live, and how far the clock is shifted."""
        return dict(self._settings)

    def change_setting(self, name: str, value: float) -> None:
        """Set one of SETTINGS, for good."""
        with self.acting() as db:
            db.execute("INSERT OR REPLACE INTO setting (name, value) VALUES (?, ?)", (name, value))
        self._settings[name] = value


def hold(path: Path, *, patience_s: float) -> IO[str]:
    """Lock the folder for this process; the kernel lets go when it dies, however it dies."""
    held = path.open("w")
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise AlreadyOpen(f"another shop works on {path.parent}; stop it, or use another folder") from None
            time.sleep(0.05)
        else:
            return held


def connect(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Open the file for use under one lock from many threads."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA foreign_keys = ON")
    return db


def standing_faults(db: sqlite3.Connection) -> list[Fault]:
    """Read the faults that still have a turn."""
    rows = db.execute(
        "SELECT number, times, body FROM fault WHERE times IS NULL OR times > 0 ORDER BY number"
    ).fetchall()
    return [stored_fault(row) for row in rows]


def stored_fault(row: sqlite3.Row) -> Fault:
    """Read a fault as `add_fault` wrote it."""
    body = json.loads(row["body"])
    return Fault(number=row["number"], times=row["times"], **body)


def take_faults(db: sqlite3.Connection, target: Target) -> tuple[Fault, ...]:
    """Take one turn of each fault the request meets; the caller's transaction makes it happen once."""
    met = choose_faults(standing_faults(db), target)
    for fault in met:
        if fault.times is not None:
            db.execute("UPDATE fault SET times = times - 1 WHERE number = ?", (fault.number,))
    return tuple(met)


def log_line(row: sqlite3.Row) -> dict[str, object]:
    """One line of the log as GET /log shows it."""
    line = {("order" if name == "order_name" else name): row[name] for name in row.keys()}  # noqa: SIM118
    line["at"] = datetime.fromtimestamp(row["at"], UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    line["value"] = None if row["value"] is None else json.loads(row["value"])
    return line
