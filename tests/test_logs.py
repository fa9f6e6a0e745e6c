import logging

import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.log import log_response

from console.logs import OneLine, WithoutReadiness


def format_record(message: str, **more: object) -> str:
    record = logging.makeLogRecord(
        {"name": "runs", "levelname": "INFO", "msg": message, "created": 0.25, "process": 7} | more
    )
    return OneLine().format(record)


def test_an_event_is_one_line_with_its_time_in_utc() -> None:
    assert format_record("run 3 claimed") == "1970-01-01T00:00:00.250+00:00 INFO runs[7] run 3 claimed"


def test_text_from_outside_cannot_make_a_second_line() -> None:
    assert format_record("memo: a\nCRITICAL b\r\x1b[2J\u2028c").endswith("memo: a\\nCRITICAL b\\x0d\\x1b[2J\\x2028c")


def test_a_traceback_stays_with_its_event() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        line = format_record("failed", exc_info=(type(error), error, error.__traceback__))
    assert "\n" not in line
    assert line.endswith("ValueError: boom")


@pytest.mark.parametrize(("path", "status", "kept"), [("ready", 503, False), ("ready", 500, True), ("live", 503, True)])
def test_a_start_that_takes_its_time_fills_no_log(
    path: str, status: int, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    request = RequestFactory().get(f"/api/v1/health/{path}")
    response = HttpResponse(status=status)
    log_response("%s: %s", response.reason_phrase, request.path, response=response, request=request)
    assert [WithoutReadiness().filter(record) for record in caplog.records] == [kept]
