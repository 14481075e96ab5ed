"""Compare Headway's text classification in accuracy and speed with TF-IDF, linear classifiers and fastText's model.

    python benchmarks/classification.py recipes/ag-news.toml --data FOLDER     # FOLDER contains train.tsv and dev.tsv
    python benchmarks/classification.py recipes/ag-news.toml --data FOLDER --model runs/ag-news/best

Every recipe is trained in a temporary folder. A ``--model`` is already trained, so its training time is not reported.
The other contestants (``labellers.py``) are trained on the texts of the first recipe. Accuracy is measured on the
recipe's development set. This is not a test set: recipes were chosen on it, and Headway selects its best checkpoint on
it.

The training time starts from the text files and includes building the vocabulary and validation. Texts per second are
measured from a list of texts to a list of labels: the development set is classified repeatedly, once to warm up and
then for ``--seconds``, and the median pass is reported. All contestants may use the same number of threads.
scikit-learn is not a requirement of Headway: pip install scikit-learn.
"""

import json
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import torch
import typer
from labellers import Classify, MissingError, train_fasttext, train_tfidf
from rich.console import Console
from rich.table import Table

import headway
from headway.data.labels import read_labeled_texts
from headway.hardware import keep_freed_memory, processor_name
from headway.predict.classification.classifier import Classifier
from headway.tasks import load_recipe, train
from headway.training.recipe import Recipe
from headway.training.report import Listener


@dataclass(frozen=True)
class LabeledTexts:
    """Texts and the label of each text."""

    texts: list[str]
    labels: list[str]


@dataclass(frozen=True)
class Contestant:
    """A classifier to measure. ``make()`` trains or loads it; ``trained`` means that it only loads it."""

    name: str
    make: Callable[[], Classify]
    trained: bool = False


@dataclass(frozen=True)
class Result:
    """One row of the table.

    ``training_s`` is None if the model was trained before. If ``failure`` is set, there are no figures.
    """

    name: str
    accuracy: float | None = None
    training_s: float | None = None
    texts_per_s: float | None = None
    failure: str = ""


def read_corpora(recipe: Recipe) -> tuple[LabeledTexts, LabeledTexts]:
    """Return the training set and the development set of a recipe."""
    if recipe.data.dev is None:
        raise SystemExit("the recipe has no data.dev, on which accuracy is measured")
    folder = Path(recipe.data.folder)
    train_examples = [example for corpus in recipe.data.train for example in read_labeled_texts(corpus, folder)]
    return tuple(  # type: ignore[return-value]
        LabeledTexts([text for text, _ in examples], [label for _, label in examples])
        for examples in (train_examples, list(read_labeled_texts(recipe.data.dev, folder)))
    )


def train_recipe(recipe: Recipe, run: Path) -> Classify:
    """Train Headway and load the model that the run recommends."""
    keep_freed_memory()  # as commands do
    result = train(recipe, run, listener=Listener())
    if result.model_folder is None:
        raise SystemExit("the training was interrupted")
    return load_model(result.model_folder)


def load_model(folder: Path) -> Classify:
    """Load the classifier in a model folder."""
    model = headway.load(folder)
    if not isinstance(model, Classifier):
        raise SystemExit(f"{folder}: a translation model; this benchmark measures classifiers")
    return lambda texts: [found.label for found in model.classify(texts)]


def measure(contestant: Contestant, dev: LabeledTexts, seconds: float) -> Result:
    """Train a contestant and measure it on ``dev``."""
    begin = time.perf_counter()
    try:
        classify = contestant.make()
    except MissingError as missing:
        return Result(contestant.name, failure=str(missing))
    training_s = None if contestant.trained else time.perf_counter() - begin
    found = classify(dev.texts)
    right = sum(guess == label for guess, label in zip(found, dev.labels, strict=True))
    passes: list[float] = []
    while not passes or sum(passes) < seconds:
        begin = time.perf_counter()
        classify(dev.texts)
        passes.append(time.perf_counter() - begin)
    return Result(contestant.name, right / len(found), training_s, len(found) / statistics.median(passes))


def baselines(corpus: LabeledTexts) -> list[Contestant]:
    """Return the classifiers that Headway is compared with."""
    texts, labels = corpus.texts, corpus.labels
    return [
        Contestant("TF-IDF + logistic regression", partial(train_tfidf, "regression", texts, labels)),
        Contestant("TF-IDF + linear SVM", partial(train_tfidf, "machine", texts, labels)),
        Contestant("fastText's model, in PyTorch", partial(train_fasttext, texts, labels)),
    ]


def results_table(results: list[Result], train_texts: int, dev_texts: int) -> Table:
    """Return the results of all contestants, in the order of their measurements."""
    title = f"trained on {train_texts:,} texts, measured on {dev_texts:,}"
    table = Table("classifier", "accuracy", "training", "texts/s", "", title=title)
    for result in results:
        training = "" if result.training_s is None else f"{result.training_s:,.1f} s"
        accuracy = "" if result.accuracy is None else f"{result.accuracy:.2%}"
        rate = "" if result.texts_per_s is None else f"{result.texts_per_s:,.0f}"
        table.add_row(result.name, accuracy, training, rate, result.failure)
    return table


def installed(package: str) -> str:
    """Return the version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main(
    recipes: Annotated[list[Path], typer.Argument(help="Recipes of classifiers. All use the data of the first one.")],
    data: Annotated[Path | None, typer.Option(help="Folder that replaces the recipes' data.folder.")] = None,
    models: Annotated[list[Path] | None, typer.Option("--model", help="Folder of a trained model.")] = None,
    retrain: Annotated[bool, typer.Option("--train/--no-train", help="Whether to train the recipes.")] = True,
    threads: Annotated[int, typer.Option(help="Processor threads of each contestant.")] = 2,
    seconds: Annotated[float, typer.Option(help="Seconds of classification measured for each contestant.")] = 10.0,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Train and measure all contestants, and print a table."""
    torch.set_num_threads(threads)
    changes = [] if data is None else [f"data.folder={data}"]
    loaded = {path.stem: load_recipe(path, changes) for path in recipes}
    if len(loaded) < len(recipes):
        raise typer.BadParameter("two recipes have the same name; rename one")
    train_set, dev_set = read_corpora(next(iter(loaded.values())))
    console = Console(width=None if sys.stdout.isatty() else 120)
    packages = {"PyTorch": "torch", "scikit-learn": "scikit-learn", "Headway": "headway"}
    software = ", ".join(f"{name} {installed(package)}" for name, package in packages.items())
    machine = f"{processor_name()}, {threads} threads, {software}, Python {platform.python_version()}"
    command = f"python benchmarks/classification.py {shlex.join(sys.argv[1:])}"
    console.print(f"{date.today()}: {machine}\n{command}")
    with tempfile.TemporaryDirectory() as folder:
        contestants = [
            Contestant(f"Headway, {name}", partial(train_recipe, recipe, Path(folder, name)))
            for name, recipe in (loaded.items() if retrain else ())
        ]
        contestants += [Contestant(f"Headway, {path}", partial(load_model, path), True) for path in models or []]
        results = [measure(each, dev_set, seconds) for each in [*contestants, *baselines(train_set)]]
    console.print(results_table(results, len(train_set.texts), len(dev_set.texts)))
    if output is not None:
        figures = {
            "date": str(date.today()),
            "machine": machine,
            "command": command,
            "train_texts": len(train_set.texts),
            "dev_texts": len(dev_set.texts),
            "results": [asdict(result) for result in results],
        }
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
