"""Training that starts from a model, Headway's own or an imported one: fine-tuning on other text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.bundle import load_bundle, load_weights, named_weights, read_model_config, read_task, read_tokenizers
from headway.config import read_toml
from headway.errors import ConfigError
from headway.models.registry import Model
from headway.train.recipe import Recipe
from headway.train.state import checkpoint_folders
from headway.train.vocabulary import Tokenizers, tokenizer_facts

__all__ = ["begun_recipe", "completed", "load_start"]

# What a model may be trained on with, whatever it was trained with before.
_MAY_DIFFER = {
    *("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"),
    *("embedding_dropout", "word_dropout", "pooled_dropout"),
}

# The least output bias that is trained from: e^-200 is zero in float32. Imported models forbid tokens by -10,000 and
# less, which would dwarf all else in what label smoothing and Adafactor take means of.
_NEVER = -200.0


def begun_recipe(run: Path) -> Recipe | None:
    """The recipe of ``run``, if training has begun there."""
    path = run / "recipe.toml"
    if not path.exists() or not checkpoint_folders(run / "checkpoints"):
        return None
    return Recipe.parse(read_toml(path), str(path))


def completed(recipe: Recipe, run: Path) -> Recipe:
    """``recipe`` with what it does not say of the languages, [tokenizer] and [model] taken from the model that it
    starts from.

    Once ``run`` has begun that is taken from the run's own recipe, whatever has become of the model's folder.
    """
    start = recipe.training.start_from
    if start is None:
        return recipe
    begun = begun_recipe(run)
    theirs = begun.as_dict() if begun else _sections(Path(start))
    sections = {"task": recipe.task, "tokenizer": recipe.tokenizer, "model": recipe.model}
    said = {
        name: section.model_dump(mode="json", include=section.model_fields_set) for name, section in sections.items()
    }
    if said["model"].keys() == {"kind"}:  # which is always there, and alone says nothing
        said["model"] = {}
    task, kind = theirs["task"]["kind"], theirs["model"]["kind"]
    if task != recipe.task.kind:
        raise ConfigError(f"training.start_from = {start!r}: the model there is for {task}; set task.kind = {task!r}")
    if said["model"].get("kind", kind) != kind:
        raise ConfigError(
            f"training.start_from = {start!r}: the model there is a {kind}; set model.kind = {kind!r}, or leave "
            "[model] out of the recipe"
        )
    whole = {name: {**theirs[name], **said[name]} for name in sections}
    origin = run / "recipe.toml" if begun else start
    return Recipe.parse({**recipe.as_dict(), **whole}, f"recipe, with what it does not say taken from {origin}")


def _sections(folder: Path) -> dict[str, dict[str, Any]]:
    """What a recipe for the model in ``folder`` would say of it."""
    task = read_task(folder)
    sections = {"task": task.as_dict(), "model": read_model_config(folder).as_dict()}
    return {**sections, "tokenizer": tokenizer_facts(Tokenizers(*read_tokenizers(folder)))}


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
    weights = named_weights(start)
    if (bias := weights.get("projection.bias")) is not None:
        weights["projection.bias"] = bias.clamp(min=_NEVER)
    load_weights(model, weights, folder)
