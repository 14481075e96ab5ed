"""Measure how much more anonymous memory a language model's corpus of 10 GB needs than a corpus of 100 MB.

    python benchmarks/text_memory.py --output benchmarks/results/text-memory-DATE.json

The text is random, with the words of benchmarks/preparing.py, one paragraph per line and a blank line between
documents. For each size, ``headway prepare`` tokenizes the text, and ``headway train`` trains for a few steps. The
script reports the peak of the total anonymous memory (RssAnon) of all processes of a command. Mapped files are not
included, because the system can drop them at any time. Because the heap fragments, the peaks of two equal training runs
differ by up to 100 MB, so the runs with both sizes are repeated in turn, and the median is reported.
"""

import json
import os
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from preparing import cumulative_frequencies, draw_words, made_up_words, measure

from headway.hardware import processor_name

BLOCK = 200_000  # words drawn at a time
TRAININGS = 5  # for each size
RECIPE = """
[task]
kind = "language_model"
[data]
train = [{{ files = ["{text}"], documents = "blank_lines" }}]
[tokenizer]
vocab_size = 8000
[model]
preset = "tiny"
max_length = 128
[training]
steps = 5
[checkpoints]
average = 0
"""


def write_text(path: Path, size: int) -> None:
    """Write at least ``size`` bytes of random text, which is the same in every run."""
    rng = np.random.default_rng(1)
    words = made_up_words(rng)
    cumulative = cumulative_frequencies()
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            drawn = draw_words(words, cumulative, BLOCK, rng)
            paragraphs = [" ".join(drawn[start : start + 100]) for start in range(0, BLOCK, 100)]
            documents = ["\n".join(paragraphs[start : start + 5]) for start in range(0, len(paragraphs), 5)]
            file.write("\n\n".join(documents) + "\n\n")


def anonymous_bytes(process: int) -> int:
    """Return the anonymous memory of a process, or 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def train(run: Path, again: Path) -> float:
    """Train in a new run folder ``again`` with the tokens of ``run``, and return the peak of the memory in MB."""
    again.mkdir()
    (again / "tokens").symlink_to(run / "tokens")
    arguments = ["train", str(run.with_suffix(".toml")), "--run", str(again)]
    return measure(arguments, memory=anonymous_bytes).peak_bytes / 1e6


def main(
    output: Annotated[Path, typer.Option(help="Write the figures as JSON.")],
    megabytes: Annotated[tuple[int, int], typer.Option(help="Sizes of the two corpora.")] = (100, 10_000),
    folder: Annotated[Path | None, typer.Option(help="Folder for temporary files.")] = None,
) -> None:
    """Write both corpora, prepare them, train on them, and print the peaks."""
    peaks: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        runs = {f"{size:,} MB": Path(name) / str(size) for size in megabytes}
        for size, (label, run) in zip(megabytes, runs.items(), strict=True):
            text, recipe = run.with_suffix(".txt"), run.with_suffix(".toml")
            write_text(text, size * 10**6)
            recipe.write_text(RECIPE.format(text=text), encoding="utf-8")
            prepared = measure(["prepare", str(recipe), "--run", str(run)], memory=anonymous_bytes)
            peaks[label] = {"prepare_mb": prepared.peak_bytes / 1e6, "prepare_s": prepared.seconds, "train_mb": []}
        for turn in range(TRAININGS):
            for label, run in runs.items():
                peaks[label]["train_mb"].append(train(run, Path(f"{run}-{turn}")))
    for label, row in peaks.items():
        print(label, row)
    small, large = peaks.values()
    difference = {
        "prepare_mb": large["prepare_mb"] - small["prepare_mb"],
        "train_mb": median(large["train_mb"]) - median(small["train_mb"]),
    }
    print("difference:", {key: round(value, 1) for key, value in difference.items()})
    head = {"date": date.today().isoformat(), "processor": processor_name(), "cores": os.cpu_count()}
    output.write_text(json.dumps(head | {"peaks": peaks, "difference": difference}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
