"""What processes cost, read from /proc, and how long something took, as figures."""

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from runs.supervise import read_processes

_TICKS = os.sysconf("SC_CLK_TCK")


def list_tree(root: int) -> list[int]:
    """Return a process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for stat in read_processes():
        children.setdefault(stat.parent, []).append(stat.pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def read_cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds of processes, and of the children that they have buried."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(word) for word in words[11:15])
    return total / _TICKS


def read_memory_mb(pids: Iterable[int]) -> tuple[float, float]:
    """Resident memory in MB: as each process counts it, and with what they share counted once (PSS)."""
    rss = pss = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Rss:"):
                    rss += int(line.split()[1])
                elif line.startswith("Pss:"):
                    pss += int(line.split()[1])
    return round(rss / 1024, 1), round(pss / 1024, 1)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def describe_ms(values: Sequence[float]) -> dict[str, float]:
    """How values (seconds) are distributed, in milliseconds."""
    return {"count": len(values)} | (
        {f"p{percent}": to_ms(percentile(values, percent)) for percent in (50, 90, 99)} | {"max": to_ms(max(values))}
        if values
        else {}
    )


def to_ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
