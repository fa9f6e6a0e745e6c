"""A mistake in an agent's code is refused when it is read, by the name of what is wrong and with what to write instead."""

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.apps.config import AppConfig

from runs import agents, checks
from runs.agents import BUILT_IN, Agent, BadAgents, BadTool, Budget, Call, DidNotHappen, Effect, always, tool
from runs.engine.builtin import BUILTINS


def read_thing(call: Call, thing: str) -> dict[str, str]:
    return {}


def find_thing(call: Call, thing: str) -> DidNotHappen:
    return DidNotHappen()


def without_call(thing: str) -> None: ...
def without_anything() -> None: ...
def with_many(call: Call, *things: str) -> None: ...
def with_others(call: Call, **things: str) -> None: ...
def of_no_json(call: Call, thing: Callable[[], None]) -> None: ...
def of_no_import(call: Call, thing: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def later(call: Call) -> None: ...


@pytest.mark.parametrize(
    ("options", "function", "told"),
    [
        ({"effect": "write"}, read_thing, "Say Effect.READ, IDEMPOTENT, KEYED, CHECKABLE or ONCE."),
        ({}, without_call, "def without_call(call: Call, …)"),
        ({}, without_anything, "def without_anything(call: Call, …)"),
        ({}, with_many, "several values are one list"),
        ({}, with_others, "several values are one list"),
        ({}, of_no_json, "a type hint that JSON can carry"),
        ({}, of_no_import, "'Nowhere' is not defined"),
        ({}, later, "plain def"),
        ({"name": "read it!"}, read_thing, "letters, digits, _ and -"),
        ({"approval": 200}, read_thing, "above('amount', 200)"),
        ({"timeout": 0}, read_thing, "timeout is 0; it must be a number of seconds above 0"),
        ({"timeout": timedelta(seconds=3)}, read_thing, "seconds(30)"),
        ({"valid_for": float("inf")}, read_thing, "valid_for is inf"),
        ({"visible_within": -1}, read_thing, "visible_within is -1; it must be a number of seconds from 0"),
        ({"backoff": -1}, read_thing, "backoff is -1"),
        ({"max_age": 0}, read_thing, "max_age is 0"),
        ({"identity": "thing"}, read_thing, "identity=['thing']"),
        ({"rests_on": "thing.{thing}"}, read_thing, "rests_on=['thing.{thing}']"),
        ({"locks": ["thing.{"]}, read_thing, "order.{order}"),
    ],
)
def test_a_tool_that_could_not_be_called_is_refused(
    options: dict[str, Any], function: Callable[..., Any], told: str
) -> None:
    with pytest.raises(BadTool) as refused:
        tool(**{"effect": Effect.READ} | options)(function)
    assert told in str(refused.value)


def test_an_effect_may_be_written_as_its_word() -> None:
    read = tool(effect="read")(read_thing)  # type: ignore[arg-type]
    assert Agent(name="a", instructions="", model="m", recheck={"thing": read}).checker_of("thing") is read


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": [read_thing]}, "Put @tool(effect=…) above it"),
        ({"tools": [tool(effect=Effect.INTERNAL)(read_thing)]}, "Effect.READ if nothing"),
        ({"tools": [tool(effect=Effect.CHECKABLE)(read_thing)]}, "@read_thing.reconcile"),
        ({"tools": [tool(effect=Effect.READ)(read_thing)] * 2}, "two tools of one name: read_thing"),
        ({"tools": [tool(effect=Effect.READ, name="ask")(read_thing)]}, "ask is the name of a built-in tool"),
        ({"max_age": "3d"}, "max_age is '3d'"),
        ({"facts": {"x.*": timedelta(minutes=3)}}, "minutes(15)"),
    ],
)
def test_an_agent_that_could_not_work_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadTool) as refused:
        Agent(**{"name": "a", "instructions": "", "model": "m"} | options)
    assert told in str(refused.value)


def test_a_checkable_tool_with_its_look_up_is_taken() -> None:
    made = tool(effect=Effect.CHECKABLE, approval=always)(read_thing)
    made.reconcile(find_thing)
    assert Agent(name="a", instructions="", model="m", tools=[made]).tool("read_thing") is made


@pytest.mark.parametrize(
    "limits",
    [{"usd": "2,00"}, {"usd": 2.0}, {"usd": "-1"}, {"usd": "NaN"}, {"steps": -1}, {"calls": 1.5}, {"working_s": 0}],
)
def test_a_budget_that_is_no_limit_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(BadTool, match=r'Write money as "2\.00"'):
        Budget(**limits)


def test_the_names_that_are_taken_are_those_of_the_built_in_tools() -> None:
    assert set(BUILT_IN) == set(BUILTINS)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write the agents of the one app that there is."""

    def write(text: str) -> None:
        (tmp_path / "clumsy").mkdir()
        (tmp_path / "clumsy" / "agents.py").write_text(text)
        (tmp_path / "clumsy" / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))
        clumsy = AppConfig.create("clumsy")
        monkeypatch.setattr(apps, "get_app_configs", lambda: [clumsy])
        agents.get_agents.cache_clear()

    yield write
    monkeypatch.undo()
    agents.get_agents.cache_clear()
    for name in ("clumsy", "clumsy.agents"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("a = Agent(name='a' model='m')", "SyntaxError"),
        ("from runs.agents import *\na = Agent(name='a', instructions='', model='m', max_age=0)", "max_age is 0"),
        (
            "from runs.agents import *\na, b = [Agent(name='a', instructions='', model='m') for _ in range(2)]",
            "Two agents are called 'a'.",
        ),
    ],
)
def test_agents_that_cannot_be_loaded_are_said_by_the_check(
    written: Callable[[str], None], text: str, told: str
) -> None:
    written(text)
    (found,) = checks.check_agents(None)
    assert found.id == "runs.E017"
    assert found.msg.startswith("The agents in clumsy.agents cannot be loaded: ")
    assert told in found.msg
    assert found.hint
    with pytest.raises(BadAgents):
        agents.get_agents()
