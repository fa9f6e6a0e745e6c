"""The drawing of a run's timeline, from steps that no database holds."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from console.timeline import CHARACTER, Drawing, Rect, draw
from runs.queries.timeline import Asked, TimelineStep, Worked

START = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def make_step(number: int, begin: float, end: float | None, **given: Any) -> TimelineStep:
    work = given.pop("work", [("done", begin, end)] if end is not None else [])
    values: dict[str, Any] = {
        "number": number,
        "kind": "act",
        "tool": "read_order",
        "state": "done" if end is not None else "waiting",
        "waiting_for": "",
        "arguments": {"order": "1"},
        "because": "",
        "fact": "",
        "error": "",
        "tries": len(work),
        "usd": Decimal(0),
        "created_at": at(begin),
        "ended_at": None if end is None else at(end),
        "wake_at": None,
        "replay_of": None,
        "attempts": [
            Worked(
                number=n,
                outcome=how,
                taken_at=at(b),
                began_at=at(b),
                ended_at=None if e is None else at(e),
                error="",
            )
            for n, (how, b, e) in enumerate(work, 1)
        ],
        "cards": [],
    } | given
    return TimelineStep(**values)


def rects_of(drawing: Drawing, row: int, css: str) -> list[Rect]:
    return [rect for rect in drawing.rows[row].rects if rect.css == css]


def percent(text: str) -> float:
    return float(text.removesuffix("%"))


def draw_open(steps: Sequence[TimelineStep], now: float, *, collapse: bool = True) -> Drawing:
    return draw(steps, now=at(now), ended=False, collapse=collapse)


def test_two_days_of_sleep_are_cut_to_a_strip_and_the_work_keeps_its_room() -> None:
    steps = [make_step(1, 0, 10), make_step(2, 2880, 2890)]
    cut, whole = draw_open(steps, 2891), draw_open(steps, 2891, collapse=False)
    assert cut.cut
    assert not whole.cut
    assert [label.text for label in cut.labels if label.css == "between"] == ["1 d 23 h"]
    assert percent(rects_of(cut, 0, "done tall")[0].width) > 20
    assert percent(rects_of(whole, 0, "done tall")[0].width) < 1


def test_positions_only_grow_and_stay_within_the_lane() -> None:
    steps = [make_step(n, n * 7, n * 7 + 3) for n in range(40)] + [make_step(41, 4000, 4001)]
    drawing = draw_open(steps, 4002)
    places = [percent(rects_of(drawing, row, "done tall")[0].x) for row in range(len(steps))]
    assert places == sorted(places)
    for row in drawing.rows:
        for rect in row.rects:
            assert percent(rect.x) >= 0
            if rect.width.endswith("%"):
                assert percent(rect.x) + percent(rect.width) <= 100.01


def test_tries_that_failed_and_the_pause_between_them_can_be_told_apart() -> None:
    step = make_step(1, 0, 9, work=[("failed", 0, 1), ("unknown", 3, 4), ("done", 8, 9)])
    drawing = draw_open([step], 10)
    assert [len(rects_of(drawing, 0, css)) for css in ("bad tall", "wait low", "done tall")] == [2, 2, 1]
    assert [tag.word for tag in drawing.rows[0].tags] == ["3 attempts"]


def test_a_step_that_waits_for_a_person_shows_until_when() -> None:
    card = Asked(id=1, kind="approval", created_at=at(1), closed_at=None, expires_at=at(60))
    drawing = draw_open([make_step(1, 0, 1), make_step(2, 1, None, cards=[card], waiting_for="approval")], 30)
    row = drawing.rows[1]
    assert row.open
    assert rects_of(drawing, 1, "person low")
    assert rects_of(drawing, 1, "until low")
    assert [tag.word for tag in row.tags] == ["waits for a person"]
    assert row.took == "29 min so far"


def test_an_ended_run_has_no_now() -> None:
    drawing = draw([make_step(1, 0, 5)], now=at(5000), ended=True, collapse=True)
    assert not [label for label in drawing.labels if label.text == "now"]
    assert not rects_of(drawing, 0, "now")


def test_a_run_without_steps_and_a_step_without_length_are_drawn() -> None:
    assert draw_open([], 1).rows == []
    drawing = draw_open([make_step(1, 0, 0)], 0)
    assert percent(rects_of(drawing, 0, "done tall")[0].width) > 0


def test_what_was_planned_together_counts_from_when_its_own_work_began() -> None:
    steps = [make_step(1, 0, 2), make_step(2, 0, 6, work=[("done", 5, 6)])]
    assert [row.took for row in draw_open(steps, 10).rows] == ["2 min", "1 min"]


def test_labels_never_lie_over_each_other() -> None:
    steps = [make_step(n, n * 300.0, n * 300.0 + 9) for n in range(3)]
    for ended in (True, False):
        drawing = draw(steps, now=at(700), ended=ended, collapse=True)
        ends = 0.0
        for label in drawing.labels:
            width = CHARACTER * len(label.text)
            begin = percent(label.x) - (width if label.anchor == "end" else 0.0)
            assert begin >= ends, drawing.labels
            ends = begin + width
        assert any(label.css == "between" for label in drawing.labels)
