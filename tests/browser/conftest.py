"""A server of the page and Debian's Chromium, for the tests of this folder; one of each at a time.

The browser may talk to 127.0.0.1 only: any other request fails, and so does the test. So does an error on
the console. Screenshots go to `screenshots/`, which git ignores.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

ARGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
CHROMIUM = shutil.which("chromium")
SCREENSHOTS = Path(__file__).parent / "screenshots"
PATIENCE_MS = 60_000  # for one answer: a busy machine is no failure

expect.set_options(timeout=PATIENCE_MS)


class Visit:
    """One window on the page, and what it should never do."""

    def __init__(self, browser: Browser, url: str, **context: object) -> None:
        self.url = url
        self.wrong: list[str] = []
        self._has_script = context.get("java_script_enabled", True)
        self._context = browser.new_context(**context)  # type: ignore[arg-type]
        self._context.route("**/*", self._guard)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on(
            "console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))

    def open(self, path: str = "/") -> Page:
        """Return the page at `path`, loaded, its scripts too."""
        self.page.goto(self.url + path)
        if self._has_script:
            self.page.wait_for_selector("html.ready", state="attached")
        return self.page

    def close(self) -> None:
        """Close the window; fail where something went wrong in it."""
        self._context.close()
        assert not self.wrong

    def _guard(self, route: Route) -> None:
        """Let through what stays on this machine."""
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.wrong.append(f"asked for {route.request.url}")
            route.abort()


class Site(NamedTuple):
    """The server and the browser."""

    url: str
    browser: Browser


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    """Run `finegauge serve` and a browser, for the tests of this folder."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    SCREENSHOTS.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "finegauge", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert found is not None
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGS))
                yield Site(found.group(), browser)
                browser.close()
        finally:
            server.terminate()


@pytest.fixture
def visit(site: Site, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Return a window on the page; `@pytest.mark.parametrize("visit", [{...}], indirect=True)` sets it up."""
    options = {"viewport": {"width": 1440, "height": 900}, **getattr(request, "param", {})}
    window = Visit(site.browser, site.url, **options)
    yield window
    window.close()
