"""Measure how much more anonymous memory is needed to clean ten million lines than one million.

    python benchmarks/cleaning_memory.py --data ../shared/data/tatoeba-de-en --output cleaning-memory.json

Nine tenths of the lines consist of two random Tatoeba pairs each; the others repeat one pair. The script reports the
peak of the total anonymous memory (RssAnon) of all processes of the command; shared pages are counted for each process.

Only rules and repairs that take little time are applied. The memory that a rule needs for a line is freed with the
line's chunk, which has at most one megabyte. ``--config`` specifies another configuration. The rules misaligned and
truncated learn from 200,000 pairs for both sizes.
"""

import json
import os
import random
import tempfile
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from preparing import measure
from text_memory import anonymous_bytes

from headway.data.readers import read_lines
from headway.hardware import processor_name

CONFIG = """
rules = ["undecodable", "empty", "length", "copy", "ratio", "duplicate"]
repairs = ["line_separators", "spaces"]
"""
REPEATED = 0.1  # share of the lines that consist of Tatoeba pairs


def write_corpus(data: Path, stem: Path, lines: int) -> list[Path]:
    """Write ``STEM.de`` and ``STEM.en``, which are the same in every run, and return them."""
    files = [stem.with_suffix(".de"), stem.with_suffix(".en")]
    texts = [list(read_lines(data / f"train.{language}")) for language in ("de", "en")]
    dice = random.Random(1)
    with files[0].open("w", encoding="utf-8") as source, files[1].open("w", encoding="utf-8") as target:
        for _ in range(lines):
            first, second = (int(dice.random() * len(texts[0])) for _ in range(2))
            is_repeated = dice.random() < REPEATED
            for file, side in zip((source, target), texts, strict=True):
                file.write(side[first] + "\n" if is_repeated else f"{side[first]} {side[second]}\n")
    return files


def main(
    data: Annotated[Path, typer.Option(help="Folder with train.de and train.en.")],
    output: Annotated[Path, typer.Option(help="Write the figures as JSON.")],
    lines: Annotated[tuple[int, int], typer.Option(help="Lines of the two corpora.")] = (1_000_000, 10_000_000),
    workers: Annotated[int, typer.Option(help="Number of processes of the first pass.")] = 1,
    config: Annotated[Path | None, typer.Option(help="Cleaning configuration. Default: only the cheap rules.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
) -> None:
    """Write both corpora, clean them, and print the peaks."""
    rows: list[dict[str, Any]] = []
    for count in lines:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            files = write_corpus(data, Path(name) / "synthetic", count)
            path = config or Path(name) / "clean.toml"
            if config is None:
                path.write_text(CONFIG, encoding="utf-8")
            command = ["corpus", "clean", *map(str, files), "--from", "de", "--to", "en", "--config", str(path)]
            measured = measure([*command, "-o", f"{name}/out", "--workers", str(workers)], memory=anonymous_bytes)
        rows.append({"lines": count, "peak_mb": measured.peak_bytes / 1e6, "seconds": measured.seconds})
        print(rows[-1])
    difference = rows[1]["peak_mb"] - rows[0]["peak_mb"]
    print(f"difference: {difference:.1f} MB")
    head = {"date": date.today().isoformat(), "processor": processor_name(), "cores": os.cpu_count()}
    output.write_text(json.dumps(head | {"rows": rows, "difference_mb": difference}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
