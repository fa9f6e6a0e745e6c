"""How large a benchmark is to be; what is not said is as large as the benchmark itself thinks right."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    runs: int | None = None
    steps: int | None = None
    at_once: int | None = None
    """How many calls the agent asks for in one reply."""
    seconds: float | None = None
    """How long something is watched."""
    pgbench_s: int = 4
