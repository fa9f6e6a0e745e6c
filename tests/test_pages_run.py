"""A run's page: why first, then clocks, limits, what is outstanding and each tab; stop, pause and resume with a reason."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from console.display.outside import Text, shorten
from console.views.run_tabs import TABS
from runs import clock, lifecycle, operations, steps
from runs.access import Role
from runs.engine.briefing import build
from runs.models import Amendment, JournalEntry, KeptFold, Run, Step, WorkItem
from runs.states import StepKind, StepState
from tests import page_situations, situations
from tests.briefing_runs import fill
from tests.page_tools import client_of, fields_of, read
from tests.people import api_of, approver, make_person, make_stranger, operator, viewer

__all__ = ["approver", "operator", "viewer"]

pytestmark = pytest.mark.django_db

ACTS = ("stop", "amend", "pause", "resume")


def page_of(person: User, run: Run, tab: str = "") -> Any:
    return client_of(person).get(f"/runs/{run.pk}{f'?tab={tab}' if tab else ''}")


def test_the_head_answers_why_on_whom_since_when_until_when_and_what_then(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator), valid_for_s=600)
    clock.shift(timedelta(seconds=120))
    page = page_of(approver, asking.run)
    words = read(page)
    for expected in (
        "Waiting for an approval",
        "Step 1 needs an approval for Refund 420.00 of order 1001: amount 420.00 is above 200",
        "On whom an approver Waiting 2 min Until",
        "in 7 min And then you are asked again",
        "Review the approval",
        "On people 2 min",
    ):
        assert expected in words, expected
    assert f'class="button tall primary" href="/approvals/{asking.card.pk}"' in page.content.decode()


def test_whoever_may_not_decide_may_still_look_at_the_card(operator: User, viewer: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    page = page_of(viewer, asking.run)
    assert "See the card" in read(page)
    assert 'commandfor="stop-dialog"' not in page.content.decode()


def test_a_doubt_a_pause_and_an_end_say_what_comes_of_them(operator: User, approver: User) -> None:
    card = page_situations.put_in_doubt(situations.start(operator))
    words = read(page_of(approver, card.run))
    assert "In doubt" in words
    assert "Nobody but a person can find out." in words
    assert "Until no time limit And then nothing: it waits until someone decides" in words
    paused = situations.start(operator)
    operations.pause_run(paused.pk, reason="looking", by=operator)
    words = read(page_of(operator, paused))
    assert "Paused: looking" in words
    assert "ago By olga Until" in words
    assert "Resume…" in words
    ended = situations.start(operator)
    operations.stop_run(ended.pk, reason="wrong batch", by=operator)
    words = read(page_of(operator, ended))
    assert "Stopped: wrong batch" in words
    assert "Nothing: the run has ended." in words
    assert "Stop…" not in words


def test_what_was_left_open_is_not_said_to_hold_up_a_run_that_has_ended(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    opener = situations.ask_approval(run).step
    WorkItem.objects.create(run=run, ref="w1", title="Request r7", opened_by=opener, created_at=clock.now())
    assert "Request r7. The run isn’t finished while one is open." in read(page_of(viewer, run))
    operations.stop_run(run.pk, reason="wrong batch", by=operator)
    words = read(page_of(viewer, run))
    assert "1 of 1 work item open Request r7. Left open when the run ended." in words
    assert "while one is open" not in words


def test_an_amendment_stands_with_the_goal_signed_and_dated_and_reaches_the_agent(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    client = client_of(operator)
    assert client.post(f"/runs/{run.pk}/amend", {"reason": " "}).status_code == 422
    assert client.post(f"/runs/{run.pk}/amend", {"reason": "Only orders of <b>May</b>."}).status_code == 302
    assert client.post(f"/runs/{run.pk}/amend", {"reason": "And of June."}).status_code == 302
    words = read(page_of(viewer, run))
    signed = r"Amended [^A]*\d\d:\d\d by olga: "
    assert re.search(rf"{signed}Only orders of <b>May</b>\. {signed}And of June\.", words)
    assert "Amend…" not in words
    told = [notice for notice in build(run.pk).notices if notice["notice"] == "amended"]
    assert [(notice["text"], notice["by"]) for notice in told] == [
        ("Only orders of <b>May</b>.", "olga"),
        ("And of June.", "olga"),
    ]
    entry = JournalEntry.objects.filter(run=run, kind="run.amended").earliest("pk")
    assert (entry.actor, entry.why) == ("person:olga", "Only orders of <b>May</b>.")
    operations.stop_run(run.pk, reason="wrong batch", by=operator)
    late = client.post(f"/runs/{run.pk}/amend", {"reason": "And of July."})
    assert late.status_code == 409
    assert not Amendment.objects.filter(run=run, text="And of July.").exists()


def test_long_texts_are_cut_in_the_head_and_stand_there_whole_to_be_opened(operator: User, viewer: User) -> None:
    run = situations.start(operator, goal="G" * 500)
    for text in ("1" * 400, "2" * 400, "3" * 400):
        operations.amend_run(run.pk, text=text, by=operator)
    operations.pause_run(run.pk, reason="P" * 600, by=operator)
    page = page_of(viewer, run).content.decode()
    head = re.search(r'<div class="run-head">.*?(?=<section class="why)', page, re.DOTALL)
    assert head is not None
    why = re.search(r'<section class="why .*?</section>', page, re.DOTALL)
    assert why is not None
    assert f'<h1 class="cut">{"G" * 120}…</h1>' in head[0]
    goal = (
        r'<details class="whole" id="whole-goal"><summary>All 500 characters</summary><div [^>]*>G{500}</div></details>'
    )
    assert re.search(goal, head[0])
    before, newest = re.split(r"</details>\s*</div>\s*</details>", head[0])
    assert '<details class="amended" id="amended-before"><summary>2 earlier amendments</summary>' in before
    assert before.index("1" * 400) < before.index("2" * 400)
    assert f'<span class="prose">{"3" * 120}…</span>' in newest
    assert re.search(r"All 400 characters</summary><div [^>]*>3{400}</div></details>", newest)
    line = re.search(r'<p class="why-line">([^<]*)</p>', why[0])
    assert line is not None
    assert len(line[1]) == 241
    assert line[1].endswith("P…")
    assert re.search(r'id="whole-why"><summary>All \d+ characters</summary><div [^>]*>[^<]*P{600}', why[0])
    assert 'class="whole"' not in page_of(viewer, situations.start(operator)).content.decode()


def test_what_a_run_was_started_with_and_why_it_was_stopped_are_cut_too(operator: User, viewer: User) -> None:
    run = situations.start(
        operator,
        constraints=["C" * 500, "D" * 500],
        inputs={"batch": "I" * 9000, "orders": ["J" * 50] * 20, "short": "K" * 100},
        labels={f"l{n}": "L" * 150 for n in range(3)},
    )
    operations.stop_run(run.pk, reason="S" * 500, by=operator)
    cut = {"C": 240, "D": 240, "I": 139, "J": 50, "K": 100, "L": 150, "S": 240}
    for tab, letters in (("timeline", "CDIJKL"), ("journal", "CDIJKLS")):
        page = page_of(viewer, run, tab).content.decode()
        at_once = re.sub(
            r"<details\b.*?</details>", lambda found: found[0].partition("</summary>")[0], page, flags=re.DOTALL
        )
        # The reason stands above all tabs, too.
        assert {letter: max(map(len, re.findall(f"{letter}+", at_once))) for letter in letters} == {
            letter: cut[letter] for letter in letters
        }
        for letter, length in (("C", 500), ("D", 500), ("I", 9000), ("S", 500)):
            assert re.search(f"[^{letter}]{letter}{{{length}}}<", page), letter
    opened = re.findall(r'<details[^>]* id="([^"]+)"', page)
    assert len(opened) == len(set(opened))
    assert len(re.findall("S{240}…", client_of(viewer).get("/journal").content.decode())) == 2


def test_a_run_that_ended_before_its_first_step_promises_none(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    assert "The first one is planned when a worker takes the run." in read(page_of(viewer, run))
    operations.stop_run(run.pk, reason="wrong batch", by=operator)
    for address in (f"/runs/{run.pk}", f"/runs/{run.pk}/panels/timeline"):
        words = read(client_of(viewer).get(address))
        assert "No step was planned The run ended before a worker had planned one." in words


def test_a_read_that_waits_behind_another_is_not_said_to_be_under_way(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    first = situations.take(run, tool="read_order", arguments={"order": "1001"})
    numbers = [first.step.number]
    with transaction.atomic():  # taken together, for one process
        for order in ("1002", "1003"):
            step = steps.plan(
                lifecycle.lock(run.pk), steps.Asked(kind=StepKind.ACT, tool="read_order", arguments={"order": order})
            )
            steps.open_attempt(
                step,
                epoch=first.epoch,
                holder=first.holder,
                performer=first.performer,
                lease_s=15.0,
                begin_within_s=10.0,
                timeout_s=30.0,
            )
            numbers.append(step.number)
    words = read(page_of(viewer, run))
    assert f"Under way: step {numbers[0]} (read_order). Taken, and next: 2 more." in words
    assert words.count("is under way") == 1
    assert f"Step {numbers[0]} read_order is under way" in words
    assert f"Steps {numbers[1]} read_order, {numbers[2]} read_order: next" in words
    seen = api_of(operator).get(f"/runs/{run.pk}").json()["in_flight"]
    assert [flight["behind"] for flight in seen] == [None, numbers[0], numbers[0]]
    assert "1 call under way" in read(page_of(operator, run))
    situations.finish(first, {"order": "1001"})
    words = read(page_of(viewer, run))
    assert f"Step {numbers[1]} read_order is under way" in words
    assert f"Step {numbers[2]} read_order: next" in words


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("x" * 131, ""),
        ("x" * 132, "x" * 120 + "…"),
        ("word " * 40, "word " * 23 + "word…"),
        ("a " + "x" * 200, "a " + "x" * 118 + "…"),
    ],
    ids=["nothing gained", "no space", "between words", "no space near"],
)
def test_a_text_is_cut_between_words_where_that_costs_little(text: str, start: str) -> None:
    assert shorten(text) == (Text(start=start, whole=text) if start else Text(start=text))


def test_a_switch_says_what_it_holds_on_the_run_and_across_every_page(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    operations.engage_switch("agent:refund-desk", reason="duplicate refunds", by=operator)
    words = read(page_of(viewer, run))
    assert "The switch for agent refund-desk holds this run: duplicate refunds" in words
    assert "Until it is released And then it goes on by itself" in words
    for path in ("/", "/runs", "/approvals"):
        words = read(client_of(viewer).get(path))
        assert "Switch engaged: agent refund-desk" in words
        assert "olga" in words


def test_what_waits_under_a_switch_still_says_on_whom_and_leads_to_its_card(operator: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator), valid_for_s=600)
    operations.engage_switch("agent:refund-desk", reason="duplicate refunds", by=operator)
    page = page_of(approver, asking.run)
    words = read(page)
    assert "Step 1 needs an approval for Refund 420.00 of order 1001" in words
    assert "Then held by the switch for agent refund-desk: duplicate refunds" in words
    assert "it goes on by itself" not in words
    assert f'class="button tall primary" href="/approvals/{asking.card.pk}"' in page.content.decode()


def test_limits_are_in_text_beside_their_drawing(operator: User, viewer: User) -> None:
    words = read(page_of(viewer, situations.start(operator, usd="2.00", max_age_s=259_200)))
    assert "Money $0.00 of $2.00 $2.00 left" in words
    assert "Tokens 0 no limit" in words
    assert "of 3 d expires" in words


@pytest.mark.parametrize("tab", [tab for tab in TABS if tab != "step"])
def test_every_tab_is_there_for_a_run_with_nothing_and_for_one_with_everything(
    operator: User, viewer: User, tab: str
) -> None:
    empty = situations.start(operator)
    full = situations.start(operator)
    situations.finish(situations.take(empty), {"closed": True})
    page_situations.put_in_doubt(full)
    for run in (empty, full):
        page = page_of(viewer, run, tab)
        assert page.status_code == 200
        assert re.search(
            rf'<a id="to-{tab}" href="/runs/{run.pk}\?tab={tab}#run-tab"[^>]* aria-current="page"',
            page.content.decode(),
        )
        panel = client_of(viewer).get(f"/runs/{run.pk}/panels/{tab}")
        assert panel.status_code == 200
        assert "<html" not in panel.content.decode()


def test_facts_have_age_limit_state_and_whom_they_serve(operator: User, viewer: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    clock.shift(timedelta(seconds=1320))
    words = read(page_of(viewer, asking.run, "facts"))
    assert "Stale" in words
    assert '{"paid": "420.00"} order.1001 · read_order' in words
    assert "22 min of 15 min" in words
    assert "step 1, open" in words
    assert "can’t act on this" in words


def test_keys_failures_and_the_journal_tell_what_happened(operator: User, viewer: User) -> None:
    card = page_situations.put_in_doubt(situations.start(operator))
    words = read(page_of(viewer, card.run, "keys"))
    assert "In doubt" in words
    assert "refund order 1001, amount 84.00" in words
    assert "no answer after 30 s" in read(page_of(viewer, card.run, "failures"))
    assert "key in doubt, step 1" in read(page_of(viewer, card.run, "journal"))


def test_one_step_is_shown_whole(operator: User, viewer: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    client = client_of(viewer)
    words = read(client.get(f"/runs/{asking.run.pk}?tab=step&step=1"))
    assert "Step 1: refund" in words
    assert "it was paid twice" in words
    assert "Asked because amount 420.00 is above 200" in words
    for number in ("0", "2", "x", "", "99999999999999999999"):
        assert client.get(f"/runs/{asking.run.pk}?tab=step&step={number}").status_code == 404


def test_the_briefing_is_what_the_model_would_be_sent(operator: User, viewer: User) -> None:
    words = read(page_of(viewer, situations.start(operator), "briefing"))
    assert '<goal>"Work off batch b1"</goal>' in words
    assert "tokens" in words
    assert "cacheable" in words


def test_who_only_reads_a_briefing_keeps_nothing_of_it(operator: User, viewer: User, settings: Settings) -> None:
    settings.BRIEFING_LOG_TOKENS = 1_000
    run = situations.start(operator)
    fill(run, count=200)
    assert "<log>" in read(page_of(viewer, run, "briefing"))
    assert api_of(viewer).get(f"/runs/{run.pk}/briefing").status_code == 200
    assert not KeptFold.objects.exists()
    build(run.pk)
    assert KeptFold.objects.exists()


def test_a_stop_needs_a_reason_is_journalled_and_is_not_said_to_be_over_before_it_is(
    operator: User, viewer: User
) -> None:
    run = situations.start(operator)
    attempt = situations.take(run)
    client = client_of(operator)
    response = client.post(f"/runs/{run.pk}/stop", {"reason": " "})
    assert response.status_code == 422
    assert "Stopping a run needs a reason." in read(response)
    assert '<dialog id="stop-dialog" aria-labelledby="stop-h" open class="shown">' in response.content.decode()
    response = client.post(f"/runs/{run.pk}/stop", {"reason": "wrong batch"})
    assert (response.status_code, response["Location"]) == (302, f"/runs/{run.pk}")
    words = read(client.get(response["Location"]))
    assert "Stopping 1 call in flight" in words
    assert "Step 1 close_request is under way" in words
    assert "Still under way step 1 close_request" in words
    entry = JournalEntry.objects.get(run=run, kind="run.stopped")
    assert (entry.user, entry.why) == (operator, "wrong batch")
    situations.finish(attempt)
    words = read(page_of(viewer, run))
    assert "in flight" not in words
    assert "Stopped" in words


def test_a_pause_lets_go_and_a_resume_queues_again(operator: User) -> None:
    run = situations.start(operator)
    client = client_of(operator)
    assert client.post(f"/runs/{run.pk}/pause", {"reason": "looking"})["Location"] == f"/runs/{run.pk}"
    assert Run.objects.get(pk=run.pk).paused_at is not None
    assert client.post(f"/runs/{run.pk}/resume", {})["Location"] == f"/runs/{run.pk}"
    resumed = Run.objects.get(pk=run.pk)
    assert (resumed.paused_at, resumed.state) == (None, "queued")
    assert set(JournalEntry.objects.filter(run=run, user=operator).values_list("kind", flat=True)) >= {
        "run.paused",
        "run.resumed",
    }


@pytest.mark.parametrize("act", ACTS)
def test_an_act_is_a_post_of_somebody_who_may(operator: User, viewer: User, approver: User, act: str) -> None:
    run = situations.start(operator)
    path, reason = f"/runs/{run.pk}/{act}", {"reason": "because"}
    assert Client().post(path, reason)["Location"] == f"/sign-in?next={path}"
    assert client_of(operator).get(path).status_code == 405
    assert client_of(viewer).post(path, reason).status_code == 403
    assert client_of(approver).post(path, reason).status_code == 403
    for stranger in (make_stranger(), make_person("noor", Role.OPERATOR, agents=("stock-watch",))):
        assert client_of(stranger).post(path, reason).status_code == 404
    run.refresh_from_db()
    assert (run.state, run.paused_at) == ("queued", None)


@pytest.mark.parametrize("act", ACTS)
def test_what_the_run_s_state_does_not_allow_is_a_409_with_the_run_as_it_is(operator: User, act: str) -> None:
    run = situations.start(operator)
    if act != "resume":
        operations.stop_run(run.pk, reason="first", by=operator)
    before = JournalEntry.objects.filter(run=run).count()
    response = client_of(operator).post(f"/runs/{run.pk}/{act}", {"reason": "second"})
    assert response.status_code == 409
    words = read(response)
    assert "This is the run as it is now." in words
    assert ("has ended (stopped)" if act != "resume" else "is not paused") in words
    assert JournalEntry.objects.filter(run=run).count() == before


@pytest.mark.parametrize("number", ["0", "7", "9223372036854775807", "99999999999999999999999"])
def test_a_run_that_is_not_there_is_not_found(viewer: User, number: str) -> None:
    client = client_of(viewer)
    for path in ("", "/panels/head", "/panels/side", "/panels/facts", "/panels/nothing"):
        assert client.get(f"/runs/{number}{path}").status_code == 404


def test_a_long_run_shows_its_newest_steps_and_pages_back(operator: User, viewer: User) -> None:
    run = situations.start(operator)
    moment = clock.now()
    Step.objects.bulk_create(
        Step(
            run=run,
            number=number,
            kind=StepKind.ACT,
            tool="read_order",
            state=StepState.DONE,
            arguments={"order": str(number)},
            created_at=moment,
            began_at=moment,
            ended_at=moment,
        )
        for number in range(1, 451)
    )
    client = client_of(viewer)
    first = client.get(f"/runs/{run.pk}")
    shown = [int(n) for n in re.findall(r'id="step-(\d+)"', first.content.decode())]
    assert shown == list(range(251, 451))
    second = client.get(f"/runs/{run.pk}?tab=timeline&before=251")
    assert [int(n) for n in re.findall(r'id="step-(\d+)"', second.content.decode())] == list(range(51, 251))
    assert "before=51" in second.content.decode()
    assert client.get(f"/runs/{run.pk}?before=x").status_code == 400


@pytest.mark.parametrize("tab", [tab for tab in TABS if tab not in ("step", "briefing")])
def test_a_tab_takes_as_many_queries_for_a_long_run_as_for_a_short_one(operator: User, viewer: User, tab: str) -> None:
    client = client_of(viewer)
    short, long = situations.start(operator), situations.start(operator)
    situations.ask_approval(short)
    _age(long)
    counts = []
    for run in (short, long):
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"/runs/{run.pk}?tab={tab}").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert counts[0] <= 26


def _age(run: Run) -> None:
    """Many steps, facts and cards."""
    for order in range(1, 8):
        page_situations.record_fact(run, f"order.{order}")
    for order in range(1001, 1007):
        situations.ask_approval(run, order=str(order))
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        for order in range(30):
            steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="read_order", arguments={"order": str(order)}))


def test_a_fact_is_rechecked_from_its_tab(operator: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    page = page_of(operator, asking.run, "facts")
    fields = fields_of(page, f"/facts/{asking.fact.pk}/recheck")
    response = client_of(operator).post(f"/facts/{asking.fact.pk}/recheck", fields)
    assert response["Location"] == f"/runs/{asking.run.pk}?tab=facts"
    operations.stop_run(asking.run.pk, reason="enough", by=operator)
    assert client_of(operator).post(f"/facts/{asking.fact.pk}/recheck", fields).status_code == 409


def test_a_fact_is_corrected_or_extended_from_its_tab(operator: User, viewer: User, approver: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    tab, fact = f"/runs/{asking.run.pk}?tab=facts", asking.fact.pk
    for user in (viewer, operator):
        assert "Correct…" not in read(client_of(user).get(tab))
    client = client_of(approver)
    assert f'href="{tab}&amp;fact={fact}#fact-{fact}"' in client.get(tab).content.decode()
    page = client.get(f"{tab}&fact={fact}")
    # The panel that refreshes it keeps the forms open.
    panel = re.search(r'hx-get="(/runs/\d+/panels/facts[^"]*)"', page.content.decode())
    assert panel is not None
    assert f'id="fact-acts-{fact}" hx-morph-skip' in client.get(panel[1]).content.decode()
    extends = fields_of(page, f"/facts/{fact}/extend") | {"minutes": "5", "reason": "the shop is closed"}
    assert client.post(f"/facts/{fact}/extend", extends)["Location"] == tab
    corrects = fields_of(page, f"/facts/{fact}/correct") | {"value": "7"}
    assert client.post(f"/facts/{fact}/correct", corrects)["Location"] == tab
    asking.fact.refresh_from_db()
    assert (asking.fact.value, asking.fact.version) == (7, 2)
    other = situations.ask_approval(situations.start(operator), order="1002").fact
    assert "It is something else" not in read(client.get(f"{tab}&fact={other.pk}"))
