"""The request side of the Messages API: what a request holds, and how a wrong one is refused.

Checked against the types and the error classes of the anthropic SDK 2.14; the texts follow the API's own wording, and
only their type and status are meant to be relied on.
"""

import json
import re
from dataclasses import dataclass, field
from uuid import uuid4

from runs.examples.model.catalogue import ALWAYS_THINKING, NO_FORCED_TOOLS, Model, find_model
from runs.examples.model.values import Json, JsonObject, as_integer, as_list, as_object

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_BREAKPOINTS = 4
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
FIELDS = frozenset(
    {
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "user_profile_id",
        "workspace_id",
    }
)
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Rejected(Exception):
    """A request is answered by an error of the API: status, type, message and perhaps a stable code."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        error_code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or ERROR_TYPES.get(status, "api_error")
        self.error_code = error_code
        self.headers = headers or {}

    def to_json(self, request_id: str) -> JsonObject:
        """Return the error body, which is also the data of an `error` event in a stream."""
        error: JsonObject = {"type": self.type, "message": self.message}
        if self.error_code is not None:
            error["details"] = {"error_code": self.error_code}
        return {"type": "error", "error": error, "request_id": request_id}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A valid request: the parsed body and the parts that the server decides by."""

    body: JsonObject
    model: Model
    max_tokens: int
    stream: bool
    tools: tuple[str, ...]
    """The names of the tools offered."""
    system: tuple[str, ...]
    """The texts of the system prompt, one per block."""
    asked: str
    """All text of the last message from the user."""
    wants_thinking: bool = False
    user: str = ""
    """`metadata.user_id`, which a caller may use to tell its calls apart."""
    raw: str = field(repr=False, default="")


def new_id(prefix: str) -> str:
    """Return an identifier in the style of the API, such as msg_… or toolu_…."""
    return f"{prefix}_01{uuid4().hex[:22]}"


def read_request(raw: bytes, *, counting: bool = False) -> Request:
    """Parse and check the body of POST /v1/messages (or …/count_tokens, where max_tokens is not asked for).

    Raises: Rejected with 400, or 404 for a model that is not in the catalogue.
    """
    try:
        parsed: Json = json.loads(raw)
    except ValueError:
        raise Rejected(400, "The request body is not valid JSON.") from None
    if not isinstance(parsed, dict):
        raise Rejected(400, "The request body must be a JSON object.")
    body: JsonObject = parsed
    unknown = sorted(body.keys() - FIELDS)
    if unknown:
        raise Rejected(400, f"{unknown[0]}: Extra inputs are not permitted")
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise Rejected(400, "model: Field required")
    max_tokens = 1 if counting else _read_max_tokens(body)
    tools = _read_tools(body)
    system = _read_system(body)
    messages = _read_messages(body)
    _check_breakpoints(body)
    model = find_model(name)
    if model is None:
        raise Rejected(404, f"model: {name}")
    if max_tokens > model.max_tokens:
        raise Rejected(
            400,
            f"max_tokens: {max_tokens} > {model.max_tokens}, which is the maximum allowed number of output tokens "
            f"for {name}",
        )
    _check_tool_choice(body, name, tools)
    stream = body.get("stream", False)
    if not isinstance(stream, bool):
        raise Rejected(400, "stream: Input should be a valid boolean")
    user = as_object(body.get("metadata")).get("user_id")
    return Request(
        body=body,
        model=model,
        max_tokens=max_tokens,
        stream=stream,
        tools=tools,
        system=system,
        asked="\n".join(_texts(_last_from_user(messages).get("content"))),
        wants_thinking=_read_thinking(body, name),
        user=user if isinstance(user, str) else "",
        raw=raw.decode("utf-8", "replace"),
    )


def _last_from_user(messages: list[Json]) -> JsonObject:
    return next(each for message in reversed(messages) if (each := as_object(message)).get("role") == "user")


def _read_max_tokens(body: JsonObject) -> int:
    if "max_tokens" not in body:
        raise Rejected(400, "max_tokens: Field required")
    value = as_integer(body["max_tokens"])
    if value is None:
        raise Rejected(400, "max_tokens: Input should be a valid integer")
    if value < 1:
        raise Rejected(400, "max_tokens: Input should be greater than or equal to 1")
    return value


def _read_tools(body: JsonObject) -> tuple[str, ...]:
    tools = body.get("tools", [])
    if not isinstance(tools, list):
        raise Rejected(400, "tools: Input should be a valid list")
    names: list[str] = []
    for position, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise Rejected(400, f"tools.{position}: Input should be a valid dictionary")
        name = tool.get("name")
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise Rejected(400, f"tools.{position}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if name in names:
            raise Rejected(400, "tools: Tool names must be unique.")
        names.append(name)
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise Rejected(400, f"tools.{position}.custom.input_schema: Field required")
        if schema.get("type") != "object":
            raise Rejected(400, f"tools.{position}.custom.input_schema.type: Input should be 'object'")
        properties = schema.get("properties", {})
        if not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
            raise Rejected(400, f"tools.{position}.custom.input_schema: JSON schema is invalid")
    return tuple(names)


def _read_system(body: JsonObject) -> tuple[str, ...]:
    system = body.get("system")
    if system is None:
        return ()
    if isinstance(system, str):
        return (system,)
    if not isinstance(system, list):
        raise Rejected(400, "system: Input should be a valid list")
    for position, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise Rejected(400, f"system.{position}.type: Input should be 'text'")
        if not block.get("text"):
            raise Rejected(400, "system: text content blocks must be non-empty")
    return tuple(_texts(system))


def _read_messages(body: JsonObject) -> list[Json]:
    messages = body.get("messages")
    if messages is None:
        raise Rejected(400, "messages: Field required")
    if not isinstance(messages, list) or not messages:
        raise Rejected(400, "messages: at least one message is required")
    open_calls: list[str] = []
    for position, message in enumerate(messages):
        role = as_object(message).get("role")
        if role not in ("user", "assistant", "system"):
            raise Rejected(400, f"messages.{position}.role: Input should be 'user', 'assistant' or 'system'")
        if position == 0 and role != "user":
            raise Rejected(400, 'messages: first message must use the "user" role')
        blocks = _read_content(as_object(message).get("content"), position)
        answered = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        missing = [call for call in open_calls if call not in answered]
        if missing:
            raise Rejected(
                400,
                f"messages.{position - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message.",
            )
        for call in answered:
            if call not in open_calls:
                raise Rejected(
                    400,
                    f"messages.{position}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
                )
        open_calls = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        if open_calls and role != "assistant":
            raise Rejected(400, f"messages.{position}: `tool_use` blocks can only be in `assistant` messages")
    if open_calls:
        raise Rejected(
            400,
            f"messages.{len(messages) - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(open_calls)}.",
        )
    return messages


def _read_content(content: Json, position: int) -> list[JsonObject]:
    if isinstance(content, str):
        if not content:
            raise Rejected(400, f"messages.{position}: user messages must have non-empty content")
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise Rejected(400, f"messages.{position}.content: Input should be a valid list")
    blocks: list[JsonObject] = []
    for place, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise Rejected(400, f"messages.{position}.content.{place}.type: Field required")
        if block["type"] == "text" and not block.get("text"):
            raise Rejected(400, "messages: text content blocks must be non-empty")
        blocks.append(block)
    return blocks


def _check_breakpoints(body: JsonObject) -> None:
    marked = list(list_cache_marks(body))
    for mark in marked:
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
            raise Rejected(400, "cache_control.type: Input should be 'ephemeral'")
        if mark.get("ttl", "5m") not in ("5m", "1h"):
            raise Rejected(400, "cache_control.ttl: Input should be '5m' or '1h'")
    if len(marked) > MAX_BREAKPOINTS:
        raise Rejected(
            400,
            f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marked)}.",
        )
    lives = [str(as_object(mark).get("ttl", "5m")) for mark in marked]
    if lives != sorted(lives):  # "1h" sorts before "5m": the longer life has to come first
        raise Rejected(400, "cache_control: a ttl='1h' block must not come after a ttl='5m' cache_control block")


def list_cache_marks(body: JsonObject) -> list[Json]:
    """Return every cache_control of the request, in the order of the prompt: tools, system, messages."""
    blocks = [*as_list(body.get("tools")), *as_list(body.get("system"))]
    for message in as_list(body.get("messages")):
        blocks += as_list(as_object(message).get("content"))
    marks = [as_object(block)["cache_control"] for block in blocks if as_object(block).get("cache_control") is not None]
    if body.get("cache_control") is not None:
        marks.append(body["cache_control"])
    return marks


def _check_tool_choice(body: JsonObject, model: str, tools: tuple[str, ...]) -> None:
    choice = body.get("tool_choice")
    if choice is None:
        return
    kind = as_object(choice).get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise Rejected(400, "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    if kind in ("any", "tool") and model in NO_FORCED_TOOLS:
        raise Rejected(400, f"tool_choice: forced tool use is not supported by {model}")
    if kind == "tool" and as_object(choice).get("name") not in tools:
        raise Rejected(400, f"tool_choice.name: Tool '{as_object(choice).get('name')}' not found in provided tools")


def _read_thinking(body: JsonObject, model: str) -> bool:
    thinking = body.get("thinking")
    if thinking is None:
        return False
    kind = as_object(thinking).get("type")
    if kind not in ("adaptive", "enabled", "between_tools", "disabled"):
        raise Rejected(400, "thinking.type: Input should be 'adaptive', 'enabled', 'between_tools' or 'disabled'")
    if kind == "disabled" and model in ALWAYS_THINKING:
        raise Rejected(400, f"thinking: cannot be disabled on {model}")
    budget = as_integer(as_object(thinking).get("budget_tokens"))
    if kind == "enabled" and (budget is None or budget < 1024):
        raise Rejected(400, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
    return kind in ("adaptive", "enabled")


def _texts(content: Json) -> list[str]:
    if isinstance(content, str):
        return [content]
    found = []
    for block in as_list(content):
        text = as_object(block).get("text")
        if as_object(block).get("type") == "text" and isinstance(text, str):
            found.append(text)
    return found
