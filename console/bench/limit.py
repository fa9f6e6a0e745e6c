"""What this PostgreSQL can do at most: pgbench with the least that a durable checkpoint can be, one INSERT and one UPDATE."""

import json
import re
import subprocess
from dataclasses import dataclass

import psycopg

from console.bench.house import Stage
from console.databases import EMBEDDED_USER

_DATABASE = "pgbench"
_RUNS = 10_000
_RESULT = json.dumps({"ok": True, "tokens": 1234, "text": "x" * 360})
_TABLES = """
    CREATE TABLE run (id int PRIMARY KEY, step bigint, updated_at timestamptz);
    CREATE SEQUENCE step_seq CACHE 100;
    CREATE TABLE checkpoint (run int, step bigint, result jsonb, PRIMARY KEY (run, step));
"""
_TRANSACTION = f"""\\set run random(1, {_RUNS})
\\set step random(1, 1000000000)
BEGIN;
INSERT INTO checkpoint (run, step, result) VALUES (:run, nextval('step_seq'), :result::jsonb);
UPDATE run SET step = :step, updated_at = now() WHERE id = :run;
COMMIT;
"""


@dataclass(frozen=True, kw_only=True)
class Limit:
    tps: float
    latency_ms: float


def measure_limit(stage: Stage, *, clients: int, seconds: int) -> Limit:
    """Transactions a second that `clients` connections reach, and how long one takes."""
    _prepare(stage)
    home = stage.server.home
    script = stage.folder / "checkpoint.sql"
    script.write_text(_TRANSACTION)
    script.chmod(0o644)
    asked = [
        str(home.programs / "pgbench"), "--no-vacuum", f"--host={home.socket_folder}", f"--username={EMBEDDED_USER}",
        "--protocol=prepared", f"--client={clients}", f"--jobs={min(clients, 2)}", f"--time={seconds}",
        f"--define=result={_RESULT}", f"--file={script}", _DATABASE,
    ]  # fmt: skip
    done = home.run(asked)
    tps = re.search(r"tps = ([\d.]+)", done.stdout)
    latency = re.search(r"latency average = ([\d.]+)", done.stdout)
    if tps is None or latency is None:
        raise subprocess.CalledProcessError(done.returncode, asked, done.stdout, done.stderr)
    return Limit(tps=float(tps[1]), latency_ms=float(latency[1]))


def _prepare(stage: Stage) -> None:
    with psycopg.connect(stage.address("postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {_DATABASE}")
        connection.execute(f"CREATE DATABASE {_DATABASE}")
    with psycopg.connect(stage.address(_DATABASE), autocommit=True) as connection:
        connection.execute(_TABLES)
        connection.execute("INSERT INTO run SELECT g, 0, now() FROM generate_series(1, %s) g", [_RUNS])
        connection.execute("VACUUM ANALYZE run")
        connection.execute("CHECKPOINT")
