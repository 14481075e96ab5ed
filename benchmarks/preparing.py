"""How fast is a large corpus made ready, in how much memory, and how soon does training start from it?

    python benchmarks/preparing.py                  # 10 million pairs of made-up text; some 10 GB in a temporary folder

The text is drawn from a made-up vocabulary of half a million words a language; frequencies follow Zipf and Mandelbrot,
1 / (rank + 2.7)^1.2, which makes about as many different words as news have. Sentences are some 12 words long.

``headway prepare`` and ``headway train`` run as a user runs them, each in a process of its own. Tokens are those of
both sides with their end symbols. The time of preparing includes its rehearsal of a step of training. Memory is the
peak of what is resident in all processes of a command together. The memory of training is compared with the same
training on the corpus's first thousand pairs: the difference is what the corpus costs. Before each start the store's
files are dropped from the system's file cache. On a machine that is busy with other things tokens per processor second
tell more than tokens per second.
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

from headway.data.store_builder import num_cores
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
    """A command: wall time until it ended or until its mark, processor time, peak of resident memory in bytes."""

    seconds: float
    processor_s: float
    mark_s: float | None
    peak_bytes: int


def write_corpus(folder: Path, pairs: int) -> None:
    """Made-up text, the same each time."""
    frequencies = 1 / (np.arange(1, VOCABULARY + 1) + 2.7) ** 1.2
    cumulative = np.cumsum(frequencies / frequencies.sum())
    for number, side in enumerate(SIDES):
        rng = np.random.default_rng(number)
        words = made_up_words(rng)
        with (folder / f"train.{side}").open("w", encoding="utf-8") as file:
            for start in range(0, pairs, BLOCK):
                # Lengths come from the number of the block, so that both sides agree more or less.
                lengths = np.random.default_rng((2, start)).lognormal(2.4, 0.45, min(BLOCK, pairs - start))
                ends = np.cumsum(np.clip(lengths + number * rng.integers(-1, 2, len(lengths)), 1, 80).astype(np.int64))
                drawn = words[np.searchsorted(cumulative, rng.random(ends[-1])).clip(max=VOCABULARY - 1)].tolist()
                starts = [0, *ends[:-1].tolist()]
                file.writelines(" ".join(drawn[i:j]) + ".\n" for i, j in zip(starts, ends.tolist(), strict=True))


def made_up_words(rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """Words of one to five syllables, frequent ones shorter."""
    syllables = [
        consonant + vowel for consonant in "bdfghklmnprstvwz" for vowel in ("a", "e", "i", "o", "u", "en", "er")
    ]
    longest = np.ceil(np.log10(np.arange(1, VOCABULARY + 1) + 1)).clip(1, 5).astype(np.int64)
    parts = rng.integers(0, len(syllables), (VOCABULARY, 5)).tolist()
    rows = zip(parts, longest.tolist(), strict=True)
    return np.array(["".join(syllables[part] for part in row[:count]) for row, count in rows], dtype=object)


def measure(arguments: list[str], mark: Callable[[], bool] | None = None) -> Measured:
    """Run ``headway`` with ``arguments``; ``mark`` is asked again and again until it is true."""
    begin = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "headway", *arguments])
    peak, marked = 0, None
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        peak = max(peak, sum(map(resident_bytes, family(child.pid))))
        if marked is None and mark and mark():
            marked = time.perf_counter() - begin
        time.sleep(0.02)
    _, status, usage = ended
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"headway {shlex.join(arguments)} failed")
    return Measured(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, marked, peak)


def family(process: int) -> list[int]:
    """A process and all below it."""
    try:
        below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        below = []
    return [process, *(member for child in below for member in family(int(child)))]


def resident_bytes(process: int) -> int:
    """What is in memory of a process, mapped files included; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def drop_from_cache(folder: Path) -> None:
    """Have the system forget the content of a folder's files, so that the next reader reads from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def train(recipe: Path, data: Path, run: Path) -> Measured:
    """The first steps of training."""
    drop_from_cache(run)
    metrics = run / "metrics.jsonl"
    options = ["--set", f"data.folder={data}", "--set", f"training.steps={STEPS}", "--run", str(run)]
    return measure(
        ["train", str(recipe), *options], lambda: metrics.exists() and '"kind": "train"' in metrics.read_text()
    )


def tokens_in(run: Path) -> int:
    """The tokens of the training corpus, counted in the store."""
    sizes = [(run / "tokens" / "train-0" / f"{side}.tokens").stat().st_size for side in ("source", "target")]
    return sum(sizes) // 2  # uint16


def main(
    pairs: Annotated[int, typer.Option(help="Size of the corpus.")] = 10_000_000,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Make the text, prepare it, train from it, and print what that took."""
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
        # The first one rehearses training as well, which compiles it where that has not been done on this machine.
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
