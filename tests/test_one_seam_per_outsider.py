"""What import-linter cannot see: `os.environ` is read in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
READERS = {"environ", "environb", "getenv", "getenvb", "putenv"}
READS_THE_ENVIRONMENT = {"console/env.py"}


def product_files() -> Iterator[Path]:
    yield PROJECT / "manage.py"
    for package in ("console", "runs"):
        yield from (PROJECT / package).rglob("*.py")


def uses_of_the_environment(tree: ast.AST) -> Iterator[int]:
    """Return the lines that read the environment, except `os.environ.setdefault("DJANGO_SETTINGS_MODULE", …)`."""
    named = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setdefault"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == "DJANGO_SETTINGS_MODULE"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in READERS and id(node) not in named:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in READERS)


def test_the_environment_is_read_in_one_place() -> None:
    found = {
        f"{path.relative_to(PROJECT)}:{line}"
        for path in product_files()
        if str(path.relative_to(PROJECT)) not in READS_THE_ENVIRONMENT
        for line in uses_of_the_environment(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found, "read it through console.env, in console/settings.py"


def test_the_search_for_it_finds_each_way_of_reading_it() -> None:
    source = "import os\nos.environ['X']\nos.getenv('X')\nfrom os import environ\n"
    source += "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 's')\nos.environ.setdefault('X', 's')\n"
    assert sorted(uses_of_the_environment(ast.parse(source))) == [2, 3, 4, 6]
