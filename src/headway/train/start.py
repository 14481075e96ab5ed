"""Training that starts from a model: fine-tuning on other text."""

from __future__ import annotations

from pathlib import Path

from headway.bundle import load_bundle, load_weights, named_weights
from headway.errors import ConfigError
from headway.models.build import Model

__all__ = ["load_start"]

# What a model may be trained on with, whatever it was trained with before.
_MAY_DIFFER = {
    *("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"),
    *("embedding_dropout", "word_dropout", "pooled_dropout"),
}


def load_start(model: Model, folder: Path) -> None:
    """Put the weights of the model folder into ``model``, which must be built alike but for its dropout.

    That the labels are the same has been checked when they were read (:mod:`headway.train.labels`).
    """
    start = load_bundle(folder).model
    ours, theirs = model.config.as_dict(), start.config.as_dict()
    may_differ = _MAY_DIFFER | (set() if ours.get("positions") == "learned" else {"max_length"})
    differing = [
        f"{key} is {ours[key]!r}, there {theirs.get(key, 'not set')!r}"
        for key in ours
        if key not in may_differ and ours[key] != theirs.get(key)
    ]
    if differing:
        raise ConfigError(
            f"training.start_from = {str(folder)!r}: the recipe's [model] is built otherwise: {'; '.join(differing)}. "
            "Give the recipe the model's own values"
        )
    load_weights(model, named_weights(start), folder)
