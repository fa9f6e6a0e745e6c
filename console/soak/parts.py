"""What an installation consists of: each part that can be killed, and how it is told from the others."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runs.board import Role
from runs.supervise import ProcessStat, is_alive, read_stat


class Part(StrEnum):
    """What can be killed. The value is what a log of kills calls it."""

    BUSY_WORKER = "busy worker"  # holds a run just now
    TOOL = "tool process"  # performs a call just now
    IDLE_WORKER = "worker"
    PUSHER = "pusher"
    MONITOR = "monitor"
    SENTINEL = "sentinel"
    MAIN = "cluster"  # q2's main process
    WATCH = "watch"  # `manage.py cluster` itself, above q2's main process
    GATEWAY = "gateway"
    WEB = "web"
    DATABASE = "database"  # the postmaster
    SHOP = "shop"
    MODEL = "model"
    EVERYTHING = "everything"  # up and all below it, at once


WORDS = {
    Part.WEB: "console.serve",
    Part.GATEWAY: "manage.py modelgateway",
    Part.WATCH: "manage.py cluster",
    Part.SHOP: "runs.examples.shop",
    Part.MODEL: "runs.examples.model",
}
SEATS = {
    Part.PUSHER: Role.PUSHER,
    Part.MONITOR: Role.MONITOR,
    Part.SENTINEL: Role.SENTINEL,
    Part.IDLE_WORKER: Role.WORKER,
}
HOLDERS = """
    SELECT p.pid, p.start_ticks FROM runs_run r JOIN runs_process p ON p.id = r.holder
    WHERE r.state = 'running' AND p.ended_at IS NULL
    ORDER BY EXISTS (SELECT FROM runs_attempt a WHERE a.holder = r.holder AND a.outcome = 'open') DESC
"""
PERFORMERS = """
    SELECT p.pid, p.start_ticks FROM runs_attempt a JOIN runs_process p ON p.id = a.performer
    WHERE a.outcome = 'open' AND p.kind = 'tool' AND p.ended_at IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """One process, told apart from any later one with its number."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.start_ticks)

    def send(self, number: int) -> bool:
        """Signal this very process; False when it is gone."""
        if not self.alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def freeze(self) -> bool:
        return self.send(signal.SIGSTOP)

    def thaw(self) -> bool:
        return self.send(signal.SIGCONT)

    @property
    def frozen(self) -> bool:
        stat = read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state == "T"


def victim_of(stat: ProcessStat) -> Victim:
    return Victim(pid=stat.pid, start_ticks=stat.start_ticks)


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
