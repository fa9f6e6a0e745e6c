"""The commands: what they print, whom they act as, and how they refuse."""

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from runs import access, operations
from runs.access import Role
from runs.management.command import plain, read_duration
from runs.models import Approval, JournalEntry, Run, Switch
from tests import situations
from tests.conftest import Manage
from tests.people import Api, make_person

pytestmark = pytest.mark.django_db


def run_command(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(*arguments: str) -> Any:
    text = run_command(*arguments, "--json")
    assert text.count("\n") == 1, "one line"
    return json.loads(text)


def test_startrun_starts_a_run_with_everything_it_is_given() -> None:
    started = run_json(
        "startrun",
        "refund-desk",
        "Work off batch b1",
        "--input=batch=b1",
        "--constraint=Ask before noon.",
        "--budget-usd=1.50",
        "--budget-tokens=1000",
        "--budget-steps=9",
        "--max-age=1d12h",
        "--deadline=2036-01-01T10:00+01:00",
        "--label=shop=north",
        "--label=kind=a=b",
    )
    run = Run.objects.get(pk=started["id"])
    assert set(started) == {"id", "uid", "url"}
    assert started["url"].endswith(f"/runs/{run.pk}")
    assert (run.inputs, run.labels) == ({"batch": "b1"}, {"shop": "north", "kind": "a=b"})
    assert run.constraints[-1] == "Ask before noon."
    assert (run.budget.tokens_limit, run.budget.steps_limit, run.max_age_s) == (1000, 9, 129_600.0)
    assert run.deadline_at is not None
    assert run.deadline_at.isoformat() == "2036-01-01T09:00:00+00:00"
    assert run.started_by is not None
    assert run.started_by.username == "command-line"
    assert not run.started_by.has_usable_password()


def test_showrun_prints_what_the_api_answers() -> None:
    number = run_json("startrun", "refund-desk", "x")["id"]
    shown = run_json("showrun", str(number))
    access.make_roles()
    answered = Api(run_json("createtoken", "t", "--role=viewer")["token"]).get(f"/runs/{number}").json()
    assert shown | {"clocks": 0, "budget": 0} == answered | {"clocks": 0, "budget": 0}


def test_showrun_says_first_why_then_the_rest_and_no_escape_reaches_the_terminal() -> None:
    maker = User.objects.create_superuser("maker")
    run = situations.start(maker, goal="Look \x1b[2Jat\rthis")
    situations.finish(situations.take(run), {"text": "\x1b]0;owned\x07"})
    asking = situations.ask_approval(run)
    text = run_command("showrun", str(run.pk))
    lines = text.splitlines()
    assert lines[0] == f"Run {run.pk} of refund-desk is waiting for approval"
    assert lines[1].startswith("  Why")
    assert f"(approval {asking.card.pk})" in text
    for heading in ("Steps", "Facts", "Keys", "Budget", "Approvals", "Journal"):
        assert heading in lines
    assert "allows approve, edit, reject" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_run_is_paused_resumed_and_stopped_as_somebody() -> None:
    make_person("olga", Role.OPERATOR)
    number = str(run_json("startrun", "refund-desk", "x", "--as=olga")["id"])
    assert run_json("pauserun", number, "--reason=lunch", "--as=olga")["paused"]["reason"] == "lunch"
    assert run_json("resumerun", number, "--reason=back", "--as=olga")["paused"] is None
    assert run_json("stoprun", number, "--reason=wrong", "--as=olga")["state"] == "stopped"
    assert JournalEntry.objects.get(kind="run.stopped").actor == "person:olga"
    with pytest.raises(CommandError, match="has ended"):
        run_command("stoprun", number, "--reason=again")


def test_decide_decides_once() -> None:
    make_person("anna", Role.APPROVER)
    asking = situations.ask_approval(situations.start(User.objects.create_superuser("maker")))
    number = str(asking.card.pk)
    card = run_json("decide", number, "edit", '--arguments={"order": "1001", "amount": "9"}', "--as=anna")
    assert (card["state"], card["arguments"]["amount"], card["decisions"][0]["by"]) == ("approved", "9.00", "anna")
    with pytest.raises(CommandError, match="already approved by anna"):
        run_command("decide", number, "reject", "--as=anna")


def test_decide_grants_and_answers() -> None:
    maker = User.objects.create_superuser("maker")
    budget = situations.ask_budget(situations.start(maker, usd="1.00"))
    run_command("decide", str(budget.pk), "grant", "--grant-usd=0.25")
    assert str(Run.objects.get(pk=budget.run_id).budget.usd_limit) == "1.2500000000"
    question = situations.ask_question(situations.start(maker))
    run_command("decide", str(question.pk), "respond", "--answer=b2")
    assert Approval.objects.get(pk=question.pk).state == "answered"


def test_a_role_is_held_to_its_table_here_too() -> None:
    make_person("vera", Role.VIEWER)
    asking = situations.ask_approval(situations.start(User.objects.create_superuser("maker")))
    for command in (
        ["startrun", "refund-desk", "x"],
        ["stoprun", str(asking.run.pk), "--reason=x"],
        ["decide", str(asking.card.pk), "approve"],
        ["switch", "engage", "all", "--reason=x"],
        ["createtoken", "t", "--role=operator"],
    ):
        with pytest.raises(CommandError, match="You may not"):
            run_command(*command, "--as=vera")
    assert run_json("showrun", str(asking.run.pk), "--as=vera")["id"] == asking.run.pk


def test_a_switch_is_engaged_and_released_by_its_scope() -> None:
    engaged = run_json("switch", "engage", "tool:refund", "--reason=twice")
    assert engaged["acknowledged"] == []
    assert engaged["drained_at"] == engaged["engaged_at"]
    assert "nothing is under way" in run_command("switch", "engage", "tool:refund", "--reason=twice")
    assert run_json("switch", "release", "tool:refund", "--reason=mended")["release_reason"] == "mended"
    assert Switch.objects.count() == 1
    with pytest.raises(CommandError, match="no engaged switch"):
        run_command("switch", "release", "tool:refund", "--reason=again")


def test_createtoken_prints_a_token_that_works_with_its_role() -> None:
    token = run_json("createtoken", "robot", "--role=service")["token"]
    client = Api(token)
    assert client.post("/runs", {"agent": "refund-desk", "goal": "x"}).status_code == 201
    assert client.post("/switches", {"scope": "all", "reason": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("1d12h", 129_600), ("2d", 172_800), ("1w", 604_800), ("0.5h", 1800)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "d", "2 d", "-1d", "2days", "1d-"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        read_duration(text)


def test_text_for_a_terminal_is_plain() -> None:
    assert plain("a\x1b[31mb\nc\u202ed") == "a\\x1b[31mb c\\x202ed"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["startrun", "nobody", "x"], 1, "There is no agent 'nobody'"),
        (["startrun", "refund-desk", " "], 1, "A run needs a goal"),
        (["startrun", "refund-desk", "x", "--budget-usd", "lots"], 1, "is no amount"),
        (["startrun", "refund-desk", "x", "--budget-tokens", "-1"], 1, "no possible tokens"),
        (["startrun", "refund-desk", "x", "--max-age", "999999d"], 1, "no possible max_age_s"),
        (["startrun", "refund-desk", "x", "--max-age", "soon"], 2, "invalid duration"),
        (["startrun", "refund-desk", "x", "--deadline", "tomorrow"], 2, "invalid time"),
        (["startrun", "refund-desk", "x", "--input", "b1"], 2, "invalid key=value"),
        (["startrun", "refund-desk"], 2, "required: goal"),
        (["startrun", "refund-desk", "x" * 20_001], 1, "The goal has 20,001 characters, and may have 20,000."),
        (["startrun", "refund-desk", "x", "--deadline", "2020-01-01T10:00Z"], 1, "has passed already"),
        (["startrun", "refund-desk", "x", "--budget-steps", "0"], 1, "without a step"),
        (["showrun", "99999999999999999999999"], 1, "There is no run"),
        (["showrun", "abc"], 2, "invalid int"),
        (["stoprun", "1"], 2, "--reason"),
        (["decide", "1", "perhaps"], 2, "invalid choice"),
        (["decide", "1", "edit", "--arguments", "{"], 2, "invalid JSON"),
        (["decide", "1", "edit", "--arguments", "[]"], 2, "JSON object"),
        (["decide", "7", "approve"], 1, "There is no approval 7"),
        (["switch", "engage", "everything", "--reason", "x"], 1, "is no scope"),
        (["createtoken", "x", "--role", "admin"], 2, "invalid choice"),
        (["createtoken", " ", "--role", "viewer"], 1, "needs a name"),
        (["showrun", "1", "--as", "nobody"], 1, "no active user"),
        (["cluster", "--workers", "0"], 2, "--workers: must be a whole number from 1 to 64, and is '0'"),
        (["modelgateway", "--capacity", "0"], 2, "--capacity: must be a whole number from 1"),
        (["up", "--workers", "65"], 2, "--workers: must be a whole number from 1 to 64"),
        (["up", "--port", "-1"], 2, "--port: must be a whole number from 0 to 65535"),
        (["rehearse", "--soak", "0"], 2, "--soak: must be a number from 0.01"),
        (["rehearse", "--soak", "1", "--kill-every", "nan"], 2, "--kill-every: must be a number from 0.01"),
        (["bench", "idle", "--runs", "0"], 2, "--runs: must be a whole number from 1"),
        (["bench", "idle", "--seconds", "-3"], 2, "--seconds: must be a number from 0.01"),
        (["bench", "idle", "--pgbench-s", "0"], 2, "--pgbench-s: must be a whole number from 1"),
        (["checkledger", "now"], 2, "unrecognized arguments: now"),
    ],
)
def test_a_refusal_is_one_line_and_a_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    from django.core.management import ManagementUtility

    monkeypatch.setattr("django.db.connections.close_all", lambda: None)
    with pytest.raises(SystemExit) as ended:
        ManagementUtility(["manage.py", *arguments]).execute()
    assert ended.value.code == status
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_the_commands_work_as_processes_of_their_own(manage: Manage) -> None:
    started = manage("startrun", "refund-desk", "Work off batch b1", "--input", "batch=b1", "--json")
    assert started.returncode == 0, started.stderr
    number = str(json.loads(started.stdout)["id"])
    shown = manage("showrun", number)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"Run {number} of refund-desk is queued")
    hurried = manage("showrun", number, program=["sh", "-c", '"$@" | true', "sh"])
    assert hurried.stderr == "", "who reads no further is told nothing"
    refused = manage("stoprun", "999", "--reason", "x")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.strip() == "There is no run 999 that you may see."
    operations.stop_run(int(number), reason="tidy", by=User.objects.get(username="command-line"))


def test_a_password_is_piped_in_where_no_terminal_can_ask_for_it(manage: Manage) -> None:
    User.objects.create_user("ada")
    alone = ["setsid", "-w"]  # whoever runs the tests may have a terminal
    told = manage("changepassword", "ada", text="analytical engine\nanalytical engine\n", program=alone)
    assert (told.returncode, told.stderr) == (0, "")
    assert User.objects.get(username="ada").check_password("analytical engine")
    refused = manage("changepassword", "ada", program=alone)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "no terminal to ask for the password" in refused.stderr
    assert User.objects.get(username="ada").check_password("analytical engine")
