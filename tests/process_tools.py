"""Find what a test started among the processes of this machine."""

from pathlib import Path

from console.soak.marks import find_marked, make_mark

__all__ = ["ROOT", "find_marked", "make_mark"]

ROOT = Path(__file__).resolve().parent.parent
