"""What a worker and its tool process say to each other, in JSON, over a socket pair.

A message to the tool process is what it is to perform, in order; each one back is one report.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runs.agents import Json


class Function(StrEnum):
    """Which of the agent's functions is to run."""

    CALL = "call"  # the tool itself
    RECONCILE = "reconcile"  # the tool's look-up
    VERIFY = "verify"  # the agent's check of its claim
    DECIDE = "decide"  # the agent's own decision, in place of a model


@dataclass(frozen=True, kw_only=True)
class Perform:
    """Run one function. `begin_by`: seconds of this machine's CLOCK_BOOTTIME; timeout_s from the beginning.

    look: take the last look at the database, and mark the beginning there, just before the function runs.
    """

    attempt: int
    agent: str
    function: Function
    tool: str = ""
    arguments: dict[str, Json]
    key: str = ""
    run: int
    step: int
    begin_by: float
    timeout_s: float
    look: bool

    @staticmethod
    def dump(performs: Sequence["Perform"]) -> bytes:
        return json.dumps([vars(each) for each in performs]).encode()

    @classmethod
    def load(cls, message: bytes) -> list["Perform"]:
        return [cls(**{**fields, "function": Function(fields["function"])}) for fields in json.loads(message)]


class Said(StrEnum):
    BEGUN = "begun"  # after its last look, where it takes one
    PROGRESS = "progress"
    DONE = "done"  # with `result`, or an artifact
    WAITS = "waits"  # it returned a Wait, which is `result`; `error` is for whoever cannot wait
    REFUSED = "refused"  # certain: nothing happened
    CREDENTIAL = "credential"  # certain: nothing happened, the credential was not accepted
    NOT_BEGUN = "not_begun"  # it gave up before anything was sent
    FAILED = "failed"  # it raised, and by its nature nothing happened
    UNKNOWN = "unknown"  # it raised, and it may have happened


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of an attempt. `body` and `media_type`: an artifact that the tool returned. took_s: seconds in the process.

    printed: how many bytes all calls until then have printed or logged.
    """

    attempt: int = 0
    said: Said
    result: Json = None
    error: str = ""
    body: bytes | None = None
    media_type: str = ""
    took_s: float = 0.0
    printed: int = 0

    def dump(self) -> bytes:
        body = None if self.body is None else base64.b64encode(self.body).decode()
        return json.dumps({**vars(self), "body": body}).encode("utf-8", "surrogatepass")

    @classmethod
    def load(cls, message: bytes) -> "Report":
        fields = json.loads(message)
        body = fields["body"]
        return cls(**{**fields, "said": Said(fields["said"]), "body": None if body is None else base64.b64decode(body)})
