"""Prices: every row of the published table to the cent, cached and not; what has no price is never free."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price

from runs.agents import Json
from runs.errors import NoPrice
from runs.prices import dearest, find_rates
from runs.rates import Rates
from runs.usage import Bounds, Tokens, normalise

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
BOUNDS = Bounds(prompt=1_000_000, output=128_000)
CENT = Decimal("0.01")

pytestmark = pytest.mark.django_db

# USD per million tokens: input, 5-minute write, 1-hour write, cache read, output (published, November 2026).
ROWS = [
    ("claude-fable-5-2", "8", "10", "16", "0.20", "40"),
    ("claude-mythos-5-2", "8", "10", "16", "0.20", "40"),
    ("claude-fable-5-1", "10", "12.50", "20", "0.25", "50"),
    ("claude-mythos-5-1", "10", "12.50", "20", "0.25", "50"),
    ("claude-fable-5", "10", "12.50", "20", "1.00", "50"),
    ("claude-mythos-5", "10", "12.50", "20", "1.00", "50"),
    ("claude-opus-5-5", "4", "5", "8", "0.20", "20"),
    ("claude-opus-5", "5", "6.25", "10", "0.50", "25"),
    ("claude-opus-4-8", "5", "6.25", "10", "0.50", "25"),
    ("claude-opus-4-7", "5", "6.25", "10", "0.50", "25"),
    ("claude-opus-4-6", "5", "6.25", "10", "0.50", "25"),
    ("claude-opus-4-5", "5", "6.25", "10", "0.50", "25"),
    ("claude-opus-4-5-20251101", "5", "6.25", "10", "0.50", "25"),
    ("claude-sonnet-5-5", "2", "2.50", "4", "0.10", "10"),
    ("claude-sonnet-5", "2", "2.50", "4", "0.20", "10"),
    ("claude-sonnet-4-6", "3", "3.75", "6", "0.30", "15"),
    ("claude-haiku-4-5", "1", "1.25", "2", "0.10", "5"),
    ("claude-haiku-4-5-20251001", "1", "1.25", "2", "0.10", "5"),
]
FAST = [
    ("claude-fable-5-2", "16", "80"),
    ("claude-mythos-5-2", "16", "80"),
    ("claude-opus-5-5", "8", "40"),
    ("claude-opus-5", "10", "50"),
    ("claude-opus-4-8", "10", "50"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_class_of_tokens_costs_what_the_table_says(row: tuple[str, ...]) -> None:
    model, uncached, write_5m, write_1h, read, output = row
    usage: Json = {
        "input_tokens": 300_000,
        "cache_creation_input_tokens": 500_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 200_000, "ephemeral_1h_input_tokens": 300_000},
        "cache_read_input_tokens": 700_000,
        "output_tokens": 90_000,
    }
    tokens = normalise(usage, BOUNDS)
    wanted = (
        Decimal(uncached) * Decimal("0.3")
        + Decimal(write_5m) * Decimal("0.2")
        + Decimal(write_1h) * Decimal("0.3")
        + Decimal(read) * Decimal("0.7")
        + Decimal(output) * Decimal("0.09")
    )
    assert find_rates(model, at=NOW, prompt=tokens.prompt).cost(tokens).quantize(CENT) == wanted.quantize(CENT)
    plain = normalise({"input_tokens": 1_000_000, "output_tokens": 1_000_000}, BOUNDS)
    cost = find_rates(model, at=NOW, prompt=plain.prompt).cost(plain)
    assert cost == Decimal(uncached) + Decimal(output)


@pytest.mark.parametrize("row", FAST, ids=lambda row: row[0])
def test_fast_mode_has_prices_of_its_own(row: tuple[str, str, str]) -> None:
    model, uncached, output = row
    rates = find_rates(model, at=NOW, prompt=10, context={"speed": "fast"})
    assert (rates.uncached, rates.output) == (Decimal(uncached), Decimal(output))


def test_a_mode_without_a_price_has_none_and_not_the_standard_one() -> None:
    with pytest.raises(NoPrice):
        find_rates("claude-sonnet-5-5", at=NOW, prompt=10, context={"speed": "fast"})


@pytest.mark.parametrize(
    ("prompt", "rates"),
    [
        (100_000, ("0.10", "0.125", "0.20", "0.01", "0.50")),
        (100_001, ("0.50", "0.625", "1.00", "0.05", "2.50")),
    ],
)
def test_a_tier_by_prompt_size_applies_to_the_whole_request(prompt: int, rates: tuple[str, ...]) -> None:
    found = find_rates("claude-haiku-5-5", at=NOW, prompt=prompt)
    told = (found.uncached, found.write_5m, found.write_1h, found.cache_read, found.output)
    assert told == tuple(map(Decimal, rates))


def test_the_tier_counts_cached_tokens_too() -> None:
    tokens = normalise({"input_tokens": 1, "cache_read_input_tokens": 100_000, "output_tokens": 1000}, BOUNDS)
    rates = find_rates("claude-haiku-5-5", at=NOW, prompt=tokens.prompt)
    assert rates.cost(tokens) == Decimal("0.0000005") + Decimal("0.005") + Decimal("0.0025")


def test_a_reservation_takes_the_dearest_tier_that_the_prompt_can_reach() -> None:
    assert dearest("claude-haiku-5-5", at=NOW, prompt=100_000).output == Decimal("0.50")
    assert dearest("claude-haiku-5-5", at=NOW, prompt=100_001).output == Decimal("2.50")


@pytest.mark.parametrize(
    "model", [row[0] for row in ROWS if "mythos-5-1" not in row[0] and row[0] != "claude-mythos-5"]
)
def test_the_package_comes_to_the_same_sum_when_it_is_given_inclusive_counts(model: str) -> None:
    tokens = Tokens(uncached=1234, cache_read=56_789, write_5m=4321, write_1h=987, output=3210)
    usage = Usage(
        input_tokens=tokens.prompt,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.write_5m + tokens.write_1h,
        cache_write_5m_tokens=tokens.write_5m,
        cache_write_1h_tokens=tokens.write_1h,
        output_tokens=tokens.output,
    )
    theirs = calc_price(usage, model, provider_id="anthropic", genai_request_timestamp=NOW).total_price
    assert find_rates(model, at=NOW, prompt=tokens.prompt).cost(tokens) == theirs


@pytest.mark.parametrize("model", ["m-new", "claude-sonnet-6", "claude-opus-4-8-experiment", "gpt-5", ""])
def test_a_model_without_a_price_has_none(model: str) -> None:
    with pytest.raises(NoPrice):
        find_rates(model, at=NOW, prompt=10)


def test_the_ledger_learns_the_rates_and_where_they_come_from() -> None:
    price = find_rates("claude-sonnet-4-6", at=NOW, prompt=10).to_json(at=NOW)
    assert isinstance(price, dict)
    assert price["effective_from"] == "2026-03-13"
    assert str(price["source"]).startswith("genai-prices ")
    assert price["per_million"] == {
        "uncached": "3",
        "cache_read": "0.3",
        "write_5m": "3.75",
        "write_1h": "6",
        "output": "15",
    }


def test_both_styles_of_usage_come_to_one_cost_and_cached_tokens_are_paid_once() -> None:
    """Case D4; its streams and its malformed records are in test_gateway_usage.py."""
    rates = Rates(
        model="m",
        uncached=Decimal("1.25"),
        cache_read=Decimal("0.625"),
        write_5m=Decimal("1.25"),
        write_1h=Decimal("1.25"),
        output=Decimal(10),
    )
    inclusive = normalise(
        {
            "prompt_tokens": 262_960,
            "prompt_tokens_details": {"cached_tokens": 257_955},
            "completion_tokens": 1744,
        },
        BOUNDS,
    )
    exclusive = normalise(
        {
            "input_tokens": 5005,
            "cache_read_input_tokens": 257_955,
            "cache_creation_input_tokens": 0,
            "output_tokens": 1744,
        },
        BOUNDS,
    )
    assert inclusive == exclusive
    assert not inclusive.flaws
    assert rates.cost(inclusive).quantize(Decimal("0.0001")) == Decimal("0.1849")
