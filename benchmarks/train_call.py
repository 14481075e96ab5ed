"""Compare training by a Python call with the command, with the same recipe and files, in turn in one process.

    python benchmarks/train_call.py --pairs 6

The script prints, for each pair, the processor time of the command divided by the processor time of the call, and the
geometric mean. If it is above 1, the call is faster. The weights of both must be equal. The first pair, which compiles
kernels, is not counted. After it, the process keeps freed memory, like every process of the command.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import headway
from headway.cli.commands.train import train as train_command
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


def main() -> None:
    """Measure the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        recipe = home / "recipe.toml"
        write_corpus(build_corpus("en", "de", size=3000), home, "en", "de")
        recipe.write_text(RECIPE.format(folder=home, steps=arguments.steps), encoding="utf-8")
        ways: dict[str, Callable[[Path], object]] = {
            "command": lambda run: train_command(recipe, run=run),
            "call": lambda run: headway.train(recipe, run=run),
        }
        ratios: list[float] = []
        for pair in range(arguments.pairs + 1):
            times: dict[str, float] = {}
            for way in sorted(ways, reverse=pair % 2 == 0):
                begin = time.process_time()
                ways[way](home / f"{way}-{pair}")
                times[way] = time.process_time() - begin
            weights = {(home / f"{way}-{pair}" / "best" / "model.safetensors").read_bytes() for way in ways}
            assert len(weights) == 1, "the weights differ"
            if pair:
                ratios.append(times["command"] / times["call"])
                print(f"pair {pair}: command {times['command']:.2f} s, call {times['call']:.2f} s, {ratios[-1]:.3f}")
    print(f"command / call, processor time: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")


if __name__ == "__main__":
    main()
