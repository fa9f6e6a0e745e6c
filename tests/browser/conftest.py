import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.browser.browsing import CHROMIUM, FLAGS, Browsing, browse
from tests.web_process import WebProcess, web, web_process

__all__ = ["web", "web_process"]


@pytest.hookimpl(tryfirst=True)  # before the lanes are given out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    # Its loop runs in this very thread. So it ends with these tests, because others need loops of their own; and
    # until then Django takes every query of a test for one inside a loop.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as started:
        yield started
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
    yield browser
    browser.close()


@pytest.fixture
def browsing(playwright: Playwright, browser: Browser, web: WebProcess) -> Iterator[Browsing]:
    """Tabs on the web process; whatever goes wrong in one fails the test."""
    with browse(playwright, browser, web) as browsing:
        yield browsing
