"""A tool: a function that the model may call, and what has to be known of it before it may."""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from runs.agents.calls import Call, Found
from runs.agents.mistakes import BadArguments, BadTool, read_seconds
from runs.agents.policies import Policy, judge_policy
from runs.agents.values import Json, days, digest


class Effect(StrEnum):
    """What a call does to the world, and so what may be done with a taken key that has no result."""

    READ = "read"  # nothing: do it again
    INTERNAL = "internal"  # changes Longwatch's own tables only: runs inside the settling transaction
    IDEMPOTENT = "idempotent"  # repeating is harmless, even late: do it again
    KEYED = "keyed"  # the receiver honours the idempotency key: again with the same key
    CHECKABLE = "checkable"  # the tool can look the effect up: `@tool.reconcile`
    ONCE = "once"  # can neither be repeated nor looked up: in doubt, a person decides


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what the providers of models accept


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, ser_json_inf_nan="strings")


@dataclass(eq=False, kw_only=True)
class Tool:
    """A function that the model may call. Made by `@tool`. Its schema comes from the signature and the docstring."""

    name: str
    function: Callable[..., Any]
    effect: Effect
    irreversible: bool
    identity: tuple[str, ...]
    approval: Policy | None
    rests_on: tuple[str, ...]
    locks: tuple[str, ...]
    valid_for: float
    on_expiry: str
    escalate_to: tuple[str, ...]
    people: int
    timeout: float
    visible_within: float
    attempts: int
    backoff: float
    max_age: float | None
    as_of: str
    credential: str
    _reconcile: Callable[..., Found] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise BadTool(
                f"Tool {self.name!r}: a model cannot call it by that name.",
                remedy="Use letters, digits, _ and -, at most 64.",
            )
        if self.effect not in list(Effect):
            raise BadTool(
                f"Tool {self.name!r}: {self.effect!r} is no effect.",
                remedy="Say Effect.READ, IDEMPOTENT, KEYED, CHECKABLE or ONCE.",
            )
        self.effect = Effect(self.effect)
        self._check_signature()
        names = set(self.arguments.model_fields)
        if self.approval is not None and not callable(self.approval):
            raise BadTool(
                f"Tool {self.name!r}: approval is {self.approval!r}, which is no policy.",
                remedy="Give always, never, above('amount', 200), or a function of the arguments.",
            )
        if self.irreversible and not self.identity:
            raise BadTool(
                f"Tool {self.name!r} is irreversible but names no identity arguments.",
                remedy="Say identity=[…]: the arguments that make two calls the same intended effect.",
            )
        for what, given in (
            ("identity", set(self.identity)),
            ("rests_on", _fields(self.rests_on)),
            ("locks", _fields(self.locks)),
        ):
            if unknown := given - names:
                raise BadTool(f"Tool {self.name!r}: {what} names {sorted(unknown)}, which are not arguments.")
        if self.people < 1:
            raise BadTool(f"Tool {self.name!r}: people must be at least 1.")
        if (self.on_expiry == "escalate") != bool(self.escalate_to):
            raise BadTool(
                f"Tool {self.name!r}: escalating takes both on_expiry='escalate' and escalate_to=[…].",
                remedy="Name the groups that are asked when nobody decided in time.",
            )
        if self.attempts < 1:
            raise BadTool(f"Tool {self.name!r}: attempts must be at least 1.")

    def _check_signature(self) -> None:
        """Raises: BadTool, where a call could not be made as the model would be told."""
        given = list(inspect.signature(self.function).parameters.values())
        if inspect.iscoroutinefunction(self.function):
            raise BadTool(f"Tool {self.name!r} is async, and would never run.", remedy="Write it with a plain def.")
        try:
            hints = get_type_hints(self.function, include_extras=True)
            self.schema  # noqa: B018 - made here, so that what it cannot hold is refused here
        except Exception as error:
            said = str(error).partition("\n")[0].rstrip(".")
            raise BadTool(
                f"Tool {self.name!r}: its arguments cannot be read: {type(error).__name__}: {said}.",
                remedy="Give each a type hint that JSON can carry and that is imported: str, int, Decimal, list[str], …",
            ) from error
        if not given or hints.get(given[0].name, Call) not in (Call, Any):
            raise BadTool(
                f"Tool {self.name!r}: its first argument is the call.",
                remedy=f"Write def {getattr(self.function, '__name__', self.name)}(call: Call, …).",
            )
        for parameter in given[1:]:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise BadTool(
                    f"Tool {self.name!r}: {parameter} cannot be given by name.",
                    remedy="Name each argument; several values are one list.",
                )

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or self.name)

    @property
    def acts(self) -> bool:
        """True where a call may change the world outside."""
        return self.effect not in (Effect.READ, Effect.INTERNAL)

    @cached_property
    def arguments(self) -> type[BaseModel]:
        signature = inspect.signature(self.function)
        hints = get_type_hints(self.function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in list(signature.parameters.values())[1:]:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
        return create_model(f"{self.name}_arguments", __base__=_Arguments, **fields)

    @cached_property
    def schema(self) -> dict[str, Any]:
        return self.arguments.model_json_schema(mode="validation")

    @cached_property
    def contract(self) -> str:
        """SHA-256 (hex) of what an approval relies on: where the tool lives, what it takes, how it acts.

        Words for people and the model (docstrings) are not part of it, so rewording a tool voids nothing.
        """
        return digest(
            {
                "connector": self.function.__module__,
                "tool": self.name,
                "schema": _without_words(self.schema),
                "effect": self.effect,
                "irreversible": self.irreversible,
                "identity": list(self.identity),
                "rests_on": list(self.rests_on),
                "locks": list(self.locks),
            }
        )

    def normalise(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Validate arguments and return them as the JSON that is shown, approved and run.

        Raises: BadArguments, with what is wrong for the model to read.
        """
        try:
            parsed = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
            raise BadArguments(f"{self.name} was called with wrong arguments: {wrong}") from None
        dumped: dict[str, Json] = parsed.model_dump(mode="json")
        return dumped

    def typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        parsed = self.arguments.model_validate(dict(arguments))
        return {name: getattr(parsed, name) for name in self.arguments.model_fields}

    def identity_of(self, arguments: Mapping[str, Json]) -> dict[str, Json]:
        names = self.identity or tuple(self.arguments.model_fields)
        return {name: arguments.get(name) for name in names}

    def bound_rests_on(self, arguments: Mapping[str, Json]) -> list[str]:
        return [template.format_map(_Plain(arguments)) for template in self.rests_on]

    def bound_locks(self, arguments: Mapping[str, Json]) -> list[str]:
        return sorted({template.format_map(_Plain(arguments)) for template in self.locks})

    def gate(self, arguments: Mapping[str, Json]) -> str | None:
        """Why a person is needed, or None. A policy that raises gates everything."""
        if self.approval is None:
            return "it cannot be undone" if self.irreversible else None
        policy = self.approval
        return judge_policy(lambda: policy(arguments))

    def reconcile(self, function: Callable[..., Found]) -> Callable[..., Found]:
        """Decorator: how to look up at the receiver whether the effect happened. Same arguments as the tool."""
        self._reconcile = function
        return function

    @property
    def reconciler(self) -> Callable[..., Found] | None:
        return self._reconcile

    def __call__(self, call: Call, **arguments: Any) -> Any:
        return self.function(call, **arguments)


def tool(
    *,
    effect: Effect,
    irreversible: bool = False,
    identity: Sequence[str] = (),
    approval: Policy | None = None,
    rests_on: Sequence[str] = (),
    locks: Sequence[str] = (),
    valid_for: float = days(1),
    on_expiry: str = "reject",
    escalate_to: Sequence[str] = (),
    people: int = 1,
    timeout: float = 30.0,
    visible_within: float = 0.0,
    attempts: int = 3,
    backoff: float = 1.0,
    max_age: float | None = None,
    as_of: str = "",
    credential: str = "",
    name: str = "",
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function `f(call, …)`.

    valid_for: seconds that an approval lasts. on_expiry: `reject` (the agent is told nobody decided), `hold` (it is
    asked again without an end) or `escalate` (the groups of `escalate_to` are asked, without an end). people: how many
    different people have to approve a call that is gated. timeout: seconds per try. visible_within: seconds until a
    look-up shows an effect. attempts, backoff: how often it is tried after failures, and the first pause in seconds
    (doubled, with jitter).
    max_age: seconds that a fact read by it may be used, at most; the agent's own limit may be shorter.
    as_of: JSON pointer to the moment (RFC 3339, with its zone) that a result speaks of, where the source answers from
    a copy. A fact read without it is of unknown age.
    credential: the name of what it signs in with; `call.secret()` looks it up.
    """
    if on_expiry not in ("reject", "hold", "escalate"):
        raise BadTool(f"on_expiry is {on_expiry!r}; it must be 'reject', 'hold' or 'escalate'.")

    def make(function: Callable[..., Any]) -> Tool:
        called = name or getattr(function, "__name__", "tool")
        whose = f"Tool {called!r}"
        for what, given in (
            ("identity", identity),
            ("rests_on", rests_on),
            ("locks", locks),
            ("escalate_to", escalate_to),
        ):
            if isinstance(given, str):
                raise BadTool(f"{whose}: {what} is one text.", remedy=f"Give a list: {what}=[{given!r}].")
        return Tool(
            name=called,
            function=function,
            effect=effect,
            irreversible=irreversible,
            identity=tuple(identity),
            approval=approval,
            rests_on=tuple(rests_on),
            locks=tuple(locks),
            valid_for=read_seconds(whose, "valid_for", valid_for),
            on_expiry=on_expiry,
            escalate_to=tuple(escalate_to),
            people=people,
            timeout=read_seconds(whose, "timeout", timeout),
            visible_within=read_seconds(whose, "visible_within", visible_within, or_none=True),
            attempts=attempts,
            backoff=read_seconds(whose, "backoff", backoff, or_none=True),
            max_age=None if max_age is None else read_seconds(whose, "max_age", max_age),
            as_of=as_of,
            credential=credential,
        )

    return make


def _fields(templates: Sequence[str]) -> set[str]:
    """Raises: BadTool."""
    try:
        return {name for template in templates for _, name, _, _ in string.Formatter().parse(template) if name}
    except ValueError as error:
        raise BadTool(
            f"{list(templates)} are no templates: {error}.", remedy='Write them as "order.{order}".'
        ) from None


class _Plain(dict[str, str]):
    """Arguments for a name template: plain text, so that a value cannot reach into objects."""

    def __init__(self, arguments: Mapping[str, Json]) -> None:
        super().__init__({k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()})


def _without_words(schema: Any) -> Any:
    if isinstance(schema, dict):
        # An argument may itself be called "title": only a text under that word is a wording.
        return {
            k: _without_words(v)
            for k, v in schema.items()
            if not (k in ("description", "title") and isinstance(v, str))
        }
    if isinstance(schema, list):
        return [_without_words(v) for v in schema]
    return schema
