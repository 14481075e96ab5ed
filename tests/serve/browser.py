"""Chromium for tests of the page. Debian's package is used; nothing is downloaded."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=60_000)  # other work may slow the browser and the service down
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextlib.contextmanager
def open_page(browser: Browser, url: str, *, requests_fail: bool = False, **options: Any) -> Iterator[Page]:
    """Open the page in a fresh profile, and fail if a script fails, another host is called, or an error is logged.

    With ``requests_fail``, errors of requests are expected, which browsers log. The other options are those of
    :meth:`playwright.sync_api.Browser.new_context`.
    """
    problems, log = list[str](), list[str]()
    context = browser.new_context(**{"locale": "en-US", **options})
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: log.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if _is_in(request.url, url) else problems.append(request.url))
    page.goto(url)
    yield page
    context.close()
    assert problems == []
    assert log == [] or requests_fail


def _is_in(address: str, url: str) -> bool:
    """Return whether an address is of the service at ``url``, or of a file that the page has from it."""
    return address.removeprefix("blob:").startswith(url)


def accessibility_problems(page: Page) -> list[str]:
    """Return the rules of axe-core that the page breaks, with the elements that break them."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]
