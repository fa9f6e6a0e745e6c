"""The rehearsal model speaks the Messages API as the real SDK reads it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.rehearsal_tools import INTERNAL_TOOLS, MODEL, ROOT, Page, RehearsalServer, list_calls, make_tool, run_server
from tests.waiting import wait_until

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RehearsalServer]:
    with run_server() as running:
        yield running


@pytest.fixture
def client(server: RehearsalServer) -> Iterator[anthropic.Anthropic]:
    with server.client() as client:
        yield client


def two_calls() -> dict[str, Any]:
    calls = '[["recall",{"step":1}],["ask",{"question":"Wie?"}]]'
    script = f'{{"script":{{"replies":[{{"say":"Two at once: ä €","calls":{calls}}}]}}}}'
    return Page(instructions=f"Be brief.\nrehearsal: {script}\n", tools=list(INTERNAL_TOOLS)).write()


def test_a_streamed_reply_and_a_whole_one_are_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**two_calls())
    with client.messages.stream(**two_calls()) as stream:
        streamed = stream.get_final_message()
        assert stream.request_id is not None
        assert stream.request_id.startswith("req_")
    assert list_calls(whole) == list_calls(streamed) == [("recall", {"step": 1}), ("ask", {"question": "Wie?"})]
    assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
    assert whole.content[0].to_dict()["text"] == streamed.content[0].to_dict()["text"] == "Two at once: ä €"
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 20


def test_a_stream_has_the_events_in_order_and_calls_in_several_pieces(client: anthropic.Anthropic) -> None:
    with client.messages.create(**two_calls(), stream=True) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    pieces = [
        event for event in events if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
    ]
    assert len(pieces) >= 4
    start, end = events[0], events[-2]
    assert start.type == "message_start"
    assert end.type == "message_delta"
    assert start.message.stop_reason is None
    assert start.message.usage.output_tokens == 1 < end.usage.output_tokens
    assert start.message.usage.input_tokens == end.usage.input_tokens
    assert start.message.usage.cache_creation is not None


def test_count_tokens_equals_the_input_of_the_call(client: anthropic.Anthropic) -> None:
    page = two_calls()
    counted = client.messages.count_tokens(**{name: page[name] for name in ("model", "system", "tools", "messages")})
    usage = client.messages.create(**page).usage
    assert counted.input_tokens == (
        usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    )


def test_thinking_is_streamed_and_counted_when_asked_for(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**two_calls(), thinking={"type": "adaptive"}) as stream:
        message = stream.get_final_message()
    first = message.content[0]
    assert first.type == "thinking"
    assert first.signature
    assert message.usage.output_tokens_details is not None
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_a_reply_longer_than_max_tokens_is_cut(client: anthropic.Anthropic) -> None:
    page = {**two_calls(), "max_tokens": 12}
    with client.messages.stream(**page) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens <= 12


def test_models_can_be_looked_up(client: anthropic.Anthropic) -> None:
    found = client.models.retrieve(MODEL)
    assert (found.id, found.lifecycle) == (MODEL, "active")
    assert MODEL in [model.id for model in client.models.list()]
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.models.retrieve("gpt-99")
    assert refused.value.type == "not_found_error"


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(model="claude-none", max_tokens=10, messages=HELLO)
    assert refused.value.request_id is not None
    assert refused.value.api_message == "model: claude-none"


ASSISTANT_CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "ask", "input": {}}]}
ANSWER = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]}
MARK = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "first message"),
        ({"messages": [{"role": "user", "content": ""}]}, "non-empty"),
        ({"messages": [*HELLO, ASSISTANT_CALL]}, "tool_result"),
        ({"messages": [*HELLO, ASSISTANT_CALL, {"role": "user", "content": "go on"}]}, "toolu_1"),
        ({"messages": [*HELLO, ANSWER]}, "unexpected `tool_use_id`"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 999_999}, "maximum allowed"),
        ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "name"),
        ({"tools": [make_tool("a"), make_tool("a")]}, "unique"),
        ({"tools": [make_tool("a")], "tool_choice": {"type": "any"}}, "forced tool use"),
        ({"system": [{"type": "text", "text": ""}]}, "non-empty"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "1024"),
        ({"extra_body": {"colour": "red"}}, "Extra inputs"),
        ({"tools": [{**make_tool(f"t{n}"), "cache_control": MARK} for n in range(5)]}, "maximum of 4"),
    ],
)
def test_a_wrong_request_is_refused_as_the_api_does(
    client: anthropic.Anthropic, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=words) as refused:
        client.messages.create(**{"model": MODEL, "max_tokens": 100, "messages": HELLO, **change}, timeout=30)
    assert refused.value.type == "invalid_request_error"


def test_max_tokens_is_required(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: Field required"):
        client.post("/v1/messages", cast_to=object, body={"model": MODEL, "messages": HELLO})


def test_answered_tool_calls_are_accepted(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [*HELLO, ASSISTANT_CALL, ANSWER]
    assert client.messages.create(model=MODEL, max_tokens=100, messages=messages).stop_reason == "end_turn"


def test_a_request_that_is_too_large_is_refused(client: anthropic.Anthropic) -> None:
    large: list[Any] = [{"role": "user", "content": "x" * (33 * 1024 * 1024)}]
    with pytest.raises(anthropic.RequestTooLargeError):
        client.messages.create(model=MODEL, max_tokens=10, messages=large)


def test_a_wrong_key_is_refused_when_one_is_set() -> None:
    with run_server("--api-key", "right") as server:
        with server.client(api_key="right") as client:
            assert client.messages.create(model=MODEL, max_tokens=100, messages=HELLO).role == "assistant"
        with server.client(api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(model=MODEL, max_tokens=100, messages=HELLO)
        assert refused.value.type == "authentication_error"
        assert [call["status"] for call in server.calls()] == [200, 401]


def test_the_receiver_sees_a_client_that_goes_away() -> None:
    with run_server("--pace", "60") as server, server.client() as client:
        with client.messages.create(**two_calls(), stream=True) as stream:
            for event in stream:
                if event.type == "content_block_start":
                    break
        call = wait_until(
            lambda: next((each for each in server.calls() if not each["open"]), None),
            what="the call ended",
            timeout_s=5,
        )
        assert call is not None
        assert call["client_gone"] is True
        assert call["stop_reason"] is None
        assert 0 < call["bytes_sent"] < 2000


def test_hundreds_of_slow_streams_are_held_at_once() -> None:
    with run_server("--pace", "600") as server:

        async def hold_all() -> int:
            async with anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client:
                streams = [await client.messages.create(**two_calls(), stream=True) for _ in range(300)]
                for stream in streams:
                    assert (await anext(stream)).type == "message_start"
                held = len([call for call in server.calls() if call["open"]])
                for stream in streams:
                    await stream.close()
                return held

        assert asyncio.run(hold_all()) == 300
        wait_until(lambda: all(call["client_gone"] for call in server.calls()), what="the client gone", timeout_s=10)


def test_the_server_dies_with_its_parent() -> None:
    program = (
        "import subprocess, sys;"
        "command = [sys.executable, '-m', 'runs.examples.model', '--die-with-parent'];"
        "p = subprocess.Popen(command, stdout=subprocess.PIPE);"
        "p.stdout.readline(); print(p.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(child), what="the child ended", timeout_s=5)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_it_starts_without_django() -> None:
    program = "import sys, runs.examples.model.server; print([name for name in sys.modules if name == 'django'])"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"
