"""The public API for agent authors: `from runs.agents import Agent, tool, …`.

An agent lives in `agents.py` of any installed Django app and is found at start. Durations are seconds. This module
touches no table: it says what an agent is; `runs.engine` runs it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Protocol, get_type_hints

from django.apps import apps
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from runs.errors import LongwatchError, UnknownAgent

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None


class Effect(StrEnum):
    """What a call does to the world, and so what may be done with a taken key that has no result."""

    READ = "read"  # nothing: do it again
    INTERNAL = "internal"  # changes Longwatch's own tables only: runs inside the settling transaction
    IDEMPOTENT = "idempotent"  # repeating is harmless, even late: do it again
    KEYED = "keyed"  # the receiver honours the idempotency key: again with the same key
    CHECKABLE = "checkable"  # the tool can look the effect up: `@tool.reconcile`
    ONCE = "once"  # can neither be repeated nor looked up: in doubt, a person decides


class Refused(Exception):
    """Raised by a tool: the receiver refused, and it is certain that nothing happened."""


class Unknown(Exception):
    """Raised by a tool: the effect may have happened. Any other exception of an effectful tool means the same."""


class CredentialExpired(Exception):
    """Raised by a tool: its credential was not accepted (401), and nothing happened. 403 is a refusal, not this."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A secret as it is now. `more`: what else stands beside it, such as a refresh token. Never printed."""

    name: str
    value: str = field(repr=False)
    expires_at: datetime | None = None
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)


def seconds(n: float) -> float:
    return float(n)


def minutes(n: float) -> float:
    return n * 60.0


def hours(n: float) -> float:
    return n * 3600.0


def days(n: float) -> float:
    return n * 86400.0


type Policy = Callable[[Mapping[str, Any]], str | None]


def above(argument: str, limit: int | str | Decimal) -> Policy:
    """Gate a call whose `argument` is above `limit`; the reason says both."""
    threshold = Decimal(limit)

    def policy(arguments: Mapping[str, Any]) -> str | None:
        value = Decimal(str(arguments[argument]))
        return f"{argument} {value} is above {threshold}" if value > threshold else None

    return policy


def always(arguments: Mapping[str, Any]) -> str | None:
    return "this tool always needs a person"


def never(arguments: Mapping[str, Any]) -> str | None:
    return None


class Call(Protocol):
    """What a tool is given as its first argument."""

    @property
    def key(self) -> str:
        """The idempotency key: at most 255 characters, the same for every try of one intended effect.

        Of a call without an effect, which has no such key: a name that no other try of any call has.
        """

    @property
    def run(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def timeout(self) -> float:
        """Seconds that this call has left."""

    def secret(self, name: str = "") -> str:
        """A credential, looked up now (no name: the tool's own). Use it and forget it; never return it.

        Raises: CredentialExpired, when there is none or its time is over.
        """

    def stop_requested(self) -> bool:
        """True once the run was stopped or switched off; a pause lets the call finish. Looks at most every 0.2 s."""

    def heartbeat(self, progress: Json = None) -> None:
        """Tell people how far a long call is."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A large output; stored once by its hash, referred to everywhere."""

    body: bytes
    media_type: str = "application/octet-stream"
    preview: str = ""


EVENT_CHARS = 200
"""The most that the name and the key of an event may have."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Returned by a tool that started something outside: the call is over and is not made again, its step goes on later.

    event: it goes on when an event of this name and this key is delivered (`POST /events`). Its result is then
    `{"event", "payload", "delivered_at", "waited_s"}`.
    key: what this one wait and the event have in common, and nothing else: `call.key`, if the receiver was given that to
    send back (the default), or what the receiver calls the thing that it was asked for, such as its job id. Each event
    ends one wait, of several with this name and key the oldest. Only events that have come since the call was taken
    count, those among them that came before it returned too.
    until: the moment at which it goes on without the event, with `{"event", "timed_out": true, "waited_until",
    "waited_s"}`. Without an event, the step waits for this moment alone: `{"waited_until"}`.
    reason: what for, in words for people.

    Raises: BadTool, where nothing is named that could come, a name is too long, or `until` is no moment with a zone.
    """

    event: str = ""
    key: str = ""
    until: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.event and self.until is None:
            raise BadTool("A Wait names neither an event nor a moment.", remedy="Give event=…, until=… or both.")
        if max(len(str(self.event)), len(str(self.key))) > EVENT_CHARS:
            raise BadTool(f"The name and the key of an event have at most {EVENT_CHARS} characters.")
        if self.until is not None and (self.until.utcoffset() is None or not MINYEAR < self.until.year < MAXYEAR):
            raise BadTool(
                f"until={self.until} has no time zone, or never comes.",
                remedy="Write datetime.now(UTC) + timedelta(…).",
            )


@dataclass(frozen=True, kw_only=True)
class Happened:
    """Returned by a reconcile function: the effect is there, with its result, or with what it is to wait for."""

    result: Json | Wait


@dataclass(frozen=True, kw_only=True)
class DidNotHappen:
    """Returned by a reconcile function: the effect is certainly not there."""

    evidence: Json = None


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """Returned by a reconcile function: it cannot tell. The step goes in doubt."""

    evidence: Json = None


type Found = Happened | DidNotHappen | Unsure


class BadArguments(LongwatchError):
    code, status = "bad_arguments", 400


class BadTool(LongwatchError):
    code = "bad_tool"


class BadAgents(LongwatchError):
    """An app's agents cannot be loaded: a mistake in its code, which no request can do anything about."""

    code, status = "bad_agents", 503

    def __init__(self, module: str, error: Exception) -> None:
        said = " ".join(str(error).split()) or type(error).__name__
        named = said if isinstance(error, LongwatchError) else f"{type(error).__name__}: {said.rstrip('.')}."
        super().__init__(
            f"The agents in {module} cannot be loaded: {named}",
            remedy="Mend it and start Longwatch again; bin/manage check tells when it is right.",
        )


BUILT_IN = ("record_fact", "plan", "recall", "ask", "wait_until", "wait_for", "spawn", "escalate", "finish")
"""The tools that every agent has (`runs.engine.builtin`)."""

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


def judge_policy(policy: Callable[[], object]) -> str | None:
    """The reason that a policy gives, or None. It fails closed: whatever it does but say None gates the call."""
    try:
        reason = policy()
    except (Exception, SystemExit) as error:
        return f"its approval policy failed: {type(error).__name__}: {error}"
    return None if reason is None else str(reason) or "its approval policy says so"


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
            valid_for=_read_seconds(whose, "valid_for", valid_for),
            on_expiry=on_expiry,
            escalate_to=tuple(escalate_to),
            people=people,
            timeout=_read_seconds(whose, "timeout", timeout),
            visible_within=_read_seconds(whose, "visible_within", visible_within, or_none=True),
            attempts=attempts,
            backoff=_read_seconds(whose, "backoff", backoff, or_none=True),
            max_age=None if max_age is None else _read_seconds(whose, "max_age", max_age),
            as_of=as_of,
            credential=credential,
        )

    return make


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a run and all its descendants. usd as a decimal string; None is no limit.

    ask_percent: a step that may take more than this share of the USD or token limit is put before a person first.
    """

    usd: str | None = None
    tokens: int | None = None
    calls: int | None = None
    effects: int | None = None
    steps: int | None = None
    working_s: float | None = None
    unlimited: str = ""  # a reason; without it an agent with no limit at all is refused
    ask_percent: int | None = 50

    def __post_init__(self) -> None:
        counts = (self.tokens, self.calls, self.effects, self.steps)
        try:
            fits = (
                (self.usd is None or (type(self.usd) is str and 0 <= Decimal(self.usd) < 10**10))
                and all(n is None or 0 <= n == int(n) for n in counts)
                and (self.working_s is None or 0 < self.working_s < math.inf)
                and (self.ask_percent is None or 1 <= self.ask_percent <= 100)
            )
        except (TypeError, ValueError, ArithmeticError):
            fits = False
        if not fits:
            raise BadTool(
                f"{self} cannot be a budget.",
                remedy='Write money as "2.00", counts as whole numbers from 0, ask_percent from 1 to 100.',
            )


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One call that an agent without a model asks for."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""
    rests_on: Sequence[str] = ()
    again: str = ""


@dataclass(frozen=True, kw_only=True)
class Briefing:
    """What an agent decides on: built from the tables at every think. The lists hold what the model sees."""

    run: int
    uid: str
    goal: str
    constraints: list[str]
    inputs: dict[str, Any]
    log: list[dict[str, Any]]
    facts: list[dict[str, Any]]
    work: list[dict[str, Any]]
    notices: list[dict[str, Any]]
    budget: dict[str, Any]
    now: dict[str, Any]
    # How many lines of the log each think added, the folded ones first: where a prompt cache may cut.
    log_blocks: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What `finish` claims, and what `verify` is given: the run's number, inputs, facts and finished effects."""

    run: int
    outcome: str
    evidence: list[int]
    inputs: dict[str, Any]
    facts: dict[str, Any]
    effects: list[dict[str, Any]]  # {"step", "tool", "arguments", "result"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What `verify` found at the outside system."""

    holds: bool
    evidence: Json = None
    reason: str = ""


MODEL_CREDENTIAL = "model provider"  # what the gateway signs in with


@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """An agent. `facts` maps a name pattern to a max age in seconds; the longest pattern that fits wins. `inputs` says
    for people what a run of it is given, by name.
    """

    name: str
    instructions: str
    tools: Sequence[Tool] = ()
    model: str = ""
    decide: Callable[[Briefing], list[Ask]] | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    max_age: float | None = days(7)
    max_tokens: int = 4096
    verify: Callable[[Claim], Verdict] | None = None
    recheck: Mapping[str, Tool] = field(default_factory=dict)
    # By the name of a credential: how a new one is got when it was refused. Called by one process at a time.
    refresh: Mapping[str, Callable[[Secret], Secret]] = field(default_factory=dict)
    spawns: Sequence[str] = ()
    approvers: Sequence[str] = ()  # groups whose members decide its cards; empty: everyone who may decide
    gate: Callable[[str, Mapping[str, Any]], str | None] | None = None  # (tool, arguments) → why a person is needed
    ask_first_use: bool = False  # a person sees the first call of each tool that acts
    priority: int = 0  # from -1000 to 1000: what is due with a higher one is worked on first
    patience: int = 8  # thinks without any progress before a person is asked

    def __post_init__(self) -> None:
        if bool(self.model) == (self.decide is not None):
            raise BadTool(f"Agent {self.name!r} needs either a model or a decide function.")
        if abs(self.priority) > 1000:
            raise BadTool(f"Agent {self.name!r}: its priority is from -1000 to 1000.")
        for each in [*self.tools, *self.recheck.values()]:
            if not isinstance(each, Tool):
                raise BadTool(f"Agent {self.name!r}: {each!r} is no tool.", remedy="Put @tool(effect=…) above it.")
            if each.effect is Effect.INTERNAL:
                raise BadTool(
                    f"Agent {self.name!r}: {each.name!r} cannot be internal, only the built-in tools are.",
                    remedy="Say what it does outside: Effect.READ if nothing, or Effect.IDEMPOTENT, KEYED, CHECKABLE, ONCE.",
                )
            if each.effect is Effect.CHECKABLE and each.reconciler is None:
                raise BadTool(
                    f"Agent {self.name!r}: {each.name!r} is checkable, but nothing says how it is looked up.",
                    remedy=f"Write a function under @{each.name}.reconcile above the agent, or say Effect.ONCE.",
                )
        names = [t.name for t in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadTool(
                f"Agent {self.name!r} has two tools of one name: {', '.join(twice)}.", remedy="Give one another name=…."
            )
        if taken := sorted({*names} & {*BUILT_IN}):
            raise BadTool(
                f"Agent {self.name!r}: {', '.join(taken)} is the name of a built-in tool.",
                remedy="Give it another name=….",
            )
        if self.max_age is not None:
            _read_seconds(f"Agent {self.name!r}", "max_age", self.max_age)
        for pattern, seconds_old in self.facts.items():
            _read_seconds(f"Agent {self.name!r}", f"facts[{pattern!r}]", seconds_old)
        for pattern, checker in self.recheck.items():
            if checker.effect is not Effect.READ:
                raise BadTool(f"Agent {self.name!r}: recheck of {pattern!r} must be a read tool.")

    def tool(self, name: str) -> Tool | None:
        """One of the tools that the model is offered."""
        return next((t for t in self.tools if t.name == name), None)

    def tool_or_checker(self, name: str) -> Tool | None:
        """Also one that only re-checks facts."""
        return next((t for t in [*self.tools, *self.recheck.values()] if t.name == name), None)

    def users_of_credentials(self) -> dict[str, list[str]]:
        """By name of a credential, the tools that sign in with it; the model's own has none."""
        users: dict[str, list[str]] = {MODEL_CREDENTIAL: []} if self.model else {}
        for each in [*self.tools, *self.recheck.values()]:
            if each.credential and each.name not in users.setdefault(each.credential, []):
                users[each.credential].append(each.name)
        return users | {name: [] for name in self.refresh if name not in users}

    def max_age_of(self, fact: str) -> float | None:
        return _longest(self.facts, fact)

    def checker_of(self, fact: str) -> Tool | None:
        return _longest(self.recheck, fact)

    def reader_of(self, fact: str, source_tool: str) -> Tool | None:
        """The read tool that can check a fact again: the agent's own for it, else the tool it came from."""
        if checker := self.checker_of(fact):
            return checker
        origin = self.tool(source_tool) if source_tool else None
        return origin if origin is not None and origin.effect is Effect.READ else None

    @cached_property
    def contract(self) -> str:
        """SHA-256 (hex) over the agent's tools: what a run that is under way relies on."""
        return digest({"agent": self.name, "tools": sorted((t.name, t.contract) for t in self.tools)})


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
        if module_name == __name__ or importlib.util.find_spec(module_name) is None:
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


def digest(value: object) -> str:
    """SHA-256 (hex) of canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _longest[V](patterns: Mapping[str, V], name: str) -> V | None:
    """The value of the longest pattern that fits; `policy` fits `policy` and `policy.x`, `order.*` fits `order.1`."""
    fitting = [p for p in patterns if name == p or name.startswith(p + ".") or fnmatch.fnmatchcase(name, p)]
    return patterns[max(fitting, key=len)] if fitting else None


def _read_seconds(whose: str, what: str, given: object, *, or_none: bool = False) -> float:
    """A duration above 0; with or_none, or 0. Raises: BadTool."""
    if isinstance(given, int | float) and math.isfinite(given) and (given > 0 or (or_none and given == 0)):
        return float(given)
    least = "from 0" if or_none else "above 0"
    raise BadTool(
        f"{whose}: {what} is {given!r}; it must be a number of seconds {least}.",
        remedy="seconds(30), minutes(15), hours(2) and days(1) give one.",
    )


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
