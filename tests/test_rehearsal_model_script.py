"""An agent with a script in its instructions is played by it, by what the log says and by nothing else."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runs.examples.model.values import Json
from tests.rehearsal_tools import INTERNAL_TOOLS, Page, RehearsalServer, list_calls, make_tool, run_server


@pytest.fixture(scope="module")
def server() -> Iterator[RehearsalServer]:
    with run_server() as running:
        yield running


def write(script: Json) -> Page:
    text = json.dumps({"script": script})
    tools = [*INTERNAL_TOOLS, make_tool("read", order="string"), make_tool("pay", order="string", amount="string")]
    return Page(instructions=f"You test things.\nrehearsal: {text}\nBe exact.", tools=tools)


def ask(server: RehearsalServer, page: Page) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    with server.client() as client:
        message = client.messages.create(**page.write())
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, list_calls(message)


def test_replies_follow_each_other_as_the_log_grows(server: RehearsalServer) -> None:
    page = write(
        {
            "replies": [
                {"say": "Read both.", "calls": [["read", {"order": "1"}], ["read", {"order": "2"}]]},
                {"calls": [["pay", {"order": "1", "amount": "$step(read, 1).result.paid"}]]},
            ]
        }
    )
    assert ask(server, page) == ("Read both.", [("read", {"order": "1"}), ("read", {"order": "2"})])
    page.add("read", {"order": "1"}, {"paid": "10.00"})
    assert ask(server, page)[1] == [("read", {"order": "2"})]  # only what has no line yet
    page.add("read", {"order": "2"}, {"paid": "20.00"})
    assert ask(server, page)[1] == [("pay", {"order": "1", "amount": "10.00"})]
    page.add("pay", {"order": "1", "amount": "10.00"}, outcome="failed")
    assert ask(server, page)[1] == [("finish", {"outcome": "Done.", "evidence": [1, 2]})]


def test_a_reply_may_wait_for_a_notice_a_line_or_a_fact(server: RehearsalServer) -> None:
    page = write(
        {
            "replies": [
                {"when": {"notice": "rejected"}, "calls": [["ask", {"question": "${notice(rejected).reason}?"}]]},
                {"when": {"line": {"tool": "pay", "outcome": "expired"}}, "calls": [["plan", {"add": ["again"]}]]},
                {"when": {"fact": ["order.1", "stale"]}, "calls": [["read", {"order": "1"}]]},
                {"when": {"no_line": {"tool": "pay"}}, "calls": [["pay", {"order": "$inputs.order", "amount": "5"}]]},
            ],
            "after": {"calls": [["finish", {"outcome": "after", "evidence": []}]]},
        }
    )
    page.inputs = {"order": "1"}
    assert ask(server, page)[1] == [("pay", {"order": "1", "amount": "5"})]
    page.add("pay", {"order": "1", "amount": "5"}, outcome="expired")
    assert ask(server, page)[1] == [("plan", {"add": ["again"]})]
    page.notices.append({"notice": "rejected", "step": 1, "reason": "no"})
    assert ask(server, page)[1] == [("ask", {"question": "no?"})]
    page.notices.clear()
    page.add("plan", {})
    page.note("order.1", {"paid": 5}, from_step=1, state="stale")
    assert ask(server, page)[1] == [("read", {"order": "1"})]
    page.facts.clear()
    assert ask(server, page)[1] == [("finish", {"outcome": "after", "evidence": []})]


def test_values_keep_their_type_and_texts_are_filled(server: RehearsalServer) -> None:
    page = write(
        {
            "replies": [
                {
                    "say": "${goal} at ${inputs.where}",
                    "calls": [
                        [
                            "plan",
                            {
                                "close": [{"item": "$work(second).item", "outcome": "$fact(order.1).value.lines.0"}],
                                "evidence": ["$step(read).step"],
                            },
                        ]
                    ],
                }
            ]
        }
    )
    page.goal, page.inputs = "Look", {"where": "home & <abroad>"}
    page.add("read", {"order": "1"}, {})
    page.work = [{"item": "w1", "title": "the first"}, {"item": "w2", "title": "the second"}]
    page.note("order.1", {"lines": [{"n": 3}]}, from_step=1)
    text, calls = ask(server, page)
    assert text == "Look at home & <abroad>"
    assert calls == [("plan", {"close": [{"item": "w2", "outcome": {"n": 3}}], "evidence": [1]})]


def test_a_repeated_reply_is_given_for_ever(server: RehearsalServer) -> None:
    page = write({"replies": [{"calls": [["read", {"order": "1"}]], "repeat": True}]})
    for _ in range(3):
        assert ask(server, page)[1] == [("read", {"order": "1"})]
        page.add("read", {"order": "1"}, {})


def test_a_script_that_names_what_is_not_there_asks_once(server: RehearsalServer) -> None:
    page = write({"replies": [{"calls": [["pay", {"amount": "$step(read).result.paid"}]]}]})
    text, calls = ask(server, page)
    assert "$step(read).result.paid" in text
    assert calls[0][0] == "ask"
    page.add("ask", {}, {"answer": "?"})
    assert ask(server, page)[1] == []


def test_an_agent_without_script_is_not_guessed_at(server: RehearsalServer) -> None:
    page = Page(instructions="You are new here.", tools=list(INTERNAL_TOOLS))
    assert ask(server, page)[1][0][0] == "ask"
    page.add("ask", {}, {"answer": "nothing"})
    assert ask(server, page)[1][0][0] == "finish"
    page.add("finish", {}, outcome="refused")
    assert ask(server, page)[1] == []
