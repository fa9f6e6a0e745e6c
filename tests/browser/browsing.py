"""A browser that lets nothing pass: what goes wrong on a page, in any tab, fails the test."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, expect

from tests.conftest import PROJECT
from tests.web_process import WebProcess, session_cookie

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = (PROJECT / "tests/vendor/axe-4.14.1.min.js").read_text()
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Not every violation of the policy is written to the console; every one is an event.
TELL_VIOLATIONS = """document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`))"""


@dataclass
class Problems:
    """What went wrong in any tab, and what a test said would."""

    found: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def allow(self, pattern: str) -> None:
        """Expect problems that match this expression, from now or before."""
        self.allowed.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        return [each for each in self.found if not any(re.search(pattern, each) for pattern in self.allowed)]

    def watch(self, context: BrowserContext, *, host: str) -> None:
        context.add_init_script(TELL_VIOLATIONS)
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.found.append(f"exception: {error.error}"))

        def look(request: Request) -> None:
            address = urlsplit(request.url)
            if address.scheme not in {"data", "blob"} and address.netloc != host:
                self.found.append(f"request to another host: {request.url}")

        context.on("request", look)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.found.append(f"console: {message.text} ({message.location.get('url', '')})")


@dataclass
class Browsing:
    """Tabs on one web process. A `Looks` is one of light, dark, phone and phone dark."""

    playwright: Playwright
    browser: Browser
    web: WebProcess
    problems: Problems = field(default_factory=Problems)
    _contexts: list[BrowserContext] = field(default_factory=list)

    def open(
        self, path: str = "", *, user: User | None = None, theme: str = "light", phone: bool = False, **options: Any
    ) -> Page:
        """A tab of a browser of its own, signed in without the form, on `path` (none: still empty)."""
        device = self.playwright.devices["Pixel 7"] if phone else {"viewport": {"width": 1280, "height": 900}}
        context = self.browser.new_context(
            **{**device, "color_scheme": theme, "reduced_motion": "reduce", "base_url": self.web.url, **options}
        )
        context.set_default_timeout(15_000)
        self._contexts.append(context)
        self.problems.watch(context, host=urlsplit(self.web.url).netloc)
        if user is not None:
            self.sign_in(context, user)
        page = context.new_page()
        if path:
            page.goto(path)
        return page

    def sign_in(self, context: BrowserContext, user: User) -> None:
        """Signed in, in all tabs of this browser."""
        name = settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": session_cookie(user), "url": self.web.url}])

    def beside(self, page: Page, path: str | None = None) -> Page:
        """Another tab of the same browser; without a path on the same address."""
        tab = page.context.new_page()
        tab.goto(page.url if path is None else path)
        return tab

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@contextmanager
def browse(playwright: Playwright, browser: Browser, web: WebProcess) -> Iterator[Browsing]:
    browsing = Browsing(playwright, browser, web)
    try:
        yield browsing
    finally:
        browsing.close()
    unexpected = browsing.problems.unexpected
    assert not unexpected, "\n".join(unexpected)


def check_axe(page: Page, *, within: str = "html") -> None:
    """Fail with what axe finds. Injected by the browser itself, because the page's policy allows no script of ours."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate(
        "([within, tags]) => axe.run(within, { runOnly: tags, resultTypes: ['violations'] }).then((r) => r.violations)",
        [within, AXE_TAGS],
    )
    assert not found, "\n".join(
        f"{each['id']}: {each['help']}: " + " | ".join(str(node["html"])[:160] for node in each["nodes"][:4])
        for each in found
    )


def take_picture(page: Page, folder: Path, name: str) -> Path:
    """A picture of the whole page, for people."""
    path = folder / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path


def expect_live(page: Page) -> None:
    expect(page.locator("html")).to_have_attribute("data-live", "live", timeout=20_000)
