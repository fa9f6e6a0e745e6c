"""Figures and text from outside, as people read them."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from console.display import figures
from console.display.outside import LONG, show, show_exactly, show_value, write_brief
from console.forms import DurationField

NOW = datetime(2026, 11, 29, 3, 12, 40, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (-3, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (11_040, "3 h 04 min"),
        (3_600, "1 h"),
        (151_200, "1 d 18 h"),
        (172_800, "2 d"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert figures.write_duration(seconds) == words


def test_a_limit_is_written_as_it_was_set() -> None:
    assert [figures.write_limit(s) for s in (20, 90, 900, 86_400, 259_200)] == [
        "20 s",
        "1 min 30 s",
        "15 min",
        "1 d",
        "3 d",
    ]


@pytest.mark.parametrize(
    ("amount", "words"),
    [("0", "$0.00"), ("0.31", "$0.31"), ("1284.6", "$1,284.60"), ("0.0031", "$0.0031"), ("0.00000001", "<$0.0001")],
)
def test_money_shows_nothing_as_nothing_and_little_as_little(amount: str, words: str) -> None:
    assert figures.write_usd(Decimal(amount)) == words


def test_a_moment_says_its_day_unless_it_is_today() -> None:
    assert figures.write_moment(datetime(2026, 11, 29, 3, 21, 40, tzinfo=UTC), NOW) == "03:21:40"
    assert figures.write_moment(datetime(2026, 11, 30, 8, 0, tzinfo=UTC), NOW) == "Mon 30 Nov 08:00"
    assert figures.write_moment(datetime(2028, 1, 2, 8, 0, tzinfo=UTC), NOW) == "2 Jan 2028 08:00"


def test_a_day_says_which_one_and_whether_it_is_today() -> None:
    assert figures.write_day(NOW, NOW) == "Today, Sunday 29 November"
    assert figures.write_day(datetime(2026, 11, 28, 22, 0, tzinfo=UTC), NOW) == "Saturday 28 November"
    assert figures.write_day(datetime(2025, 1, 2, tzinfo=UTC), NOW) == "Thursday 2 January 2025"


@pytest.mark.parametrize("seconds", [1, 1.5, 45, 60, 90, 5_400, 7_200, 86_400, 129_600, 0.001])
def test_a_limit_is_typed_as_it_is_read(seconds: float) -> None:
    assert DurationField().clean(figures.write_limit_field(seconds)) == seconds


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),  # turns what follows around
        ("a\u2066b\u2069", "a\\u2066b\\u2069"),
        ("a\x1b[31mb", "a\\x1b[31mb"),  # a terminal's escape
        ("a\u200bb", "a\\u200bb"),
        ("a\ufeffb", "a\\ufeffb"),
        ("a\U000e0041b", "a\\U000e0041b"),  # a tag character
        ("a\u2028b", "a\\u2028b"),
        ("a\u3164b", "a\\u3164b"),  # a letter that looks like nothing
        ("\ufffd", "\ufffd"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("é 漢 😀", "é 漢 😀"),
    ],
)
def test_what_cannot_be_seen_or_turns_text_around_is_written_out(hostile: str, shown: str) -> None:
    assert show(hostile) == shown
    assert show_exactly(hostile) == shown


def test_where_every_character_counts_a_space_that_is_none_is_written_out_too() -> None:
    assert show("1\u00a0000") == "1\u00a0000"
    assert show_exactly("1\u00a0000 \ufe0f") == "1\\xa0000 \\ufe0f"
    value = show_value("1\u00a0000\u202e")
    assert (value.text, value.length, value.hidden) == ("1\\xa0000\\u202e", 6, 2)


def test_a_long_value_is_complete_and_says_how_long_it_is() -> None:
    word = "x" * 5_000
    value = show_value(word)
    assert (value.text, value.length, value.is_long) == (word, 5_000, True)
    assert not show_value("y" * LONG).is_long


def test_a_value_in_one_line_has_its_plain_parts_first_and_is_cut() -> None:
    assert write_brief({"lines": [{"sku": "a"}], "paid": "4.20"}) == "paid 4.20, lines (1)"
    assert write_brief({"add": ["one", "two", "three"]}) == "add one and 2 more"
    assert len(write_brief("z" * 500)) == 140
