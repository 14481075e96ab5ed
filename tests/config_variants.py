"""Small configs on which fast and plain forms are compared: one for each value of each field of each model config.

Fields with a closed set of values (literals, booleans) are enumerated from their annotations. Every other field needs
values here; the tests that use :func:`variants` fail for a field without values.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import random
import types
import typing
from typing import Any, Literal, get_args, get_origin

from headway.config import Config
from headway.errors import ConfigError
from headway.models.classifier import ClassifierConfig
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.masked import MaskedConfig
from headway.models.recurrent import RecurrentConfig
from headway.models.recurrent_lm import RecurrentLMConfig
from headway.models.sequence_classifier import SequenceClassifierConfig
from headway.models.transformer import TransformerConfig
from headway.nn.scores import SCORES

__all__ = [
    "CONFIGS",
    "PLAIN_FORWARD",
    "PLAIN_SEARCH",
    "REFUSED",
    "plain_forward_options",
    "random_config",
    "searches_in_plain_form",
    "undeclared",
    "variants",
]

CONFIGS: tuple[type[Config], ...] = (
    TransformerConfig,
    ClassifierConfig,
    RecurrentConfig,
    DecoderOnlyConfig,
    RecurrentLMConfig,
    MaskedConfig,
    SequenceClassifierConfig,
)

_BASE: dict[type[Config], dict[str, Any]] = {
    TransformerConfig: {"d_model": 32, "num_heads": 2, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 2},
    ClassifierConfig: {"d_model": 32, "num_heads": 2, "d_ff": 48, "encoder_layers": 2},
    RecurrentConfig: {"d_model": 32},
    DecoderOnlyConfig: {"d_model": 32, "num_heads": 2, "d_ff": 48, "decoder_layers": 2, "max_length": 24},
    RecurrentLMConfig: {"d_model": 32},
    MaskedConfig: {"d_model": 32, "num_heads": 2, "d_ff": 48, "encoder_layers": 3, "max_length": 24},
    SequenceClassifierConfig: {
        "body": {"kind": "masked", "d_model": 32, "num_heads": 2, "d_ff": 48, "encoder_layers": 2, "max_length": 24}
    },
}
_VALUES: dict[str, list[Any]] = {
    "d_model": [24, 64],
    "num_heads": [1, 4],
    "num_kv_heads": [1, 2],
    "norm_epsilon": [0.1],
    "rotary_base": [50.0],
    "rotary_fraction": [0.5],
    "rotary_scaling": [
        {"kind": "linear", "factor": 2.0},
        {"kind": "llama3", "factor": 8.0, "original_length": 16},
        {"kind": "yarn", "factor": 4.0, "original_length": 32},
    ],
    "relative_buckets": [4, 12],
    "relative_max_distance": [18],
    "d_key": [6, 32],
    "d_value": [5],
    "d_ff": [37, 64],
    "d_embedding": [12],
    "num_layers": [1, 3],
    "encoder_layers": [1, 2],
    "decoder_layers": [1, 3],
    "dropout": [0.0, 0.3],
    "embedding_dropout": [0.3],
    "attention_dropout": [0.2],
    "feed_forward_dropout": [0.2],
    "layer_dropout": [0.4],
    "input_dropout": [0.3],
    "output_dropout": [0.3],
    "word_type_dropout": [0.4],
    "weight_drop": [0.4],
    "word_dropout": [0.2],
    "pooled_dropout": [0.3],
    "convolution": [3],
    "max_length": [14],
    "position_offset": [3],
    "score": [*SCORES],
    "score_hidden": [7],
    "encoder_window": [1, 4],
    "decoder_window": [1, 3],
    "global_every": [2, 3],
    "local_rotary_base": [30.0],
    "num_segments": [0, 2],
    "body": [
        {"kind": "decoder_only", "d_model": 32, "num_heads": 2, "d_ff": 48, "decoder_layers": 2, "max_length": 24},
        {"kind": "masked", "preset": "modernbert-base", "d_model": 32, "num_heads": 2, "d_ff": 48, "encoder_layers": 3},
    ],
}
# Inherited fields that have no effect and that the config refuses.
REFUSED = {
    (ClassifierConfig, "decoder_window"),
    (DecoderOnlyConfig, "encoder_window"),
    (MaskedConfig, "decoder_window"),
}
# The values with which a model of every kind that decodes searches in its plain form.
PLAIN_SEARCH: dict[str, tuple[Any, ...]] = {
    "score": ("dot", "additive", "general", "cosine", "feed_forward"),
    "qk_projection": ("hidden",),
}
# The values with which layers compute the forward pass in their plain form. Their attribute has the option's name.
PLAIN_FORWARD: dict[str, tuple[Any, ...]] = {"residual": (False,)}
# Options that need positions of one kind.
_NEED_POSITIONS = {
    **dict.fromkeys(("rotary_base", "rotary_fraction", "rotary_scaling"), "rotary"),
    **dict.fromkeys(("relative_buckets", "relative_max_distance"), "relative_bias"),
}
# Values of other fields that a field needs in order to be valid or to have an effect.
_COMPANIONS: dict[tuple[type[Config], str], dict[str, Any]] = {
    (TransformerConfig, "max_length"): {"positions": "learned"},
    (ClassifierConfig, "max_length"): {"positions": "learned", "pad_to_max_length": True},
    (ClassifierConfig, "masked"): {"pad_to_max_length": True, "max_length": 14},
    (MaskedConfig, "global_every"): {"encoder_window": 3},
    (MaskedConfig, "local_rotary_base"): {"encoder_window": 3, "global_every": 2, "positions": "rotary"},
    (SequenceClassifierConfig, "dense_norm"): {"dense": "gelu"},
    (RecurrentConfig, "context"): {"attention": "none"},
    (RecurrentConfig, "input_feeding"): {"attention": "luong"},
    (RecurrentConfig, "d_embedding"): {"tie": "all"},
    (DecoderOnlyConfig, "parallel"): {"norm": "pre"},
    **{
        (config, name): {"positions": positions}
        for config in (TransformerConfig, ClassifierConfig, DecoderOnlyConfig, MaskedConfig)
        for name, positions in _NEED_POSITIONS.items()
    },
    **{
        (config, "num_kv_heads"): {"num_heads": 4}
        for config in (TransformerConfig, ClassifierConfig, DecoderOnlyConfig, MaskedConfig)
    },
}


def variants(config: type[Config]) -> list[tuple[str, Config]]:
    """Return the base config, and one config for each value of each field, each with a name."""
    found = [("base", config.parse(_BASE[config], "base"))]
    for name in config.model_fields:
        for value in _values(config, name):
            keys = {**_BASE[config], **_COMPANIONS.get((config, name), {}), name: value}
            found.append((f"{name}={value}", config.parse(keys, f"{name}={value}")))
    return found


def undeclared(config: type[Config]) -> list[str]:
    """Return the fields without any values to compare."""
    return [name for name in config.model_fields if not _values(config, name) and (config, name) not in REFUSED]


def searches_in_plain_form(config: Config) -> bool:
    """Return whether an option has a value that :data:`PLAIN_SEARCH` lists."""
    return any(getattr(config, name, None) in values for name, values in PLAIN_SEARCH.items())


def plain_forward_options(config: Any) -> set[str]:
    """Return the options with a value that :data:`PLAIN_FORWARD` lists."""
    config = getattr(config, "body", config)
    return {name for name, values in PLAIN_FORWARD.items() if getattr(config, name, None) in values}


def random_config(config: type[Config], seed: int) -> Config:
    """Return a valid config in which each field has its base value or, in half of the cases, a random one.

    Each field is drawn by itself, so a new field leaves the others as they are.
    """
    for attempt in itertools.count():
        choose = {name: random.Random(f"{seed} {attempt} {name}") for name in config.model_fields}
        names = [name for name in config.model_fields if _values(config, name) and choose[name].random() < 0.5]
        drawn = {name: choose[name].choice(_values(config, name)) for name in names}
        companions = [_COMPANIONS.get((config, name), {}) for name in names]
        keys = functools.reduce(operator.or_, (_BASE[config], *companions, drawn))
        if needed := [_NEED_POSITIONS[name] for name in drawn if name in _NEED_POSITIONS]:
            keys["positions"] = drawn.get("positions", choose["positions"].choice(needed))
            keys = {
                name: value
                for name, value in keys.items()
                if _NEED_POSITIONS.get(name, keys["positions"]) == keys["positions"]
            }
        with contextlib.suppress(ConfigError):  # a combination that is refused
            return config.parse(keys, "random")
    raise AssertionError("unreachable")


def _values(config: type[Config], name: str) -> list[Any]:
    if (config, name) in REFUSED:
        return []
    return _closed_set(config.model_fields[name].annotation) or _VALUES.get(name, [])


def _closed_set(annotation: Any) -> list[Any]:
    """Return all values of a literal or a boolean, including None if it is allowed."""
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [value for each in get_args(annotation) for value in _closed_set(each)]
        return [None, *inner] if inner else []
    return []
