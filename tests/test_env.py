from pathlib import Path

import pytest

from console.env import BadVariable, Environment


def environment(**variables: str) -> Environment:
    return Environment(variables=variables)


def test_a_variable_that_is_not_set_or_empty_gives_the_default() -> None:
    for env in (environment(), environment(X=""), environment(X="  ")):
        assert env.read_text("X", "d") == "d"
        assert env.read_optional("X") is None
        assert env.read_flag("X", True) is True
        assert env.read_whole("X", 3, least=1, most=9) == 3
        assert env.read_seconds("X", 1.5, least=1, most=9) == 1.5
        assert env.read_names("X", ["a"]) == ["a"]
        assert env.read_url("X", "http://a/") == "http://a"
        assert env.read_zone("X", "UTC") == "UTC"
        assert env.read_folder("X", Path("/nowhere/at/all")) == Path("/nowhere/at/all")


def test_values_are_read_with_their_type() -> None:
    env = environment(
        FLAG="Off",
        WHOLE="7",
        SECONDS="0.5",
        NAMES=" a.example, ,b.example ",
        URL="https://a.example/x/",
        ZONE="Europe/Berlin",
    )
    assert env.read_flag("FLAG", True) is False
    assert env.read_whole("WHOLE", 3, least=1, most=9) == 7
    assert env.read_seconds("SECONDS", 3, least=0, most=9) == 0.5
    assert env.read_names("NAMES") == ["a.example", "b.example"]
    assert env.read_url("URL", "http://d") == "https://a.example/x"
    assert env.read_zone("ZONE", "UTC") == "Europe/Berlin"


@pytest.mark.parametrize("value", ["maybe", "2", "-"])
def test_a_flag_is_yes_or_no(value: str) -> None:
    with pytest.raises(BadVariable, match=r"LONGWATCH_DEBUG is .*must be yes or no\. Set LONGWATCH_DEBUG=1"):
        environment(LONGWATCH_DEBUG=value).read_flag("LONGWATCH_DEBUG", False)


@pytest.mark.parametrize("value", ["0", "65", "2.5", "two", "1e1"])
def test_a_whole_number_outside_its_range_is_refused_with_the_range(value: str) -> None:
    with pytest.raises(BadVariable, match=r"LONGWATCH_WORKERS is .*from 1 to 64.*Leave LONGWATCH_WORKERS out to use 2"):
        environment(LONGWATCH_WORKERS=value).read_whole("LONGWATCH_WORKERS", 2, least=1, most=64)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon", "1h"])
def test_seconds_that_are_no_number_or_out_of_range_are_refused(value: str) -> None:
    with pytest.raises(BadVariable, match="number of seconds from 0 to 60"):
        environment(X=value).read_seconds("X", 2, least=0, most=60)


@pytest.mark.parametrize(
    "value", ["agents.example.com", "ftp://a", "http://", "http://a:99999", "http://[", "https:///x"]
)
def test_an_address_needs_its_scheme_and_host(value: str) -> None:
    with pytest.raises(BadVariable, match="must be a full http or https address"):
        environment(X=value).read_url("X", "http://d")


@pytest.mark.parametrize("value", ["Mars/Base", "../../etc/passwd", "/etc/localtime", "europe"])
def test_a_time_zone_is_one_of_the_list(value: str) -> None:
    with pytest.raises(BadVariable, match="must be a time zone of the IANA list"):
        environment(X=value).read_zone("X", "UTC")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadVariable, match="must be a folder"):
        environment(X=str(file)).read_folder("X", tmp_path)
    assert environment(X=str(tmp_path / "new")).read_folder("X", tmp_path) == tmp_path / "new"


def test_apps_are_packages_that_python_finds() -> None:
    given = "runs.examples, console.apps.AdminConfig"
    assert environment(APPS=given).read_apps("APPS") == ["runs.examples", "console.apps.AdminConfig"]
    assert environment().read_apps("APPS") == []
    for app in ("nowhere_to_be_found", "nowhere_to_be_found.apps.Config", "runs;examples", "runs.", ".runs"):
        with pytest.raises(BadVariable, match="PYTHONPATH") as refused:
            environment(APPS=f"runs.examples,{app}").read_apps("APPS")
        assert repr(app) in str(refused.value)
