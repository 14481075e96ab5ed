"""A run's labels: those of its training texts, or of the model folder that it starts from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headway.bundle import ClassifierBundle, load_bundle
from headway.config import listed
from headway.data.inputs import ContentHashes, fingerprint
from headway.data.labels import count_labels
from headway.errors import ConfigError
from headway.storage import atomic_write
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.state import checkpoint_folders

__all__ = ["balanced_weights", "run_labels"]

_SHOWN = 3


def run_labels(recipe: Recipe, run: Path, hashes: ContentHashes, listener: Listener) -> Mapping[str, int]:
    """How many training texts each label has, in the order of the classes.

    They are counted once, and then kept in ``run``/tokens/labels.json for as long as the files are the same. A run that
    has begun keeps the order that it began with, whatever has become of the model folder that it started from.
    """
    start = recipe.training.start_from
    folder, corpora = Path(recipe.data.folder), recipe.data.train
    contents = [(hashes.of(folder / file), corpus.fields) for corpus in corpora for file in corpus.files]
    key, path = fingerprint(contents), run / "tokens" / "labels.json"
    counts = _saved(path, key)
    if counts is None or (start is not None and not checkpoint_folders(run / "checkpoints")):
        counts = count_labels(corpora, folder)
        counts = counts if start is None else _ordered(counts, Path(start))
        with atomic_write(path) as aside:
            aside.write_text(json.dumps({"key": key, "labels": counts}, ensure_ascii=False), encoding="utf-8")
    if single := [label for label, count in counts.items() if count < 2]:
        shown = ", ".join(map(repr, single[:_SHOWN])) + (", …" if len(single) > _SHOWN else "")
        listener.say(
            f"{len(single):,} of {len(counts):,} labels have a single training text ({shown}), from which a model "
            "learns nothing general; is the label in the first column, or named in fields?"
        )
    return counts


def balanced_weights(counts: Mapping[str, int]) -> list[float]:
    """What a text of each class counts so that all classes count alike: n / (C n_c), on average 1.

    ``counts`` are those of the files, whatever weights their corpora have.
    """
    total = sum(counts.values())
    return [total / (len(counts) * count) for count in counts.values()]


def _saved(path: Path, key: str) -> dict[str, int] | None:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return dict(saved["labels"]) if saved["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ordered(counts: Mapping[str, int], start: Path) -> dict[str, int]:
    """In the order of the classes of the model folder ``start``."""
    bundle = load_bundle(start)
    if not isinstance(bundle, ClassifierBundle) or set(bundle.labels) != set(counts):
        labels = listed(bundle.labels) if isinstance(bundle, ClassifierBundle) else "none: it translates"
        raise ConfigError(
            f"training.start_from = {str(start)!r}: its labels are {labels}; those of the training data are "
            f"{listed(list(counts))}. A model is fine-tuned for the labels that it has, all of them: rename or add to "
            "those of the data, or train a new model, without start_from"
        )
    return {label: counts[label] for label in bundle.labels}
