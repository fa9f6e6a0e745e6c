"""The published prices: those of the package genai-prices, whose version is kept with every entry of the ledger, and a few
it does not have. The package answers with a standard estimate where it does not know; so what it knows is looked up here.
"""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from importlib.metadata import version

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, StartDateConstraint, TieredPrices

from runs.errors import NoPrice
from runs.rates import Rates, plain_name

PROVIDER = "anthropic"

# Published prices that genai-prices 0.2.3 does not have: platform.claude.com, pricing page, November 2026.
_PAGE = "platform.claude.com/docs/en/about-claude/pricing, read in November 2026"
_FROM_PAGE: dict[str, tuple[str, str, str, str, str]] = {
    # model: input, cache read, 5-minute write, 1-hour write, output
    "claude-mythos-5-1": ("10", "0.25", "12.50", "20", "50"),
    "claude-mythos-5": ("10", "1.00", "12.50", "20", "50"),
}
_KEYS = {
    "uncached": "input_mtok",
    "cache_read": "cache_read_mtok",
    "write_5m": "cache_write_mtok",
    "write_1h": "cache_write_1h_mtok",
    "output": "output_mtok",
}


def load() -> None:
    """Read the list now: it takes a moment, which the first call should not wait for."""
    _find_model("claude-sonnet-5-5")
    _package()


def find(model: str, *, at: datetime, prompt: int, context: Mapping[str, str] | None = None) -> Rates:
    """The rates of a model at a moment, for a prompt of that many tokens. Raises: NoPrice."""
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


def tier_starts(model: str, *, at: datetime) -> set[int]:
    """The prompt sizes above which another rate holds."""
    info = _find_model(model)
    if info is None:
        return set()
    price, _ = _price_at(info, at, None)
    rates = [getattr(price, key) for key in _KEYS.values()]
    return {tier.start for rate in rates if isinstance(rate, TieredPrices) for tier in rate.tiers}


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
