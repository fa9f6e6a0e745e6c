"""A stream says what moved, to those who may see it, and nothing that moved is left out."""

from collections.abc import Iterator

import pytest
from django.db import transaction

from runs import journal, lifecycle, notify
from runs.access import Role
from runs.models import Run
from tests import situations
from tests.people import make_person
from tests.web_process import Stream, WebProcess, session_cookie, web, web_process

__all__ = ["web", "web_process"]


@pytest.fixture
def cookie(transactional_db: None) -> str:
    return session_cookie(make_person("olga", Role.OPERATOR))


@pytest.fixture
def run(cookie: str) -> Run:
    return situations.start(make_person("otto", Role.OPERATOR))


@pytest.fixture
def stream(web: WebProcess, cookie: str) -> Iterator[Stream]:
    stream = Stream(web, cookie)
    yield stream
    stream.close()


def note(run: Run, why: str = "moved", *, hint: bool = True) -> None:
    """Write an entry, as every move does; `hint=False` is a process that died before it could say so."""
    with transaction.atomic():
        journal.append("run.noted", run=lifecycle.lock(run.pk).pk, why=why)
        if not hint:
            transaction.get_connection().run_on_commit.clear()
            notify._topics.clear()
    notify.flush()


def test_what_is_committed_is_told(stream: Stream, run: Run) -> None:
    assert stream.next().event == "hello"
    note(run)
    assert stream.next("changed").data == [f"run.{run.pk}", "runs"]
