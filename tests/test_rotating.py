"""A log grows for months: it takes a bounded place, its writers keep it open and notice nothing."""

import logging
import os
from pathlib import Path

import pytest

from console.rotating import LARGEST, rotate


def fill(path: Path, first: str) -> int:
    """A log a little too large, and its writer's descriptor."""
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(writer, first.encode() + b"." * LARGEST + b"last\n")
    return writer


def test_a_log_that_grew_large_is_emptied_and_what_it_held_is_kept_once(tmp_path: Path) -> None:
    path, older = tmp_path / "web.log", tmp_path / "web.log.1"
    writer = fill(path, "next\n")
    for _ in range(2):
        held = path.read_bytes()
        rotate(path)
        assert path.stat().st_size == 0
        assert older.read_bytes() == held
        assert older.stat().st_mode & 0o777 == 0o600
        os.write(writer, b"next\n")
        assert path.read_bytes() == b"next\n"
        os.write(writer, b"." * LARGEST + b"last\n")
    os.close(writer)
    assert sorted(tmp_path.iterdir()) == [path, older]


def test_of_a_log_that_was_never_rotated_the_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    os.truncate(writer := fill(path, "first\n"), 5 * LARGEST)
    os.write(writer, b"last\n")
    os.close(writer)
    rotate(path)
    older = path.with_name("web.log.1")
    assert older.stat().st_size == 2 * LARGEST
    assert older.read_bytes().endswith(b"last\n")


def test_a_log_that_is_not_large_and_one_that_is_not_there_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    rotate(path)
    path.write_bytes(b"." * LARGEST)
    rotate(path)
    assert path.stat().st_size == LARGEST
    assert [*tmp_path.iterdir()] == [path]


def test_no_link_is_followed(tmp_path: Path) -> None:
    path, others = tmp_path / "log", tmp_path / "others"
    os.close(fill(others, "others\n"))
    size = others.stat().st_size
    path.symlink_to(others)
    rotate(path)
    path.unlink()
    os.close(fill(path, "first\n"))
    (tmp_path / "log.1").symlink_to(others)
    rotate(path)
    assert others.stat().st_size == size
    assert (tmp_path / "log.1").read_bytes().startswith(b"first\n")


def test_where_it_cannot_be_kept_it_is_emptied_all_the_same_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "web.log"
    (tmp_path / "web.log.1").mkdir()
    for _ in range(2):
        os.close(fill(path, "first\n"))
        rotate(path)
        assert path.stat().st_size == 0
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert str(path) in record.getMessage()
