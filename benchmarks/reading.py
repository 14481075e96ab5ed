"""Measure how fast the processes of a training job read their batches, and the memory for the order of an epoch.

    python benchmarks/reading.py                            # milliseconds per step of a rank, and the job's ceiling
    python benchmarks/reading.py --pairs 100000000 --plan   # memory of planning and reading an epoch

The pairs are synthetic, with lengths as in translation data (25 tokens per side on average). With ``--plan``, only
their lengths exist (token files are sparse), and a new process plans an epoch and keeps the batches of its first steps.

In a step of R processes, each rank reads one micro-batch on its own core. The ceiling is the number of target tokens
per second that the slowest rank can provide, without any computation on the device. To compare with another commit, run
the same file with its package: PYTHONPATH=OTHER/src python benchmarks/reading.py.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console

from headway.data.batching import TokenDataset
from headway.data.store import SIDES, TokenStore
from headway.hardware import processor_name
from headway.tasks import parse_recipe
from headway.training.stream import BatchStream

_MAX_LENGTH, _VOCAB_SIZE, _AT_ONCE = 200, 8000, 1 << 20


def write_store(folder: Path, pairs: int, *, with_tokens: bool) -> None:
    """Write a store of random pairs. Without tokens, the token files are sparse."""
    rng, ends = np.random.default_rng(1), dict.fromkeys(SIDES, 0)
    files = {name: (folder / name).open("wb") for side in SIDES for name in (f"{side}.tokens", f"{side}.offsets")}
    for side in SIDES:
        files[f"{side}.offsets"].write(np.zeros(1, np.int64).tobytes())
    for begin in range(0, pairs, _AT_ONCE):
        source = np.clip(rng.lognormal(3.05, 0.55, min(_AT_ONCE, pairs - begin)), 2, _MAX_LENGTH)
        target = np.clip(source * rng.normal(1.0, 0.15, len(source)), 2, _MAX_LENGTH)
        for side, lengths in zip(SIDES, (source, target), strict=True):
            offsets: NDArray[np.int64] = ends[side] + np.cumsum(lengths.astype(np.int64))
            files[f"{side}.offsets"].write(offsets.tobytes())
            if with_tokens:
                tokens = rng.integers(7, _VOCAB_SIZE, offsets[-1] - ends[side]).astype(np.uint16)
                files[f"{side}.tokens"].write(tokens.tobytes())
            ends[side] = int(offsets[-1])
    for side in SIDES:
        files[f"{side}.tokens"].truncate(2 * ends[side])
    for file in files.values():
        file.close()
    counts = {"read": pairs, "empty": 0, "too_long": 0, "ratio": 0, "truncated": 0}
    header = {"format": 2, "fingerprint": "key", "dtype": "uint16", "segmentations": 1, "counts": counts}
    (folder / "store.json").write_text(json.dumps(header), encoding="utf-8")


def make_stream(store: Path, max_tokens: int, rank: int, ranks: int) -> BatchStream:
    """Return the stream of one rank, in which each rank has one micro-batch per step."""
    sections = {
        "data": {"train": [{"files": ["a", "b"]}], "max_tokens": max_tokens},
        "training": {"accumulate": ranks},
    }
    dataset, recipe = TokenDataset([TokenStore(store)]), parse_recipe(sections, "benchmark")
    return BatchStream(dataset, recipe, torch.device("cpu"), rank=rank, world_size=ranks)


def memory_mb() -> dict[str, float]:
    """Return the process's own memory, its mapped file pages, and the peak of both, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = {
        name: float(rest.split()[0]) / 1e3 for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest
    }
    return {"own": sizes["RssAnon"], "mapped files": sizes["RssFile"], "peak": sizes["VmHWM"]}


def measure_plan(store: Path, max_tokens: int) -> None:
    """Plan an epoch in this process, read the lengths of some steps' batches, and print the time and the memory."""
    before, start = memory_mb(), time.perf_counter()
    plan = make_stream(store, max_tokens, 0, 1).epoch_plan
    batches = iter(plan)
    next(batches)
    seconds = time.perf_counter() - start
    for _ in range(2000):
        next(batches)
    after = memory_mb()
    grown = {name: round(after[name] - before[name]) for name in after}
    print(json.dumps({"seconds to the first batch": round(seconds, 2), "MB more than at the start": grown}))


def main(
    pairs: Annotated[int, typer.Option(help="Number of pairs.")] = 1_000_000,
    max_tokens: Annotated[int, typer.Option(help="Tokens per side of a micro-batch.")] = 25_000,
    ranks: Annotated[str, typer.Option(help="Numbers of processes, separated by commas.")] = "1,2,8",
    steps: Annotated[int, typer.Option(help="Steps that are timed.")] = 60,
    plan: Annotated[bool, typer.Option("--plan", help="Measure the memory of an epoch's order instead.")] = False,
    store: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure reading."""
    if store:
        measure_plan(Path(store), max_tokens)
        return
    console = Console()
    console.print(f"{processor_name()}, PyTorch {torch.__version__}, {pairs:,} pairs, {max_tokens:,} tokens per side")
    with tempfile.TemporaryDirectory() as aside:
        write_store(Path(aside), pairs, with_tokens=not plan)
        if plan:
            for start in ("first", "second"):
                words = [sys.executable, __file__, "--store", aside, "--max-tokens", str(max_tokens)]
                found = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                console.print(f"{start} start: {found.strip()}")
            return
        for count in map(int, ranks.split(",")):
            stream, times, tokens = make_stream(Path(aside), max_tokens, 0, count), [], 0
            for _ in range(steps):
                start_s = time.perf_counter()
                tokens += stream.next_step().num_target_tokens
                times.append(time.perf_counter() - start_s)
            ceiling = tokens / sum(times) / 1e6
            console.print(
                f"{count} ranks: {1000 * statistics.median(times):.1f} ms per step of a rank (median of {steps}), "
                f"ceiling of the job {ceiling:.1f} million target tokens per second"
            )


if __name__ == "__main__":
    typer.run(main)
