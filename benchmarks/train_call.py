"""Training by a call of Python against the command: the same recipe and files, in interleaved pairs of processes.

    python benchmarks/train_call.py --pairs 5 [--keep]

With --keep, the host calls ``headway.hardware.keep_freed_memory`` first, as the command does. A call of Python does
not, because it would change the allocator of its host.

Prints, for each pair, the processor time and the wall time of the command divided by those of the call, and the
geometric means. The weights of both must be equal. Above 1 the call is faster.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway.data.builtin import build_corpus, write_corpus

RECIPE = """
[task]
source_language = "en"
target_language = "de"
[data]
folder = "{folder}"
train = [{{ files = ["train.en", "train.de"] }}]
dev.files = ["dev.en", "dev.de"]
max_tokens = 1024
[tokenizer]
vocab_size = 800
[model]
preset = "tiny"
[training]
steps = {steps}
device = "cpu"
log_every = 10
[validation]
metric = "loss"
[checkpoints]
average = 0
"""
CALL = "import sys, headway; headway.train(sys.argv[1], run=sys.argv[2])"
KEEPING = "from headway.hardware import keep_freed_memory; keep_freed_memory(); "


def measured(command: list[str]) -> tuple[float, float]:
    """Return the processor time and the wall time of a process in seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    # The command allows huge pages, which only a process that has not imported PyTorch yet can do; so does this host.
    environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": "1"}
    subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begin


def main() -> None:
    """Measure the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    ratios: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_corpus(build_corpus("en", "de", size=4000), home, "en", "de")
        (home / "recipe.toml").write_text(RECIPE.format(folder=home, steps=arguments.steps), encoding="utf-8")
        for pair in range(arguments.pairs):
            runs = {kind: home / f"{kind}-{pair}" for kind in ("command", "call")}
            commands = {
                "command": ["-m", "headway", "train", str(home / "recipe.toml"), "--run", str(runs["command"])],
                "call": ["-c", KEEPING * arguments.keep + CALL, str(home / "recipe.toml"), str(runs["call"])],
            }
            order = sorted(commands, reverse=pair % 2 == 0)
            times = {kind: measured([sys.executable, *commands[kind]]) for kind in order}
            weights = {(run / "best" / "model.safetensors").read_bytes() for run in runs.values()}
            assert len(weights) == 1, "the weights differ"
            (command, command_wall), (call, call_wall) = times["command"], times["call"]
            ratios.append((command / call, command_wall / call_wall))
            print(
                f"pair {pair + 1}: command {command:.1f} s of processor time, call {call:.1f} s",
                *ratios[-1],
                flush=True,
            )
    means = [math.exp(sum(map(math.log, values)) / len(ratios)) for values in zip(*ratios, strict=True)]
    print(f"command / call: processor time {means[0]:.3f}, wall time {means[1]:.3f}")


if __name__ == "__main__":
    main()
