"""What a model call costs. Each rate stands for itself (USD per million tokens): none is derived from another.

A price that a person has set counts first (the writer of that table is here). Else the rates come from the package
genai-prices, whose version is kept with every entry of the ledger. It answers with a standard estimate where it does not
know; so what it knows is looked up here, and a model without a price has none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, Decimal
from functools import cache
from importlib.metadata import version

from django.db.models import Exists, F, OuterRef
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, StartDateConstraint, TieredPrices

from runs import sql
from runs.agents import Json
from runs.errors import Conflict, Malformed, NoPrice
from runs.journal import Actor, append, require_transaction
from runs.models import LedgerEntry, Price
from runs.models.price import RATES
from runs.sanitise import clean_text
from runs.states import EntryKind
from runs.usage import Bounds, Tokens, normalise

PROVIDER = "anthropic"
MILLION = 1_000_000
_LEDGER_PLACES = Decimal("0.0000000001")  # what the ledger keeps

# Published prices that genai-prices 0.2.3 does not have: platform.claude.com, pricing page, November 2026.
_PAGE = "platform.claude.com/docs/en/about-claude/pricing, read in November 2026"
_FROM_PAGE: dict[str, tuple[str, str, str, str, str]] = {
    # model: input, cache read, 5-minute write, 1-hour write, output
    "claude-mythos-5-1": ("10", "0.25", "12.50", "20", "50"),
    "claude-mythos-5": ("10", "1.00", "12.50", "20", "50"),
}
_DATED = re.compile(r"[-@]20\d{6}")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """USD per million tokens of each class, web searches per thousand; where they come from and since when."""

    model: str
    uncached: Decimal
    cache_read: Decimal
    write_5m: Decimal
    write_1h: Decimal
    output: Decimal
    web_searches: Decimal | None = None
    tier: str = ""
    effective_from: datetime | date | None = None
    source: str = ""

    def cost(self, tokens: Tokens) -> Decimal:
        """USD of what was used, rounded up to what the ledger keeps."""
        usd = (
            self.uncached * tokens.uncached
            + self.cache_read * tokens.cache_read
            + self.write_5m * tokens.write_5m
            + self.write_1h * tokens.write_1h
            + self.output * tokens.output
        ) / MILLION + (self.web_searches or Decimal(0)) * tokens.web_searches / 1000
        return usd.quantize(_LEDGER_PLACES, rounding=ROUND_CEILING)

    def to_json(self, *, at: datetime) -> Json:
        """As the ledger keeps it. `at`: the moment whose price this is."""
        return {
            "model": self.model,
            "per_million": {
                "uncached": str(self.uncached),
                "cache_read": str(self.cache_read),
                "write_5m": str(self.write_5m),
                "write_1h": str(self.write_1h),
                "output": str(self.output),
            },
            "tier": self.tier,
            "effective_from": self.effective_from.isoformat() if self.effective_from else None,
            "priced_at": at.astimezone(UTC).isoformat(),
            "source": self.source,
        }


def find_rates(model: str, *, at: datetime, prompt: int, context: Mapping[str, str] | None = None) -> Rates:
    """The rates of a call whose prompt has that many tokens: a tier by prompt size applies to the whole call.

    context: genai-prices' own, such as {"speed": "fast"}.

    Raises:
        NoPrice: there is none, also not for this context, or it is zero.
    """
    return _find(model, at, prompt, context, _read_set(model))


def dearest(model: str, *, at: datetime, prompt: int) -> Rates:
    """The dearest rates that a prompt of at most this many tokens can meet. Raises: NoPrice."""
    set_here = _read_set(model)
    starts = _tier_starts(model, at) | {price.above for price in set_here}
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
    _find_model("claude-sonnet-5-5")
    _package()


def plain_name(model: str) -> str:
    """A model's name without its date."""
    return _DATED.sub("", model.lower()).removesuffix("-latest")


def _read_set(model: str) -> list[Price]:
    """The prices that people have set for this model, and for any."""
    return list(Price.objects.filter(model__in=[plain_name(model), "*"], withdrawn_at__isnull=True))


def _find(model: str, at: datetime, prompt: int, context: Mapping[str, str] | None, set_here: Sequence[Price]) -> Rates:
    if not context and (own := _choose([p for p in set_here if p.model != "*"], at, prompt)):
        return own
    try:
        return _find_published(model, at, prompt, context)
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


def _find_published(model: str, at: datetime, prompt: int, context: Mapping[str, str] | None) -> Rates:
    info = _find_model(model)
    if info is not None and _knows(info, at, context):
        price, since = _price_at(info, at, context)
        found = {name: _at_size(price, key, prompt) for name, key in _KEYS.items()}
        if any(not rate for rate, _ in found.values()):
            raise NoPrice(model)
        tier = next((tier for _, tier in found.values() if tier), "")
        rates = {name: rate for name, (rate, _) in found.items() if rate is not None}
        searches, _ = _at_size(price, "web_searches_kcount", prompt)
        return Rates(
            model=info.id,
            **rates,
            web_searches=searches,
            tier=tier,
            effective_from=since,
            source=_package(),
        )
    if (plain := plain_name(model)) in _FROM_PAGE and not context:
        uncached, read, write_5m, write_1h, output = map(Decimal, _FROM_PAGE[plain])
        return Rates(
            model=plain,
            uncached=uncached,
            cache_read=read,
            write_5m=write_5m,
            write_1h=write_1h,
            output=output,
            source=_PAGE,
        )
    raise NoPrice(model)


_KEYS = {
    "uncached": "input_mtok",
    "cache_read": "cache_read_mtok",
    "write_5m": "cache_write_mtok",
    "write_1h": "cache_write_1h_mtok",
    "output": "output_mtok",
}


@cache
def _package() -> str:
    return f"genai-prices {version('genai-prices')}"


@cache
def _find_model(model: str) -> ModelInfo | None:
    """The entry of exactly this model or a dated name of it. The package itself also takes what only begins like one."""
    provider = next(p for p in get_snapshot().providers if p.id == PROVIDER)
    info = provider.find_model(model)
    if info is None:
        return None
    known = {info.id, info.id.removesuffix("-latest"), info.id.removesuffix("-0")}
    return info if plain_name(model) in known else None


def _price_at(info: ModelInfo, at: datetime, context: Mapping[str, str] | None) -> tuple[ModelPrice, date | None]:
    """The price at a moment, and since when it holds, where that is known."""
    since: date | None = None
    if isinstance(info.prices, list):
        since = next(
            (_start(p) for p in reversed(info.prices) if p.constraint is None or p.constraint.active(at)), None
        )
    return info.get_prices(at, context), since


def _knows(info: ModelInfo, at: datetime, context: Mapping[str, str] | None) -> bool:
    """Whether this context has a price of its own; the package would answer with the standard one."""
    return not context or any(
        (v.constraint is None or v.constraint.active(at)) and v.when == context for v in info.price_variants or ()
    )


def _start(price: ConditionalPrice) -> date | None:
    return price.constraint.start_date if isinstance(price.constraint, StartDateConstraint) else None


def _at_size(price: ModelPrice, key: str, prompt: int) -> tuple[Decimal | None, str]:
    rate = getattr(price, key)
    if not isinstance(rate, TieredPrices):
        return rate, ""
    for tier in reversed(rate.tiers):
        if prompt > tier.start:
            return tier.price, f"prompt above {tier.start} tokens"
    return rate.base, f"prompt up to {rate.tiers[0].start} tokens" if rate.tiers else ""


def _tier_starts(model: str, at: datetime) -> set[int]:
    info = _find_model(model)
    if info is None:
        return set()
    price, _ = _price_at(info, at, None)
    rates = [getattr(price, key) for key in _KEYS.values()]
    return {tier.start for rate in rates if isinstance(rate, TieredPrices) for tier in rate.tiers}
