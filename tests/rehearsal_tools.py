"""Start the rehearsal model, talk to it with the real SDK, and write briefings by hand."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
from anthropic.types import Message, ToolUseBlock

from runs.examples.model.values import Json, JsonObject

ROOT = Path(__file__).resolve().parent.parent
MODEL = "claude-sonnet-5-5"


@dataclass(frozen=True, kw_only=True)
class RehearsalServer:
    """A running rehearsal model."""

    url: str
    pid: int

    def control(self, method: str, path: str, body: Json = None) -> Any:
        """Use one of its control routes."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def fault(self, kind: str, **more: Json) -> None:
        """Let the next matching call go wrong."""
        self.control("POST", "/faults", {"kind": kind, **more})

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls received so far."""
        found: list[dict[str, Any]] = self.control("GET", "/calls")["calls"]
        return found

    def client(self, **options: Any) -> anthropic.Anthropic:
        """Return the real client, which tries nothing twice."""
        return anthropic.Anthropic(**{"base_url": self.url, "api_key": "test-key", "max_retries": 0, **options})


@contextmanager
def run_server(*options: str) -> Iterator[RehearsalServer]:
    """Start a server of its own on a free port, and end it."""
    command = [sys.executable, "-m", "runs.examples.model", "--die-with-parent", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield RehearsalServer(url=ready["url"], pid=ready["pid"])
        finally:
            process.kill()


def make_tool(name: str, /, **arguments: str) -> JsonObject:
    """Return a tool as the engine offers it: argument names and their JSON types."""
    properties: JsonObject = {argument: {"type": kind} for argument, kind in arguments.items()}
    return {"name": name, "description": name, "input_schema": {"type": "object", "properties": properties}}


INTERNAL_TOOLS: list[JsonObject] = [
    make_tool("record_fact", name="string", from_step="integer", pointer="string", max_age_s="number", value="object"),
    make_tool("plan", add="array", close="array", drop="array"),
    make_tool("recall", step="integer", search="string"),
    make_tool("ask", question="string", options="array"),
    make_tool("wait_until", time="string", seconds="number", reason="string"),
    make_tool("finish", outcome="string", evidence="array"),
]
DESK_TOOLS: list[JsonObject] = [
    *INTERNAL_TOOLS,
    make_tool("list_requests", batch="string"),
    make_tool("read_policy", batch="string"),
    make_tool("read_order", order="string"),
    make_tool("refund", order="string", amount="string", memo="string", because="string", rests_on="array"),
    make_tool("close_request", request="string", outcome="string", because="string"),
]


@dataclass(kw_only=True)
class Page:
    """A briefing as it is being written, one part per field."""

    goal: str = "Decide the refund requests."
    constraints: list[str] = field(default_factory=list)
    inputs: JsonObject = field(default_factory=dict)
    log: list[JsonObject] = field(default_factory=list)
    facts: list[JsonObject] = field(default_factory=list)
    work: list[JsonObject] = field(default_factory=list)
    notices: list[JsonObject] = field(default_factory=list)
    now: str = "2026-11-29T19:30:00Z"
    instructions: str = "You work at the refund desk."
    tools: list[JsonObject] = field(default_factory=lambda: list(DESK_TOOLS))

    def add(self, tool: str, given: JsonObject, result: Json = None, outcome: str = "done", **more: Json) -> int:
        """Append a finished step and return its number."""
        step = len(self.log) + 1
        self.log.append({"step": step, "tool": tool, "with": given, "outcome": outcome, "result": result, **more})
        return step

    def note(self, name: str, value: Json, *, from_step: int, state: str = "fresh", age_s: int = 1) -> None:
        """Set a fact."""
        self.facts = [fact for fact in self.facts if fact["fact"] != name]
        fact: JsonObject = {"fact": name, "value": value, "age_s": age_s, "max_age_s": 900, "state": state}
        self.facts.append({**fact, "from_step": from_step})

    def write(self) -> dict[str, Any]:
        """Return the arguments of messages.create, as the engine writes them."""
        stable = [
            f"<goal>{_escape(self.goal)}</goal>",
            f"<constraints>{_escape([*self.constraints])}</constraints>",
            f"<inputs>{_escape(self.inputs)}</inputs>",
            _lines("log", self.log),
        ]
        volatile = [
            _lines("facts", self.facts),
            _lines("work", self.work),
            _lines("notices", self.notices),
            "<budget>{}</budget>",
            f"<now>{_escape({'time': self.now, 'zone': 'UTC', 'away_s': 0})}</now>",
        ]
        marked = {"type": "text", "text": "\n".join(stable), "cache_control": {"type": "ephemeral"}}
        return {
            "model": MODEL,
            "max_tokens": 4096,
            "system": [{"type": "text", "text": self.instructions}],
            "tools": self.tools,
            "messages": [{"role": "user", "content": [marked, {"type": "text", "text": "\n".join(volatile)}]}],
        }


def _lines(name: str, lines: list[JsonObject]) -> str:
    return "\n".join([f"<{name}>", *(_escape(line) for line in lines), f"</{name}>"])


def _escape(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def list_calls(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Return the tool calls of a reply."""
    return [(block.name, dict(block.input)) for block in message.content if isinstance(block, ToolUseBlock)]
