"""Each fault of the rehearsal model arrives at the real SDK as the API's own would."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import anthropic
import httpx2
import pytest

from tests.rehearsal_tools import INTERNAL_TOOLS, MODEL, Page, RehearsalServer, list_calls, run_server


@pytest.fixture(scope="module")
def running() -> Iterator[RehearsalServer]:
    with run_server() as running:
        yield running


@pytest.fixture
def server(running: RehearsalServer) -> RehearsalServer:
    running.control("DELETE", "/faults")
    running.control("DELETE", "/calls")
    return running


@pytest.fixture
def client(server: RehearsalServer) -> Iterator[anthropic.Anthropic]:
    with server.client() as client:
        yield client


def page(goal: str = "Go on.") -> dict[str, Any]:
    script = (
        '{"script":{"replies":[{"say":"Both.","calls":[["recall",{"step":1}],'
        '["ask",{"question":"A question that is long enough to be cut."}]]}]}}'
    )
    return Page(goal=goal, instructions=f"rehearsal: {script}", tools=list(INTERNAL_TOOLS)).write()


def test_rate_limit_says_how_long_to_wait(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("rate_limit", retry_after=3)
    with pytest.raises(anthropic.RateLimitError) as limited:
        client.messages.create(**page())
    assert limited.value.type == "rate_limit_error"
    assert limited.value.error_code is None
    assert limited.value.response.headers["retry-after"] == "3"
    assert client.messages.create(**page()).stop_reason == "tool_use"


def test_rate_limit_may_say_it_as_a_date_or_not_at_all(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("rate_limit", retry_after=30, as_date=True)
    server.fault("rate_limit", retry_after=None)
    server.fault("rate_limit", retry_after="Sun, 06 Nov 2033 08:49:37 GMT")
    with pytest.raises(anthropic.RateLimitError) as dated:
        client.messages.create(**page())
    until = parsedate_to_datetime(dated.value.response.headers["retry-after"])
    assert timedelta(seconds=28) < until - datetime.now(UTC) < timedelta(seconds=32)
    with pytest.raises(anthropic.RateLimitError) as silent:
        client.messages.create(**page())
    assert "retry-after" not in silent.value.response.headers
    with pytest.raises(anthropic.RateLimitError) as given:
        client.messages.create(**page())
    assert given.value.response.headers["retry-after"] == "Sun, 06 Nov 2033 08:49:37 GMT"


def test_a_spend_limit_has_its_error_code(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("rate_limit", error_code="enforced_spend_limit_reached")
    with pytest.raises(anthropic.RateLimitError) as limited, client.messages.stream(**page()) as stream:
        stream.get_final_message()
    assert limited.value.error_code == "enforced_spend_limit_reached"


def test_overloaded_before_and_within_a_stream(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("overloaded", retry_after=1)
    with pytest.raises(anthropic.InternalServerError) as refused:
        client.messages.create(**page())
    assert (refused.value.status_code, refused.value.type) == (529, "overloaded_error")
    server.fault("overloaded", after=4)
    events: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as broken,
        client.messages.create(**page(), stream=True) as stream,
    ):
        events.extend(event.type for event in stream)
    assert broken.value.type == "overloaded_error"
    assert events == ["message_start", "content_block_start", "content_block_delta"]  # the ping is not shown


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, anthropic.BadRequestError), (402, anthropic.APIStatusError), (500, anthropic.InternalServerError)],
)
def test_any_status_can_be_answered(
    server: RehearsalServer, client: anthropic.Anthropic, status: int, kind: type[anthropic.APIStatusError]
) -> None:
    server.fault("error", status=status, message="as told")
    with pytest.raises(kind, match="as told") as refused:
        client.messages.create(**page())
    assert refused.value.status_code == status


def test_a_cut_stream_breaks_off_without_an_end(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("cut_stream", after=6)
    seen: list[str] = []
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        client.messages.create(**page(), stream=True) as stream,
    ):
        seen.extend(event.type for event in stream)
    assert seen[0] == "message_start"
    assert "message_stop" not in seen
    (call,) = server.calls()
    assert (call["events_sent"], call["stop_reason"], call["fault"]) == (6, None, "cut_stream")
    server.fault("cut_stream")
    with pytest.raises(anthropic.APIConnectionError):
        client.messages.create(**page())


def test_a_stall_is_silence_in_the_middle(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("stall", seconds=0.6, times=2)
    began = time.monotonic()
    with client.messages.stream(**page()) as stream:
        assert stream.get_final_message().stop_reason == "tool_use"
    assert time.monotonic() - began >= 0.6
    with (
        pytest.raises(httpx2.ReadTimeout),
        client.with_options(timeout=0.2).messages.create(**page(), stream=True) as short,
    ):
        list(short)


def test_slow_takes_its_time(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("slow", seconds=0.5, times=2)
    for streamed in (True, False):
        began = time.monotonic()
        if streamed:
            with client.messages.stream(**page()) as stream:
                stream.get_final_message()
        else:
            client.messages.create(**page())
        assert 0.5 <= time.monotonic() - began < 5


def test_max_tokens_cuts_in_the_middle_of_a_call(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("max_tokens", times=2)
    with client.messages.stream(**page()) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    (recall, cut) = list_calls(message)
    assert recall == ("recall", {"step": 1})
    assert cut[0] == "ask"
    assert cut[1].get("question") != "A question that is long enough to be cut."
    whole = client.messages.create(**page())
    assert (whole.stop_reason, list_calls(whole)[1]) == ("max_tokens", ("ask", {}))


def test_a_refusal_may_come_after_a_call(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    server.fault("refusal", category="cyber")
    with client.messages.stream(**page()) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "refusal"
    assert message.stop_details is not None
    assert message.stop_details.category == "cyber"
    assert list_calls(message) == [("recall", {"step": 1})]


def test_bad_usage_is_bad_in_the_way_that_was_told(server: RehearsalServer, client: anthropic.Anthropic) -> None:
    seen = []
    for how in ("missing", "null", "negative", "text"):
        server.fault("bad_usage", usage=how)
        usage: Any = client.messages.create(**page()).usage
        seen.append(usage.output_tokens if usage is not None else "none")
    assert seen == ["none", None, -7, "many"]
    server.fault("bad_usage", usage="negative")
    with client.messages.create(**page(), stream=True) as stream:
        ends = [event.usage for event in stream if event.type == "message_delta"]
    assert [end.output_tokens for end in ends] == [-7]


def test_a_fault_hits_only_what_it_matches_and_only_so_often(
    server: RehearsalServer, client: anthropic.Anthropic
) -> None:
    server.fault("error", match={"text": 'the "b7" batch'}, times=2)
    server.fault("overloaded", match={"model": "claude-opus-5-5"}, times=None)
    assert client.messages.create(**page()).role == "assistant"
    for _ in range(2):
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(**page('Decide the "b7" batch.'))
    assert client.messages.create(**page('Decide the "b7" batch.')).role == "assistant"
    for _ in range(3):
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(**{**page(), "model": "claude-opus-5-5"})
    left = [(fault["hits"], fault["left"]) for fault in server.control("GET", "/faults")["faults"]]
    assert left == [(2, 0), (3, None)]
    calls = server.calls()
    assert [call["status"] for call in calls] == [200, 500, 500, 200, 529, 529, 529]
    assert calls[1]["model"] == MODEL


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "magic"}, {"kind": "stall"}, {"kind": "error", "status": 200}, {"kind": "slow", "second": 3}, []],
)
def test_a_fault_that_cannot_be_played_is_refused(server: RehearsalServer, wrong: Any) -> None:
    answer = httpx2.post(f"{server.url}/faults", json=wrong)
    assert answer.status_code == 400
    assert answer.json()["error"]
