"""Compare the scores of corpus cleaning with human labels: REFreSD (Briakou and Carpuat 2020), English-French.

    python benchmarks/refresd_cleaning.py --data ../shared/data --forward EN-FR --reverse FR-EN --output FILE

1,039 pairs from Wikipedia were labeled "unrelated", "some meaning difference" or "no meaning difference". For each
score, the script prints the area under the ROC curve (AUC) for unrelated pairs and for pairs with some difference, each
compared with pairs without a difference. The AUC is the probability that the score ranks a pair of the first kind below
a pair without a difference. The 95 % intervals come from a bootstrap over pairs.

The lexical model is learned from Multi30k's 29,000 captions and from the 1,039 pairs, without labels. The translation
models for the dual cross-entropy are arguments. They can be trained on Multi30k, for example:

    headway train recipes/multi30k-de-en-fast.toml --set data.folder=FOLDER --set training.steps=1500 ...

The baselines are the ratio of the lengths and the share of copied words, such as names and numbers.
"""

import json
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

import headway
from headway.corpus.cleaning.cross_entropy import PairEntropies
from headway.corpus.cleaning.lexical_model import LexicalModel
from headway.data.readers import read_lines
from headway.hardware import processor_name
from headway.predict import Translator
from headway.text.words import split_words

UNRELATED, SOME, NONE = "unrelated", "some_meaning_difference", "no_meaning_difference"
SAMPLES = 1_000

Floats = npt.NDArray[np.float64]


def length_ratios(sources: list[str], targets: list[str]) -> Floats:
    """Return minus the absolute logarithm of the ratio of lengths, after its median is subtracted."""
    pairs = zip(sources, targets, strict=True)
    ratios = np.array([np.log((len(target) + 1) / (len(source) + 1)) for source, target in pairs])
    distances: Floats = np.abs(ratios - np.median(ratios))
    return -distances


def lengths(sources: list[str], targets: list[str]) -> Floats:
    """Return minus the number of characters of both sides."""
    return -np.array([len(source) + len(target) for source, target in zip(sources, targets, strict=True)], np.float64)


def copies(sources: list[str], targets: list[str]) -> Floats:
    """Return the share of the words of the shorter side that the other side also contains."""
    shares = []
    for pair in zip(sources, targets, strict=True):
        source, target = ({word.casefold() for word in split_words(text) if word.isalnum()} for text in pair)
        shares.append(len(source & target) / max(1, min(len(source), len(target))))
    return np.array(shares)


def auc(bad: Floats, good: Floats) -> float:
    """Return the probability that a bad pair scores lower than a good pair; equal scores count as half."""
    ordered = np.sort(bad)
    below, not_above = np.searchsorted(ordered, good), np.searchsorted(ordered, good, side="right")
    return float((below + not_above).mean() / 2 / len(bad))


def with_interval(bad: Floats, good: Floats) -> tuple[float, float, float]:
    """Return the AUC and the ends of its interval."""
    dice = np.random.default_rng(1)
    sampled = [auc(dice.choice(bad, len(bad)), dice.choice(good, len(good))) for _ in range(SAMPLES)]
    low, high = np.quantile(sampled, [0.025, 0.975])
    return auc(bad, good), float(low), float(high)


def main(
    data: Annotated[Path, typer.Option(help="Folder with refresd and multi30k.")],
    forward: Annotated[Path | None, typer.Option(help="Model folder, English to French.")] = None,
    reverse: Annotated[Path | None, typer.Option(help="Model folder, French to English.")] = None,
    precision: Annotated[str, typer.Option(help="Precision of the translation models.")] = "int8",
    output: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Print the AUC of each score."""
    rows = [line.split("\t") for line in read_lines(data / "refresd" / "test.tsv")][1:]
    labels = np.array([row[1] for row in rows])
    english, french = [row[2] for row in rows], [row[3] for row in rows]
    captions = {language: list(read_lines(data / "multi30k" / f"train.{language}")) for language in ("en", "fr")}
    model = LexicalModel.learn(captions["en"] + english, captions["fr"] + french)
    scores: dict[str, Callable[[list[str], list[str]], Floats]] = {
        "lexical model": model.scores,
        "lexical model, coverage": model.coverages,
        "length ratio": length_ratios,
        "length": lengths,
        "copied words": copies,
    }
    if forward is not None and reverse is not None:
        there, back = (headway.load(folder, precision=precision) for folder in (forward, reverse))
        assert isinstance(there, Translator)
        assert isinstance(back, Translator)
        scores["dual cross-entropy"] = lambda sources, targets: (
            -PairEntropies.compute(there, back, sources, targets).dual_cross_entropy
        )
    results: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": processor_name(),
        "python": platform.python_version(),
        "command": "python benchmarks/refresd_cleaning.py " + " ".join(sys.argv[1:]),
        "pairs": {label: int((labels == label).sum()) for label in (UNRELATED, SOME, NONE)},
        "auc": {},
    }
    table = Table("score", "unrelated against no difference", "some against no difference")
    for name, score in scores.items():
        values = score(english, french)
        values = np.where(np.isnan(values), np.nanmin(values), values)  # too long for a translation model
        row = {bad: with_interval(values[labels == bad], values[labels == NONE]) for bad in (UNRELATED, SOME)}
        results["auc"][name] = {bad: {"auc": a, "low": low, "high": high} for bad, (a, low, high) in row.items()}
        table.add_row(name, *(f"{a:.3f} [{low:.3f}, {high:.3f}]" for a, low, high in row.values()))
    Console(width=110).print(table)
    if output is not None:
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
