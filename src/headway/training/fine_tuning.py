"""Fine-tuning: start from the weights in a model folder, and optionally freeze some of them.

The model may have been trained by Headway or imported. Keys missing from the recipe are taken from the model.
"""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import nn

from headway.bundle import load_bundle, read_config, require_float_weights
from headway.config import flatten_items, read_toml, spelling_hint
from headway.errors import ConfigError
from headway.interop.hub import model_folder
from headway.models.base import Model
from headway.models.registry import ARCHITECTURES, TrainingStart, architecture_of
from headway.training.prepare import tokenizer_settings
from headway.training.recipe import Recipe
from headway.training.snapshot import checkpoint_folders
from headway.training.task import Tokenizers
from headway.weights import load_weights, named_weights

RecipeT = TypeVar("RecipeT", bound=Recipe)

# Output biases are clamped to this minimum before training; e^-200 is zero in float32. Imported models suppress tokens
# with biases of -10,000 or less, which would dominate the means computed by label smoothing and Adafactor.
_MIN_BIAS = -200.0


def recipe_of_run(recipe: RecipeT, run: Path) -> RecipeT | None:
    """Return the recipe with which ``run`` was started, or None if training has not started there."""
    path = run / "recipe.toml"
    if not path.exists() or not checkpoint_folders(run / "checkpoints"):
        return None
    data = read_toml(path)
    data.get("training", {}).pop("sharding", None)  # older versions allowed a resumed run to change it
    return type(recipe).parse_saved(data, str(path))


def complete_recipe(recipe: RecipeT, run: Path) -> RecipeT:
    """Return ``recipe`` with missing keys filled in from the pretrained model and from the run's saved recipe.

    The pretrained model provides [model], tokenizer.joint and the languages of [task]. Once ``run`` has started, they
    are taken from its saved recipe, because the model folder may have changed. A started run also keeps its learning
    rate and all inert values for keys that ``recipe`` does not set, so that it can be resumed even if a default has
    changed or an option was added. Automatic options are resolved (:meth:`Recipe.with_resolved_options`).
    """
    begun = recipe_of_run(recipe, run)
    return cast("RecipeT", _completed(recipe, begun, run).with_resolved_options(begun))


def _completed(recipe: RecipeT, begun: RecipeT | None, run: Path) -> RecipeT:
    start = recipe.training.start_from
    if begun and "learning_rate" not in recipe.optimizer.model_fields_set:
        rate = {"learning_rate": begun.optimizer.learning_rate}
        recipe = recipe.model_copy(update={"optimizer": recipe.optimizer.model_copy(update=rate)})
    if begun:
        recipe = recipe.with_inert_values_of(begun)
    if start is None:
        return recipe
    theirs = begun.as_dict() if begun else _sections_of(model_folder(start))
    sections = {"task": recipe.task, "tokenizer": recipe.tokenizer, "model": recipe.model}
    given = {name: section.model_dump(mode="json", exclude_unset=True) for name, section in sections.items()}
    if given["model"].keys() == {"kind"}:  # the parser sets the kind of every recipe
        given["model"] = {}
    task, start_kind = theirs["task"]["kind"], theirs["model"]["kind"]
    training_start = ARCHITECTURES[start_kind].training_starts.get(recipe.capability)
    if task != recipe.task.kind and training_start is not None:
        model = training_start.make_config(theirs["model"])
        theirs = {**theirs, "task": {**theirs["task"], "kind": recipe.task.kind}, "model": model}
        if recipe.training.start_decoder_from is not None:
            theirs |= _with_decoder(model_folder(start), model, model_folder(recipe.training.start_decoder_from))
    elif recipe.training.start_decoder_from is not None and not begun:
        raise ConfigError(
            f"training.start_decoder_from requires a masked language model in training.start_from, but {start!r} "
            f"contains a {start_kind} model; remove the key"
        )
    elif task != recipe.task.kind:
        raise ConfigError(f"training.start_from = {start!r}: this model is for {task}; set task.kind = {task!r}")
    kind = theirs["model"]["kind"]
    if given["model"].get("kind", kind) != kind:
        raise ConfigError(
            f"training.start_from = {start!r}: this is a {start_kind} model; set model.kind = {kind!r}, or remove "
            "[model] from the recipe"
        )
    merged = {name: _merged(theirs[name], given[name]) for name in sections}
    origin = run / "recipe.toml" if begun else start
    return type(recipe).parse({**recipe.as_dict(), **merged}, f"recipe, with missing keys taken from {origin}")


def _with_decoder(start: Path, encoder: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recipe sections of a model with the decoder in ``folder``.

    Args:
        start: Folder of the model that provides the encoder.
        encoder: Options that are determined by the encoder.
        folder: Folder of the model that provides the decoder.
    """
    require_float_weights(folder, "training.start_decoder_from")
    config, origin = read_config(folder), f"training.start_decoder_from = {str(folder)!r}"
    decoder_start = architecture_of(config.model).decoder_training_start
    if decoder_start is None:
        raise ConfigError(f"{origin}: this is a {config.model.kind} model; expected a decoder_only model")
    decoder = decoder_start.make_config(config.model.as_dict())
    differing = [
        f"{key} is {_shown(decoder, key)} in the decoder, but {_shown(encoder, key)} in the encoder"
        for key in encoder.keys() & decoder.keys()
        if encoder[key] != decoder[key] and not _may_differ(key, encoder)
    ]
    if differing:
        raise ConfigError(f"{origin}: {'; '.join(sorted(differing))}. Choose models with equal options")
    source, target = (start_config.load_tokenizers()[0] for start_config in (read_config(start), config))
    return {"model": {**decoder, **encoder}, "tokenizer": tokenizer_settings(Tokenizers(source, target))}


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return ``old`` updated with the keys of ``new``, recursively."""
    both = {key for key in new if isinstance(new[key], dict) and isinstance(old.get(key), dict)}
    return {**old, **new, **{key: _merged(old[key], new[key]) for key in both}}


def _sections_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recipe sections that describe the model in ``folder``."""
    require_float_weights(folder, "training.start_from")
    config = read_config(folder)
    tokenizer = tokenizer_settings(Tokenizers(*config.load_tokenizers()))
    return {"task": config.task.as_dict(), "model": config.model.as_dict(), "tokenizer": tokenizer}


def load_initial_weights(model: Model, folder: Path, decoder_folder: Path | None = None) -> None:
    """Load the weights of the model in ``folder`` into ``model``, or into the matching part of it.

    With ``decoder_folder``, the decoder gets the weights of the decoder-only model in this folder.

    The configurations must be equal, except for dropout and, unless positions are learned, ``max_length``. If the model
    in ``folder`` is for another task, only the options in :class:`~headway.models.registry.TrainingStart` must be
    equal. Classifier labels are compared later, when the data are prepared.
    """
    require_float_weights(folder, "training.start_from")
    start = load_bundle(folder).model
    training_start = None
    if model.config.kind != start.config.kind:
        training_start = architecture_of(start.config).training_starts[architecture_of(model.config).capability]
    _load_part(model, start, training_start, folder, "start_from")
    if decoder_folder is not None:
        require_float_weights(decoder_folder, "training.start_decoder_from")
        decoder = load_bundle(decoder_folder).model
        training_start = architecture_of(decoder.config).decoder_training_start
        _load_part(model, decoder, training_start, decoder_folder, "start_decoder_from")


def _load_part(model: Model, start: Model, training_start: TrainingStart | None, folder: Path, key: str) -> None:
    """Load the weights of ``start`` into the part of ``model`` that ``training_start`` selects.

    None selects the whole model. ``folder`` is the folder of ``start``, and ``key`` is its key in [training].
    """
    weights, config = named_weights(start), start.config.as_dict()
    if (bias := weights.get("projection.bias")) is not None:
        weights["projection.bias"] = bias.clamp(min=_MIN_BIAS)
    if training_start is not None:
        required = {**model.config.as_dict(), **training_start.make_config(config)}
        config = type(model.config).parse(required, f"training.{key} = {str(folder)!r}").as_dict()
        weights = {**named_weights(model), **training_start.convert_weights(weights)}
    ours, theirs = (dict(flatten_items(options)) for options in (model.config.as_dict(), config))
    differing = [
        f"{name} is {_shown(ours, name)}, but {_shown(theirs, name)} in the model"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name) and not _may_differ(name, theirs)
    ]
    if differing:
        raise ConfigError(
            f"training.{key} = {str(folder)!r}: the recipe's [model] differs: {'; '.join(differing)}. Set these "
            "keys to the model's values"
        )
    load_weights(model, weights, folder)


def _may_differ(key: str, config: dict[str, Any]) -> bool:
    """Return whether a model can use weights trained with ``config`` if its own value of ``key`` differs."""
    table, is_length = key.removesuffix("max_length") + "positions", key.endswith("max_length")
    # Only the table of learned positions depends on max_length.
    return key.endswith("dropout") or (is_length and config.get(table) != "learned")


def _shown(config: dict[str, Any], key: str) -> str:
    return "not set" if config.get(key) is None else repr(config[key])


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Exclude every weight that matches a pattern from training; ``*`` and ``?`` work as in file names.

    Patterns are matched against the names in a state dict, which are also the names in a model folder. A tied weight
    has several names; it is frozen if a pattern matches any of them. The query, key and value weights of an attention
    layer form a single matrix during training, so they can only be frozen together.

    Raises:
        ConfigError: A pattern matches no weight or only part of a matrix, or no trainable weight is left.
    """
    names = _weight_names(model)
    known = [name for parameter_names in names.values() for name in parameter_names]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(f"training.freeze: {pattern!r} matches no weight; {_hint(pattern, known)}")
    for parameter, parameter_names in names.items():
        matched = {name for name in parameter_names if any(fnmatchcase(name, pattern) for pattern in patterns)}
        whole = any(size == parameter.numel() for name, size in parameter_names.items() if name in matched)
        if matched and not whole and len(matched) < len(parameter_names):
            raise ConfigError(
                f"training.freeze would freeze {', '.join(sorted(matched))} without "
                f"{', '.join(sorted(parameter_names.keys() - matched))}, but they form a single matrix during "
                "training: freeze all or none of them"
            )
        parameter.requires_grad_(not matched)
    if not any(parameter.requires_grad for parameter in names):
        raise ConfigError("training.freeze leaves no weights to train; freeze fewer")


def _weight_names(model: nn.Module) -> dict[nn.Parameter, dict[str, int]]:
    """Return the state-dict names of each parameter and its slices, with their numbers of elements."""
    names: dict[nn.Parameter, dict[str, int]] = {parameter: {} for parameter in model.parameters()}
    owners = {parameter.untyped_storage().data_ptr(): parameter for parameter in names}
    for name, tensor in model.state_dict().items():
        if (owner := owners.get(tensor.untyped_storage().data_ptr())) is not None:
            names[owner][name] = tensor.numel()
    return names


def _hint(pattern: str, known: list[str]) -> str:
    """Suggest the most similar weight or submodule name, or list the top-level submodules if no name is similar."""
    parts = {".".join(name.split(".")[:depth]) + ".*" for name in known for depth in range(1, name.count(".") + 1)}
    close = difflib.get_close_matches(pattern, [*known, *parts], n=1)
    return spelling_hint(pattern, close or {name.split(".")[0] + ".*" for name in known})
