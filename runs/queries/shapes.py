"""What reads return: frozen, ready to be shown. `as_json` turns any of them into the JSON that api.md describes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from runs.agents import Json


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The five clocks in seconds, up to the moment of reading; they add up to the run's age. `running`: the one that
    goes on; empty when the run has ended."""

    working_s: float
    queued_s: float
    world_s: float
    people_s: float
    held_s: float
    running: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """null is no limit."""

    usd: Decimal | None
    tokens: int | None
    calls: int | None
    effects: int | None
    steps: int | None
    working_s: float | None


@dataclass(frozen=True, kw_only=True)
class Amounts:
    usd: Decimal
    tokens: int
    calls: int
    effects: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Spent(Amounts):
    working_s: float


@dataclass(frozen=True, kw_only=True)
class BudgetView:
    """`overrun` is the part of what was spent that no reservation had covered."""

    version: int
    limits: Limits
    spent: Spent
    reserved: Amounts
    overrun: Amounts
    unlimited_because: str


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A try that is under way: `step` is its number within `run`; one that acts has sent nothing without `began_at`.

    `acts`: it may change something outside. `behind`: the step of the call that its process does before this one, as
    far as is recorded; null for none.
    """

    run: int
    step: int
    kind: str
    tool: str
    attempt: int
    taken_at: datetime
    began_at: datetime | None
    begin_by: datetime
    timeout_s: float
    lease_until: datetime
    holder: UUID
    progress: Json
    acts: bool
    behind: int | None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """What an open step waits for, on whom, until when, and what happens then."""

    step: int
    tool: str
    waiting_for: str
    on: str
    note: str
    until: datetime | None
    and_then: str
    approval: int | None


@dataclass(frozen=True, kw_only=True)
class Counts:
    steps: int
    steps_open: int
    steps_failed: int
    facts: int
    facts_stale: int
    keys: int
    keys_in_doubt: int
    approvals_pending: int
    work_open: int
    work: int
    children: int
    journal: int


@dataclass(frozen=True, kw_only=True)
class Pause:
    at: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class Hold:
    """What holds a run back: an engaged switch (its scope), or a pause. `since`: null until it was met."""

    by: str
    reason: str
    since: datetime | None


@dataclass(frozen=True, kw_only=True)
class Descendant:
    """A run below another one: it is stopped, paused and held with it."""

    id: int
    parent: int
    agent: str
    state: str
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run in a list: its goal may be cut."""

    id: int
    uid: UUID
    agent: str
    goal: str
    labels: dict[str, Json]
    state: str
    waiting_for: str
    why: str
    due_at: datetime | None
    deadline_at: datetime | None
    expires_at: datetime | None
    epoch: int
    parent: int | None
    root: int
    depth: int
    started_by: str
    created_at: datetime
    changed_at: datetime
    ended_at: datetime | None
    paused: Pause | None
    clocks: Clocks
    budget: BudgetView
    verified: str
    links: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RunDetail(RunRow):
    """`why` says why it is not moving, in one sentence; `waits` has each open wait with its end."""

    constraints: list[Json]
    inputs: dict[str, Json]
    outcome: Json
    end_reason: str
    drained_at: datetime | None
    in_flight: list[InFlight]
    waits: list[Wait]
    held: list[Hold]
    counts: Counts
    descendants: list[Descendant]


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    number: int
    outcome: str
    taken_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    error: str
    exit_status: int | None
    exit_signal: int | None
    late: bool


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """A step. A large result is left out of lists (`result_bytes` says how large it is); the step itself has it."""

    id: int
    number: int
    kind: str
    state: str
    reply_to: int | None
    tool: str
    asked: dict[str, Json]
    arguments: dict[str, Json]
    because: str
    rests_on: list[Json]
    again: str
    fact: str | None
    gated: bool | None
    gate_reason: str
    waiting_for: str
    waiting_on: str
    wait_note: str
    wake_at: datetime | None
    and_then: str
    tries: int
    result: Json
    result_bytes: int
    artifact: str | None
    error: str
    replay_of: int | None
    usd: Decimal
    created_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    attempts: list[AttemptRow]


@dataclass(frozen=True, kw_only=True)
class FactRow:
    """A fact as it stands at the moment of reading. `age_s`: since a reading last said the same."""

    id: int
    run: int
    name: str
    value: Json
    version: int
    source: Json
    observed_at: datetime | None
    verified_at: datetime | None
    age_s: float | None
    max_age_s: float
    state: str
    derived_from: list[Json]
    check_failed_at: datetime | None
    check_tries: int


@dataclass(frozen=True, kw_only=True)
class KeyRow:
    """An idempotency key; `key` is what the receiver is sent."""

    id: int
    key: str
    run: int
    step: int
    tool: str
    identity: Json
    occurrence: int
    generation: int
    state: str
    approval: int | None
    arguments: Json
    result: Json
    artifact: str | None
    evidence: Json
    closed_how: str
    replays: int
    attempts: int
    taken_at: datetime
    closed_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    id: int
    kind: str
    run: int
    step: int | None
    attempt: int | None
    usd: Decimal
    tokens: int
    calls: int
    effects: int
    steps: int
    estimated: bool
    model: str
    usage: Json
    price: Json
    note: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class WorkRow:
    id: int
    item: str
    title: str
    state: str
    outcome: str
    opened_by: int | None
    closed_by: int | None
    created_at: datetime
    closed_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class JournalRow:
    seq: int
    at: datetime
    kind: str
    actor: str
    step: int | None
    before: Json
    after: Json
    why: str


@dataclass(frozen=True, kw_only=True)
class FactShown:
    """A fact that an approval rests on: the value that is shown, and how that fact stands now, or stood when it was closed.

    `changed`: its source says something else than what is shown, so the approval will not be used as it is.
    """

    name: str
    value: Json
    version: int
    age_s: float | None
    max_age_s: float | None
    state: str
    changed: bool


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    by: str
    verdict: str
    version: int
    arguments: Json
    answer: str
    result: Json
    grant: Json
    comment: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What is different from the card that this one replaces. `what`: argument, fact or tool."""

    what: str
    name: str
    old: Json
    new: Json


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What a person asked the agent about its call; `text` is null until it has answered."""

    question: str
    by: str
    at: str
    text: str | None
    answered_at: str | None


@dataclass(frozen=True, kw_only=True)
class ApprovalCard:
    """A card that asks a person. `verdicts`: those that it allows now; none once it is closed.

    `effective_at`: a decision is made, takes effect then, and can be undone until then. `needed`: how many different
    people have to approve, and `approved_by` who has. `groups`: who is asked; none: everyone who may decide.
    """

    id: int
    version: int
    run: int
    agent: str
    step: int | None
    kind: str
    state: str
    title: str
    why: str
    because: str
    tool: str
    arguments: Json
    digest: str
    facts: list[FactShown]
    options: list[Json]
    evidence: Json
    verdicts: list[str]
    verdict: str
    created_at: datetime
    expires_at: datetime | None
    on_expiry: str
    closed_at: datetime | None
    closed_because: str
    effective_at: datetime | None
    needed: int
    approved_by: list[str]
    groups: list[str]
    escalate_to: list[str]
    claimed_by: str
    claimed_at: datetime | None
    replaces: int | None
    replaced_by: int | None
    changes: list[Changed]
    explained: list[Explained]
    decisions: list[DecisionRow]


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """A try that was under way when the switch was engaged, and has ended since."""

    run: int
    step: int
    tool: str
    attempt: int
    holder: UUID
    outcome: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A process that could act when a switch was engaged. `state`: acknowledged, in_flight, not_confirmed or ended.

    `at`: when it acknowledged or ended. One that is not confirmed can take nothing new; it may still send what it had
    begun, until `may_send_until`.
    """

    process: UUID
    kind: str
    host: str
    pid: int
    state: str
    at: datetime | None
    seen_at: datetime
    in_flight: int
    may_send_until: datetime | None


@dataclass(frozen=True, kw_only=True)
class SwitchCard:
    """A switch. `engaged_at`: from then on nothing is taken in its scope, whoever has heard of it.

    `drained_at`: when the last try that it met under way ended; null while one still is. `held`: runs in its scope that
    have not ended. `doubts`: pending cards that ask what happened, of effects in its scope.
    """

    id: int
    scope: str
    reason: str
    engaged_by: str
    engaged_at: datetime
    drained_at: datetime | None
    released_by: str
    released_at: datetime | None
    release_reason: str
    in_flight: list[InFlight]
    acknowledged: list[Acknowledged]
    participants: list[Participant]
    held: int
    doubts: list[int]


def as_json(value: object) -> Any:
    """Times become RFC 3339 in UTC, money and other decimals plain decimal text, the rest what JSON has."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return as_json(value.value)
        case str():
            return value
        case Decimal():
            return write_money(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case UUID():
            return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def write_money(amount: Decimal) -> str:
    """A decimal without exponent, with at least two places and no others that say nothing."""
    text = format(amount, "f")
    whole, _, places = text.partition(".")
    places = places.rstrip("0").ljust(2, "0")
    return f"{whole}.{places}"
