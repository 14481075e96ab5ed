"""Compare the training losses and translations of this checkout with an earlier commit.

    git worktree add ../old COMMIT
    python benchmarks/same_results.py --old ../old --data ../shared/data/multi30k --model runs/multi30k/best
    python benchmarks/same_results.py ... --sentences 200 --steps 0 --output F.json

Both commits train the same recipe, once without and once with dropout, and translate the same sentences of the test set
in every decoding mode and precision. The output shows the largest difference between losses, the number of equal
translations, and the largest difference between scores, separately for translations that are equal and for translations
that differ. The latter is near 0 if the translations are tied. Each commit runs in its own process with its own source
code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECIPE = """
[task]
source_language = "de"
target_language = "en"
[data]
folder = {data}
train = [{{ files = ["train.de", "train.en"] }}]
max_tokens = 1024
[tokenizer]
vocab_size = 2000
[model]
preset = "tiny"
dropout = {dropout}
[training]
steps = {steps}
log_every = 1
device = "cpu"
[checkpoints]
average = 0
"""
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam 4": {},
    "n-best of 4": {"n_best": 4},
    "diverse beams": {"beam_size": 4, "groups": 2, "n_best": 4},
    "stop at the first": {"stopping": "first"},
    "average score": {"normalization": "average", "length_penalty": 1.0},
    "coverage penalty": {"coverage_penalty": 0.2},
    "rules": {"no_repeat_ngram": 2, "repetition_penalty": 1.2, "min_length": 5},
    "sampling": {"sampling": {"seed": 7, "top_k": 20, "temperature": 0.8}},
}
# The child process prints the translations of a file's lines as JSON. PYTHONPATH selects the commit.
CHILD = """
import importlib, json, sys
from headway.decode import DecodingOptions
model, lines, options, precision = sys.argv[1], open(sys.argv[2], encoding="utf-8").read().splitlines(), *sys.argv[3:]
translator = importlib.import_module("headway.predict").load_translator(model, precision=precision)
found = translator.translate(lines, DecodingOptions.model_validate(json.loads(options)))
print(json.dumps([[[c.text, c.score] for c in each.candidates] for each in found]))
"""


def run(checkout: Path, *arguments: str) -> str:
    """Return the output of a Python command that uses the source code of ``checkout``."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def losses(checkout: Path, recipe: Path, run_folder: Path) -> list[float]:
    """Train a recipe and return the training loss of each step."""
    run(checkout, "-m", "headway", "train", str(recipe), "--run", str(run_folder))
    records = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def compare_translations(old: list[Any], new: list[Any]) -> dict[str, float]:
    """Return the number of candidate lists with equal texts, and the differences of their scores."""
    pairs = list(zip(old, new, strict=True))
    same = [[text for text, _ in one] == [text for text, _ in other] for one, other in pairs]
    apart = [max((abs(a[1] - b[1]) for a, b in zip(one, other, strict=False)), default=0.0) for one, other in pairs]
    equal = [value for value, is_same in zip(apart, same, strict=True) if is_same]
    ties = [value for value, is_same in zip(apart, same, strict=True) if not is_same]
    return {
        "equal": sum(same),
        "of": len(pairs),
        "score_difference": max(equal, default=0.0),
        "score_difference_where_texts_differ": max(ties, default=0.0),
    }


def main() -> None:
    """Measure, print one line per comparison, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="a checkout of the earlier commit")
    parser.add_argument("--data", type=Path, required=True, help="the folder of Multi30k")
    parser.add_argument("--model", type=Path, help="a translation model; without it only losses are compared")
    parser.add_argument("--steps", type=int, default=100, help="training steps; 0 skips the training")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--precisions", nargs="+", default=["float32", "int8"])
    parser.add_argument("--output", type=Path, help="a JSON file")
    asked = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for dropout in (0.0, 0.1) if asked.steps else ():
            recipe = Path(folder) / f"dropout-{dropout}.toml"
            data = json.dumps(str(asked.data.resolve()))
            recipe.write_text(RECIPE.format(data=data, dropout=dropout, steps=asked.steps), encoding="utf-8")
            found = [losses(each, recipe, Path(folder) / f"{dropout}-{n}") for n, each in enumerate((asked.old, ROOT))]
            apart = [abs(a - b) for a, b in zip(*found, strict=True)]
            name = f"loss of {len(apart)} steps, dropout {dropout}"
            figures[name] = {"largest_difference": max(apart), "last_old": found[0][-1], "last_new": found[1][-1]}
            print(f"{name}: largest difference {max(apart):.2g}; last {found[0][-1]:.4f} and {found[1][-1]:.4f}")
        if asked.model is not None:
            lines = (asked.data / "test_2016_flickr.de").read_text(encoding="utf-8").splitlines()[: asked.sentences]
            source = Path(folder) / "source"
            source.write_text("\n".join(lines), encoding="utf-8")
            for precision in asked.precisions:
                for mode, options in MODES.items():
                    command = ["-c", CHILD, str(asked.model), str(source), json.dumps(options), precision]
                    old, new = (json.loads(run(each, *command)) for each in (asked.old, ROOT))
                    name = f"{mode}, {precision}"
                    figures[name] = row = compare_translations(old, new)
                    print(
                        f"{name}: {row['equal']:.0f} of {row['of']:.0f} equal, scores within "
                        f"{row['score_difference']:.1g}; if texts differ, within "
                        f"{row['score_difference_where_texts_differ']:.1g}",
                        flush=True,
                    )
    if asked.output:
        asked.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
