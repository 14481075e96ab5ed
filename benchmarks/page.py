"""Measure the page of ``headway serve`` in Chromium, and take pictures of it.

    python benchmarks/page.py --output benchmarks/results/page-DATE.json
    python benchmarks/page.py --pictures FOLDER --model runs/quickstart-en-de/best --model runs/mine/best

Pictures are taken of the views that the models support, in light mode, in dark mode, in German, and at the width of a
phone.

Chromium, the service and its workers run on the same machine. Without ``--model``, a model of the paper's base size
with random weights is used; each translation has 20 tokens, because a random model never generates EOS.

- paint: the time from the navigation to the first contentful paint, with an empty cache.
- key: the time from the last key of a sentence of 15 words to its translation on the page.
- long text: 100,000 characters are pasted. The time until the first sentence appears, and, while the others are being
  translated, the time from each key to the next frame (Event Timing API; steps of 8 ms). This is measured twice: with
  workers that use all cores, so that the browser competes with them, and with one worker.
"""

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from playwright.sync_api import Browser, FilePayload, Locator, Page, Request, Route, sync_playwright
from serving import QUEUE_SECONDS, TARGET_LENGTH, random_model, service

import headway
from headway.hardware import processor_name
from headway.serve.page import SHARED_INSPECTION_FILES

PACKAGE = Path(headway.__file__).parent
FILES = [path for path in (PACKAGE / "serve" / "assets").rglob("*") if path.is_file()]
FILES += [PACKAGE / "inspection" / "assets" / name for name in SHARED_INSPECTION_FILES]
WORDS, LONG_CHARACTERS, KEYS = 15, 100_000, 60
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "german": {"locale": "de-DE"},
}
TEXTS = {
    "translate": "Germany, Austria and Switzerland\n25 kilometers\nMonday, May 3, 2027",
    "why": "Germany, Austria and Switzerland",
    "write": "Of Man's first disobedience,",
    "fill": "The waiter was [MASK] and the soup was [MASK].",
    "classify": "The bed was broken, but in the end the waiter was lovely and the soup was excellent.",
}

# Resolves with the milliseconds from the next key until the whole text is translated.
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
# Resolves with the milliseconds from the next change of the text to the first word of its translation.
_FIRST_WORD = """() => new Promise((resolve) => {
  let start = null;
  const output = document.querySelector(".output");
  document.querySelector("textarea").addEventListener("input", (event) => (start = event.timeStamp), { once: true });
  const observer = new MutationObserver(() => {
    if (start === null || !output.querySelector(".word")) return;
    observer.disconnect();
    resolve(performance.now() - start);
  });
  observer.observe(output, { subtree: true, childList: true });
})"""
_WATCH_KEYS = """() => {
  window.keys = [];
  new PerformanceObserver((list) => {
    window.keys.push(...list.getEntries().filter(({ name }) => name === "keydown").map(({ duration }) => duration));
  }).observe({ type: "event", durationThreshold: 16 });
}"""


@contextmanager
def opened(browser: Browser, url: str, limited: bool, **options: Any) -> Iterator[Page]:
    """Open the page in a fresh profile. ``limited`` limits the length of translations, for an untrained model."""
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
    """Return the times for a pasted long text, and for keys that are typed at the same time, in milliseconds."""
    page.evaluate(_WATCH_KEYS)
    page.fill("textarea", "")
    page.wait_for_selector(".word", state="detached")
    page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    page.focus("textarea")
    page.evaluate(f"window.first = ({_FIRST_WORD})(); null")
    page.keyboard.press("Control+V")
    first = page.evaluate("window.first")
    for number in range(KEYS):
        page.keyboard.press("abcde "[number % 6])
        page.wait_for_timeout(80)
    page.wait_for_timeout(500)
    shown = page.locator(".sentence:not(.stale)").count()
    slow = page.evaluate("window.keys")  # of at least 16 ms
    median = statistics.median([*slow, *[16] * max(0, KEYS - len(slow))])
    return {"first sentence ms": first, "median key ms": median, "slowest key ms": max(slow, default=16), "keys": KEYS,
            "sentences shown at the end of the keys": shown}  # fmt: skip


def take_pictures(browser: Browser, url: str, folder: Path) -> None:
    """Write pictures of the states of each view that the models offer, in each of :data:`LOOKS`."""
    folder.mkdir(parents=True, exist_ok=True)
    for look, options in LOOKS.items():
        for name, show in VIEWS.items():
            with opened(browser, f"{url}#{name}", limited=False, **options) as page:
                view = page.locator(f".view-{name}")
                if view.count() == 0:
                    continue  # no model for it
                picture(page, folder / f"{look}-{name}-empty.png")
                for state in show(page, view):
                    picture(page, folder / f"{look}-{name}-{state}.png")


def picture(page: Page, path: Path) -> None:
    """Write a picture of the whole page. Only content near the window is rendered, so the page is first scrolled up."""
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(200)
    page.screenshot(path=path, full_page=True)


def show_translate(page: Page, view: Locator) -> Iterator[str]:
    """Go through the states of the view Translate, and name each of them."""
    view.locator("textarea").fill(TEXTS["translate"])
    view.locator(".word").first.wait_for()
    view.locator(".output .stale").first.wait_for(state="detached")
    view.locator(".word").first.hover()
    yield "pointed"
    view.locator(".word").first.click()
    view.locator(".alternatives [role=menuitemradio]").first.wait_for()
    view.locator(".alternatives [aria-disabled]").first.wait_for(state="detached")
    yield "alternatives"
    page.keyboard.press("Escape")
    document = FilePayload(name="example.txt", mimeType="text/plain", buffer=TEXTS["translate"].encode())
    view.locator("input[type=file]").set_input_files(document)
    view.locator(".documents button.primary").wait_for()
    for each in ("versions", "glossary"):
        view.locator(f"details.{each} summary").click()
    view.locator(".versions li").first.wait_for()
    yield "more"


def show_why(_: Page, view: Locator) -> Iterator[str]:
    """Go through the states of the view Why, and name each of them."""
    view.locator("textarea").fill(TEXTS["why"])
    view.locator(".tree li").first.wait_for()
    view.locator(".translation .token").first.click()
    view.locator(".suggestions button").first.click()
    view.locator(".forced .cost").wait_for()
    yield "word"


def show_write(page: Page, view: Locator) -> Iterator[str]:
    """Go through the states of the view Write, and name each of them."""
    view.locator("textarea").fill(TEXTS["write"])
    view.locator("button.primary").click()
    view.locator(".token").nth(5).wait_for()
    view.locator("button.primary").wait_for()  # it is back when the text is written
    yield "written"
    view.locator(".token").nth(5).click()
    view.locator("[role=menuitemradio]").first.wait_for()
    yield "alternatives"


def show_fill(_: Page, view: Locator) -> Iterator[str]:
    """Go through the states of the view Fill, and name each of them."""
    view.locator("textarea").fill(TEXTS["fill"])
    view.locator(".fillings li").first.wait_for()
    yield "filled"


def show_classify(_: Page, view: Locator) -> Iterator[str]:
    """Go through the states of the view Classify, and name each of them."""
    view.locator("textarea").fill(TEXTS["classify"])
    view.locator(".reason").first.wait_for()
    yield "labels"


VIEWS: dict[str, Callable[[Page, Locator], Iterator[str]]] = {
    "translate": show_translate,
    "why": show_why,
    "write": show_write,
    "fill": show_fill,
    "classify": show_classify,
}


def main(
    model: Annotated[list[Path] | None, typer.Option(help="Trained models. Default: base with random weights.")] = None,
    rounds: Annotated[int, typer.Option(help="Number of sentences to time.")] = 30,
    pictures: Annotated[Path | None, typer.Option(help="Folder to write screenshots to, instead of measuring.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file to write the results to.")] = None,
) -> None:
    """Measure and print."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]) as browser,
    ):
        measured = None if model else random_model(Path(temporary) / "model")
        first, *others = model or [Path(temporary) / "model"]
        with service(first, *map(str, others), queue_seconds=QUEUE_SECONDS) as (_, port):
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
                "bytes of all files": sum(path.stat().st_size for path in FILES),
                "first paint ms": measure_paint(browser, url, 5),
            }
            with opened(browser, url, limited=True) as page:
                hosts: set[str] = set()
                page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
                key = measure_key(page, texts[: rounds + 1])
                results["key to translation ms"] = {"median": statistics.median(key), "worst": max(key)}
                lines = [". ".join(measured.texts[at : at + 5]) + "." for at in range(0, 6000, 5)] if measured else []
                long_text = "\n".join(lines)[:LONG_CHARACTERS]
                results["long text"] = {"a worker on each core": measure_long(page, long_text)}
                results["hosts"] = sorted(hosts)
        with (
            service(first, "--workers", "1", queue_seconds=QUEUE_SECONDS) as (_, port),
            opened(browser, f"http://localhost:{port}/", limited=True) as page,
        ):
            measure_key(page, texts[:3])  # the first ones warm up
            results["long text"]["one worker"] = measure_long(page, long_text)
    print(json.dumps(results, indent=2))
    if output is not None:
        output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
