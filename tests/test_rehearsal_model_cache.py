"""The rehearsal model's cache accounting is real: what was stored is read, while it lives, by whoever stored it."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, Usage

from tests.rehearsal_tools import MODEL, RehearsalServer, make_tool, run_server


@pytest.fixture
def server() -> Iterator[RehearsalServer]:
    with run_server() as running:
        yield running


def block(text: str, ttl: str | None = None) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": "text", "text": text}
    return {**plain, "cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else plain


def ask(client: anthropic.Anthropic, *blocks: dict[str, Any], **more: Any) -> Usage:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "tools": [make_tool("look")], **more}
    messages: list[Any] = [{"role": "user", "content": list(blocks)}]
    message: Message = client.messages.create(**body, messages=messages)
    return message.usage


def total(usage: Usage) -> int:
    return usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)


def test_a_prefix_is_created_once_and_read_afterwards(server: RehearsalServer) -> None:
    with server.client() as client:
        first = ask(client, block("a" * 4000, "5m"), block("one"))
        second = ask(client, block("a" * 4000, "5m"), block("two"))
    assert first.cache_creation_input_tokens == second.cache_read_input_tokens
    assert (first.cache_creation_input_tokens or 0) >= 1000
    assert (first.cache_read_input_tokens, second.cache_creation_input_tokens) == (0, 0)
    assert first.input_tokens == second.input_tokens == 1
    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_5m_input_tokens == first.cache_creation_input_tokens


def test_nothing_is_cached_without_a_mark(server: RehearsalServer) -> None:
    with server.client() as client:
        for _ in range(2):
            usage = ask(client, block("a" * 4000))
            assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0)
            assert usage.input_tokens >= 1000


def test_a_longer_prompt_reads_the_old_prefix_and_creates_the_rest(server: RehearsalServer) -> None:
    with server.client() as client:
        first = ask(client, block("a" * 4000, "5m"))
        longer = ask(client, block("a" * 4000), block("b" * 2000, "5m"), block("now"))
    assert longer.cache_read_input_tokens == first.cache_creation_input_tokens
    assert longer.cache_creation_input_tokens == 500
    assert longer.input_tokens == 1


def test_a_block_that_grew_is_another_block(server: RehearsalServer) -> None:
    with server.client() as client:
        ask(client, block("a" * 4000, "5m"))
        usage = ask(client, block("a" * 4001, "5m"))
    assert usage.cache_read_input_tokens == 0


def test_a_prefix_lives_five_minutes_from_its_last_use(server: RehearsalServer) -> None:
    with server.client() as client:
        ask(client, block("a" * 4000, "5m"))
        for away_s, is_read in ((290, True), (290, True), (301, False)):
            server.control("POST", "/clock", {"advance": away_s})
            usage = ask(client, block("a" * 4000, "5m"))
            assert bool(usage.cache_read_input_tokens) is is_read


def test_an_hour_is_counted_apart_from_five_minutes(server: RehearsalServer) -> None:
    with server.client() as client:
        usage = ask(client, block("a" * 4000, "1h"), block("b" * 2000, "5m"))
        assert usage.cache_creation is not None
        assert usage.cache_creation.ephemeral_5m_input_tokens == 500
        assert usage.cache_creation.ephemeral_1h_input_tokens >= 1000
        server.control("POST", "/clock", {"advance": 1800})
        later = ask(client, block("a" * 4000, "1h"), block("b" * 2000, "5m"))
    assert later.cache_read_input_tokens == usage.cache_creation.ephemeral_1h_input_tokens
    assert later.cache_creation_input_tokens == 500


def test_caches_are_kept_apart_by_key_model_and_tools(server: RehearsalServer) -> None:
    with server.client() as client, server.client(api_key="other") as other:
        ask(client, block("a" * 4000, "5m"))
        assert ask(other, block("a" * 4000, "5m")).cache_read_input_tokens == 0
        assert ask(client, block("a" * 4000, "5m"), model="claude-opus-5-5").cache_read_input_tokens == 0
        assert ask(client, block("a" * 4000, "5m"), tools=[make_tool("see")]).cache_read_input_tokens == 0
        assert ask(client, block("a" * 4000, "5m")).cache_read_input_tokens


def test_a_mark_at_the_top_stands_for_the_last_block(server: RehearsalServer) -> None:
    with server.client() as client:
        first = ask(client, block("a" * 4000), cache_control={"type": "ephemeral"})
        second = ask(client, block("a" * 4000), cache_control={"type": "ephemeral"})
    assert first.input_tokens == second.input_tokens == 0
    assert second.cache_read_input_tokens == total(first)


def test_a_refused_call_stores_nothing(server: RehearsalServer) -> None:
    with server.client() as client:
        server.fault("overloaded")
        with pytest.raises(anthropic.InternalServerError):
            ask(client, block("a" * 4000, "5m"))
        assert ask(client, block("a" * 4000, "5m")).cache_read_input_tokens == 0
