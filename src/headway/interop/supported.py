"""Refuse models that another toolkit cannot represent, by the name of the option.

An exporter lists, for each field of a config, the values that it supports. A field that it does not list must have its
default value: with it, a model computes what models computed before the field existed. An option that is added to a
config is therefore refused by every exporter that has not been taught it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.bundle import Bundle
from headway.errors import ConfigError
from headway.models.transformer import Transformer
from headway.nn.blocks import BlockConfig

Supported = Mapping[str, Sequence[Any] | None]
"""The supported values of each field."""

ANY = None
_HEAD_WIDTH = "d_model / num_heads"  # in place of a number in an exporter's list
SIZES: Supported = dict.fromkeys(("d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers"), ANY)
EQUAL_HEADS: Supported = dict.fromkeys(("d_key", "d_value"), (None, _HEAD_WIDTH))
GATES = {"glu": "sigmoid", "reglu": "relu", "geglu": "gelu", "swiglu": "silu"}
"""The function of the gate in each gated activation."""
_TRAINING = (
    *("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"),
    *("embedding_dropout", "word_dropout", "pooled_dropout"),
)
COMMON: Supported = {**SIZES, **dict.fromkeys(_TRAINING, ANY)}
"""Sizes, and options of training, which do not affect what an exported model computes."""


def refuse_unsupported(config: BlockConfig, toolkit: str, supported: Supported) -> None:
    """Raise :class:`ConfigError` for the first field of ``config`` whose value ``toolkit`` does not support."""
    for name, field in type(config).model_fields.items():
        value, listed = getattr(config, name), supported.get(name, (field.default,))
        if listed is ANY:
            continue
        if value not in [config.d_model / config.num_heads if each == _HEAD_WIDTH else each for each in listed]:
            accepted = ", ".join(str(each).lower() for each in listed if each is not None) or "the default"
            raise ConfigError(f"{name} = {value!r} cannot be exported to {toolkit}; supported is {accepted}")


def transformer_of(bundle: Bundle, toolkit: str) -> Transformer:
    """Return the bundle's model if it is a Transformer; raise :class:`ConfigError` otherwise."""
    if not isinstance(bundle.model, Transformer):
        kind = bundle.model.config.kind
        raise ConfigError(f"model.kind = {kind!r} cannot be exported to {toolkit}; supported is transformer")
    return bundle.model
