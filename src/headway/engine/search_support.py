"""Determine whether a model can be converted to an optimized search model, and in which precision.

A model can be converted if each of its options is supported and each of its modules is recognized exactly. An option
that is not listed in :data:`SUPPORTED` is supported only at its inert value (:mod:`headway.config`). So a new option
slows down no model until a model uses it, and no search model silently ignores it. The tests compare every value of
every option with the unconverted model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

import headway.kernels as kernels
from headway.config import ANY_VALUE, Config
from headway.engine.torch_backend import Activation
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16
from headway.models.decoder_only import DecoderOnly
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import (
    CausalBlock,
    CausalStack,
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    GatedFeedForward,
    NoNorm,
    PostNorm,
    PreNorm,
    gelu_tanh,
)
from headway.nn.dropout import Dropout
from headway.nn.embedding import TokenEmbedding
from headway.nn.norms import RMSNorm
from headway.nn.positions import LearnedPositions, NoPositions, RelativeBias, RotaryPositions, SinusoidalPositions
from headway.torch_internals import (
    has_forward_hooks,
    hooks_are_visible,
    module_attributes_and_members,
    module_members_are_visible,
)

Precision = Literal["auto", "float32", "bfloat16", "int8"]

# Options whose values are all supported, in every precision.
_OPTIONS: Mapping[str, Sequence[Any] | None] = dict.fromkeys(
    (
        *("kind", "d_model", "num_heads", "num_kv_heads", "d_key", "d_value", "d_ff"),
        *("encoder_layers", "decoder_layers", "max_length", "encoder_window", "decoder_window"),
        *("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"),  # only training uses them
        *("activation", "norm", "norm_kind", "norm_epsilon", "bias", "qk_norm", "parallel", "residual"),
        *("rotary_base", "rotary_fraction", "rotary_scaling"),
        *("sinusoid_layout", "sinusoid_spacing", "position_offset"),
        *("scale_embedding", "embedding_norm", "output_bias", "tie"),
    ),
    ANY_VALUE,
)
_IN_FLOATS = dict(_OPTIONS) | dict.fromkeys(("positions", "relative_buckets", "relative_max_distance"), ANY_VALUE)
SUPPORTED: dict[Precision, Mapping[str, Sequence[Any] | None]] = {
    "float32": _IN_FLOATS,
    "bfloat16": _IN_FLOATS,
    "int8": {**_OPTIONS, "positions": ("sinusoidal", "learned", "rotary", "none")},
}
"""The supported values of each option, by precision. Options that are not listed must have their inert value."""

_MODULES: frozenset[type[nn.Module]] = frozenset(
    {
        *(Transformer, EncoderStack, DecoderStack, EncoderBlock, DecoderBlock, MultiHeadAttention),
        *(DecoderOnly, CausalStack, CausalBlock),
        *(FeedForward, GatedFeedForward, PostNorm, PreNorm, NoNorm, Dropout, TokenEmbedding),
        *(LearnedPositions, NoPositions, RelativeBias, RotaryPositions, SinusoidalPositions),
        *(nn.Linear, nn.LayerNorm, RMSNorm, nn.Identity, nn.ModuleList),
    }
)
# The attributes and parts of attention layers that searches use. All others must be None.
_ATTENTION = frozenset(
    {
        *("num_heads", "num_kv_heads", "queries_per_key", "d_key", "d_value", "widths", "window"),
        *("projection", "output", "query_norm", "key_norm", "rotary", "relative_bias", "dropout"),
    }
)
_ACTIVATIONS: tuple[Activation, ...] = (F.relu, F.gelu, gelu_tanh, F.silu, F.sigmoid)


def unsupported_reason(model: Any, precision: Precision = "float32") -> str | None:
    """Return why a model has no optimized form for searches in this precision, or None if it has one.

    A model without an optimized form in float32 has none in any precision: it is searched unconverted, in float32.
    "auto" means any precision, and is equivalent to float32.
    """
    if original_type(model) not in (Transformer, DecoderOnly):
        kind = getattr(getattr(model, "config", None), "kind", type(model).__name__)
        return (
            f"{kind} models have no form that is optimized for search; the model searches in its own form, in float32"
        )
    ending = "has no form that is optimized for search; the model searches in its own form, in float32"
    if not hooks_are_visible():
        return f"a model whose hooks this version of PyTorch does not expose {ending}"
    if not module_members_are_visible():
        return f"a model whose parts this version of PyTorch does not expose {ending}"
    if reason := _unsupported_option(model.config, precision):
        return reason
    for name, module in model.named_modules():
        if original_type(module) not in _MODULES:
            return f"{name}, a {type(module).__name__}, {ending}"
        if isinstance(module, MultiHeadAttention) and (part := _unsupported_part(module)):
            return f"{name}, an attention layer with {part}, {ending}"
        if isinstance(module, (FeedForward, GatedFeedForward)) and module.activation not in _ACTIVATIONS:
            return f"{name}, with the activation {module.activation}, {ending}"
        if has_forward_hooks(module):
            return f"{name or 'the model'}, with a hook that must be called, {ending}"
    return None


def _unsupported_part(attention: MultiHeadAttention) -> str | None:
    """Return the name of a part or attribute that searches would ignore."""
    values = module_attributes_and_members(attention).items()
    return next((name for name, value in values if name not in _ATTENTION and value is not None), None)


def _unsupported_option(config: Config, precision: Precision) -> str | None:
    """Return a message that names an option without an optimized form, or None if all options have one."""
    listed_in = "headway/engine/search_support.py lists the options that have one"
    if name := config.unsupported_option(SUPPORTED["float32"]):
        return (
            f"{name} = {getattr(config, name)!r} has no form that is optimized for search ({listed_in}); "
            "the model searches in its own form, in float32"
        )
    if precision != "auto" and (name := config.unsupported_option(SUPPORTED[precision])):
        return f"{name} = {getattr(config, name)!r} has no form for searches in {precision} ({listed_in})"
    return None


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """Return ``name``, or the fastest precision on this machine if ``name`` is "auto".

    The fastest precision is int8 on a CPU if the compiled kernels run (:mod:`headway.kernels`), otherwise bfloat16 if
    the hardware has fast bfloat16 products, otherwise float32. Raises :class:`ConfigError` if int8 is requested but
    cannot run.
    """
    if name == "int8" and device.type != "cpu":
        raise ConfigError(f"precision int8 is not supported on {device.type}; use --device cpu or --precision auto")
    int8 = name in ("auto", "int8") and device.type == "cpu" and kernels.is_available()
    if name == "int8" and not int8:
        raise ConfigError(
            f"precision int8 cannot run: {kernels.unavailable_reason()}; use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return fastest_float_precision(device)


def fastest_float_precision(device: torch.device) -> Precision:
    """Return bfloat16 if the hardware has fast bfloat16 products, otherwise float32."""
    return "bfloat16" if has_fast_bfloat16(device) else "float32"


def search_precision(model: Any, name: Precision, device: torch.device) -> Precision:
    """Return the precision of searches with ``model`` on this machine if ``name`` is requested.

    "auto" selects the fastest precision that the machine and the model support.

    Raises:
        ConfigError: The machine or the model does not support the precision.
    """
    chosen = choose_precision(name, device)
    if name != "auto":
        if name != "float32" and (reason := unsupported_reason(model, name)):
            raise ConfigError(f"precision {name!r}: {reason}")
        return chosen
    candidates: tuple[Precision, ...] = (chosen, fastest_float_precision(device))
    return next((precision for precision in candidates if unsupported_reason(model, precision) is None), "float32")


def stored_int8_note(model: Any, precision: Precision) -> str | None:
    """Return a note if a model computes in ``precision`` with weights that are stored in 8-bit integers, or None."""
    if model.int8_weights is None or precision == "int8":
        return None
    return f"has weights in 8-bit integers, and computes in {precision} with the dequantized weights"


def describe_search_acceleration(model: Any) -> str:
    """Describe the precisions in which searches use an optimized form of ``model``, or why they do not."""
    if reason := unsupported_reason(model):
        return f"plain: {reason}"
    precisions: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
    missing = {precision: unsupported_reason(model, precision) for precision in precisions}
    missing["int8"] = missing["int8"] or kernels.unavailable_reason()
    fast = [precision for precision in precisions if not missing[precision]]
    listed = " or ".join(filter(None, (", ".join(fast[:-1]), fast[-1])))
    plain = "".join(f"; not in {precision} ({reason})" for precision, reason in missing.items() if reason)
    return f"optimized, in {listed}{plain}"


def original_type(module: object) -> type:
    """Return a module's class, or its original class if :mod:`headway.engine` replaced it."""
    cls = type(module)
    while cls.__module__.startswith("headway.engine."):
        cls = cls.__mro__[1]
    return cls
