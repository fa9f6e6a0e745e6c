"""What a model call costs, at the rates of the moment it was made.

A price that a person has set counts first (the writer of that table is here), else the published one; a model without a
price has none. The published list is opened where a price is looked up: it is a quarter of what a process has to load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from django.db.models import Exists, F, OuterRef

from runs import sql
from runs.agents import Json
from runs.errors import Conflict, Malformed, NoPrice
from runs.journal import Actor, append, require_transaction
from runs.models import LedgerEntry, Price
from runs.models.price import RATES
from runs.rates import Rates, plain_name
from runs.sanitise import clean_text
from runs.states import EntryKind
from runs.usage import Bounds, normalise


def find_rates(model: str, *, at: datetime, prompt: int, context: Mapping[str, str] | None = None) -> Rates:
    """The rates of a call whose prompt has that many tokens: a tier by prompt size applies to the whole call.

    context: genai-prices' own, such as {"speed": "fast"}.

    Raises:
        NoPrice: there is none, also not for this context, or it is zero.
    """
    return _find(model, at, prompt, context, _read_set(model))


def dearest(model: str, *, at: datetime, prompt: int) -> Rates:
    """The dearest rates that a prompt of at most this many tokens can meet. Raises: NoPrice."""
    from runs import published

    set_here = _read_set(model)
    starts = published.tier_starts(model, at=at) | {price.above for price in set_here}
    sizes = {0, prompt, *(start + 1 for start in starts if start < prompt)}
    met = [_find(model, at, size, None, set_here) for size in sizes]
    return max(met, key=lambda rates: (rates.output, rates.write_1h))


@dataclass(frozen=True, kw_only=True)
class NewPrice:
    """A price that a person sets. rates: USD per million tokens by class (`models.price.RATES`)."""

    model: str
    rates: Mapping[str, Decimal]
    above: int = 0
    effective_from: datetime | None = None
    web_searches: Decimal | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Unpriced:
    """Kept with a usage that could not be priced: when it was, and the bounds of its call."""

    at: datetime
    prompt: int
    output: int
    long_cache: bool

    def to_json(self) -> Json:
        return {
            "unpriced": True,
            "priced_at": self.at.astimezone(UTC).isoformat(),
            "bounds": {"prompt": self.prompt, "output": self.output, "long_cache": self.long_cache},
        }


@dataclass(frozen=True, kw_only=True)
class Recost:
    """What an attempt cost, now that its model has a price."""

    attempt: int
    model: str
    usd: Decimal
    tokens: int
    price: Json
    usage: Json


def recost() -> list[Recost]:
    """Every usage that waits for a price and has one now."""
    found = []
    rows = LedgerEntry.objects.filter(unpriced=True, budget_id=F("run_id")).exclude(
        Exists(LedgerEntry.objects.filter(attempt=OuterRef("attempt"), kind=EntryKind.CORRECT, estimated=False))
    )
    for entry in rows:
        told = entry.price if isinstance(entry.price, dict) else {}
        tokens = normalise(entry.usage, Bounds(**told["bounds"]))
        at = datetime.fromisoformat(told["priced_at"])
        try:
            rates = find_rates(entry.model, at=at, prompt=tokens.prompt)
        except NoPrice:
            continue
        assert entry.attempt_id is not None
        found.append(
            Recost(
                attempt=entry.attempt_id,
                model=entry.model,
                usd=rates.cost(tokens),
                tokens=tokens.total,
                price=rates.to_json(at=at),
                usage=entry.usage,
            )
        )
    return found


def set_price(new: NewPrice, *, actor: Actor) -> Price:
    """Raises: Malformed; Conflict when there is one for this model, prompt size and date already."""
    require_transaction()
    name = "*" if new.model.strip() == "*" else plain_name(new.model.strip())
    if not name or not new.reason.strip():
        raise Malformed("A price needs a model and a reason.")
    if any(not (new.rates[rate].is_finite() and 0 < new.rates[rate] < 10**6) for rate in RATES):
        raise Malformed("Each rate of a price is more than nothing.", remedy="Write USD per million tokens, as 2.50.")
    row = sql.fetch_one(
        f"INSERT INTO runs_price (model, above, effective_from, {', '.join(RATES)}, web_searches, reason, set_by_id, set_at,"
        f" withdrawn_because) VALUES (%s, %s, %s, {', '.join(['%s'] * len(RATES))}, %s, %s, %s, lw_clock(), '')"
        " ON CONFLICT DO NOTHING RETURNING id",
        [
            clean_text(name)[:100],
            new.above,
            new.effective_from,
            *(new.rates[rate] for rate in RATES),
            new.web_searches,
            clean_text(new.reason),
            actor.user,
        ],
    )
    if row is None:
        raise Conflict(f"There is a price of {name} from that moment on.", remedy="Withdraw it, or say another moment.")
    append(
        "price.set",
        actor=actor,
        after={"price": row[0], "model": name, "above": new.above, "from": new.effective_from, **dict(new.rates)},
        why=new.reason,
    )
    return Price.objects.get(pk=row[0])


def withdraw(price: int, *, actor: Actor, why: str) -> None:
    """What was priced with it stays. Raises: Conflict when it is withdrawn already."""
    require_transaction()
    row = sql.fetch_one(
        "UPDATE runs_price SET withdrawn_at = lw_clock(), withdrawn_by_id = %s, withdrawn_because = %s"
        " WHERE id = %s AND withdrawn_at IS NULL RETURNING model",
        [actor.user, clean_text(why), price],
    )
    if row is None:
        raise Conflict("This price is withdrawn already.")
    append("price.withdrawn", actor=actor, before={"price": price, "model": row[0]}, why=why)


def load() -> None:
    """Read the published prices now: it takes a moment, which the first call should not wait for."""
    from runs import published

    published.load()


def _read_set(model: str) -> list[Price]:
    """The prices that people have set for this model, and for any."""
    return list(Price.objects.filter(model__in=[plain_name(model), "*"], withdrawn_at__isnull=True))


def _find(model: str, at: datetime, prompt: int, context: Mapping[str, str] | None, set_here: Sequence[Price]) -> Rates:
    if not context and (own := _choose([p for p in set_here if p.model != "*"], at, prompt)):
        return own
    from runs import published

    try:
        return published.find(model, at=at, prompt=prompt, context=context)
    except NoPrice:
        if not context and (ceiling := _choose([p for p in set_here if p.model == "*"], at, prompt)):
            return ceiling
        raise


def _choose(rows: Sequence[Price], at: datetime, prompt: int) -> Rates | None:
    """Of the rows that hold at a moment the newest, of its tiers the one for the prompt.

    Where none holds yet, the first that will: what was used before there was a price is priced by the first one.
    """
    fitting = [p for p in rows if prompt > p.above or p.above == 0]
    holding = [p for p in fitting if p.effective_from is None or p.effective_from <= at]
    if holding:
        since = max((p.effective_from for p in holding if p.effective_from), default=None)
    elif fitting:
        since = min(p.effective_from for p in fitting if p.effective_from)
    else:
        return None
    found = max((p for p in fitting if p.effective_from == since), key=lambda p: p.above)
    return Rates(
        model=found.model,
        **{rate: getattr(found, rate) for rate in RATES},
        web_searches=found.web_searches,
        tier=f"prompt above {found.above} tokens" if found.above else "",
        effective_from=since,
        source=f"set in the admin, price {found.pk}",
    )
