"""Measure the page of ``headway serve`` in Chromium, and take pictures of it.

    python benchmarks/page.py --output benchmarks/results/page-DATE.json
    python benchmarks/page.py --model runs/quickstart-en-de/best --pictures FOLDER     # screenshots

Chromium, the service and its workers run on the same machine. Without ``--model``, a model of the paper's base size
with random weights translates; each translation has 20 tokens, because random weights end no sentence.

- paint: from the navigation to the first contentful paint, with an empty cache.
- key: from the last key of a sentence of 15 words to its translation on the page.
- long text: 100,000 characters are pasted. The time until the first sentence appears, and, while the others are being
  translated, the time from each key to the next frame (Event Timing API; steps of 8 ms).
"""

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from playwright.sync_api import Browser, Page, Request, Route, sync_playwright
from serving import TARGET_LENGTH, random_model, service

import headway
from headway.hardware import processor_name

ASSETS = Path(headway.__file__).parent / "serve" / "assets"
WORDS, LONG_CHARACTERS, KEYS = 15, 100_000, 60
VIEWS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "german": {"locale": "de-DE"},
}
EXAMPLE = "Germany, Austria and Switzerland\n25 kilometers\nMonday, May 3, 2027"

# Resolves with the milliseconds from the next key to the moment at which all of the text is translated.
_TRANSLATED = """() => new Promise((resolve) => {
  let start = null;
  const output = document.querySelector(".output");
  document.querySelector("textarea").addEventListener("input", (event) => (start = event.timeStamp), { once: true });
  const observer = new MutationObserver(() => {
    if (start === null || output.querySelector(".stale") || !output.querySelector(".word")) return;
    observer.disconnect();
    resolve(performance.now() - start);
  });
  observer.observe(output, { subtree: true, childList: true, attributes: true });
})"""
_WATCH_KEYS = """() => {
  window.keys = [];
  new PerformanceObserver((list) => {
    window.keys.push(...list.getEntries().filter(({ name }) => name === "keydown").map(({ duration }) => duration));
  }).observe({ type: "event", durationThreshold: 16 });
}"""


@contextmanager
def opened(browser: Browser, url: str, limited: bool, **options: Any) -> Iterator[Page]:
    """Open the page in a fresh profile. ``limited`` bounds the length of translations, for a model without training."""
    context = browser.new_context(
        **{"locale": "en-US", "permissions": ["clipboard-read", "clipboard-write"], **options}
    )
    page = context.new_page()

    def limit(route: Route, request: Request) -> None:
        body: Any = request.post_data_json
        body["options"] = {**body.get("options", {}), "max_length": TARGET_LENGTH}
        route.continue_(post_data=body)

    if limited:
        page.route("**/api/v1/translate", limit)
    page.goto(url)
    page.wait_for_selector("main h1", state="attached")
    yield page
    context.close()


def measure_paint(browser: Browser, url: str, rounds: int) -> float:
    """Return the median of the time of the first contentful paint, in milliseconds."""
    found: list[float] = []
    for _ in range(rounds):
        with opened(browser, url, limited=False) as page:
            found.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    return statistics.median(found)


def measure_key(page: Page, sentences: list[str]) -> list[float]:
    """Return the time from the last key of each sentence to its translation, in milliseconds."""
    found = []
    for number, sentence in enumerate(sentences):
        page.fill("textarea", "")
        page.fill("textarea", sentence[:-1])
        page.wait_for_timeout(50)  # the person is still typing
        page.evaluate(f"window.translated = ({_TRANSLATED})(); null")
        page.keyboard.press(sentence[-1])
        milliseconds = page.evaluate("window.translated")
        if number:  # the first one warms up
            found.append(milliseconds)
    return found


def measure_long(page: Page, text: str) -> dict[str, Any]:
    """Return the times of a long text that is pasted, and of the keys that are typed meanwhile, in milliseconds."""
    page.evaluate(_WATCH_KEYS)
    page.fill("textarea", "")
    page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    page.focus("textarea")
    page.evaluate("window.start = performance.now()")
    page.keyboard.press("Control+V")
    page.wait_for_selector(".word")
    first = page.evaluate("performance.now() - window.start")
    for number in range(KEYS):
        page.keyboard.press("abcde "[number % 6])
        page.wait_for_timeout(80)
    page.wait_for_timeout(500)
    shown = page.locator(".sentence:not(.stale)").count()
    slow = page.evaluate("window.keys")  # of at least 16 ms
    return {"first sentence ms": first, "slowest key ms": max(slow, default=16), "keys of 16 ms or more": len(slow),
            "keys": KEYS, "sentences shown at the end of the keys": shown}  # fmt: skip


def take_pictures(browser: Browser, url: str, folder: Path) -> None:
    """Write a picture of each state of the view Translate, in each of :data:`VIEWS`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in VIEWS.items():
        with opened(browser, url, limited=False, **options) as page:
            page.screenshot(path=folder / f"{name}-empty.png", full_page=True)
            page.fill("textarea", EXAMPLE)
            page.wait_for_selector(".word")
            page.wait_for_selector(".output .stale", state="detached")
            page.locator(".word").first.hover()
            page.screenshot(path=folder / f"{name}-pointed.png", full_page=True)
            page.locator(".word").first.click()
            page.wait_for_selector(".alternatives [role=menuitemradio]")
            page.wait_for_selector(".alternatives [aria-disabled]", state="detached")
            page.screenshot(path=folder / f"{name}-alternatives.png", full_page=True)
            page.keyboard.press("Escape")
            for each in ("versions", "glossary"):
                page.locator(f"details.{each} summary").click()
            page.wait_for_selector(".versions li")
            page.screenshot(path=folder / f"{name}-more.png", full_page=True)


def main(
    model: Annotated[Path | None, typer.Option(help="A trained model. Default: base with random weights.")] = None,
    rounds: Annotated[int, typer.Option(help="Sentences whose time is measured.")] = 30,
    pictures: Annotated[Path | None, typer.Option(help="Folder to write screenshots to, instead of measuring.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file to write the results to.")] = None,
) -> None:
    """Measure and print."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]) as browser,
    ):
        measured = None if model is not None else random_model(Path(temporary) / "model")
        folder = model or Path(temporary) / "model"
        with service(folder, queue_seconds=1.5) as (_, port):
            url = f"http://localhost:{port}/"
            if pictures is not None:
                take_pictures(browser, url, pictures)
                return
            words = [] if measured is None else measured.texts[0].split() * 1000
            texts = [] if measured is None else [text for text in measured.texts if len(text.split()) == WORDS]
            if not words:
                raise SystemExit("measure with the default model, or take --pictures")
            results: dict[str, Any] = {
                "date": datetime.now(UTC).date().isoformat(),
                "processor": processor_name(),
                "cores": os.cpu_count(),
                "versions": {"torch": version("torch"), "chromium": browser.version},
                "bytes of all files": sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()),
                "first paint ms": measure_paint(browser, url, 5),
            }
            with opened(browser, url, limited=True) as page:
                hosts: set[str] = set()
                page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
                key = measure_key(page, texts[: rounds + 1])
                results["key to translation ms"] = {"median": statistics.median(key), "worst": max(key)}
                lines = [". ".join(measured.texts[at : at + 5]) + "." for at in range(0, 6000, 5)] if measured else []
                results["long text"] = measure_long(page, "\n".join(lines)[:LONG_CHARACTERS])
                results["hosts"] = sorted(hosts)
    print(json.dumps(results, indent=2))
    if output is not None:
        output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
