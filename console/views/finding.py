"""A run as its reader may see it: the one look-up behind the page, its panels and its buttons."""

from dataclasses import dataclass

from console.access import Reader
from runs import queries
from runs.errors import NotFound
from runs.queries import RunDetail
from runs.queries.runpage import RunExtras, read_run_extras


@dataclass(frozen=True, kw_only=True)
class Found:
    run: RunDetail
    extras: RunExtras


def find(request: Reader, number: int) -> Found:
    """Raises: NotFound, also for a run of an agent that the reader may not see."""
    run = queries.find_run(number, agents=request.rights.agents)
    if run is None:
        raise NotFound("run", number)
    return Found(run=run, extras=read_run_extras(run.id))
