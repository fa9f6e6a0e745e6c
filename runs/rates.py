"""What a model costs at one moment: each rate stands for itself, none is derived from another."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, Decimal

from runs.agents import Json
from runs.usage import Tokens

MILLION = 1_000_000
_LEDGER_PLACES = Decimal("0.0000000001")  # what the ledger keeps
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


def plain_name(model: str) -> str:
    """A model's name without its date."""
    return _DATED.sub("", model.lower()).removesuffix("-latest")
