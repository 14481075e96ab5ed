"""Measure the time from the start of a process to the first words of a translation, for different sources of the model.

    python benchmarks/loading.py integers --model MODEL     a folder with 8-bit integers, against the float folder
    python benchmarks/loading.py names --model MODEL        hf:NAME that is converted already, against the folder

"integers" exports MODEL with ``headway export --to headway --quantization int8``, with and without embeddings, and
translates one word in int8: the float folder is converted when it is loaded. "names" publishes MODEL on the small hub
of the tests, converts it once, and stops the hub. The two commands of a pair run one after the other, and each of them
is first in every second pair. The figures are medians over the pairs of the wall time, the processor time, and the
differences. Without --model, the model has the paper's base size, random weights and 8,000 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from headway.hardware import processor_name

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "interop")]

HUB_NAME = "hf:benchmark/model"
TOKENS = 8000


def base_model(folder: Path) -> Path:
    """Write a model of the paper's base size with random weights, whose vocabulary consists of letters and unused
    tokens."""
    from headway.bundle import Bundle, TaskConfig
    from headway.models.registry import build_model
    from headway.models.transformer import TransformerConfig
    from headway.text.tokenizer import Tokenizer, TokenizerConfig

    tokenizer = Tokenizer.train(["".join(map(chr, range(0x4E00, 0x4E00 + TOKENS)))], TokenizerConfig(kind="characters"))
    torch.manual_seed(0)
    model = build_model(TransformerConfig.preset("base"), tokenizer.vocab_size, tokenizer.vocab_size)
    Bundle(TaskConfig(), model.eval(), tokenizer, tokenizer).save(folder, "# A random model\n")
    return folder


def measure(words: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the wall time and the processor time of ``headway WORDS`` in seconds."""
    before, begin = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "headway", *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begin, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, used


def compare(sides: Mapping[str, Sequence[str]], pairs: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run two commands in turn, and return the medians of their times and of the second time minus the first."""
    names = list(sides)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for name in names:
        measure(sides[name], environment)  # once for the cache of files
    for pair in range(pairs):
        for name in names if pair % 2 else reversed(names):
            found[name].append(measure(sides[name], environment))
    result: dict[str, Any] = {"pairs": pairs}
    for index, kind in enumerate(("wall_s", "processor_s")):
        values = {name: [times[index] for times in found[name]] for name in names}
        differences = [second - first for first, second in zip(*values.values(), strict=True)]
        result[kind] = {name: round(median(times), 3) for name, times in values.items()}
        result[kind]["difference"] = round(median(differences), 3)
    return result


def integers(model: Path, home: Path, pairs: int) -> dict[str, Any]:
    """Compare folders with integers with the floating-point folder."""
    results: dict[str, Any] = {}
    weights = (model / "model.safetensors").stat().st_size
    for name, options in (("integers", []), ("integers, embeddings too", ["--quantize-embeddings"])):
        folder = home / name.replace(", ", "-").replace(" ", "-")
        export = ["export", str(model), "--to", "headway", "--quantization", "int8", *options, "-o", str(folder)]
        measure(export, os.environ)
        translate = ["a", "--precision", "int8", "--beam-size", "1", "--max-length", "2"]
        sides = {"float": ["translate", str(model), *translate], "integers": ["translate", str(folder), *translate]}
        size = (folder / "model.safetensors").stat().st_size
        results[name] = {"share_of_bytes": round(size / weights, 4), **compare(sides, pairs, os.environ)}
    return results


def names(model: Path, home: Path, pairs: int) -> dict[str, Any]:
    """Compare a name that is already converted with the folder."""
    from small_hub import Repository, running_hub

    proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
    environment = {name: value for name, value in environment.items() if name not in proxies}
    with running_hub() as hub:
        hub.repositories[HUB_NAME.removeprefix("hf:")] = Repository.of_folder(model)
        measure(["import", HUB_NAME], {**environment, "HF_ENDPOINT": hub.url})
    call = ["a", "--beam-size", "1", "--max-length", "2"]
    sides = {"folder": ["translate", str(model), *call], "name": ["translate", HUB_NAME, *call]}
    return {"a converted name": compare(sides, pairs, {**environment, "HF_ENDPOINT": "http://127.0.0.1:9"})}


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["integers", "names"])
    parser.add_argument("--model", type=Path, help="A translation model's folder.")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, help="The file to write. Default: standard output.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        model = (arguments.model or base_model(Path(aside) / "base")).resolve()
        run = integers if arguments.what == "integers" else names
        measured = run(model, Path(aside) / "home", arguments.pairs)
    result = {
        "benchmark": f"loading {arguments.what}",
        "date": time.strftime("%Y-%m-%d"),
        "model": arguments.model.name if arguments.model else "random, base size",
        "machine": processor_name(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "load_average": round(os.getloadavg()[0], 1),
        "results": measured,
    }
    text = json.dumps(result, indent=1) + "\n"
    if arguments.output is None:
        print(text, end="")
    else:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
