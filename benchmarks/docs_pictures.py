"""Make the pictures of the documentation with the quickstart's model, and list the pictures that are older than their
sources.

    make pictures                                   # all pictures in docs/pictures
    make pictures PICTURES="curves.png tree.png"    # some of them
    make check-pictures                             # before a release

Each picture stores the hashes of the files whose output it shows as JSON, in the text chunk "sources" of the PNG file.
A picture is older than its sources if one of these files has changed since the picture was made.

Pages are shown by the installed Chromium, with two pixels for each CSS pixel. If axe-core finds a problem in a page, in
light or dark colors, no picture is made. Pictures have at most 256 colors, which makes their files smaller.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngImageFile, PngInfo
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from serving import service

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("docs", "pictures")
MODEL = "runs/quickstart-en-de/best"
CHUNK = "sources"
MARGIN = 10  # CSS pixels around the elements of a page that a picture shows
DARKEST = 20  # level (of 255) of red, green and blue in the background of plots for dark pages

DATE = "Thursday, January 6, 2011, 7:29 PM"
SHORT_DATE = "January 6, 2011"
DAYS_AGO = "3 days ago"
TEXTS = (DATE, "Germany, Austria, and Switzerland", DAYS_AGO, "61.9 million")
DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>January 2027</title>
<style>
body { font: 1rem/1.5 sans-serif; margin: 0.5rem 1.2rem; color: #15181d; background: #ffffff }
h1 { font-size: 1.3rem }
table { border-collapse: collapse }
td { border-top: 1px solid #c9d0da; padding: 0.3rem 1rem 0.3rem 0 }
mark { background: #ffe2a8 }
a { color: #0b5cad }
</style>
<h1>January 2027</h1>
<ul>
  <li><b>Iceland</b>, Jordan, Hungary, and <a href="slovakia.html">Slovakia</a></li>
  <li>Thursday, January 7, 2027, <mark>7:29 PM</mark></li>
</ul>
<table>
  <tr><td>Jan 9 – 12<td>418.00 <i>Turkish Lira</i>
  <tr><td>in 42 hours<td>72.50 <i>Swiss francs</i>
</table>
"""


@dataclass(frozen=True)
class Studio:
    """The resources for making pictures: a browser, the address of the service, and a folder for temporary files."""

    browser: Browser
    url: str
    folder: Path


@dataclass(frozen=True)
class Picture:
    """A function that makes a picture, and patterns, relative to the repository, of the files whose output the picture
    shows.

    ``draw`` writes a PNG file of any size to the given path.
    """

    draw: Callable[[Studio, Path], None]
    sources: tuple[str, ...]


def headway(*words: str | Path) -> None:
    """Run a command in the root of the repository."""
    subprocess.run([sys.executable, "-m", "headway", *map(str, words)], cwd=ROOT, check=True)


def output_of(*words: str) -> Callable[[Studio, Path], None]:
    """Return a function that makes a picture with a command that has the option ``-o``."""
    return lambda _, path: headway(*words, "-o", path)


def show_cleaning(page: Page, studio: Studio) -> Sequence[Locator]:
    """Damage a corpus, clean it, and show the beginning of the report."""
    page.goto(cleaning_report(studio).as_uri())
    return [page.get_by_role("heading", level=1), page.locator("table.rules")]


def show_cleaning_rule(page: Page, studio: Studio) -> Sequence[Locator]:
    """Show a rule in the report: the histogram, and the lines closest to the threshold."""
    page.goto(cleaning_report(studio).as_uri())
    rule = page.locator("#language")
    rule.evaluate("section => window.scrollTo(0, section.offsetTop)")
    return [rule.locator("h2"), rule.locator("svg"), *rule.locator("li:nth-child(-n+4)").all()]


def cleaning_report(studio: Studio) -> Path:
    """Return the report on a damaged part of Tatoeba, which is made once. Needs ``../shared/data``."""
    report = studio.folder / "clean" / "report.html"
    if not report.exists():
        data = next(parent / "shared" / "data" for parent in ROOT.parents if (parent / "shared" / "data").exists())
        plant = [ROOT / "benchmarks" / "plant_faults.py", "plant", "--data", data]
        clean = ["-m", "headway", "corpus", "clean", "damaged.de", "damaged.en", "--from", "de", "--to", "en"]
        for command in ([*plant, "--out", studio.folder, "--lines", "20000"], [*clean, "-o", "clean"]):
            subprocess.run([sys.executable, *map(str, command)], cwd=studio.folder, check=True)
    return report


def experiment(name: str, width: float, height: float) -> Callable[[Studio, Path], None]:
    """Return a function that draws the recorded numbers of an experiment as a figure of this size, in inches."""

    def draw(_: Studio, path: Path) -> None:
        from headway.experiments import load_experiment
        from headway.experiments.figures import figure_style
        from headway.inspection.picture_files import save_picture

        record = json.loads((ROOT / f"docs/experiments/{name}.json").read_text(encoding="utf-8"))
        with figure_style():
            figure = load_experiment(name).draw(record["numbers"])
            figure.set_size_inches(width, height)
            save_picture(figure, path)

    return draw


def screenshot(
    show: Callable[[Page, Studio], Sequence[Locator]], width: int, height: int, *, dark: bool = False
) -> Callable[[Studio, Path], None]:
    """Return a function that takes a picture of a page in a window of this size, in CSS pixels.

    ``show`` opens the page and returns the elements that the picture shows, which are in the window.
    """

    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark") if dark else ("dark", "light")

    def draw(studio: Studio, path: Path) -> None:
        context = studio.browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=2,
            reduced_motion="reduce",
            locale="en-US",
        )
        page = context.new_page()
        elements = show(page, studio)
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            problems = Axe().run(page).response["violations"]
            if problems:
                raise SystemExit(f"{path.name}: axe-core finds in {scheme} {[problem['id'] for problem in problems]}")
        boxes = [box for element in elements if (box := element.bounding_box())]
        left, top = (max(min(box[side] for box in boxes) - MARGIN, 0) for side in ("x", "y"))
        right = min(max(box["x"] + box["width"] for box in boxes) + MARGIN, width)
        bottom = min(max(box["y"] + box["height"] for box in boxes) + MARGIN, height)
        page.screenshot(path=path, clip={"x": left, "y": top, "width": right - left, "height": bottom - top})
        context.close()

    return draw


def translate(page: Page, studio: Studio, text: str) -> Locator:
    """Translate a text in the view Translate, and return the words of the translation."""
    page.goto(studio.url)
    page.locator(".view-translate textarea").fill(text)
    words = page.locator(".output .word")
    words.first.wait_for()
    page.locator(".output .stale").first.wait_for(state="detached")
    return words


def show_translation(page: Page, studio: Studio) -> Sequence[Locator]:
    """Point at the word that translates "ago", which is then highlighted."""
    translate(page, studio, "\n".join(TEXTS)).filter(has_text="vor").first.hover()
    page.locator(".boxes i").first.wait_for()
    return [page.locator("header.top"), page.locator(".panes")]


def show_alternatives(page: Page, studio: Studio) -> Sequence[Locator]:
    """Open the menu of the last word."""
    translate(page, studio, DAYS_AGO).last.click()
    page.locator(".alternatives [role=menuitemradio]").first.wait_for()
    page.locator(".alternatives [aria-disabled]").first.wait_for(state="detached")
    return [page.locator("header.top"), page.locator(".panes"), page.locator(".alternatives")]


def explain(page: Page, studio: Studio, text: str) -> Locator:
    """Explain a translation in the view Why, and return the words of the translation."""
    page.goto(f"{studio.url}#why")
    page.locator(".view-why textarea").fill(text)
    page.locator(".tree li").first.wait_for()
    return page.locator(".view-why .translation .token")


def show_cost(page: Page, studio: Studio) -> Sequence[Locator]:
    """Show the cost of another last word."""
    explain(page, studio, DAYS_AGO).last.click()
    page.locator(".suggestions button").first.click()
    page.locator(".forced .cost").wait_for()
    return [page.locator(".results > section").first]


def show_tree(page: Page, studio: Studio) -> Sequence[Locator]:
    """Show the tree of a beam search."""
    explain(page, studio, DAYS_AGO)
    return [page.locator("section.card", has=page.locator(".tree"))]


def show_inspection(page: Page, studio: Studio) -> Sequence[Locator]:
    """Show the attention on the page that ``headway inspect`` writes, and select the 1 of "19"."""
    written = studio.folder / "inspection.html"
    headway("inspect", MODEL, DATE, "-o", written, "--layer", "2", "--head", "4")
    page.goto(written.as_uri())
    page.locator("#attention .chips").first.locator(".chip").nth(13).click()
    return [page.locator("#attention-body")]


def show_document(page: Page, studio: Studio) -> Sequence[Locator]:
    """Show a document and its translation side by side."""
    source, target, both = (studio.folder / name for name in ("page.html", "page.de.html", "both.html"))
    source.write_text(DOCUMENT, encoding="utf-8")
    headway("translate", MODEL, "-i", source, "-o", target)
    frames = "".join(f'<iframe title="{path.name}" src="{path.name}"></iframe>' for path in (source, target))
    style = "div { display: flex; gap: 16px } iframe { flex: 1; height: 250px; border: 1px solid #7d8796 }"
    command = f"headway translate {MODEL} -i {source.name} -o {target.name}"
    both.write_text(
        f'<!DOCTYPE html><html lang="en"><title>Both</title><style>{style} h1 {{ font: 1rem monospace }}</style>'
        f"<main><h1>{command}</h1><div>{frames}</div></main>",
        encoding="utf-8",
    )
    page.goto(both.as_uri())
    return [page.locator("main")]


def darkened(draw: Callable[[Studio, Path], None]) -> Callable[[Studio, Path], None]:
    """Return a function that makes a picture for dark pages: light and dark are exchanged, and hues are preserved."""

    def draw_dark(studio: Studio, path: Path) -> None:
        draw(studio, path)
        with Image.open(path) as picture:
            hue, saturation, value = ImageOps.invert(picture.convert("RGB")).convert("HSV").split()
        opposite = hue.point(lambda degrees: (degrees + 128) % 256)  # of 256 for the whole circle
        dark = Image.merge("HSV", (opposite, saturation, value)).convert("RGB")
        dark.point(lambda level: DARKEST + level * (255 - DARKEST) // 255).save(path)

    return draw_dark


def assets(*patterns: str) -> tuple[str, ...]:
    """Return the file patterns of the service's page, including its frame."""
    frame = ("index.html", "main.js", "meter.js", "page.css", "strings/en.js")
    return tuple(f"src/headway/serve/assets/{pattern}" for pattern in (*frame, *patterns))


TRANSLATE = assets("translate.css", "translate/*", "views/translate.js")
WHY = assets("why.css", "why/*", "views/why.js")
STYLE = "src/headway/inspection/picture_files.py"
ATTENTION = ("src/headway/inspection/attention_plots.py", STYLE)
EXPERIMENTS = {"scaling": (14, 5.4)}

CLEANING = ("src/headway/report.css", "src/headway/corpus/cleaning/report.*", "src/headway/corpus/cleaning/rules.py")
PICTURES = {
    "page.png": Picture(screenshot(show_translation, 960, 400), TRANSLATE),
    "page-dark.png": Picture(screenshot(show_translation, 960, 400, dark=True), TRANSLATE),
    "page-phone.png": Picture(screenshot(show_translation, 390, 720), TRANSLATE),
    "page-phone-dark.png": Picture(screenshot(show_translation, 390, 720, dark=True), TRANSLATE),
    "alternatives.png": Picture(screenshot(show_alternatives, 960, 700), TRANSLATE),
    "why.png": Picture(screenshot(show_cost, 800, 1600), WHY),
    "tree.png": Picture(screenshot(show_tree, 800, 2400), WHY),
    "inspection.png": Picture(screenshot(show_inspection, 1240, 1600), ("src/headway/inspection/assets/*",)),
    "document.png": Picture(screenshot(show_document, 860, 400), ("src/headway/documents/html_file.py",)),
    "cleaning.png": Picture(screenshot(show_cleaning, 1180, 1000), CLEANING),
    "cleaning-rule.png": Picture(screenshot(show_cleaning_rule, 1180, 1000), CLEANING),
    "attention.png": Picture(output_of("inspect", MODEL, DAYS_AGO, "--layer", "2"), ATTENTION),
    "all-heads.png": Picture(output_of("inspect", MODEL, SHORT_DATE), ATTENTION),
    "curves.png": Picture(output_of("curves", str(Path(MODEL).parent)), ("src/headway/inspection/curves.py", STYLE)),
}
for name, (width, height) in EXPERIMENTS.items():
    module = f"src/headway/experiments/{name.replace('-', '_')}.py"
    sources = (f"docs/experiments/{name}.json", module, "src/headway/experiments/figures.py", STYLE)
    PICTURES[f"experiment-{name}.png"] = Picture(experiment(name, width, height), sources)
# Plots have a white background, so each plot also has a version for dark pages.
for plot in ("attention", "all-heads", "curves", *(f"experiment-{name}" for name in EXPERIMENTS)):
    light = PICTURES[f"{plot}.png"]
    PICTURES[f"{plot}-dark.png"] = Picture(darkened(light.draw), light.sources)


def hashes(patterns: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Return the beginning of the SHA-256 of each file that a pattern matches."""
    files = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}


def save(drawn: Path, target: Path, sources: dict[str, str]) -> None:
    """Write a smaller version of the PNG file ``drawn`` that contains the hashes of its sources."""
    chunks = PngInfo()
    chunks.add_text(CHUNK, json.dumps(sources), zip=True)
    with Image.open(drawn) as picture:
        reduced = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        reduced.save(target, format="PNG", optimize=True, pnginfo=chunks)


def changed_sources(path: Path, patterns: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the sources that have changed, appeared or disappeared since the picture was made."""
    with PngImageFile(path) as picture:
        recorded = json.loads(picture.text[CHUNK])
    current = hashes(patterns, root)
    return [source for source in sorted(recorded | current) if recorded.get(source) != current.get(source)]


def main() -> None:
    """Make pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="pictures to make or check; default: all")
    parser.add_argument("--check", action="store_true", help="exit with 1 if pictures are older than their sources")
    asked = parser.parse_args()
    unknown = set(asked.names) - PICTURES.keys()
    if unknown:
        parser.error(f"no pictures: {', '.join(sorted(unknown))}; known: {', '.join(PICTURES)}")
    names = asked.names or list(PICTURES)
    if asked.check:
        old = 0
        for name in names:
            changed = changed_sources(ROOT / FOLDER / name, PICTURES[name].sources)
            old += bool(changed)
            if changed:
                print(f"{FOLDER / name} is older than {', '.join(changed)}")
        sys.exit(f"make {old} of {len(names)} pictures again: make pictures" if old else 0)
    if (chromium := shutil.which("chromium")) is None:
        sys.exit("Chromium is not installed (apt-get install chromium)")
    with (
        tempfile.TemporaryDirectory() as temporary,
        service(ROOT / MODEL) as (_, port),
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        studio = Studio(browser, f"http://localhost:{port}/", Path(temporary))
        for name in names:
            drawn = studio.folder / name
            PICTURES[name].draw(studio, drawn)
            save(drawn, ROOT / FOLDER / name, hashes(PICTURES[name].sources))
            print(f"{name}: {(ROOT / FOLDER / name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
