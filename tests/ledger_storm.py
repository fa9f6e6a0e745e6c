"""Processes that do at random everything that touches a tree's budgets, and die in the middle of it.

python -m tests.ledger_storm ROOT OPERATIONS [PROCESSES] [SEED]: prints what was done, as JSON. A forked child does one
share of the operations; one that died is followed by another.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from decimal import Decimal

import django

django.setup()

from django.db import DatabaseError, connection, transaction  # noqa: E402

from runs import budgets, lifecycle, operations, sql  # noqa: E402
from runs.agents import get_agent  # noqa: E402
from runs.budgets import Amounts  # noqa: E402
from runs.errors import LongwatchError  # noqa: E402
from runs.journal import AGENT, RUNTIME  # noqa: E402

DEPTH = 3
MOST_RUNS = 24


def work(root: int, count: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    held: list[tuple[int, int]] = []  # attempt, cents
    for _ in range(count):
        tree = sql.fetch_all("SELECT id, depth FROM runs_run WHERE root_id = %s ORDER BY id", [root])
        run, depth = chance.choice(tree)
        what = chance.choices(
            ["reserve", "settle", "release", "estimate", "raise", "lower", "spawn", "abort", "crash"],
            [40, 22, 8, 6, 5, 5, 2, 6, 1],
        )[0]
        cents = chance.randrange(1, 12)
        try:
            with transaction.atomic():
                match what:
                    case "reserve":
                        attempt = take_attempt(run)
                        budgets.reserve(run, amounts(cents), attempt=attempt, asked=True)
                        held.append((attempt, cents))
                    case "settle" if held:
                        attempt, reserved = held.pop(chance.randrange(len(held)))
                        budgets.settle(attempt, amounts(chance.randrange(reserved + 1)))
                    case "release" if held:
                        budgets.release(held.pop(chance.randrange(len(held)))[0])
                    case "estimate" if held:
                        attempt, reserved = held[chance.randrange(len(held))]
                        budgets.settle_as_reserved(attempt, note="cut")
                    case "raise" | "lower":
                        lifecycle.lock(run)
                        (limit,) = sql.fetch_row("SELECT usd_limit FROM runs_budget WHERE run_id = %s", [run])
                        change = Decimal(cents) / 100 * (1 if what == "raise" else -1)
                        wanted = max(limit + change, Decimal(0))
                        budgets.set_limits(run, {"usd": wanted}, actor=RUNTIME, why="storm")
                    case "spawn" if depth < DEPTH and len(tree) < MOST_RUNS:
                        parent = lifecycle.lock(run)
                        agent = get_agent("scripted")
                        usd = str(Decimal(chance.randrange(20, 100)) / 100)
                        operations.create_child(parent, agent=agent, goal="help", inputs={}, usd=usd, actor=AGENT)
                    case "abort" | "crash":
                        budgets.reserve(run, amounts(cents), attempt=take_attempt(run), asked=True)
                        if what == "crash":
                            os.kill(os.getpid(), signal.SIGKILL)
                        raise Aborted
            done[what] += 1
        except LongwatchError:
            done[f"{what} refused"] += 1
        except Aborted:
            done["abort"] += 1
        except DatabaseError as error:
            done[f"database: {error}"] += 1
            connection.close()
    return done


class Aborted(Exception):
    pass


def amounts(cents: int) -> Amounts:
    return Amounts(usd=Decimal(cents) / 100, steps=1)


def take_attempt(run: int) -> int:
    """A try of its own; the ledger asks only whose it is."""
    return int(sql.fetch_row("SELECT first + nextval('storm_attempts') FROM storm_first")[0])


def main(root: int, total: int, processes: int, seed: int) -> None:
    told: Counter[str] = Counter()
    connection.close()
    share = total // processes
    waiting: dict[int, tuple[int, int]] = {}

    def fork(number: int) -> None:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            done = work(root, share, number)
            with os.fdopen(write, "w") as out:
                json.dump(done, out)
            os._exit(0)
        os.close(write)
        waiting[pid] = (read, number)

    for number in range(processes):
        fork(seed * 1000 + number)
    while waiting:
        pid, status = os.wait()
        read, number = waiting.pop(pid)
        with os.fdopen(read) as out:
            text = out.read()
        if os.WIFSIGNALED(status):
            told["killed"] += 1
            fork(number + 100)
        else:
            told.update(json.loads(text))
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
