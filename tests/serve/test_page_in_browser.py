"""The view Translate in Chromium, by mouse and by keyboard: it shows what the API answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browser import accessibility_problems, chromium, needs_chromium, open_page
from playwright.sync_api import Browser, Page, expect
from running_service import RunningService, running, unpack_model

pytestmark = [pytest.mark.slow, needs_chromium]
TEXT = "Ein Hund läuft."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    with running([str(folder), "--workers", "1"]) as started:
        yield started


@pytest.fixture
def page(browser: Browser, service: RunningService) -> Iterator[Page]:
    with open_page(browser, service.url) as opened:
        yield opened


def translation(service: RunningService, text: str, **fields: object) -> str:
    body = {"text": text, "source": "en", "target": "de", **fields}
    reply = httpx.post(f"{service.url}/api/v1/translate", json=body, timeout=30)
    return str(reply.raise_for_status().json()["translations"][0]["text"])


def test_the_translation_appears_while_one_types(page: Page, service: RunningService) -> None:
    page.keyboard.type(TEXT)  # the field has the focus
    expect(page.locator(".output")).to_have_text(translation(service, TEXT))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_inaccessible(browser: Browser, service: RunningService, scheme: str) -> None:
    with open_page(browser, service.url, color_scheme=scheme) as page:
        page.keyboard.type(TEXT)
        page.locator(".word").first.wait_for()
        assert accessibility_problems(page) == []
