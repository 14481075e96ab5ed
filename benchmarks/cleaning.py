"""Train small translation models on an undamaged, a damaged and a cleaned corpus, and compare their BLEU.

    python benchmarks/plant_faults.py plant --data ../shared/data --out faults
    headway corpus clean faults/damaged.de faults/damaged.en -o cleaned --from de --to en
    for seed in 1 2 3; do for corpus in undamaged damaged cleaned; do
        python benchmarks/cleaning.py train $corpus --seed $seed --faults faults --cleaned cleaned \\
            --data ../shared/data/tatoeba-de-en --work trainings
    done; done
    python benchmarks/cleaning.py compare --data ../shared/data/tatoeba-de-en --work trainings --output cleaning.json

``undamaged`` contains the 80 % of the pairs that were not damaged. All models have the same sizes (1.4 million weights)
and number of steps. The first 500 lines of Tatoeba's development set are used for validation, and the other 1,500 are
the test set. Completed runs are not repeated, and interrupted runs are resumed.

``compare`` pairs the models with the same seed. BLEU is the mean over the seeds. Its interval and p-value come from a
paired bootstrap over sentences and seeds: each sample draws sentences and, for each corpus, seeds with replacement.
"""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from contest import cpu_environment
from rich.console import Console
from rich.table import Table

import headway
from headway.data.readers import read_lines
from headway.evaluation import bleu
from headway.evaluation.translation import find_metric
from headway.hardware import processor_name

SOURCE, TARGET = "de", "en"
CORPORA = ("undamaged", "damaged", "cleaned")
STEPS = 800
VALIDATION_LINES = 500
SAMPLES = 2_000
RECIPE = """
[task]
source_language = "{source}"
target_language = "{target}"
[data]
train = [{{ files = [{train}] }}]
dev = {{ files = [{dev}] }}
max_tokens = 2048
[tokenizer]
vocab_size = 4000
[model]
preset = "tiny"
positions = "rotary"
dropout = 0.1
[optimizer]
schedule = "linear"
learning_rate = 5e-3
warmup_steps = 250
[training]
steps = {steps}
seed = {seed}
[validation]
every = {steps}
[checkpoints]
every = 200
keep = 2
average = 0
"""
app = typer.Typer()


def corpus_stem(corpus: str, faults: Path, cleaned: Path) -> Path:
    """Return the common start of the names of a corpus's two files."""
    return {"undamaged": faults / "good", "damaged": faults / "damaged", "cleaned": cleaned / "kept"}[corpus]


def split_dev(data: Path) -> dict[str, dict[str, list[str]]]:
    """Return the lines of the validation and the test set, by language."""
    lines = {language: list(read_lines(data / f"dev.{language}")) for language in (SOURCE, TARGET)}
    return {
        "validation": {language: texts[:VALIDATION_LINES] for language, texts in lines.items()},
        "test": {language: texts[VALIDATION_LINES:] for language, texts in lines.items()},
    }


def run_name(corpus: str, seed: int, *, reverse: bool = False) -> str:
    """Return the name of a run's folder."""
    return f"{corpus}-{seed}" + ("-reverse" if reverse else "")


@app.command()
def train(
    corpus: Annotated[str, typer.Argument(help="undamaged, damaged or cleaned.")],
    data: Annotated[Path, typer.Option(help="Folder with dev.de and dev.en.")],
    work: Annotated[Path, typer.Option(help="Folder for the runs.")],
    faults: Annotated[Path, typer.Option(help="Folder that plant_faults.py wrote.")] = Path("faults"),
    cleaned: Annotated[Path, typer.Option(help="Folder that headway corpus clean wrote.")] = Path("cleaned"),
    seed: Annotated[int, typer.Option(help="Seed of the training run.")] = 1,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = STEPS,
    reverse: Annotated[bool, typer.Option(help="Train a model from English to German.")] = False,
) -> None:
    """Train one model, unless it is complete, and translate the test set with it."""
    work.mkdir(parents=True, exist_ok=True)
    run = work.resolve() / run_name(corpus, seed, reverse=reverse)
    output = Path(f"{run}.txt")
    if output.exists():
        return
    parts = split_dev(data)
    source, target = (TARGET, SOURCE) if reverse else (SOURCE, TARGET)
    for part, texts in parts.items():
        for language, lines in texts.items():
            (work / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    stem = corpus_stem(corpus, faults, cleaned).resolve()

    def names(start: Path) -> str:
        return ", ".join(json.dumps(f"{start}.{language}") for language in (source, target))

    recipe = work / f"{run.name}.toml"
    recipe.write_text(
        RECIPE.format(
            source=source,
            target=target,
            train=names(stem),
            dev=names(work.resolve() / "validation"),
            steps=steps,
            seed=seed,
        ),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "headway", "train", str(recipe), "--run", str(run)]
    subprocess.run(command, check=True, env=cpu_environment(1))
    translator = headway.load(run / "best")
    results = translator.translate(parts["test"][source])
    output.write_text("".join(f"{result.text}\n" for result in results), encoding="utf-8")
    print(run.name, bleu(list(read_lines(output)), parts["test"][target]))


@app.command()
def compare(
    data: Annotated[Path, typer.Option(help="Folder with dev.de and dev.en.")],
    work: Annotated[Path, typer.Option(help="Folder of the runs.")],
    output: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Print the BLEU of each corpus and its difference from the cleaned corpus, with intervals and p-values."""
    references = split_dev(data)["test"][TARGET]
    metric = find_metric("bleu")
    seeds = [seed for seed in range(1, 100) if all((work / f"{run_name(name, seed)}.txt").exists() for name in CORPORA)]
    if not seeds:
        raise typer.BadParameter(f"{work}: no seed has a complete run of each of {', '.join(CORPORA)}")
    counts = {
        name: np.stack(
            [metric.counts(list(read_lines(work / f"{run_name(name, seed)}.txt")), references) for seed in seeds]
        )
        for name in CORPORA
    }
    scores = {name: [metric.value(rows.sum(axis=0)) for rows in runs] for name, runs in counts.items()}
    generator = np.random.default_rng(1)
    sampled: dict[str, list[float]] = {name: [] for name in CORPORA}
    for _ in range(SAMPLES):
        weights = np.bincount(generator.integers(len(references), size=len(references)), minlength=len(references))
        for name, runs in counts.items():
            chosen = generator.integers(len(seeds), size=len(seeds))
            sampled[name].append(float(np.mean([metric.value(weights @ runs[index]) for index in chosen])))
    results: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": processor_name(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "command": "python benchmarks/cleaning.py " + " ".join(sys.argv[1:]),
        "seeds": seeds,
        "signature": metric.signature(0, 0),
        "bleu": scores,
        "differences": {},
    }
    table = Table("corpus", "BLEU", "of the seeds", "minus cleaned", "p")
    for name in CORPORA:
        difference = float(np.mean(scores[name]) - np.mean(scores["cleaned"]))
        deltas = np.array(sampled[name]) - np.array(sampled["cleaned"])
        as_far = int((np.abs(deltas - deltas.mean()) >= abs(difference)).sum())
        low, high = np.quantile(deltas, [0.025, 0.975])
        row = {"minus cleaned": difference, "low": low, "high": high, "p": (as_far + 1) / (SAMPLES + 1)}
        if name != "cleaned":
            results["differences"][name] = row
        shown = ", ".join(f"{score:.1f}" for score in scores[name])
        cells = ("", "") if name == "cleaned" else (f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]", f"{row['p']:.4f}")
        table.add_row(name, f"{np.mean(scores[name]):.2f}", shown, *cells)
    Console(width=110).print(table)
    if output is not None:
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
