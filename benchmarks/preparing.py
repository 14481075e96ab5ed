"""Measure the time and memory for preparing a large corpus, and the time until training starts.

    python benchmarks/preparing.py               # 10 million pairs of random text; about 10 GB in a temporary folder

The text is drawn from a random vocabulary of half a million words per language. Frequencies follow the Zipf-Mandelbrot
law, 1 / (rank + 2.7)^1.2, which produces about as many different words as news text. Sentences have about 12 words.

``headway prepare`` and ``headway train`` run as user commands, each in its own process. Tokens of both sides are
counted, including end symbols. The time of ``prepare`` includes its trial step of training. Memory is the peak of the
total resident memory of all processes of a command. The memory of training is compared with the memory of the same
training on the first thousand pairs of the corpus; the difference is the memory that the corpus needs. Before training,
the files of the token store are dropped from the system's file cache. If the machine has other load, tokens per
processor second are more reliable than tokens per second.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from headway.contention import num_cores
from headway.hardware import processor_name

SIDES = ("src", "trg")
VOCABULARY = 500_000
BLOCK = 50_000
FEW = 1_000
STEPS = 5
RECIPE = """
[data]
train = [{ files = ["train.src", "train.trg"] }]
[model]
preset = "tiny"
[training]
log_every = 1
[checkpoints]
average = 0
"""


@dataclass(frozen=True)
class Measured:
    """The wall time, processor time and peak memory of a command. ``mark_s`` is the time until its mark was reached."""

    seconds: float
    processor_s: float
    mark_s: float | None
    peak_bytes: int


def write_corpus(folder: Path, pairs: int) -> None:
    """Write random text, which is the same in every run."""
    cumulative = cumulative_frequencies()
    for number, side in enumerate(SIDES):
        rng = np.random.default_rng(number)
        words = made_up_words(rng)
        with (folder / f"train.{side}").open("w", encoding="utf-8") as file:
            for start in range(0, pairs, BLOCK):
                # The seed of the lengths is the number of the block, so that both sides have similar lengths.
                lengths = np.random.default_rng((2, start)).lognormal(2.4, 0.45, min(BLOCK, pairs - start))
                ends = np.cumsum(np.clip(lengths + number * rng.integers(-1, 2, len(lengths)), 1, 80).astype(np.int64))
                drawn = draw_words(words, cumulative, ends[-1], rng)
                starts = [0, *ends[:-1].tolist()]
                file.writelines(" ".join(drawn[i:j]) + ".\n" for i, j in zip(starts, ends.tolist(), strict=True))


def cumulative_frequencies() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the share of the text that the most frequent word accounts for, then the two most frequent words, and so
    on."""
    frequencies = 1 / (np.arange(1, VOCABULARY + 1) + 2.7) ** 1.2
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.cumsum(frequencies / frequencies.sum())
    return found


def draw_words(
    words: np.ndarray[tuple[int], np.dtype[np.object_]],
    cumulative: np.ndarray[tuple[int], np.dtype[np.float64]],
    count: int,
    rng: np.random.Generator,
) -> list[str]:
    """Return ``count`` random words."""
    drawn: list[str] = words[np.searchsorted(cumulative, rng.random(count)).clip(max=VOCABULARY - 1)].tolist()
    return drawn


def made_up_words(rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """Return random words of one to five syllables; frequent words are shorter."""
    syllables = [
        consonant + vowel for consonant in "bdfghklmnprstvwz" for vowel in ("a", "e", "i", "o", "u", "en", "er")
    ]
    longest = np.ceil(np.log10(np.arange(1, VOCABULARY + 1) + 1)).clip(1, 5).astype(np.int64)
    parts = rng.integers(0, len(syllables), (VOCABULARY, 5)).tolist()
    rows = zip(parts, longest.tolist(), strict=True)
    return np.array(["".join(syllables[part] for part in row[:count]) for row, count in rows], dtype=object)


def measure(
    arguments: list[str], mark: Callable[[], bool] | None = None, memory: Callable[[int], int] | None = None
) -> Measured:
    """Run ``headway`` with ``arguments``, and call ``mark`` repeatedly until it returns True.

    ``memory`` returns the memory of a process in bytes, by default :func:`resident_bytes`.
    """
    begin = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "headway", *arguments])
    peak, marked = 0, None
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        peak = max(peak, sum(map(memory or resident_bytes, process_tree(child.pid))))
        if marked is None and mark and mark():
            marked = time.perf_counter() - begin
        time.sleep(0.02)
    _, status, usage = ended
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"headway {shlex.join(arguments)} failed")
    return Measured(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, marked, peak)


def process_tree(process: int) -> list[int]:
    """Return the ids of a process and of its descendants."""
    try:
        below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        below = []
    return [process, *(member for child in below for member in process_tree(int(child)))]


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process, including mapped files, or 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def drop_from_cache(folder: Path) -> None:
    """Drop the files of a folder from the system's file cache, so that the next process reads them from disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def train(recipe: Path, data: Path, run: Path) -> Measured:
    """Measure the first steps of training."""
    drop_from_cache(run)
    metrics = run / "metrics.jsonl"
    options = ["--set", f"data.folder={data}", "--set", f"training.steps={STEPS}", "--run", str(run)]
    return measure(
        ["train", str(recipe), *options], lambda: metrics.exists() and '"kind": "train"' in metrics.read_text()
    )


def tokens_in(run: Path) -> int:
    """Return the number of tokens of the training corpus in the token store."""
    sizes = [(run / "tokens" / "train-0" / f"{side}.tokens").stat().st_size for side in ("source", "target")]
    return sum(sizes) // 2  # uint16


def main(
    pairs: Annotated[int, typer.Option(help="Number of sentence pairs in the corpus.")] = 10_000_000,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Write a corpus, prepare it, train on it, and print the figures."""
    command = f"python benchmarks/preparing.py {shlex.join(sys.argv[1:])}".strip()
    machine = f"{processor_name()}, {num_cores()} cores, PyTorch {version('torch')}, Python {platform.python_version()}"
    print(f"{date.today()}: {machine}, tokenizers {version('tokenizers')}, Headway {version('headway')}\n{command}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = folder / "few"
        few.mkdir()
        write_corpus(folder, pairs)
        for side in SIDES:
            with (folder / f"train.{side}").open(encoding="utf-8") as file:
                (few / f"train.{side}").write_text("".join(islice(file, FEW)), encoding="utf-8")
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE, encoding="utf-8")
        run, small_run = folder / "run", folder / "small-run"
        options = ["--set", f"data.folder={folder}", "--run", str(run)]
        # The first command also compiles the kernels of training if this has not been done on this machine.
        measure(["prepare", str(recipe), "--set", f"data.folder={few}", "--run", str(small_run)])
        vocabulary = measure(["prepare", str(recipe), *options, "--shard", f"{pairs}/{pairs}"])
        prepared = measure(["prepare", str(recipe), *options])
        tokens, small, large = tokens_in(run), train(recipe, few, small_run), train(recipe, folder, run)
    figures = {
        "date": str(date.today()),
        "machine": machine,
        "command": command,
        "pairs": pairs,
        "tokens": tokens,
        "tokens_per_s": tokens / prepared.seconds,
        "tokens_per_processor_s": tokens / prepared.processor_s,
        "tokens_per_s_with_vocabulary": tokens / (vocabulary.seconds + prepared.seconds),
        "start_to_first_step_s": large.mark_s,
        "system_load": os.getloadavg()[1],
        "memory_above_small_corpus_bytes": large.peak_bytes - small.peak_bytes,
        "vocabulary": asdict(vocabulary),
        "prepare": asdict(prepared),
        "train_small_corpus": asdict(small),
        "train": asdict(large),
    }
    for key, value in figures.items():
        print(f"{key}: {value:,.1f}" if isinstance(value, float) else f"{key}: {value}")
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
