"""What a request may carry. Ranges are those of the columns, so that nothing reaches the database that it refuses."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field, JsonValue

from console.api.requests import Body
from runs.agents import EVENT_CHARS
from runs.operations import GOAL_CHARS, LONGEST_S
from runs.queries.paging import BIGGEST
from runs.states import Verdict

type Count = Annotated[int, Field(ge=0, le=BIGGEST)]
type Usd = Annotated[Decimal, Field(ge=0, max_digits=20, decimal_places=10)]
type Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
type Reason = Annotated[str, Field(min_length=1, max_length=10_000)]
type Long = Annotated[str, Field(max_length=100_000)]
type Name = Annotated[str, Field(min_length=1, max_length=200)]


def _within_reach(moment: datetime) -> datetime:
    if not 2000 <= moment.year <= 9000:
        raise ValueError("must lie between the years 2000 and 9000")
    return moment


class BudgetOfStart(Body):
    """Limits of the run and all its descendants; what is left out is the agent's own."""

    usd: Usd | None = None
    tokens: Count | None = None
    calls: Count | None = None
    effects: Count | None = None
    steps: Annotated[int, Field(ge=1, le=BIGGEST)] | None = None
    working_s: Seconds | None = None


class Start(Body):
    agent: Annotated[str, Field(min_length=1, max_length=100)]
    goal: Annotated[str, Field(min_length=1, max_length=GOAL_CHARS)]
    constraints: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(max_length=100)] = []
    inputs: dict[str, JsonValue] = {}
    labels: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=100)], Annotated[str, Field(max_length=200)]],
        Field(max_length=50),
    ] = {}
    budget: BudgetOfStart = BudgetOfStart()
    max_age_s: Seconds | None = None
    deadline_at: Annotated[AwareDatetime, AfterValidator(_within_reach)] | None = None


class WithReason(Body):
    reason: Reason


class NewLimits(Body):
    """New limits, in place of the old ones; what is left out stays."""

    usd: Usd | None = None
    tokens: Count | None = None
    calls: Count | None = None
    effects: Count | None = None
    steps: Count | None = None
    working_s: Seconds | None = None
    reason: Reason


class Grant(Body):
    """How much more."""

    usd: Usd | None = None
    tokens: Count | None = None
    calls: Count | None = None
    effects: Count | None = None
    steps: Count | None = None
    working_s: Seconds | None = None


class Decide(Body):
    """`version` is that of the card that was seen; the rest is what the verdict needs."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    verdict: Verdict
    arguments: dict[str, JsonValue] | None = None
    answer: Long = ""
    result: JsonValue = None
    grant: Grant | None = None
    comment: Long = ""


class OneApproval(Body):
    approval: Annotated[int, Field(ge=1, le=BIGGEST)]
    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


class ApproveBatch(Body):
    """Cards with the versions that were seen."""

    approvals: Annotated[list[OneApproval], Field(min_length=1, max_length=100)]
    comment: Long = ""


class StoreEvent(Body):
    """`source` and `delivery_id` together name one delivery: the same again is the same event. `name` and `key` say which
    wait it is for: those that a tool gave its `Wait`."""

    name: Annotated[str, Field(min_length=1, max_length=EVENT_CHARS)]
    key: Annotated[str, Field(max_length=EVENT_CHARS)] = ""
    payload: JsonValue = None
    delivery_id: Name
    source: Name


class Engage(Body):
    """`scope`: all, agent:NAME, tool:NAME or run:ID."""

    scope: Name
    reason: Reason


class Release(Body):
    """`per_minute`: how many of the held runs go on each minute; 0 is all at once."""

    reason: Annotated[str, Field(max_length=10_000)] = ""
    per_minute: Annotated[int, Field(ge=0, le=100_000)] = 0
