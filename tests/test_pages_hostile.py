"""Text from models, customers and tools stays text, on every page and panel: whatever it holds, wherever it stands."""

from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from runs import approvals, budgets, clock, course, facts, lifecycle, operations, steps
from runs.access import Role
from runs.agents import Json, get_agent
from runs.engine import renewing
from runs.models import Run
from runs.states import ApprovalKind, StepKind, StepState, WaitingFor
from tests import situations
from tests.page_tools import client_of, read
from tests.people import make_person, operator
from tests.writers import open_attempt

__all__ = ["operator"]

pytestmark = pytest.mark.django_db

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b onclick=x>&amp;{{ 7 }}{% now %}\x1b[31mred\x1b[0m"
    "\u202eevil\u2066\u200b\ufffd javascript:alert(3) " + "W" * 5_000
)
SPARKS = ("alert(1)</script>", "onerror=alert(2)>", "<b onclick")


class Watcher(HTMLParser):
    """Collects what only markup of our own may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.handlers: list[str] = []
        self.styles: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(f"{tag} {name}")
            if name == "style":
                self.styles.append(f"{tag} {value}")
            if name in ("href", "src", "action") and value is not None:
                self.links.append(value)
        if tag == "script":
            self.scripts.append(dict(attrs).get("src") or "inline")
        if tag == "style":
            self.styles.append("element")


@pytest.fixture
def scene(operator: User) -> tuple[Run, list[str]]:
    """A run in which everything that can come from outside is hostile."""
    run = situations.start(
        operator, goal=HOSTILE, constraints=[HOSTILE], inputs={HOSTILE[:60]: HOSTILE}, labels={"l": HOSTILE[:150]}
    )
    tool = get_agent("refund-desk").tool("refund")
    assert tool is not None
    with transaction.atomic():
        locked = lifecycle.lock(run.pk)
        fact = facts.record(
            locked,
            name=HOSTILE[:190],
            value={"note": HOSTILE, HOSTILE[:50]: [HOSTILE]},
            source={"tool": "read_order", "arguments": {}, "pointer": ""},
            observed_at=clock.now(),
            max_age_s=900.0,
        )
        arguments: dict[str, Json] = {"order": HOSTILE, "amount": "420.00", "memo": HOSTILE}
        step = steps.plan(
            locked,
            steps.Asked(
                kind=StepKind.ACT,
                tool="refund",
                arguments=arguments,
                because=HOSTILE,
                rests_on=(fact.name,),
                contract=tool.contract,
            ),
        )
        steps.set_gate(step, HOSTILE)
        steps.wait(step, WaitingFor.APPROVAL, note=HOSTILE, on=HOSTILE, and_then=HOSTILE)
        card = approvals.ask(
            locked,
            ApprovalKind.APPROVAL,
            title=HOSTILE,
            why=HOSTILE,
            step=step,
            because=HOSTILE,
            contract=tool.contract,
            arguments=arguments,
            facts=facts.shown(facts.judge(run.pk, [fact.name]).values()),
            options=[HOSTILE],
            evidence={HOSTILE[:40]: HOSTILE},
            valid_for_s=600.0,
        )
        failed = steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="read_order", arguments={"order": HOSTILE}))
        steps.close(failed, StepState.FAILED, error=HOSTILE, result={"said": HOSTILE})
        course.rest(locked)
        used = budgets.Amounts(usd=Decimal("0.01"), tokens=1, calls=1, steps=1)
        attempt = open_attempt(steps.plan(locked, steps.Asked(kind=StepKind.CHECK, tool="read_order")))
        budgets.reserve(run.pk, used, attempt=attempt.pk, asked=True)
        budgets.settle(attempt.pk, used, pricing=budgets.Pricing(model=HOSTILE), note=HOSTILE)
        steps.wait(
            signing := steps.plan(locked, steps.Asked(kind=StepKind.ACT, tool="read_order")),
            WaitingFor.CREDENTIAL,
            note=HOSTILE,
            on=HOSTILE[:80],
        )
        renewing.ask_for_credential(locked, signing, HOSTILE[:80], why=HOSTILE)
        course.rest(locked)
    operations.engage_switch(f"run:{run.pk}", reason=HOSTILE, by=operator)
    tabs = ("timeline", "facts", "work", "keys", "failures", "ledger", "journal", "briefing")
    paths = [
        "/",
        "/panels/home",
        "/panels/nav",
        "/panels/switches",
        "/runs",
        f"/runs/panels/rows?shown={run.pk}",
        f"/runs/{run.pk}/panels/head",
        f"/runs/{run.pk}/panels/side",
        *(f"/runs/{run.pk}?tab={tab}" for tab in tabs),
        f"/runs/{run.pk}?tab=step&step=1",
        f"/runs/{run.pk}?tab=step&step=2",
        "/approvals",
        f"/approvals/{card.pk}",
        f"/approvals/{card.pk}/panels/evidence",
        "/approvals/panels/list?current=1",
        "/spend",
        "/ledger",
        "/credentials",
    ]
    return run, paths


def watch(response: Any) -> Watcher:
    watcher = Watcher()
    watcher.feed(response.content.decode())
    return watcher


def test_hostile_text_is_text_on_every_page(scene: tuple[Run, list[str]]) -> None:
    client = client_of(User.objects.create_superuser("root"))
    for path in scene[1]:
        response = client.get(path)
        assert response.status_code == 200, path
        page, watcher = response.content.decode(), watch(response)
        assert not watcher.handlers, (path, watcher.handlers)
        assert not watcher.styles, (path, watcher.styles)
        assert all(source.startswith("/static/") for source in watcher.scripts), (path, watcher.scripts)
        assert not [link for link in watcher.links if link.lower().startswith(("javascript:", "data:", "//"))], path
        for spark in SPARKS:
            assert spark not in page, (path, spark)
        for character in "\x1b\u202e\u2066\u200b":
            assert character not in page, (path, character)


def test_what_will_run_is_complete_with_its_length_and_its_hidden_characters_written_out(
    scene: tuple[Run, list[str]],
) -> None:
    client = client_of(User.objects.create_superuser("root"))
    words = read(client.get(scene[1][-6]))
    assert words.count("W" * 5_000) >= 4
    assert "\\x1b[31mred\\x1b[0m\\u202eevil\\u2066\\u200b" in words
    assert f"complete, {len(HOSTILE)} characters, scrolls:" in words
    assert "can’t be seen or change the direction of reading" in words


@pytest.mark.parametrize(
    "path", ["/runs?q=<script>alert(1)</script>", "/runs?agent=%22%3E<b onclick=x>", "/approvals?kind=<b>", "/<script>"]
)
def test_hostile_addresses_are_text_too(operator: User, path: str) -> None:
    response = client_of(operator).get(path)
    page, watcher = response.content.decode(), watch(response)
    assert "<script>alert" not in page
    assert not watcher.handlers
    assert all(source.startswith("/static/") for source in watcher.scripts)


def test_no_page_carries_a_style_or_a_script_of_its_own(operator: User) -> None:
    asking = situations.ask_approval(situations.start(operator))
    client = client_of(make_person("ada", Role.ADMIN))
    for path in (
        "/",
        "/runs",
        f"/runs/{asking.run.pk}",
        "/runs/new",
        "/approvals",
        f"/approvals/{asking.card.pk}",
        "/runs/0",
    ):
        response = client.get(path)
        watcher = watch(response)
        assert not watcher.styles, path
        assert "inline" not in watcher.scripts, path
        assert "default-src 'none'" in response["Content-Security-Policy"]
