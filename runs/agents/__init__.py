"""The public API for agent authors: `from runs.agents import Agent, tool, …`.

An agent lives in `agents.py` of any installed Django app and is found at start. Durations are seconds. This package
touches no table: it says what an agent is; `runs.engine` runs it.
"""

from runs.agents.agent import BUILT_IN, MODEL_CREDENTIAL, Agent, Ask, Briefing, Budget, Claim, Verdict
from runs.agents.calls import (
    EVENT_CHARS,
    Artifact,
    Call,
    CredentialExpired,
    DidNotHappen,
    Found,
    Happened,
    Refused,
    Secret,
    Unknown,
    Unsure,
    Wait,
)
from runs.agents.mistakes import BadAgents, BadArguments, BadTool
from runs.agents.policies import Policy, above, always, judge_policy, never
from runs.agents.registry import find_tool, get_agent, get_agents
from runs.agents.tools import Effect, Tool, tool
from runs.agents.values import Json, days, digest, hours, minutes, seconds

__all__ = [
    "BUILT_IN",
    "EVENT_CHARS",
    "MODEL_CREDENTIAL",
    "Agent",
    "Artifact",
    "Ask",
    "BadAgents",
    "BadArguments",
    "BadTool",
    "Briefing",
    "Budget",
    "Call",
    "Claim",
    "CredentialExpired",
    "DidNotHappen",
    "Effect",
    "Found",
    "Happened",
    "Json",
    "Policy",
    "Refused",
    "Secret",
    "Tool",
    "Unknown",
    "Unsure",
    "Verdict",
    "Wait",
    "above",
    "always",
    "days",
    "digest",
    "find_tool",
    "get_agent",
    "get_agents",
    "hours",
    "judge_policy",
    "minutes",
    "never",
    "seconds",
    "tool",
]
