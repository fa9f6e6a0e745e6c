"""The agents of all installed apps."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache

from django.apps import apps

from runs.agents.agent import Agent
from runs.agents.mistakes import BadAgents, BadTool
from runs.agents.tools import Tool
from runs.errors import UnknownAgent


def get_agent(name: str) -> Agent:
    """Raises: UnknownAgent."""
    known = get_agents()
    if name not in known:
        raise UnknownAgent(name, list(known))
    return known[name]


def find_tool(agent: str, tool: str) -> Tool | None:
    """A tool by name; None when there is no such agent any more, or it has no such tool."""
    known = get_agents().get(agent)
    return known.tool(tool) if known is not None else None


@cache
def get_agents() -> dict[str, Agent]:
    """Every agent found in the `agents` modules of the installed apps: all of them or, to no thread, a part.

    Raises: BadAgents.
    """
    found: dict[str, Agent] = {}
    for config in apps.get_app_configs():
        module_name = f"{config.name}.agents"
        if module_name == __package__ or importlib.util.find_spec(module_name) is None:
            continue
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise BadAgents(module_name, error) from error
        for value in vars(module).values():
            if isinstance(value, Agent):
                if found.get(value.name, value) is not value:
                    raise BadAgents(module_name, BadTool(f"Two agents are called {value.name!r}."))
                found[value.name] = value
    return found
