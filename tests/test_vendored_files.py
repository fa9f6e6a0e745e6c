"""What was taken over from others is what they published, and its licence lies beside it."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT

FOLDERS = [PROJECT / "static/vendor", PROJECT / "tests/vendor"]


def rows_of(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """From the folder's README: each file's hash and its licences."""
    rows = {}
    for line in (folder / "README.md").read_text().splitlines():
        if line.startswith("| `"):
            name, *_, digest = re.findall(r"`([^`]+)`", line)
            rows[name] = digest, re.findall(r"`(licences/[^`]+)`", line)
    return rows


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_each_vendored_file_has_the_hash_and_the_licence_that_its_readme_names(folder: Path) -> None:
    rows = rows_of(folder)
    assert {path.name for path in folder.iterdir() if path.is_file()} - {"README.md"} == set(rows)
    for name, (digest, licences) in rows.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
        assert licences, name
        for licence in licences:
            assert (folder / licence).read_text().strip(), licence
