"""Training that starts from a model: fine-tuning on other text."""

from __future__ import annotations

from pathlib import Path

from headway.bundle import ClassifierBundle, load_bundle, load_weights, named_weights
from headway.errors import ConfigError
from headway.models.build import Model

__all__ = ["load_start"]

# What a model may be trained on with, whatever it was trained with before.
_MAY_DIFFER = {
    *("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"),
    *("word_dropout", "pooled_dropout"),
}


def load_start(model: Model, folder: Path, labels: tuple[str, ...] = ()) -> None:
    """Put the weights of the model folder into ``model``, which must be built alike but for its dropout.

    ``labels`` are a classifier's, which must be those of the folder.
    """
    bundle = load_bundle(folder)
    start = bundle.model
    known = bundle.labels if isinstance(bundle, ClassifierBundle) else ()
    if known != labels:
        raise ConfigError(
            f"training.start_from = {str(folder)!r}: its labels are {', '.join(known) or 'none'}, those of the "
            f"training data {', '.join(labels) or 'none'}"
        )
    ours, theirs = model.config.as_dict(), start.config.as_dict()
    differing = [
        f"{key} is {ours[key]!r}, there {theirs[key]!r}"
        for key in ours
        if key not in _MAY_DIFFER and ours[key] != theirs.get(key, ours[key])
    ]
    if differing:
        raise ConfigError(
            f"training.start_from = {str(folder)!r}: the recipe's [model] is built otherwise: {'; '.join(differing)}. "
            "Give the recipe the model's own values"
        )
    load_weights(model, named_weights(start), folder)
