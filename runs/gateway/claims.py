"""Taking a call: one transaction that judges and reserves, or parks what cannot be called now.

Lock, then judge: the run, its open think step, the provider's limit, and last the budgets of the run and its ancestors.
For the threads of the gateway.
"""

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import connection, transaction

from runs import approvals, budgets, clock, course, lifecycle, limits, prices, processes, sql, steps, switches
from runs.agents import MODEL_CREDENTIAL, Agent, Json, get_agent
from runs.budgets import Amounts, Pricing
from runs.engine import briefing, briefing_request, renewing, think
from runs.engine.briefing_request import Request
from runs.engine.hand import later
from runs.engine.waits import cover, share_was_asked, wait_for_budget, wait_for_contract
from runs.errors import NoPrice, OverBudget, UnknownAgent
from runs.gateway import provider
from runs.gateway.database import OUTAGES
from runs.gateway.provider import Credential
from runs.models import Approval, Run, Step
from runs.rates import Rates
from runs.states import ApprovalKind, ApprovalState, ProcessKind, RunState, StepKind, StepState, Verdict, WaitingFor
from runs.usage import Bounds, Tokens

# What the API adds to a request that has tools (its own system prompt for them) is not in the bytes that are sent.
UNSEEN_TOKENS = 2_000
SLOWEST_TOKENS_PER_S = 20.0
LEAST_TIMEOUT_S = 300.0
PRICE_AGAIN_S = 600.0
# The provider's count is an estimate of what it will bill.
COUNT_SLACK_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A call that was taken: its attempt is open and its worst case reserved. timeout_s: for the whole call.

    begin_until: seconds of this machine's boot-time clock, counted from before the take was sent. A process that was
    stopped in between finds it passed, and sends nothing.
    """

    attempt: int
    run: int
    step: int
    number: int
    request: Request
    bounds: Bounds
    priced_at: datetime
    reserved: Amounts
    timeout_s: float
    begin_until: float


@dataclass(frozen=True, kw_only=True)
class Uncounted:
    """A call that does not fit by the bytes of its prompt: perhaps it does by the provider's own count of its tokens."""

    run: int
    request: Request
    seq: int  # of the run's journal: the request is the run's as long as nothing was written since


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The same with what the provider counted; None: it did not say, and the bytes decide."""

    call: Uncounted
    tokens: int | None


@dataclass(frozen=True, kw_only=True)
class Parked:
    """A run was due, and no call was made for it now. moved: it is not due any more."""

    run: int
    moved: bool = True


class CannotTake(Exception):
    """Taking this run's call failed for a reason of our own. passing: a lock that took too long, or an outage."""

    def __init__(self, run: int, *, passing: bool) -> None:
        self.run, self.passing = run, passing
        super().__init__(f"the call of run {run} could not be taken")


def take_call(
    gateway: uuid.UUID,
    credential: Credential | None,
    *,
    avoid: Collection[int] = (),
    counted: Counted | None = None,
) -> Taken | Parked | Uncounted | None:
    """Take the call of one due run. None: none is due. avoid: runs to leave alone. counted: take that run's.

    Raises:
        CannotTake: something of ours broke; its cause says what.
    """
    number: int | None = None
    begin_until = clock.boottime() + settings.LEASE_S
    try:
        with transaction.atomic(durable=True):
            switches.lock_shared()
            number = _find_due(avoid, counted.call.run if counted else None)
            return None if number is None else _take(number, gateway, credential, begin_until, counted)
    except _Short as short:
        return short.uncounted or _park_for_budget(short)
    except OUTAGES as error:
        if number is None:
            raise
        connection.close()
        raise CannotTake(number, passing=True) from error
    except Exception as error:
        if number is None:
            raise
        raise CannotTake(number, passing=False) from error


def register(credential: Credential | None) -> uuid.UUID:
    """Register this process as a gateway, and its credential, so that its rate can be set."""
    prices.load()
    if credential is not None:
        with transaction.atomic(durable=True):
            limits.know(credential.name)
    return processes.register(ProcessKind.GATEWAY)


def begin(attempt: int) -> bool:
    """The last look, right before the request is sent."""
    with transaction.atomic(durable=True):
        return steps.begin(attempt)


def quarantine(run: int, error: str) -> None:
    """Let a run whose call cannot even be taken wait for a person, so that it is not tried for ever."""
    with transaction.atomic(durable=True):
        switches.lock_shared()
        locked = lifecycle.lock(run)
        step = _open_think(locked)
        if step is None:
            return
        think.ask_person(locked, step, title="A model call could not be prepared", why=error)
        course.rest(locked, holding=True)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a gateway has in flight, as the database sees it: open attempts (when renewed), and those to cut, with why."""

    open: frozenset[int]
    cuts: list[tuple[int, str]]


def look(gateway: uuid.UUID, *, renew: bool) -> Look:
    """Find what must be cut: its run ended or was switched off; a pause lets it finish.

    renew: and renew every lease in one statement.
    """
    still_open: list[int] = []
    if renew:
        with transaction.atomic(durable=True):
            still_open = steps.renew_attempts(gateway, lease_s=settings.LEASE_S)
            processes.saw(gateway)
    switches.acknowledge(gateway)
    if renew and not still_open:
        return Look(open=frozenset(), cuts=[])
    cuts = [(int(attempt), str(why)) for attempt, why in sql.fetch_all(_CUTS, {"gateway": gateway, "tool": ""})]
    return Look(open=frozenset(still_open), cuts=cuts)


class _Short(Exception):
    def __init__(
        self, run: int, amounts: Amounts, *, asked: bool, costs: dict[str, Json], uncounted: Uncounted | None
    ) -> None:
        self.run, self.amounts, self.asked, self.costs, self.uncounted = run, amounts, asked, costs, uncounted
        super().__init__()


_DUE = """
    SELECT r.id FROM runs_run r
    WHERE r.state = 'thinking' AND r.due_at <= lw_now() AND r.id <> ALL(%s)
      AND coalesce(least(r.expires_at, r.deadline_at) > lw_now(), true)
      AND NOT EXISTS (SELECT FROM runs_attempt a WHERE a.run_id = r.id AND a.outcome = 'open')
      AND coalesce(r.id = %s::bigint, true)
    ORDER BY r.priority DESC, r.due_at LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED
"""

_CUTS = f"""
    SELECT a.id, CASE WHEN r.ended_at IS NOT NULL THEN 'the run was ' || r.state
                      ELSE 'switch ' || s.scope || ': ' || s.reason END
    FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id
    LEFT JOIN LATERAL ({switches.IN_SCOPE}) s ON true
    WHERE a.holder = %(gateway)s AND a.outcome = 'open'
      AND (r.ended_at IS NOT NULL OR s.scope IS NOT NULL)
"""


def _find_due(avoid: Collection[int], this: int | None) -> int | None:
    row = sql.fetch_one(_DUE, [list(avoid), this])
    return int(row[0]) if row else None


def _open_think(run: Run) -> Step | None:
    """The think step of a locked run that is ours to call, locked; None when somebody else has it by now."""
    if run.state != RunState.THINKING:
        return None
    found = (
        Step.objects.filter(run=run, kind=StepKind.THINK, state=StepState.PLANNED).values_list("pk", flat=True).first()
    )
    return None if found is None else steps.lock(found)


def _take(
    number: int, gateway: uuid.UUID, credential: Credential | None, begin_until: float, counted: Counted | None
) -> Taken | Parked:
    # The row is locked; what is decided about it is read now, in statements of their own.
    run = lifecycle.lock(number)
    step = _open_think(run)
    if step is None:
        if run.state != RunState.THINKING:
            return Parked(run=number)
        if Step.objects.filter(run=run, kind=StepKind.THINK, state=StepState.TAKEN).exists():
            return Parked(run=number, moved=False)
        return _parked(run)
    if by := think.holder_of(run):
        lifecycle.hold(run.pk, by)
        return Parked(run=number)
    try:
        agent = get_agent(run.agent)
    except UnknownAgent:
        wait_for_contract(step, run.agent)
        return _parked(run)
    if agent.decide is not None:
        # By its code of today it decides without a model: its worker has it.
        course.rest(run, holding=True)
        return Parked(run=number)
    if credential is None:
        note = "there is no credential for the model provider. Set ANTHROPIC_API_KEY and start the gateway again."
        renewing.wait_for_credential(run, step, MODEL_CREDENTIAL, why=note)
        return _parked(run)
    return _take_step(run, step, agent, gateway, credential, begin_until, counted)


def _take_step(
    run: Run,
    step: Step,
    agent: Agent,
    gateway: uuid.UUID,
    credential: Credential,
    begin_until: float,
    counted: Counted | None,
) -> Taken | Parked:
    if counted is not None and counted.call.seq != run.journal_seq:
        counted = None  # something happened to the run since: its request is another one
    request = counted.call.request if counted else briefing.request(agent, briefing.build(run.pk))
    bounds = Bounds(
        prompt=_bound_prompt(request, counted),
        output=request.max_tokens,
        long_cache=provider.asks_long_cache(request),
    )
    priced_at = clock.now()
    try:
        rates = prices.dearest(request.model, at=priced_at, prompt=bounds.prompt)
        _refuse_unpriced(run)
    except NoPrice as error:
        _wait_for_price(run, step, error)
        return _parked(run)
    worst = _worst(rates, request, bounds)
    if closed := limits.pass_through(credential.name, request.model, step=step.pk):
        _wait_for_provider(step, closed)
        return _parked(run)
    timeout_s = LEAST_TIMEOUT_S + request.max_tokens / SLOWEST_TOKENS_PER_S
    attempt = steps.open_attempt(
        step,
        epoch=run.epoch,
        holder=gateway,
        performer=gateway,
        lease_s=settings.LEASE_S,
        begin_within_s=settings.LEASE_S,
        timeout_s=timeout_s,
    )
    asked = share_was_asked(step) or budgets.is_finishing(run.pk)
    try:
        lifecycle.count_queued(run)
        budgets.reserve(
            run.pk,
            worst,
            attempt=attempt.pk,
            pricing=Pricing(model=request.model, price=rates.to_json(at=priced_at)),
            note=f"step {step.number}: at most, for {request.model}",
            asked=asked,
            # From here on it goes by its number alone, and the call itself takes seconds.
            at_once=True,
        )
    except OverBudget as short:
        # The attempt goes with this transaction; the next one judges again and parks.
        countable = counted is None and short.dimension in ("usd", "tokens")
        raise _Short(
            run.pk,
            worst,
            asked=asked,
            costs=_say_costs(request, rates, worst),
            uncounted=Uncounted(run=run.pk, request=request, seq=run.journal_seq) if countable else None,
        ) from None
    return Taken(
        attempt=attempt.pk,
        run=run.pk,
        step=step.pk,
        number=step.number,
        request=request,
        bounds=bounds,
        priced_at=priced_at,
        reserved=worst,
        timeout_s=timeout_s,
        begin_until=begin_until,
    )


def _bound_prompt(request: Request, counted: Counted | None) -> int:
    """Tokens that the prompt has at most: one per byte that is sent. What the provider counts is nearly that of the call."""
    by_bytes = provider.measure(request) + UNSEEN_TOKENS
    if counted is None or counted.tokens is None:
        return by_bytes
    return min(by_bytes, counted.tokens + counted.tokens // 50 + COUNT_SLACK_TOKENS)


def _parked(run: Run) -> Parked:
    """Move a run whose think step waits now to where that puts it."""
    course.rest(run, holding=True)
    return Parked(run=run.pk)


def _park_for_budget(short: _Short) -> Parked:
    with transaction.atomic(durable=True):
        run = lifecycle.lock(short.run)
        step = _open_think(run)
        if step is not None:
            if budgets.is_finishing(run.pk):
                # Its last think is paid for: by exactly what is missing, and due at once.
                cover(run, short.amounts)
            try:
                budgets.require_room(run.pk, short.amounts, asked=short.asked)
            except OverBudget as error:
                wait_for_budget(run, step, error, costs=short.costs)
                course.rest(run, holding=True)
    return Parked(run=short.run)


def _refuse_unpriced(run: Run) -> None:
    """A call that was served by a model without a price is counted as an estimate; the next one waits for the price.

    Raises:
        NoPrice: where a limit in USD holds the run.
    """
    row = sql.fetch_one(
        "SELECT e.model FROM runs_ledgerentry e WHERE e.run_id = %s AND e.budget_id = %s AND e.unpriced"
        " AND NOT EXISTS (SELECT FROM runs_ledgerentry t WHERE t.budget_id = e.budget_id"
        "  AND t.attempt_id = e.attempt_id AND t.kind = 'correct' AND NOT t.estimated)"
        " AND EXISTS (SELECT FROM runs_budget b WHERE b.run_id = ANY (lw_chain(%s)) AND b.usd_limit IS NOT NULL) LIMIT 1",
        [run.pk, run.pk, run.pk],
    )
    if row is not None:
        raise NoPrice(str(row[0]))


def _wait_for_price(run: Run, step: Step, error: NoPrice) -> None:
    """What cannot be priced does not run, whatever its limits: unknown never counts as zero."""
    note = (
        f"there is no price for the model {error.model!r}, so what a call may cost is not known. "
        "Set its price in the admin, or give the agent a model that has one."
    )
    if not Approval.objects.filter(step=step, kind=ApprovalKind.BUDGET, state=ApprovalState.PENDING).exists():
        approvals.ask(
            run,
            ApprovalKind.BUDGET,
            title=f"No price for {error.model}",
            why=note,
            step=step,
            evidence={"model": error.model},
            verdicts=[Verdict.STOP],
        )
    steps.wait(
        step,
        WaitingFor.BUDGET,
        note=note,
        on="an admin",  # nobody else may set a price
        wake_at=later(PRICE_AGAIN_S),
        and_then="the price is looked up again",
    )


def _wait_for_provider(step: Step, closed: limits.Closed) -> None:
    steps.wait(
        step,
        WaitingFor.PROVIDER,
        note=closed.reason,
        on="the model provider",
        wake_at=later(closed.wait_s),
        and_then="the model is called",
    )


def _say_costs(request: Request, rates: Rates, worst: Amounts) -> dict[str, Json]:
    """What a person should know of the next call: at most, and what its prompt costs with a warm cache and a cold one.

    After a pause the provider has forgotten the prompt: it is written to its cache again, at the dearer rate.
    """
    parts = briefing_request.parts(request)
    again = sum(int(part.tokens * part.cacheable) for part in parts)
    fresh = sum(part.tokens for part in parts) - again
    warm = rates.cost(Tokens(uncached=fresh, cache_read=again))
    cold = rates.cost(Tokens(uncached=fresh, write_5m=again))
    return {
        "next_call_usd_at_most": f"{worst.usd:.4f}",
        "prompt_usd_if_cached": f"{warm:.4f}",
        "prompt_usd_after_a_pause": f"{cold:.4f}",
    }


def _worst(rates: Rates, request: Request, bounds: Bounds) -> Amounts:
    """The most that a call can cost: every byte a token of the dearest class that the request allows, a full output."""
    if bounds.long_cache:
        tokens = Tokens(write_1h=bounds.prompt, output=bounds.output)
    elif provider.asks_cache(request) and rates.write_5m > rates.uncached:
        tokens = Tokens(write_5m=bounds.prompt, output=bounds.output)
    else:
        tokens = Tokens(uncached=bounds.prompt, output=bounds.output)
    return Amounts(usd=rates.cost(tokens), tokens=tokens.total, calls=1, steps=1)
