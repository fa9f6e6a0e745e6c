"""The tables. One writer module each (see README); everyone else reads."""

from runs.models.access import AgentGrant, ApiToken, StartRequest
from runs.models.allowance import Allowance, AllowanceEntry, AllowanceWindow
from runs.models.approval import Approval, Decision
from runs.models.artifact import Artifact
from runs.models.budget import Budget, LedgerEntry
from runs.models.credential import Credential
from runs.models.event import Event
from runs.models.fact import Fact, FactCheck, FactUse, FactVersion
from runs.models.journal import JournalEntry
from runs.models.key import Key, KeyAlias, Lock
from runs.models.notice import Notice
from runs.models.price import Price
from runs.models.process import Process
from runs.models.provider import ProviderLimit, ProviderTurn
from runs.models.run import Amendment, KeptFold, Run, WorkItem
from runs.models.step import Attempt, Step
from runs.models.switch import Switch, SwitchAck

__all__ = [
    "AgentGrant",
    "Allowance",
    "AllowanceEntry",
    "AllowanceWindow",
    "Amendment",
    "ApiToken",
    "Approval",
    "Artifact",
    "Attempt",
    "Budget",
    "Credential",
    "Decision",
    "Event",
    "Fact",
    "FactCheck",
    "FactUse",
    "FactVersion",
    "JournalEntry",
    "KeptFold",
    "Key",
    "KeyAlias",
    "LedgerEntry",
    "Lock",
    "Notice",
    "Price",
    "Process",
    "ProviderLimit",
    "ProviderTurn",
    "Run",
    "StartRequest",
    "Step",
    "Switch",
    "SwitchAck",
    "WorkItem",
]
