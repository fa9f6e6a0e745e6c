"""What a model call costs. Each rate stands for itself (USD per million tokens): none is derived from another.

The rates come from the package genai-prices, whose version is kept with every entry of the ledger. It answers with a
standard estimate where it does not know; so what it knows is looked up here, and a model without a price has none.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, Decimal
from functools import cache
from importlib.metadata import version

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, StartDateConstraint, TieredPrices

from runs.agents import Json
from runs.errors import NoPrice
from runs.gateway.usage import Tokens

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
    effective_from: date | None = None
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
    if (plain := _plain_name(model)) in _FROM_PAGE and not context:
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


def dearest(model: str, *, at: datetime, prompt: int) -> Rates:
    """The dearest rates that a prompt of at most this many tokens can meet. Raises: NoPrice."""
    sizes = {0, prompt, *(start + 1 for start in _tier_starts(model, at) if start < prompt)}
    met = [find_rates(model, at=at, prompt=size) for size in sizes]
    return max(met, key=lambda rates: (rates.output, rates.write_1h))


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
    return info if _plain_name(model) in known else None


def _plain_name(model: str) -> str:
    return _DATED.sub("", model.lower()).removesuffix("-latest")


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
