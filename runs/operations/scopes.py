"""What a person may touch: a run, or all that a scope holds."""

from django.contrib.auth.models import AbstractBaseUser

from runs import access
from runs.access import Action
from runs.agents import get_agents
from runs.errors import Forbidden, Malformed
from runs.models import Run, Step
from runs.queries.paging import EVERY_AGENT


def require_on_run(by: AbstractBaseUser, action: Action, run: int) -> Run:
    found = access.get_run(by, run)
    access.require(by, action, found.agent)
    return found


def _agent_of_scope(scope: str) -> str | None:
    kind, _, name = scope.partition(":")
    if kind == "agent":
        return name
    if kind == "run" and name.isdecimal():
        return Run.objects.filter(pk=int(name)).values_list("agent", flat=True).first()
    return None


def require_scope(scope: str, by: AbstractBaseUser) -> str:
    """Return the scope as it is compared. One that is misspelt would hold nothing, and look as if it did."""
    kind, _, name = scope.partition(":")
    if kind == "agent" and not Run.objects.filter(agent=name).exists():
        access.get_agent(by, name)
    elif kind == "run" and name.isascii() and name.isdecimal():
        scope = f"run:{access.get_run(by, int(name)).pk}"
    elif kind == "tool":
        tools = {tool.name for agent in get_agents().values() for tool in agent.tools}
        if name not in tools and not Step.objects.filter(tool=name).exists():
            raise Malformed(f"There is no tool {name!r}.", remedy=f"Known: {', '.join(sorted(tools)) or 'none'}.")
    require_over(scope, by)
    return scope


def require_over(scope: str, by: AbstractBaseUser) -> None:
    """Only who may switch every agent that a scope reaches may switch it. Raises: Forbidden."""
    access.require(by, Action.SWITCH, _agent_of_scope(scope))
    kind, _, name = scope.partition(":")
    if kind not in ("all", "tool"):
        return
    rights = access.read_rights(by)
    if EVERY_AGENT in rights.agents:
        return
    reached = {agent.name for agent in get_agents().values() if agent.tool(name) is not None}
    if kind == "all" or not reached or not reached <= rights.agents:
        what = "Everything" if kind == "all" else f"The tool {name}"
        raise Forbidden(
            f"{what} reaches agents that you do not see.", remedy="Switch your own agents, or ask who sees them all."
        )
