"""Usage records (case D4): merged over a stream, normalised once, and never zero where they cannot be read."""

import pytest

from runs.agents import Json
from runs.usage import Bounds, merge_stream, normalise

BOUNDS = Bounds(prompt=5000, output=400)


def test_cache_counts_of_the_first_event_alone_survive_the_last_one() -> None:
    start: Json = {
        "input_tokens": 10,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 50,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
        "output_tokens": 1,
    }
    tokens = normalise(merge_stream(start, {"output_tokens": 77, "cache_read_input_tokens": None}), BOUNDS)
    assert (tokens.uncached, tokens.cache_read, tokens.write_5m, tokens.write_1h) == (10, 900, 20, 30)
    assert (tokens.output, tokens.prompt, tokens.total, tokens.flaws) == (77, 960, 1037, ())


def test_a_stream_that_never_counted_its_output_is_bounded_and_not_taken_at_its_first_word() -> None:
    tokens = normalise(merge_stream({"input_tokens": 10, "output_tokens": 1}, None), BOUNDS)
    assert (tokens.uncached, tokens.output) == (10, 400)
    assert tokens.flaws == ("output_tokens is missing",)


@pytest.mark.parametrize("bad", [None, "many", -7, 1.5, True, {}])
def test_a_count_that_cannot_be_read_is_its_bound_and_named(bad: Json) -> None:
    tokens = normalise({"input_tokens": bad, "cache_read_input_tokens": 1000, "output_tokens": bad}, BOUNDS)
    assert (tokens.uncached, tokens.cache_read, tokens.output) == (4000, 1000, 400)
    assert [flaw.split()[0] for flaw in tokens.flaws] == ["input_tokens", "output_tokens"]


def test_a_bad_cache_count_takes_what_the_bound_leaves_and_no_more() -> None:
    tokens = normalise(
        {"input_tokens": 10, "cache_creation_input_tokens": -1, "cache_read_input_tokens": "x", "output_tokens": 1},
        BOUNDS,
    )
    assert tokens.prompt == 5000
    assert (tokens.uncached, tokens.write_5m, tokens.cache_read) == (10, 4990, 0)


@pytest.mark.parametrize("raw", [None, [], "usage", 3])
def test_no_usage_at_all_is_all_that_was_possible(raw: Json) -> None:
    tokens = normalise(raw, BOUNDS)
    assert (tokens.uncached, tokens.output) == (5000, 400)
    assert tokens.flaws == ("no usage was sent",)


def test_more_cached_than_sent_is_clamped_and_never_negative() -> None:
    raw: Json = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 250}, "completion_tokens": 3}
    tokens = normalise(raw, BOUNDS)
    assert (tokens.uncached, tokens.cache_read, tokens.output) == (0, 100, 3)
    assert tokens.flaws == ("cached_tokens is 250, more than prompt_tokens (100)",)


def test_a_write_whose_life_is_not_told_is_priced_by_what_was_asked_for() -> None:
    raw: Json = {"input_tokens": 1, "cache_creation_input_tokens": 60, "output_tokens": 1}
    assert normalise(raw, BOUNDS).write_5m == 60
    assert normalise(raw, Bounds(prompt=5000, output=400, long_cache=True)).write_1h == 60


def test_thinking_is_shown_as_a_part_of_the_output() -> None:
    raw: Json = {"input_tokens": 1, "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 30}}
    tokens = normalise(raw, BOUNDS)
    assert (tokens.output, tokens.thinking, tokens.total) == (50, 30, 51)
