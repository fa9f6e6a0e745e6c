"""The filter of the list of runs, without HTTP."""

import pytest

from console.filters import RunsFilter
from runs.states import WAITS_ON_PEOPLE, RunState


def read(**query: list[str]) -> RunsFilter:
    wanted, wrong = RunsFilter.read(query)
    assert not wrong
    return wanted


def test_words_may_be_repeated_or_separated_by_commas() -> None:
    assert read(state=["failed,stopped", "failed"]).states == ("failed", "stopped")
    assert read(agent=["refund-desk", ""]).agents == ("refund-desk",)
    assert read(q=["  late parcel "]).q == "late parcel"


def test_groups_stand_for_all_that_they_name() -> None:
    assert set(read(waiting_for=["people"]).as_query().waiting_for) == set(WAITS_ON_PEOPLE)
    assert set(read(state=["open", "failed"]).as_query().states) == {
        *(s for s in RunState if s in ("queued", "running", "thinking", "waiting")),
        "failed",
    }


@pytest.mark.parametrize("wrong", [{"state": ["sleeping"]}, {"waiting_for": ["godot"]}, {"label": ["shop"]}])
def test_what_no_filter_knows_is_left_out_alone_and_said_with_what_is_known(wrong: dict[str, list[str]]) -> None:
    good = {"state": ["failed"], "waiting_for": ["people"], "label": ["shop:a"], "q": ["late"], "agent": ["desk"]}
    mixed = {name: [*words, *wrong.get(name, [])] for name, words in good.items()}
    wanted, said = RunsFilter.read(mixed)
    assert wanted == read(**good)
    assert [(repr(*wrong.values())[1:-1] in each.message, bool(each.remedy)) for each in said] == [(True, True)]


def test_however_many_are_wrong_and_however_long_one_sentence_says_so() -> None:
    _, said = RunsFilter.read({"state": ["x" * 5000, *(f"w{n}" for n in range(500))]})
    assert [each.message for each in said] == [f"'{'x' * 40}…' and 500 more are no state."]


def test_an_address_is_read_back_as_it_was_written() -> None:
    from django.http import QueryDict

    wanted = read(state=["open"], agent=["a b"], waiting_for=["people"], label=["shop:har&bour"], q=["50 %"])
    assert RunsFilter.read(dict(QueryDict(wanted.write()[1:]).lists())) == (wanted, [])


def test_each_chip_takes_one_word_away() -> None:
    wanted = read(state=["failed", "stopped"], q=["late"])
    assert [(chip.name, chip.value, chip.without) for chip in wanted.chips] == [
        ("state is", "failed", "?state=stopped&q=late"),
        ("state is", "stopped", "?state=failed&q=late"),
        ("holds", "late", "?state=failed&state=stopped"),
    ]


def test_a_nul_in_the_address_is_replaced() -> None:
    assert read(q=["a\x00b"]).q == "a\ufffdb"
