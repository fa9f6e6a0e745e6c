"""Switches and the journal on pages: engaged in one action by whom it concerns, confirmed by name, released with a reason."""

import csv
import io
import re
import uuid
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth.models import User

from runs import operations, sql, switches
from runs.access import Role
from runs.errors import Forbidden
from runs.models import JournalEntry, Run, Switch
from runs.queries import find_switch
from runs.states import ProcessKind
from tests import situations
from tests.page_tools import client_of, fields_of, read, sent_by
from tests.people import api_of, approver, make_person, make_stranger, operator, viewer

__all__ = ["approver", "operator", "viewer"]

pytestmark = pytest.mark.django_db


def add_process(kind: ProcessKind, *, seen_s_ago: float) -> uuid.UUID:
    ident = uuid.uuid4()
    sql.execute(
        "INSERT INTO runs_process (id, kind, host, boot_id, pid, start_ticks, started_at, seen_at) VALUES (%s, %s, 'b',"
        " 'boot', %s, 1, clock_timestamp() - interval '1 h', clock_timestamp() - make_interval(secs => %s))",
        [ident, kind, int(ident.int % 30_000), seen_s_ago],
    )
    return ident


def test_a_switch_is_engaged_in_one_action_and_shown_on_every_page(operator: User) -> None:
    run = situations.start(operator)
    client = client_of(operator)
    assert "In all, 1 run not finished" in read(client.get("/switches"))
    response = client.post("/switches/engage", {"kind": "agent", "agent": situations.AGENT, "reason": "odd refunds"})
    assert response["Location"] == "/switches"
    words = read(client.get("/switches"))
    assert f"Agent {situations.AGENT}" in words
    assert "odd refunds" in words
    assert "Runs held 1" in words
    assert "Switch engaged: agent" in read(client.get(f"/runs/{run.pk}"))
    assert JournalEntry.objects.get(kind="switch.engaged").why == "odd refunds"


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"kind": "agent", "agent": "nobody", "reason": "x"},
        {"kind": "tool", "tool": "", "reason": "x"},
        {"kind": "run", "run": "99999", "reason": "x"},
        {"kind": "run", "run": "²", "reason": "x"},
        {"kind": "all", "reason": "x"},
        {"kind": "all", "confirm": "yes", "reason": "x"},
        {"kind": "agent", "agent": situations.AGENT},
    ],
)
def test_a_form_that_cannot_be_used_holds_nothing_and_says_why(operator: User, sent: dict[str, str]) -> None:
    response = client_of(operator).post("/switches/engage", sent)
    assert response.status_code in (404, 422), response.status_code
    assert 'role="alert"' in response.content.decode()
    assert not Switch.objects.exists()


def test_everything_asks_back_and_a_ready_reason_is_enough(operator: User) -> None:
    sent = {"kind": "all", "confirm": "stop", "ready": "Incident outside"}
    assert client_of(operator).post("/switches/engage", sent).status_code == 302
    assert (Switch.objects.get().scope, Switch.objects.get().reason) == ("all", "Incident outside")


def test_who_sees_one_agent_switches_that_one_and_neither_everything_nor_a_tool_of_others(db: None) -> None:
    narrow = make_person("nora", Role.OPERATOR, agents=(situations.AGENT,))
    for scope in ("all", "tool:read_order", "tool:pay_keyed"):
        with pytest.raises(Forbidden):
            operations.engage_switch(scope, reason="x", by=narrow)
    client = client_of(narrow)
    words = client.get("/switches").content.decode()
    assert 'value="all"' not in words
    assert "pay_keyed" not in words
    assert client.post("/switches/engage", {"kind": "all", "confirm": "STOP", "reason": "x"}).status_code == 403
    operations.engage_switch("tool:refund", reason="mine alone", by=narrow)
    operations.engage_switch(f"agent:{situations.AGENT}", reason="mine", by=narrow)
    wide = operations.engage_switch("all", reason="not yours", by=make_person("olga2", Role.ADMIN))
    for agent in ("nora", "x"):
        assert client.post(f"/switches/{wide.pk}/release", {"reason": agent}).status_code == 403
    assert Switch.objects.filter(released_at__isnull=True).count() == 3


def test_every_post_is_for_those_who_may(operator: User, approver: User, viewer: User) -> None:
    switch = operations.engage_switch("all", reason="x", by=operator)
    own = f"/switches/{switch.pk}"
    posts: dict[str, dict[str, str]] = {"/switches/engage": {}, f"{own}/release": {}, f"{own}/stop-runs": {}}
    for place, sent in posts.items():
        for who, status in ((viewer, 403), (approver, 403), (make_stranger(place), 404)):
            assert client_of(who).post(place, sent).status_code == status, (place, who)
        assert client_of(operator).get(place).status_code == 405


def test_who_may_not_engage_one_is_told_whom_it_takes(operator: User, viewer: User) -> None:
    assert "You may look, not engage or release. Switches need the role operator." in read(
        client_of(viewer).get("/switches")
    )
    words = read(client_of(operator).get("/switches"))
    assert "You may look" not in words
    assert "In all, 0 runs not finished" in words


def test_a_release_takes_a_reason_and_a_second_one_is_told(operator: User) -> None:
    switch = operations.engage_switch("all", reason="x", by=operator)
    client = client_of(operator)
    place = f"/switches/{switch.pk}/release"
    assert fields_of(client.get("/switches"), place) == {}
    assert client.post(place, {"reason": " "}).status_code == 422
    assert client.post(place, {"reason": "it is fine", "per_minute": "60"}).status_code == 302
    assert client.post(place, {"reason": "again"}).status_code == 409
    assert "it is fine" in read(client.get("/switches"))


def test_released_at_a_pace_runs_go_on_one_after_the_other(operator: User) -> None:
    runs = [situations.start(operator) for _ in range(3)]
    switch = operations.engage_switch("all", reason="x", by=operator)
    sql.execute("UPDATE runs_run SET held_since = lw_clock()")
    operations.release_switch(switch.pk, reason="fine", by=operator, per_minute=60)
    due = list(Run.objects.filter(pk__in=[run.pk for run in runs]).order_by("pk").values_list("due_at", flat=True))
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(due) if earlier and later]
    assert [round(gap) for gap in gaps] == [1, 1]


def test_it_names_who_has_confirmed_and_who_has_not(operator: User) -> None:
    alive, frozen = (add_process(ProcessKind.CLUSTER, seen_s_ago=s) for s in (0.0, 20.0))
    long_gone = add_process(ProcessKind.CLUSTER, seen_s_ago=3000.0)
    run = situations.start(operator)
    attempt = situations.take(run)
    switch = operations.engage_switch("all", reason="x", by=operator)
    switches.acknowledge(alive)
    switches.acknowledge(attempt.holder)  # it still holds a call: that is no acknowledgement
    card = find_switch(switch.pk, agents={"*"})
    assert card is not None
    assert {each.process: each.state for each in card.participants} == {
        alive: "acknowledged",
        frozen: "not_confirmed",
    }
    assert long_gone not in {each.process for each in card.participants}
    assert [flight.run for flight in card.in_flight] == [run.pk]
    words = read(client_of(operator).get("/switches"))
    assert "it can take nothing new" in words
    assert "1 process not confirmed" in words
    assert "1 call still under way" in words
    situations.finish(attempt)
    assert "drained after" in read(client_of(operator).get("/switches/panels/engaged"))


def test_stopping_what_a_switch_holds_is_an_act_of_its_own_and_tracked(operator: User) -> None:
    runs = [situations.start(operator) for _ in range(3)]
    switch = operations.engage_switch(f"agent:{situations.AGENT}", reason="x", by=operator)
    assert {run.state for run in Run.objects.all()} == {"queued"}
    client = client_of(operator)
    assert client.post(f"/switches/{switch.pk}/stop-runs", {"reason": ""}).status_code == 422
    response = client.post(f"/switches/{switch.pk}/stop-runs", {"reason": "wrong batch"})
    assert "Stopped 3 runs." in read(client.get(response["Location"]))
    assert {run.state for run in Run.objects.all()} == {"stopped"}
    asked, done = JournalEntry.objects.filter(kind__startswith="bulk.").order_by("pk")
    assert asked.after == {"scope": switch.scope, "runs": [run.pk for run in runs]}
    assert done.after == {"scope": switch.scope, "stopped": [run.pk for run in runs], "left": []}
    assert api_of(operator).post(f"/switches/{switch.pk}/stop-runs", {"reason": "x"}).json() == {
        "stopped": [],
        "left": [],
    }


def test_what_a_switch_of_a_tool_stops_is_what_it_holds(operator: User) -> None:
    done, calling = situations.start(operator), situations.start(operator)
    situations.finish(situations.take(done))
    situations.take(calling)
    switch = operations.engage_switch("tool:close_request", reason="x", by=operator)
    client = client_of(operator)
    assert "Stop 1 run for good?" in read(client.get("/switches"))
    response = client.post(f"/switches/{switch.pk}/stop-runs", {"reason": "wrong batch"})
    assert "Stopped 1 run." in read(client.get(response["Location"]))
    assert Run.objects.get(pk=calling.pk).state == "stopped"
    assert Run.objects.get(pk=done.pk).ended_at is None


def test_the_journal_is_found_by_person_run_action_and_day(operator: User, approver: User) -> None:
    run, other = situations.start(operator), situations.start(operator)
    operations.pause_run(run.pk, reason="look first", by=operator)
    operations.engage_switch("all", reason="stop it all", by=operator)
    client = client_of(approver)

    def lines(**asked: str) -> str:
        return client.get("/journal", asked).content.decode()

    words = read(client.get("/journal"))
    assert "switch engaged" in words
    assert "look first" in words
    assert "look first" in lines(run=str(run.pk))
    assert "look first" not in lines(run=str(other.pk))
    assert "look first" not in lines(action="switch.")
    assert "run paused" in lines(person="olga", people="1")
    assert "No entry fits" in lines(person="nobody")
    assert "No entry fits" in lines(since="2999-01-01")
    assert "run paused" in lines(since="2020-01-01", until="2999-01-01")
    for asked in ({"run": "x"}, {"since": "yesterday"}, {"until": "9999-12-31"}):
        words = lines(**asked, person="olga")
        assert "It was left out." in words
        assert "run paused" in words
        assert "person:anna" not in words
        assert 'value="olga"' in words
        assert client.get("/journal.csv", asked).status_code == 400
    assert client.get("/journal", {"after": "x"}).status_code == 400
    assert client_of(make_stranger()).get("/journal").status_code == 404


def test_a_long_reason_is_cut_and_a_switch_that_nobody_had_to_confirm_says_so(operator: User) -> None:
    operations.engage_switch("tool:refund", reason="E" * 1900, by=operator)
    released = operations.engage_switch("tool:read_order", reason="F" * 1900, by=operator)
    operations.release_switch(released.pk, reason="G" * 1900, by=operator)
    page = client_of(operator).get("/switches")
    for letter in "EFG":
        assert re.search(f"{letter}{{240}}…", page.content.decode())
        assert re.search(f"All 1900 characters</summary><div [^>]*>{letter}{{1900}}<", page.content.decode())
    assert "no process ran that had to acknowledge it" in read(page)
    assert "acknowledged by all" not in read(page)


def test_a_read_in_its_scope_is_not_said_to_have_sent_nothing(operator: User) -> None:
    situations.take(situations.start(operator), tool="read_order", arguments={"order": "1001"})
    operations.engage_switch("tool:read_order", reason="odd answers", by=operator)
    words = read(client_of(operator).get("/switches"))
    assert "it changes nothing outside" in words
    assert "it has sent nothing" not in words


def test_a_journal_that_an_address_narrows_to_an_action_says_to_which(operator: User, approver: User) -> None:
    stopped = situations.start(operator)
    operations.stop_run(stopped.pk, reason="wrong batch", by=operator)
    client = client_of(approver)

    def chosen(action: str) -> tuple[list[int], list[str], list[tuple[str, str]]]:
        page: Any = client.get("/journal", {"action": action})
        menu = re.findall(r"<option[^>]* selected>([^<]*)<", page.content.decode())
        return [line.run for line in page.context["lines"]], menu, sent_by(page, "/journal")

    assert chosen("run.stopped") == ([stopped.pk], ["run.stopped"], [("action", "run.stopped")])
    assert chosen("run.")[1:] == (["Runs"], [("action", "run.")])
    assert chosen("<b>")[:2] == ([], ["&lt;b&gt;"])
    assert chosen("")[1:] == ([], [])


def test_who_sees_one_agent_reads_only_its_entries_and_the_switches(operator: User) -> None:
    situations.start(operator, agent="scripted", goal="a secret one")
    operations.engage_switch("agent:refund-desk", reason="everyone sees this", by=operator)
    narrow = make_person("nora", Role.VIEWER, agents=(situations.AGENT,))
    words = read(client_of(narrow).get("/journal"))
    assert "everyone sees this" in words
    assert "scripted" not in words
    assert "token" not in words


def test_the_csv_has_the_same_lines_and_no_cell_that_a_spreadsheet_would_run(operator: User, approver: User) -> None:
    run = situations.start(operator)
    for bad in ('=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"):
        operations.pause_run(run.pk, reason=bad, by=operator)
        operations.resume_run(run.pk, reason="", by=operator)
    response: Any = client_of(approver).get("/journal.csv", {"run": str(run.pk)})
    rows = list(csv.reader(io.StringIO(response.content.decode(), newline="")))
    assert rows[0][0] == "time (UTC)"
    assert len(rows) - 1 == JournalEntry.objects.filter(run=run).count()
    assert any("HYPERLINK" in row[-1] for row in rows)
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_a_pause_holds_the_whole_tree_and_a_resume_lets_go_what_it_held(operator: User) -> None:
    from tests.writers import start, start_child

    top = start(operator)
    child = start_child(top)
    grandchild = start_child(child)
    own = start_child(top)
    operations.pause_run(own.pk, reason="by itself", by=operator)
    operations.pause_run(top.pk, reason="look first", by=operator)
    assert Run.objects.filter(paused_at__isnull=True).count() == 0
    operations.resume_run(top.pk, reason="", by=operator)
    assert set(Run.objects.filter(paused_at__isnull=True)) == {top, child, grandchild}
    operations.resume_run(own.pk, reason="", by=operator)
    assert "with run" in JournalEntry.objects.filter(run=grandchild, kind="run.paused").get().why


def test_a_stopped_run_says_stopping_until_all_below_it_is_at_rest(operator: User) -> None:
    from tests.writers import start_child

    top = situations.start(operator, agent="scripted")
    child = start_child(top)
    sql.execute("UPDATE runs_run SET due_at = lw_clock() + interval '1 h' WHERE id = %s", [top.pk])
    attempt = situations.take(child)
    operations.stop_run(top.pk, reason="enough", by=operator)
    client = client_of(operator)
    assert "Stopping" in read(client.get(f"/runs/{top.pk}"))
    below = api_of(operator).get(f"/runs/{top.pk}").json()["descendants"]
    assert below == [{"id": child.pk, "parent": top.pk, "agent": "scripted", "state": "stopped", "in_flight": 1}]
    situations.finish(attempt)
    assert "Stopping" not in read(client.get(f"/runs/{top.pk}"))
