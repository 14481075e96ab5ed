"""Measure how translations change if the source is disturbed in a way that readers do not see.

    python benchmarks/same_to_a_reader.py runs/quickstart-en-de --lines 400
    python benchmarks/same_to_a_reader.py runs/quickstart-en-de --output F.json

The folder is a run of ``headway quickstart``, whose held-out texts are in ``data/``. Each disturbance is applied to
every source: leading or trailing white space or invisible characters, other spaces between words, and decomposed
accents. The script prints the share of translations that equal the reference, ignoring surrounding white space, and the
share that equal the translation of the undisturbed source.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from headway.predict import Translator, load_translator
from headway.version import __version__

DISTURBANCES: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "one space in front": lambda text: " " + text,
    "two spaces in front": lambda text: "  " + text,
    "space at the end": lambda text: text + " ",
    "doubled spaces": lambda text: text.replace(" ", "  "),
    "tab in front": lambda text: "\t" + text,
    "tabs for spaces": lambda text: text.replace(" ", "\t"),
    "U+00A0 in front": lambda text: "\u00a0" + text,
    "U+200B in front": lambda text: "\u200b" + text,
    "U+FEFF in front": lambda text: "\ufeff" + text,
    "U+200E in front": lambda text: "\u200e" + text,
    "U+00AD in words": lambda text: re.sub(r"(?<=[^\W\d_])(?=[^\W\d_])", "\u00ad", text),
    "decomposed (NFD)": lambda text: unicodedata.normalize("NFD", text),
}


def exact_matches(translator: Translator, sources: list[str], references: list[str]) -> tuple[float, list[str]]:
    """Return the percentage of translations that equal their references, and the translations."""
    texts = [translation.text.strip() for translation in translator.translate(sources)]
    equal = sum(text == reference for text, reference in zip(texts, references, strict=True))
    return 100 * equal / len(texts), texts


def main() -> None:
    """Print the table, and write it as JSON if a file is given."""
    parser = argparse.ArgumentParser(description="Measure what invisible disturbances change.")
    parser.add_argument("run", type=Path, help="the run folder of headway quickstart")
    parser.add_argument("--languages", nargs=2, default=("en", "de"), metavar=("SOURCE", "TARGET"))
    parser.add_argument("--lines", type=int, default=400, help="number of held-out texts")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    arguments = parser.parse_args()

    texts = [
        (arguments.run / "data" / f"test.{language}").read_text(encoding="utf-8").splitlines()[: arguments.lines]
        for language in arguments.languages
    ]
    sources, references = ([text.strip() for text in side] for side in texts)
    translator = load_translator(arguments.run / "best", device="cpu", precision="float32")
    plain, undisturbed = exact_matches(translator, sources, references)
    rows = []
    for name, disturb in DISTURBANCES.items():
        exact, translations = exact_matches(translator, list(map(disturb, sources)), references)
        same = 100 * sum(map(str.__eq__, translations, undisturbed)) / len(undisturbed)
        rows.append({"disturbance": name, "exact_match": exact, "same_as_undisturbed": same})
        print(f"{name:22} exact match {exact:6.2f} %  ({exact - plain:+.2f})  same as undisturbed {same:6.2f} %")
    if arguments.output is not None:
        record = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "headway": __version__,
            "machine": platform.processor() or platform.machine(),
            "lines": len(sources),
            "results": rows,
        }
        arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
