"""The filter of the list of runs, without HTTP."""

import pytest

from console.filters import RunsFilter
from runs.errors import Malformed
from runs.states import WAITS_ON_PEOPLE, RunState


def read(**query: list[str]) -> RunsFilter:
    return RunsFilter.read(query)


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


@pytest.mark.parametrize("query", [{"state": ["sleeping"]}, {"waiting_for": ["godot"]}, {"label": ["shop"]}])
def test_what_no_filter_knows_is_refused_with_what_is_known(query: dict[str, list[str]]) -> None:
    with pytest.raises(Malformed) as refusal:
        RunsFilter.read(query)
    assert refusal.value.remedy


def test_an_address_is_read_back_as_it_was_written() -> None:
    from django.http import QueryDict

    wanted = read(state=["open"], agent=["a b"], waiting_for=["people"], label=["shop:har&bour"], q=["50 %"])
    assert RunsFilter.read(dict(QueryDict(wanted.write()[1:]).lists())) == wanted


def test_each_chip_takes_one_word_away() -> None:
    wanted = read(state=["failed", "stopped"], q=["late"])
    assert [(chip.name, chip.value, chip.without) for chip in wanted.chips] == [
        ("state is", "failed", "?state=stopped&q=late"),
        ("state is", "stopped", "?state=failed&q=late"),
        ("holds", "late", "?state=failed&state=stopped"),
    ]


def test_a_nul_in_the_address_is_replaced() -> None:
    assert read(q=["a\x00b"]).q == "a\ufffdb"
