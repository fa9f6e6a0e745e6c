"""Closing a call by what came of it: a whole reply at its real cost, anything else at what it may have cost.

For the threads of the gateway; each function is a transaction (or two) and may be repeated after an outage.
"""

from django.db import transaction

from runs import limits, prices
from runs.agents import Json
from runs.budgets import Amounts, Pricing
from runs.engine import think
from runs.engine.think import Reply, Retry, Spent
from runs.errors import NoPrice
from runs.gateway.claims import Taken
from runs.gateway.provider import Answer, Credential, NoReply, Reason, Stream
from runs.models import Attempt
from runs.states import ApprovalKind, AttemptOutcome, WaitingFor
from runs.usage import Tokens, normalise


def settle(taken: Taken, answer: Answer, timings: dict[str, float]) -> None:
    """Settle a whole reply by what it really used."""
    amounts, pricing, tokens = _price(taken, answer.usage, answer.model)
    think.settle(
        taken.attempt,
        Reply(
            calls=answer.calls,
            text=answer.text,
            stop_reason=answer.stop_reason,
            amounts=amounts,
            pricing=pricing,
            estimated=bool(tokens.flaws) or pricing.unpriced,
            timings=dict(timings),
        ),
    )


def settle_unusable(taken: Taken, answer: Answer, error: str) -> None:
    """Book a whole reply which cannot be settled as one: its cost is known, and a person looks at the rest."""
    amounts, pricing, _ = _price(taken, answer.usage, answer.model)
    think.fail(
        taken.attempt,
        outcome=AttemptOutcome.FAILED,
        error=error,
        spent=Spent(estimate=amounts, pricing=pricing, note="a reply that could not be used"),
        retry=Retry(card=ApprovalKind.FAILURE),
    )


def close_unsent(attempt: int, why: str) -> None:
    """Give back a call that was not sent: its run was stopped or held, or the time to begin had passed."""
    begun = Attempt.objects.filter(pk=attempt, began_at__isnull=False).exists()
    think.fail(
        attempt,
        outcome=AttemptOutcome.CUT if begun else AttemptOutcome.NOT_BEGUN,
        error=f"not sent: {why or 'the run was stopped or held, or the time to begin had passed'}",
        spent=Spent(nothing=True),
    )


def close_orphan(attempt: int) -> None:
    """Close an open attempt that nobody in the gateway carries. One that had begun may have cost all it reserved."""
    begun = Attempt.objects.filter(pk=attempt, began_at__isnull=False).exists()
    think.fail(
        attempt,
        outcome=AttemptOutcome.CUT if begun else AttemptOutcome.NOT_BEGUN,
        error="the gateway lost track of it",
        spent=Spent(nothing=not begun),
    )


def close_cut(taken: Taken, stream: Stream, why: str) -> None:
    """Close a call that was cut: what it used is estimated, and never zero."""
    think.fail(taken.attempt, outcome=AttemptOutcome.CUT, error=f"cut: {why}", spent=_estimate(taken, stream))


def close_failed(taken: Taken, stream: Stream, credential: Credential, failure: NoReply) -> None:
    """Close a call that brought no reply, for the reason that the provider gave."""
    spent = Spent(nothing=True) if failure.unspent else _estimate(taken, stream)
    outcome = AttemptOutcome.REFUSED if failure.unspent else AttemptOutcome.UNKNOWN
    match failure.reason:
        case Reason.LIMITED:
            with transaction.atomic(durable=True):
                wait_s = limits.strike(
                    credential.name,
                    taken.request.model,
                    retry_after_s=failure.retry_after_s,
                    reason=failure.message,
                )
            outcome = AttemptOutcome.REFUSED if failure.unspent else AttemptOutcome.CUT
            retry = Retry(waiting_for=WaitingFor.PROVIDER, after_s=wait_s, note=failure.message)
        case Reason.SPENT:
            note = f"the provider's own limit on spending is reached, and waiting does not lift it. {failure.message}"
            retry = Retry(card=ApprovalKind.CREDENTIAL, note=note)
        case Reason.CREDENTIAL:
            retry = Retry(card=ApprovalKind.CREDENTIAL, note=failure.message)
        case Reason.REFUSED:
            retry = Retry(card=ApprovalKind.FAILURE, note=f"the same request would be refused again. {failure.message}")
        case Reason.FAILED:
            outcome = AttemptOutcome.FAILED
            retry = Retry(counts=True, after_s=failure.retry_after_s or 0.0)
        case Reason.BROKEN:
            retry = Retry(counts=True)
    think.fail(taken.attempt, outcome=outcome, error=failure.message, spent=spent, retry=retry)


def _price(taken: Taken, usage: Json, served: str) -> tuple[Amounts, Pricing, Tokens]:
    """What a usage record costs, by the model that served it.

    Has that no price, it is booked as reserved, an estimate, and its usage kept: it is priced when there is a price.
    """
    tokens = normalise(usage, taken.bounds)
    model = served or taken.request.model
    context = {"speed": "fast"} if isinstance(usage, dict) and usage.get("speed") == "fast" else None
    try:
        rates = prices.find_rates(model, at=taken.priced_at, prompt=tokens.prompt, context=context)
    except NoPrice:
        amounts = Amounts(usd=taken.reserved.usd, tokens=tokens.total, calls=1, steps=1)
        return amounts, Pricing(model=model, usage=usage, price=_to_price_later(taken), unpriced=True), tokens
    price = rates.to_json(at=taken.priced_at)
    if tokens.flaws and isinstance(price, dict):
        price["flaws"] = list(tokens.flaws)
    amounts = Amounts(usd=rates.cost(tokens), tokens=tokens.total, calls=1, steps=1)
    return amounts, Pricing(model=model, usage=usage, price=price), tokens


def _to_price_later(taken: Taken) -> Json:
    """What a price that comes later needs beside the usage."""
    return prices.Unpriced(
        at=taken.priced_at,
        prompt=taken.bounds.prompt,
        output=taken.bounds.output,
        long_cache=taken.bounds.long_cache,
    ).to_json()


def _estimate(taken: Taken, stream: Stream) -> Spent:
    """What a call without a whole reply may have used: its prompt as far as it was told, and a full output."""
    if stream.start_usage is None:
        return Spent(note="nothing is known of its usage: booked as reserved")
    amounts, pricing, _ = _price(taken, stream.usage, stream.model)
    known = Amounts(usd=amounts.usd, tokens=amounts.tokens, calls=1, steps=0)
    return Spent(estimate=known, pricing=pricing, note="cut: the prompt as it was counted, and a full output")
